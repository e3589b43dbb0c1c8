"""A silent client is asked, and is left when it does not answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sluice.actors.pulsar.codec.frames import Buffer, Cutter, encode
from sluice.actors.pulsar.codec.protocol import Command, command, parse
from sluice.actors.pulsar.conversation.client_connection import KEEP_ALIVE_MS, ClientConnection
from sluice.actors.pulsar.conversation.gateway.gateway import Certified, Gateway
from tests.sim.world import World

HELLO = encode(command("connect", client_version="raw", protocol_version=20))


class Wire:
    """A link that records what was said and whether it is closed. Implements
    actors.pulsar.conversation.gateway.gateway.Link.
    """

    peer = "text"

    def __init__(self) -> None:
        self.closed = False
        self._cutter = Cutter()
        self._said: list[str] = []

    def said(self) -> list[str]:
        """The names of the commands since the last look."""
        said, self._said = self._said, []
        return said

    def write(self, *data: Buffer) -> None:
        """See Link."""
        for frame in self._cutter.feed(b"".join(data)):
            self._said += [field.name for field, _ in parse(Command, frame.command).ListFields() if field.number > 1]

    def close(self) -> None:
        """See Link."""
        self.closed = True

    def pause(self) -> None:
        """See Link."""

    def unsent(self) -> int:
        """See Link."""
        return 0

    def resume(self) -> None:
        """See Link."""


def played(scenario: Callable[[World, ClientConnection, Wire], Awaitable[None]]) -> None:
    """With a connection to a gateway that asks nobody."""

    async def main(world: World) -> None:
        wire = Wire()
        await scenario(world, ClientConnection(Gateway(world.client("gateway"), "controller"), wire), wire)

    World(0).play(main)


async def spells(world: World, count: float) -> None:
    await world.client("clock").clock.sleep(int(count * KEEP_ALIVE_MS))


def test_silent_client_is_asked_and_then_left() -> None:
    async def scenario(world: World, connection: ClientConnection, wire: Wire) -> None:
        connection.data(HELLO)
        await spells(world, 1.5)
        assert wire.said() == ["connected", "ping"]
        await spells(world, 1)
        assert not wire.closed
        await spells(world, 1)
        assert wire.closed

    played(scenario)


def test_answering_client_stays_and_speaking_one_is_not_asked() -> None:
    async def scenario(world: World, connection: ClientConnection, wire: Wire) -> None:
        connection.data(HELLO)
        for name in ("pong", "flow"):
            for _ in range(5):
                await spells(world, 0.45)
                connection.data(encode(command(name, **({"consumer_id": 1, "permits": 1} if name == "flow" else {}))))
        assert (wire.said(), wire.closed) == (["connected"], False)
        for _ in range(5):
            await spells(world, 1)
            if "ping" in wire.said():
                connection.data(encode(command("pong")))
        assert not wire.closed

    played(scenario)


def test_client_without_a_connect_is_left() -> None:
    async def scenario(world: World, connection: ClientConnection, wire: Wire) -> None:
        await spells(world, 1.5)
        assert (wire.said(), wire.closed) == ([], True)

    played(scenario)


def test_a_connection_ends_with_its_token() -> None:
    """To the second, and not at the next look whether the client is silent."""

    async def scenario(world: World) -> None:
        clock = world.client("gateway").clock
        ends = clock.now() // 1000 + 10

        async def authenticate(method: str, data: bytes) -> Certified:
            return Certified("till", ends)

        wire = Wire()
        connection = ClientConnection(Gateway(world.client("gateway"), "controller", authenticate=authenticate), wire)
        connection.data(HELLO)
        await clock.sleep(ends * 1000 - clock.now() - 10)
        assert (wire.said(), wire.closed) == (["connected"], False)
        await clock.sleep(20)
        assert wire.closed

    World(0).play(scenario)

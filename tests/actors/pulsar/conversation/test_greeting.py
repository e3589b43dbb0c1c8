"""Before it is let in a client says CONNECT, once, and little more of it is kept."""

from __future__ import annotations

from sluice.actors.policies.authorization import Authorization
from sluice.actors.pulsar.codec.frames import U32, encode
from sluice.actors.pulsar.codec.protocol import command
from sluice.actors.pulsar.conversation.client_connection import ClientConnection
from sluice.actors.pulsar.conversation.gateway.gateway import Certified, ClientIdentity
from sluice.actors.pulsar.conversation.limits.intake import GREETING_BYTES
from sluice.storage.errors import Invalid
from tests.actors.pulsar.conversation.limits.test_intake import PING, Slow, Stub, passes, played
from tests.actors.pulsar.test_keep_alive import HELLO
from tests.sim.world import World


def test_one_connect_is_under_way() -> None:
    """Commands behind CONNECT wait, and are dropped if it is refused; a client that is gone is not verified."""

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        stub = Stub()

        async def authenticate(method: str, data: bytes) -> ClientIdentity:
            await stub.wait(world)
            raise Invalid("nobody")

        gateway = connection.gateway
        gateway.authenticate = authenticate
        for size in (1, 1_000):
            connection.data(HELLO * size)
            await passes(world, 100)
        assert (stub.asked, wire.paused) == (1, False)  # of its end we want to hear
        stub.go.set()
        await passes(world, 100)
        assert (stub.asked, wire.said(), wire.closed) == (1, ["error"], True)
        stub.go.clear()
        gone = ClientConnection(gateway, Slow())
        gone.data(HELLO)
        await passes(world, 100)
        gone.over()
        await passes(world, 100)
        assert (stub.asked, stub.cancelled) == (2, 1)

    played(scenario, greeted=False)


def test_a_second_connect_breaks_the_protocol() -> None:
    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        connection.data(HELLO)
        await passes(world, 100)
        assert (wire.said(), wire.closed) == (["error"], True)

    played(scenario)


def test_before_the_answer_to_connect_little_is_kept() -> None:
    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        stub = Stub()

        async def authenticate(method: str, data: bytes) -> ClientIdentity:
            await stub.wait(world)
            return Certified("till")

        connection.gateway.authenticate = authenticate
        connection.data(HELLO + PING * 10)
        await passes(world, 100)
        assert not wire.closed
        connection.data(PING * (GREETING_BYTES // len(PING)))
        assert wire.closed

    played(scenario, greeted=False)


def test_a_large_frame_is_none_before_the_greeting() -> None:
    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        connection.data(U32.pack(GREETING_BYTES + 1))
        assert (wire.said(), wire.closed) == (["error"], True)

    played(scenario, greeted=False)


def test_a_proxy_that_asks_for_somebody_else_is_refused() -> None:
    """Every client behind the proxy would have the proxy's rights. Without rights it does not matter who asks."""

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        async def authenticate(method: str, data: bytes) -> ClientIdentity:
            return Certified("proxy")

        gateway = connection.gateway
        gateway.authenticate = authenticate
        asked = encode(command("connect", protocol_version=20, original_principal="till"))
        connection.data(asked)
        await passes(world, 100)
        assert (wire.said(), wire.closed) == (["connected"], False)
        gateway.access.enforce(Authorization(superusers=("proxy",)))
        other = Slow()
        ClientConnection(gateway, other).data(asked)
        await passes(world, 100)
        assert (other.said(), other.closed) == (["error"], True)

    played(scenario, greeted=False)

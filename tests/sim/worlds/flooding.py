"""A client of a gateway that asks without end and reads nothing, and what its connection may hold meanwhile.

What it asks concerns nobody else's messages, so that everything is judged as ever. It writes for as long as a socket
would take it.
"""

from __future__ import annotations

import random

from sluice.actors.pulsar.codec.frames import encode
from sluice.actors.pulsar.codec.protocol import command
from sluice.actors.pulsar.conversation.client_connection import ClientConnection
from sluice.actors.pulsar.conversation.limits.intake import MOST_REQUESTS, TURN
from tests.sim.pipes import End, Pipes
from tests.sim.world import World
from tests.sim.worlds.broker import TOPIC
from tests.sim.worlds.wire import ROLE

ASKED = ("lookup", "partition_metadata", "get_schema")
AT_ONCE = 200
SOCKET_BYTES = 200_000
"""So much may lie between it and the gateway before it must wait."""
ANSWER_BYTES = 500
"""No answer to it is longer."""


class Flooder:
    """See the module. It counts what it has asked."""

    def __init__(self, world: World, pipes: Pipes, servers: list[str]) -> None:
        self._world, self._servers = world, servers
        self._rng = random.Random(f"flooder/{world.seed}")
        self._pipes = Pipes(world)  # draws of its own: the others' connections are as they would be without it
        self._pipes.machines = pipes.machines
        who = {"auth_method_name": ROLE, "auth_data": pipes.role.encode()} if pipes.role else {}
        self._hello = encode(command("connect", client_version="flooder", protocol_version=20, **who))
        self._process = world.process(world.client("flooder").me.partition("/")[0])
        self.asked = 0

    async def run(self, until: int) -> None:
        """Flood one gateway after another, until so many milliseconds of the world are over."""
        loop = self._world.loop
        while loop.now < until:
            found = await self._pipes.connect(self._process, self._rng.choice(self._servers))
            if found is not None:
                end, gateway = found
                end.other._process.task(gateway.accept(end.other, []), "accept")
                end.write(self._hello)
                while not end.closed and loop.now < until:
                    if end.unsent() < SOCKET_BYTES and _greeted(end.other):
                        end.write(b"".join(self._frame() for _ in range(AT_ONCE)))
                    await loop.pause(self._rng.randrange(1, 20))
                    _check(end.other)
                end.break_off()
                end.other.learn()
            await loop.pause(50)

    def _frame(self) -> bytes:
        self.asked += 1
        name = self._rng.choice((*ASKED, "ping"))
        return encode(command(name) if name == "ping" else command(name, topic=TOPIC, request_id=self.asked))


def _greeted(end: End) -> bool:
    """Before it is let in it may send little, which is another limit."""
    return isinstance(end.reader, ClientConnection) and end.reader.greeted


def _check(end: End) -> None:
    """Check that the gateway holds a bounded amount for a client."""
    connection = end.reader
    if isinstance(connection, ClientConnection) and not connection.closed:
        requests, waiting = connection.intake._requests, connection._waiting()
        assert requests <= MOST_REQUESTS + TURN, f"{requests} requests of one connection are under way"
        assert waiting <= SOCKET_BYTES, f"{waiting} bytes of one connection were read and wait"
        most = end._most + (MOST_REQUESTS + 2 * TURN) * ANSWER_BYTES
        assert end.unsent() <= most, f"{end.unsent()} bytes wait for a client that does not read"

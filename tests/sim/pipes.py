"""Simulated TCP: ordered bytes in both directions between two processes, until one of them, or the network, ends it.

What is written arrives in order, late, and in pieces of any size. A cut between two machines holds bytes back, and
they come when it heals. A connection that is broken loses what is on its way, also half of a frame; each end learns of
it when it does, or never. A process that ends breaks its connections, one that is frozen reads nothing.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from tests.sim.machine_ports import Machines
from tests.sim.world import Process, World

HELD_MS = 20
"""Between two looks whether a cut has healed."""
LOST_MS = 200
"""So much later comes what the network loses: it is sent again."""
MOST_UNREAD = (300, 3_000, 1 << 30)
"""So many bytes may wait for a client before its gateway is told that it takes no more."""


class Reader(Protocol):
    """A reader at one end of a connection."""

    def data(self, chunk: bytes) -> None:
        """Take bytes that came."""

    def over(self) -> None:
        """Learn that the connection is over."""


class End:
    """One end of a connection, in a process. Implements actors.pulsar.conversation.gateway.gateway.Link."""

    def __init__(self, pipes: Pipes, process: Process) -> None:
        self._pipes, self._process = pipes, process
        self.peer = process.name
        self.other: End = self
        self.reader: Reader | None = None
        self.choke: Callable[[bool], None] = lambda choked: None
        self._inbox: deque[bytes] = deque()
        self._transit: deque[tuple[int, bytes]] = deque()
        self._pumping = self._paused = self._choked = self._told = False
        self.closed = False
        """Nothing is written any more."""
        self._most = pipes.rng.choice(MOST_UNREAD)
        self._unread = 0

    # -- what its owner does --

    def write(self, *parts: bytes | memoryview) -> None:
        """See Link."""
        data = b"".join(parts)
        if self.closed or not data:
            return
        self._unread += len(data)
        if self._unread > self._most and not self._choked:
            self._choked = True
            self.choke(True)
        rng, at = self._pipes.rng, 0
        while at < len(data):
            size = len(data) - at if rng.random() < 0.7 else rng.randrange(1, len(data) - at + 1)
            self._put(data[at : at + size])
            at += size

    def close(self) -> None:
        """See Link."""
        if not self.closed:
            self.closed = True
            self._put(b"")

    def pause(self) -> None:
        """See Link."""
        self._paused = True

    def unsent(self) -> int:
        """See Link."""
        return self._unread

    def resume(self) -> None:
        """See Link."""
        self._paused = False
        self._process.task(self._read(), "read")

    async def attach(self, reader: Reader) -> None:
        """Let a reader read from now on; the connection may be over already."""
        self.reader = reader
        if self._told:
            reader.over()
        await self._read()

    # -- on the way --

    def _put(self, piece: bytes) -> None:
        due = self._pipes.world.loop.now + self._pipes.delay(self._process.machine, self.other._process.machine)
        if self._transit:
            due = max(due, self._transit[-1][0])
        self._transit.append((due, piece))
        if not self._pumping:
            self._pumping = True
            self._wait()

    def _wait(self) -> None:
        loop = self._pipes.world.loop
        loop.after(max(self._transit[0][0] - loop.now, 1), self._pump)

    def _pump(self) -> None:
        network, now = self._pipes.world.network, self._pipes.world.loop.now
        if network.is_cut(self._process.machine, self.other._process.machine):
            self._pipes.world.loop.after(HELD_MS, self._pump)
            return
        while self._transit and self._transit[0][0] <= now:
            self.other.arrive(self._transit.popleft()[1])
        self._pumping = bool(self._transit)
        if self._pumping:
            self._wait()

    def arrive(self, piece: bytes) -> None:
        """A piece is there; b"" is the end."""
        if self._process.alive and not self._told:
            self._inbox.append(piece)
            self._process.task(self._read(), "read")

    async def _read(self) -> None:
        while self.reader is not None and self._inbox and not self._paused and not self._told:
            piece = self._inbox.popleft()
            if not piece:
                self.learn()
                return
            self.other.taken(len(piece))
            self.reader.data(piece)

    def taken(self, size: int) -> None:
        """The other end has read so many bytes."""
        self._unread -= size
        if self._choked and self._unread * 2 <= self._most:
            self._choked = False
            if self._process.alive:
                self._process.task(self._unchoke(), "unchoke")

    async def _unchoke(self) -> None:
        if not self._choked and not self._told:
            self.choke(False)

    def break_off(self) -> None:
        """Nothing passes any more from here."""
        self.closed = True
        self._transit.clear()

    def learn(self) -> None:
        """Tell the owner of this end that the connection is over."""
        self.closed = True
        if self._process.alive and not self._told:
            self._told = True
            self._inbox.clear()
            if self.reader is not None:
                self.reader.over()

    async def told(self) -> None:
        """As `learn`, as a task of its process."""
        self.learn()


class Pipes:
    """All connections of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"pipes/{world.seed}")
        self.open: list[tuple[End, End]] = []
        """Client's end and server's end of those that nobody has broken."""
        self.role = ""
        """What clients present to gateways that want to know who they are."""
        self.machines = Machines(world)
        """Their ports, for who listens at one."""
        world.ears.append(self._hear)

    def find(self, server: str) -> Process | None:
        """Return the process that would take a connection to this server."""
        process = self.machines.listener(server)
        if process is None and server in self.world.names():
            process = self.world.process(server)
        return process

    def delay(self, source: str, target: str) -> int:
        """Milliseconds that a piece is on its way."""
        faults = self.world.network.pairs.get((source, target), self.world.network.faults)
        late = LOST_MS if self.rng.random() < faults.loss else 0
        return self.rng.randint(*faults.delay_ms) + late

    async def connect(self, client: Process, server: str) -> tuple[End, Any] | None:
        """The client's end of a new connection, and the actor that listens there; None if nobody does.

        server: a process, or a machine with ports.
        """
        process = self.find(server)
        await self.world.loop.pause(1 + self.rng.randrange(5))
        if process is None or not process.alive or process.actor is None:
            return None
        if self.world.network.is_cut(client.machine, process.machine):
            return None
        here, there = End(self, client), End(self, process)
        here.other, there.other = there, here
        there.peer = client.name
        self.open.append((here, there))
        return here, process.actor

    def hang_up(self) -> None:
        """Break a connection, with whatever is on its way; the ends learn of it at once, later, or never."""
        self.open = [pair for pair in self.open if not any(end.closed for end in pair)]
        if not self.open:
            return
        pair = self.open.pop(self.rng.randrange(len(self.open)))
        self.world.record("nemesis", "hangs up", client=pair[1].peer)
        self._break(pair)

    def _break(self, pair: tuple[End, End]) -> None:
        for end in pair:
            end.break_off()
        for end in pair:
            if self.rng.random() < 0.8:  # else it finds out by asking
                self.world.loop.after(self.rng.choice((0, 0, 30, 2_000)), self._tell, end)

    def _tell(self, end: End) -> None:
        if end._process.alive:
            end._process.task(end.told(), "over")

    def _hear(self, process: Process, event: str, fields: dict[str, object]) -> None:
        if event != "ended":
            return
        mine = [pair for pair in self.open if process in (pair[0]._process, pair[1]._process)]
        self.open = [pair for pair in self.open if pair not in mine]
        for pair in mine:
            self._break(pair)

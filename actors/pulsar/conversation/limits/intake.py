"""How much one connection may ask of its gateway, and when it is read.

A client decides how much it sends, and when it reads what it is answered. So a connection is read only while there is
room for what comes of it. Reading stops

* while the client does not take what it was written, because every request would add an answer to that;
* while MOST_REQUESTS of its requests, or REQUEST_BYTES of them, are under way;
* while PENDING_BYTES of what it publishes are;
* while a partition to which it publishes has had what its publish rate allows;
* while it has a CONNECT under way: what a stranger sends behind it waits for the outcome;
* while all connections together hold BUFFER_BYTES, for each that holds more than OWN_BYTES of them.

It goes on when there is room again. What was read before it stopped waits, in its order, and commands are taken up in
turns, so that a client that floods gets a share of the gateway, not all of it. What a turn costs shows only afterwards,
in the tasks that it has begun: they make the event loop late for everybody. So a connection rests after a turn, and the
later the loop was, the longer.

SENDs are what a gateway is for. A connection that has the gateway to itself has them taken up as they come, as many
together as there are. While others speak they are part of a turn: a message of another one then waits for a turn, and
not for a megabyte of this one's.

SENDs of thousands of producers are as many pieces of work, though, and each makes every turn of the event loop longer
until it is done. A heartbeat takes a dozen of these turns, and an append more: where each takes a second, healthy
sessions and appends are given up. So a connection with MANY_PRODUCERS has its SENDs taken up
TURN_OF_MANY at a time. It then rests for as long as the loop's lateness demands, because nothing else shows how much of
the earlier work is left. With fewer producers several messages of one wait behind its append, and go together: taken up
in turns they would cost more, and not less.

Questions cost other actors and threads something as well. So where questions of a connection wait for their turn while
others speak, the next one begins after a rest when one has its answer. The longer the answer took, the longer is the
rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sluice.actors.ports import Clock, Ports
from sluice.actors.runtime.waiting import Signal

GREETING_BYTES = 64 * 1024
"""The most bytes that are read of a client before it is let in, and the largest frame until then."""
PENDING_BYTES = 32 * 1024 * 1024
"""The bytes of sends under way at which a connection is read no further."""
MOST_REQUESTS = 1_000
"""The requests of one connection under way at which it is read no further."""
REQUEST_BYTES = 4 * 1024 * 1024
"""The same in bytes of the requests."""
MOST_AT_ONCE = 20
"""The number of questions of one connection that are asked at once; later ones wait for their turn."""
BUFFER_BYTES = 128 * 1024 * 1024
"""The most bytes that all connections of a gateway hold together, of sends under way and of incomplete frames."""
OWN_BYTES = 256 * 1024
"""The bytes of these that a connection may hold in any case."""
TURN = 50
"""The number of frames that are taken up one by one before other connections have their turn,"""
VECTORIZED_TURN = 500
"""or of SENDs that are decoded together."""
TURN_MS = 50
"""The time after which a turn ends, whatever is left of it."""
MANY_PRODUCERS = 2_000
"""The number of producers from which on a connection has its SENDs taken up TURN_OF_MANY at a time."""
TURN_OF_MANY = 100
"""The most SENDs that a turn of such a connection takes up."""
SPEAKS_MS = 200
"""A client that has sent something within this time counts as one for which others make room."""
REST_MS = 1
"""The least time of a rest;"""
RESTS = 3
"""a rest is this multiple of the time that it is measured by,"""
MOST_REST_MS = 200
"""and at most this, because other work may have taken the time;"""
MOST_REST_OF_MANY_MS = 1_000
"""or at most this, if sends of many producers are under way."""
MOST_TEXT = 1_000
"""The most letters of an error's text that are sent: some texts repeat what the client sent."""


async def rest(clock: Clock, took: int = 0, most: int = MOST_REST_MS) -> None:
    """Leave time to others after work that took this long (ms), and more, up to `most`, if the event loop is late."""
    begun = clock.monotonic()
    await clock.sleep(REST_MS)
    late = clock.monotonic() - begun - REST_MS
    if (more := RESTS * max(late, took)) > 0:
        await clock.sleep(min(more, most))


class Speakers:
    """Whether a connection has the gateway to itself."""

    def __init__(self) -> None:
        self._last: object = None
        self._last_at = self._other_at = -SPEAKS_MS
        """When the last one was heard, and when the last one before it."""

    def heard(self, who: object, now: int) -> None:
        """Note that a connection has said something."""
        if who is not self._last:
            self._last, self._other_at = who, self._last_at
        self._last_at = now

    def others(self, who: object, now: int) -> bool:
        """Return whether another client has sent something lately."""
        return now - (self._other_at if who is self._last else self._last_at) < SPEAKS_MS


class HeldBytes:
    """How many bytes the connections of a gateway hold of what they have read."""

    def __init__(self) -> None:
        self.total = 0
        self._waiting: dict[Intake, None] = {}

    def change(self, size: int) -> None:
        """Add a number of bytes, or subtract it if it is negative."""
        before, self.total = self.total, self.total + size
        if before > BUFFER_BYTES >= self.total:
            waiting, self._waiting = self._waiting, {}
            for intake in waiting:
                intake.notify()

    @property
    def full(self) -> bool:
        """Whether it is more than the gateway wants to hold."""
        return self.total > BUFFER_BYTES

    def tell(self, intake: Intake) -> None:
        """Tell this one when it is less again."""
        self._waiting[intake] = None


class Turn:
    """A request that is under way. It ends once, even if several callers end it."""

    def __init__(self, intake: Intake, size: int) -> None:
        self._intake, self._size = intake, size
        self._taken: list[asyncio.Semaphore] = []
        self._since = 0
        self.begun = self._over = False

    async def acquire(self, ports: Ports, *, large: bool, laborious: bool = False) -> None:
        """Wait until the connection may ask one more question. large: its answer may be, so there is one at a time,
        and none before the client has taken the earlier ones. laborious: much is read for it, so one at a time as well.
        """
        alone = (self._intake.large, self._intake.at_once)
        for semaphore in alone if large or laborious else alone[1:]:
            await semaphore.acquire()
            self._taken.append(semaphore)
        if large:
            await self._intake.drained.wait(ports)
        self.begun, self._since = True, ports.clock.monotonic()

    async def rest(self, clock: Clock) -> None:
        """Pause after an answer if more requests of the connection wait for their turn, so that other connections get
        time.
        """
        if self._intake.queued:
            await rest(clock, clock.monotonic() - self._since)

    def over(self) -> None:
        """Give back the request's turn, at most once: it is answered, or it waits for another client and counts as one
        of the connection's producers meanwhile.
        """
        if not self._over:
            self._over = True
            for semaphore in self._taken:
                semaphore.release()
            self._intake.requested(-1, -self._size)


class Intake:
    """The limits of one connection. changed: called when it may be full or have room again."""

    def __init__(self, held: HeldBytes, changed: Callable[[], None]) -> None:
        self._held, self._changed = held, changed
        self._requests = self._bytes = self._pending = self._unfinished = 0
        self._over = False
        self.choked = self.connecting = self.throttled = False
        self.room = Signal()
        """Set when something has changed."""
        self.drained = Signal()
        """Set while the client takes what it is written."""
        self.drained.set()
        self.at_once = asyncio.Semaphore(MOST_AT_ONCE)
        self.large = asyncio.Semaphore(1)

    @property
    def full(self) -> bool:
        """Whether no more requests are handled now."""
        busy = self._requests >= MOST_REQUESTS or self._bytes >= REQUEST_BYTES or self._pending > PENDING_BYTES
        return self.choked or self.connecting or self.throttled or busy

    @property
    def queued(self) -> bool:
        """Whether requests wait for their turn."""
        return self._requests > MOST_AT_ONCE

    @property
    def crowded(self) -> bool:
        """Whether nothing more is read now, because all connections together hold too much."""
        crowded = self._held.full and self._pending + self._unfinished > OWN_BYTES
        if crowded:
            self._held.tell(self)
        return crowded

    def notify(self) -> None:
        self.room.set()
        self._changed()

    def pending(self, size: int) -> None:
        """Add a number of bytes of sends under way; negative: subtract."""
        if not self._over:
            self._pending += size
            self._held.change(size)
            self.notify()

    def unfinished(self, size: int) -> None:
        """This number of bytes was read and waits, for the rest of a frame or for room."""
        if not self._over and size != self._unfinished:
            before, self._unfinished = self._unfinished, size
            self._held.change(size - before)
            self.notify()

    def request(self, size: int) -> Turn:
        """Begin one more request with this number of bytes."""
        self.requested(1, size)
        return Turn(self, size)

    def requested(self, count: int, size: int) -> None:
        """Add a number of requests under way; negative: subtract."""
        self._requests += count
        self._bytes += size
        self.notify()

    def choke(self, choked: bool) -> None:
        """The client has stopped reading, or reads again."""
        self.choked = choked
        if choked:
            self.drained.clear()
        else:
            self.drained.set()
        self.notify()

    def connect(self, connecting: bool) -> None:
        """A CONNECT is under way, or has its answer."""
        self.connecting = connecting
        self.notify()

    def throttle(self, throttled: bool) -> None:
        """Note whether the connection's publishing exceeds a rate."""
        self.throttled = throttled
        self.notify()

    def end(self) -> None:
        """The connection is over: it holds nothing any more."""
        if not self._over:
            self._over = True
            self._held.change(-self._pending - self._unfinished)

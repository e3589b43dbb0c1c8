"""Publishes to a partition in waves: what the producers of a process have waiting for it goes as one run.

One wave is under way for each partition. Batches that are sent meanwhile gather and go with the next one, and a message
that is alone goes at once. The waves of all partitions begin together, in rounds. A batch that is large anyway goes by
itself, beside the waves.

A wave is tried once. If it is refused, or its outcome is unknown, each producer publishes its part by itself until the
part is stored or refused (actors.producer.producer), and joins no wave meanwhile. So a part keeps its place before
everything that its producer sends later, and the owner knows what it has stored by producer and sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Protocol
from weakref import WeakValueDictionary

import pyarrow as pa

from sluice.actors.messages import Published, PublishMany
from sluice.actors.ports import Address, Ports, Timer, Unknown
from sluice.actors.ports.wire import Blob
from sluice.actors.producer.batches import Outgoing
from sluice.actors.runtime.waiting import SharedFuture, SharedTimers, ask, soon
from sluice.storage.errors import Invalid, SluiceError
from sluice.storage.format.batch import MAX_RUN_MESSAGES, StoredBatch, has_keyed_delay, joined
from sluice.storage.format.frame import MAX_NAMES_BYTES, MAX_SEGMENTS, Run, make_run

Outcome = Published | Unknown | SluiceError
"""The end of one attempt to publish."""
Over = Callable[[Callable[[], None]], None]
"""Called once at the end of an attempt, with a function that reports the outcome: the round calls it."""
PUBLISH_TIMEOUT = 10_000
JOINT_BYTES = 64 * 1024
"""A batch of more bytes goes by itself: it costs no less together with others."""
WAVE_BYTES = 1024 * 1024
"""The most bytes of one wave."""
MOST_APPENDS = 100
ROUND_MS = 20
RETURN_MS = 4
ENOUGH = 64
MOST_SKIPPED = 16
PATIENCE_MS = 3_000


def _nothing() -> None:
    """Settle nothing."""


@dataclass(slots=True)
class PublishColumns:
    """The columns of a `PublishMany`, one row for each producer."""

    producers: list[str] = field(default_factory=list)
    sessions: list[int] = field(default_factory=list)
    first_sequences: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    follows: list[int] = field(default_factory=list)


class WaveProducer(Protocol):
    """A producer on one partition, or several that send together, as the waves see them.

    segments: how many they are. name_bytes: of their names in UTF-8. alone: its batches always go by themselves.
    on_published: told of each run of a wave once.
    """

    segments: int
    name_bytes: int
    address: Address
    alone: bool
    on_published: Callable[[Run, Published, StoredBatch], None]

    @property
    def head(self) -> Outgoing | None:
        """The batch that is to be published next."""

    def gather(self) -> tuple[list[Outgoing], int, int]:
        """Take the head and what may join it in one run; how many messages and bytes these are."""

    def go_on(self) -> None:
        """Wait for the next wave if anything is queued."""

    def add_segments(self, to: PublishColumns, gathered: list[Outgoing], count: int) -> None:
        """Add what an owner must know of these. count: their messages."""

    def publish(self, gathered: list[Outgoing], over: Over) -> None:
        """Publish these as a run of their own, once. over: called at the end of the attempt. Only for one segment."""

    def confirm(self, gathered: list[Outgoing], ledger: int, first_entry: int) -> None:
        """Report that these are stored from this entry on. ledger 0: the place is forgotten."""

    def publish_alone(self, gathered: list[Outgoing], outcome: Outcome | None = None) -> None:
        """Publish these beside the waves, until they are stored or refused. outcome: of a first attempt."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a producer in a wave. count: its messages."""

    producer: WaveProducer
    group: list[Outgoing]
    count: int


def _publish_apart(parts: list[_Part], outcome: Outcome | None = None) -> None:
    """Let each producer publish its part by itself. outcome: of the attempt to publish them together."""
    for part in parts:
        part.producer.publish_alone(part.group, outcome)


class Waves:
    """The waves of a client or a gateway, to all partitions."""

    def __init__(self, ports: Ports) -> None:
        self._ports, self.rounds = ports, Rounds(ports)
        self._partitions: WeakValueDictionary[tuple[str, int], PartitionWaves] = WeakValueDictionary()

    def to(self, topic: str, partition: int) -> PartitionWaves:
        """The waves to a partition; one object for all its producers."""
        waves = self._partitions.get((topic, partition))
        if waves is None:
            waves = self._partitions[topic, partition] = PartitionWaves(self._ports, self.rounds)
        return waves


class PartitionWaves:
    """The waves to one partition.

    Invariant: a producer waits here or has a batch under way, never both, so its batches are published in order.
    """

    __slots__ = ("__weakref__", "_ports", "_rounds", "_under_way", "_waiting")

    def __init__(self, ports: Ports, rounds: Rounds) -> None:
        self._ports, self._rounds = ports, rounds
        self._waiting: list[WaveProducer] = []
        self._under_way = False

    def join(self, producer: WaveProducer) -> None:
        """Publish what this producer has waiting with the next wave."""
        self._waiting.append(producer)
        self._rounds.returning.came(producer.segments)
        if not self._under_way:
            self._go_on()

    def _go_on(self) -> None:
        """Publish the next wave, if anything waits for it."""
        self._under_way = bool(self._waiting)
        if self._waiting:
            heads = [producer.head for producer in self._waiting]
            large = any(head is not None and head.bytes > JOINT_BYTES for head in heads)
            self._rounds.join(self._publish_next, large=large)

    def _publish_next(self, begun: Round) -> None:
        while not (parts := self._next()) and self._waiting:
            pass
        segments = sum([part.producer.segments for part in parts])
        begun.producers += segments
        over = partial(self._end_in, begun)
        if segments == 1:
            parts[0].producer.publish(parts[0].group, over)
        elif parts:
            self._publish(parts, over)
        else:
            over(_nothing)

    def _end_in(self, begun: Round, report: Callable[[], None]) -> None:
        def reported() -> None:
            report()
            self._go_on()

        begun.end(reported)

    def _next(self) -> list[_Part]:
        """Take the parts of the next wave; the producers whose batches do not fit stay for the one after it."""
        waiting, self._waiting = self._waiting, []
        parts: list[_Part] = []
        messages = size = names = segments = 0
        first: pa.Schema = None
        for producer in waiting:
            if (head := producer.head) is None:
                producer.go_on()
                continue
            schema = head.batch.schema
            fits = not parts or (
                segments + producer.segments <= MAX_SEGMENTS
                and size < WAVE_BYTES
                and names + producer.name_bytes <= MAX_NAMES_BYTES
                and parts[0].producer.address == producer.address
                and first.equals(schema)
            )
            if not fits:
                self._waiting.append(producer)
                continue
            group, rows, group_bytes = producer.gather()
            if producer.alone or group_bytes > JOINT_BYTES or messages + rows > MAX_RUN_MESSAGES:
                producer.publish_alone(group)
                continue
            parts.append(_Part(producer, group, rows))
            first = first or schema
            messages, size, names = messages + rows, size + group_bytes, names + producer.name_bytes
            segments += producer.segments
        return parts

    def _publish(self, parts: list[_Part], over: Over) -> None:
        """Publish the parts of several producers as one run, once."""
        batch = joined([one.batch for part in parts for one in part.group])
        try:
            run = make_run(batch)
        except Invalid:  # the sizes by which they were chosen are estimates
            over(partial(_publish_apart, parts))
            return
        segments = PublishColumns()
        for part in parts:
            part.producer.add_segments(segments, part.group, part.count)
        request = PublishMany(
            producers=tuple(segments.producers),
            sessions=tuple(segments.sessions),
            first_sequences=tuple(segments.first_sequences),
            counts=tuple(segments.counts),
            follows=tuple(segments.follows),
            delayed=run.delayed,
            shape=run.shape,
            crc=run.crc,
            payload=Blob(run.payload, decoded=batch),
            keyed_delay=has_keyed_delay(batch.rows, batch.deliver_at),
        )

        def report(outcome: Outcome) -> None:
            if isinstance(outcome, Published):
                parts[0].producer.on_published(run, outcome, batch)
                entry = outcome.first_entry
                for part in parts:
                    part.producer.confirm(part.group, outcome.ledger, entry)
                    part.producer.go_on()
                    entry += part.count
            else:
                _publish_apart(parts, outcome if isinstance(outcome, Unknown) else None)

        def answered(outcome: Outcome) -> None:
            over(partial(report, outcome))

        ask(self._ports, parts[0].producer.address, request, PUBLISH_TIMEOUT, answered)


class Rounds:
    """The appends of a client or a gateway, which begin in rounds.

    The appends that wait when a round begins go together, whichever partitions they are of. So bookies sync them
    together, and their outcomes are reported together, when all of them have ended. The next round begins then. After
    ROUND_MS a round waits for no append any more: owners and bookies that are away hold up no other partition for
    longer. A large append makes a round of its own, beside the others: it gains nothing by theirs.

    The next round waits for the producers of the one before (`Returning`).

    MOST_APPENDS are under way at once, and the others wait in the order in which they came. A client that sends to a
    thousand partitions would begin as many appends, and each makes every turn of the event loop longer until it is
    done. A heartbeat takes a dozen of these turns, and an append more: where each takes a second, sessions and appends
    are given up although nothing is wrong with them. An append whose bookies or owner are away may take for ever; after
    PATIENCE_MS it does not count any more.
    """

    def __init__(self, ports: Ports, most: int = MOST_APPENDS) -> None:
        self._ports, self._free = ports, most
        self._came = count()
        self._small: deque[tuple[int, Callable[[Round], None]]] = deque()
        self._large: deque[tuple[int, Callable[[Round], None]]] = deque()
        """What waits, each with its place in the order in which all came."""
        self._newest: Round | None = None
        """The round before the next one, until it has ended or is late."""
        self._beginning = False
        self.returning = Returning(ports, self._begin_soon)

    def join(self, begin: Callable[[Round], None], *, large: bool = False) -> None:
        """Begin an append with the next round; the caller ends it there. Never at once: what else is sent in this turn
        of the event loop goes together with it.
        """
        (self._large if large else self._small).append((next(self._came), begin))
        self._begin_soon()

    async def wait(self) -> Round:
        """Wait for a round of its own, as a large append has. The caller ends it."""
        begun: SharedFuture[Round] = SharedFuture()
        self.join(begun.set_result, large=True)
        return await begun

    def _begin_soon(self) -> None:
        ready = self._large or (self._small and self._newest is None and not self.returning.lasts())
        if ready and self._free and not self._beginning:
            self._beginning = True
            soon(self._ports, self._begin)

    def _begin(self) -> None:
        self._beginning = False
        waiting = [self._large]
        if self._newest is None and not self.returning.lasts():
            waiting.append(self._small)
            self.returning.begun()
        begun: dict[bool, list[Callable[[Round], None]]] = {True: [], False: []}
        while self._free and (some := [each for each in waiting if each]):
            first = min(some, key=_place)
            begun[first is self._large].append(first.popleft()[1])
            self._free -= 1
        for large, appends in begun.items():
            if appends:
                made = Round(self._ports, self, appends, together=not large)
                self._newest = self._newest if large else made
                made.start()

    def let_next(self, finished: Round | None, free: int) -> None:
        """Let others begin. finished: a round for which the next one need not wait. free: appends that no longer count
        among MOST_APPENDS.
        """
        self._free += free
        if finished is self._newest:
            self._newest = None
        self._begin_soon()


class Returning:
    """The wait of a round for the producers of the one before.

    Callers that wait for each confirmation send again at once. If a round began before they have, there would be two
    halves of the callers for good, each with rounds of its own that cost nearly as much as one for all. So the next
    round waits until as many producers have come as the one before had, or ENOUGH in all, RETURN_MS at most. After a
    wait in which fewer than half of them came, some rounds do not wait: one, two, four, and so on, up to MOST_SKIPPED.

    on_end: called when the wait ends.
    """

    __slots__ = ("_awaited", "_away", "_clock", "_here", "_on_end", "_skipped", "_skips", "_timer", "_until")

    def __init__(self, ports: Ports, on_end: Callable[[], None]) -> None:
        self._clock, self._on_end = ports.clock, on_end
        self._awaited = self._away = 0
        """How many producers are waited for, and how many of them have not come yet."""
        self._here = 0
        """How many have come since the last round began."""
        self._until = 0
        """The end of the wait, monotonic ms."""
        self._timer: Timer | None = None
        """Ends the wait; begins with the first append that has to wait."""
        self._skips = self._skipped = 0
        """How many rounds did not wait after the last wait in vain, and how many more do not."""

    def came(self, producers: int = 1) -> None:
        """Count producers that have something to publish."""
        self._here += producers
        if self._away:
            self._away = max(self._away - producers, 0)
            if not self._away:
                self._end()

    def wait_for(self, producers: int) -> None:
        """Let the next round wait until so many producers have come, RETURN_MS at most."""
        if self._skipped:
            self._skipped -= 1
        else:
            self._awaited = self._away = max(0, min(producers, ENOUGH - self._here))
            self._until = self._clock.monotonic() + RETURN_MS

    def lasts(self) -> bool:
        """Whether an append that is here has to wait still."""
        if self._away and self._timer is None:
            left = self._until - self._clock.monotonic()
            if left > 0:
                self._timer = self._clock.timer(left, self._end)
            else:
                self._away = 0
        return self._away > 0

    def begun(self) -> None:
        """A round has begun."""
        self._here = 0

    def _end(self) -> None:
        if 2 * self._away > self._awaited:
            self._skipped = self._skips = min(2 * self._skips or 1, MOST_SKIPPED)
        elif not self._away:
            self._skips = 0
        if self._timer is not None:
            self._timer.cancel()
        self._away, self._timer = 0, None
        self._on_end()


def _place(waiting: deque[tuple[int, Callable[[Round], None]]]) -> int:
    """Return the place of the first."""
    return waiting[0][0]


class Round:
    """Appends that begin together. together: outcomes are reported when all appends have ended, and the next round
    waits for its producers. producers: how many have batches in it.
    """

    __slots__ = ("_appends", "_counts", "_ended", "_left", "_ports", "_rounds", "_timer", "_together", "producers")

    def __init__(self, ports: Ports, rounds: Rounds, appends: list[Callable[[Round], None]], *, together: bool) -> None:
        self._ports, self._rounds = ports, rounds
        self.producers, self._together = 0, together
        self._ended: list[Callable[[], None]] = []
        """What reports the outcomes of the appends that have ended."""
        self._appends, self._left, self._counts = appends, len(appends), True
        self._timer: Timer = ports.clock.timer(ROUND_MS, self._late)

    def start(self) -> None:
        """Begin the appends."""
        appends, self._appends = self._appends, []
        for begin in appends:
            begin(self)

    def end(self, report: Callable[[], None] = _nothing) -> None:
        """End one of the appends, or the last repetition of it. report: called when the outcome may be reported."""
        self._left -= 1
        self._ended.append(report)
        if not self._left:
            self._timer.cancel()
            if self._together:  # before the report, because producers with more in their queues come back in it
                self._rounds.returning.wait_for(self.producers)
        if not (self._left and self._together):
            self._report()
        self._rounds.let_next(None if self._left else self, int(self._counts))

    def _report(self) -> None:
        ended, self._ended = self._ended, []
        for report in ended:
            report()

    def _late(self) -> None:
        self._together = False
        self._report()
        shared = self._ports.process.of(SharedTimers)
        self._timer = shared.timer(self._ports.clock, PATIENCE_MS - ROUND_MS, self._lose_patience)
        self._rounds.let_next(self, 0)

    def _lose_patience(self) -> None:
        self._counts = False
        self._rounds.let_next(None, self._left)

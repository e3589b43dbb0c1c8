"""Publishes to a partition in waves: what the producers of a process have waiting for it goes as one run.

One wave is under way for each partition. Batches that are sent meanwhile gather and go with the next one, so no message
waits for a timer, and a message that is alone goes at once. A batch that is large anyway goes by itself, beside the
waves.

A wave is tried once. If it is refused, or its outcome is unknown, each producer publishes its part by itself until the
part is stored or refused (actors.producer.producer), and joins no wave meanwhile. So a part keeps its place before
everything that its producer sends later, and the owner knows what it has stored by producer and sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

from sluice.actors.messages import Published, PublishMany
from sluice.actors.ports import Address, Ports, Timer, Unknown
from sluice.actors.ports.wire import Blob
from sluice.actors.producer.batches import Outgoing
from sluice.actors.runtime.asking import ask
from sluice.actors.runtime.shared_future import SharedFuture
from sluice.actors.runtime.shared_timers import SharedTimers
from sluice.storage.errors import SluiceError
from sluice.storage.format.batch import MAX_RUN_MESSAGES, StoredBatch, has_keyed_delay, joined
from sluice.storage.format.frame import MAX_NAMES_BYTES, MAX_SEGMENTS, Run, make_run

Outcome = Published | Unknown | SluiceError
"""The end of one attempt to publish."""
PUBLISH_TIMEOUT = 10_000
JOINT_BYTES = 64 * 1024
"""A batch of more bytes goes by itself: it costs no less together with others."""
WAVE_BYTES = 1024 * 1024
"""The most bytes of one wave."""
MOST_APPENDS = 100
PATIENCE_MS = 3_000


class WaveProducer(Protocol):
    """A producer on one partition, as its waves see it. alone: its batches always go by themselves. on_published: told
    of each run of a wave once.
    """

    name: str
    address: Address
    session: int
    last_sequence: int
    alone: bool
    on_published: Callable[[Run, Published, StoredBatch], None]

    @property
    def head(self) -> Outgoing | None:
        """The batch that is to be published next."""

    def gather(self) -> list[Outgoing]:
        """Take the head and what may join it in one run."""

    def go_on(self) -> None:
        """Wait for the next wave if anything is queued."""

    def publish(self, gathered: list[Outgoing], over: Callable[[], None]) -> None:
        """Publish these as a run of their own, once. over: called at the end of the attempt."""

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

    @property
    def first_sequence(self) -> int:
        """The sequence of its first message; of its batches only the end of the last one may be a number of its own."""
        last = self.group[-1]
        return last.first_sequence + len(last.batch) - self.count


class Waves:
    """The waves of a client or a gateway, to all partitions."""

    def __init__(self, ports: Ports) -> None:
        self._ports, self.turns = ports, AppendTurns(ports)
        self._partitions: WeakValueDictionary[tuple[str, int], PartitionWaves] = WeakValueDictionary()

    def to(self, topic: str, partition: int) -> PartitionWaves:
        """The waves to a partition; one object for all its producers."""
        waves = self._partitions.get((topic, partition))
        if waves is None:
            waves = self._partitions[topic, partition] = PartitionWaves(self._ports, self.turns, f"wave-{partition}")
        return waves


class PartitionWaves:
    """The waves to one partition.

    Invariant: a producer waits here or has a batch under way, never both, so its batches are published in order.
    """

    __slots__ = ("__weakref__", "_name", "_ports", "_turns", "_under_way", "_waiting")

    def __init__(self, ports: Ports, turns: AppendTurns, name: str) -> None:
        self._ports, self._turns, self._name = ports, turns, name
        self._waiting: list[WaveProducer] = []
        self._under_way = False

    def join(self, producer: WaveProducer) -> None:
        """Publish what this producer has waiting with the next wave."""
        self._waiting.append(producer)
        if not self._under_way:
            # Not in this turn: what else is sent in it goes together with this.
            self._under_way = True
            self._ports.spawn(self._begin(), self._name)

    async def _begin(self) -> None:
        self._publish_next(await self._turns.begin())

    def _go_on(self) -> None:
        """Publish the next wave, if anything waits for it."""
        self._under_way = bool(self._waiting)
        if self._waiting:
            turn = self._turns.begin_now()
            if turn is None:
                self._ports.spawn(self._begin(), self._name)
            else:
                self._publish_next(turn)

    def _publish_next(self, turn: AppendTurn) -> None:
        while not (parts := self._next()) and self._waiting:
            pass
        over = partial(self._over, turn)
        if len(parts) == 1:
            parts[0].producer.publish(parts[0].group, over)
        elif parts:
            self._publish(parts, over)
        else:
            over()

    def _over(self, turn: AppendTurn) -> None:
        turn.end()
        self._go_on()

    def _next(self) -> list[_Part]:
        """Take the parts of the next wave; the producers whose batches do not fit stay for the one after it."""
        waiting, self._waiting = self._waiting, []
        parts: list[_Part] = []
        messages = size = names = 0
        for producer in waiting:
            if (head := producer.head) is None:
                producer.go_on()
                continue
            name_bytes = len(producer.name.encode())
            fits = not parts or (
                len(parts) < MAX_SEGMENTS
                and size < WAVE_BYTES
                and names + name_bytes <= MAX_NAMES_BYTES
                and parts[0].producer.address == producer.address
                and parts[0].group[0].batch.rows.schema.equals(head.batch.rows.schema)
            )
            if not fits:
                self._waiting.append(producer)
                continue
            group = producer.gather()
            group_bytes, rows = sum([one.bytes for one in group]), sum([len(one.batch) for one in group])
            if producer.alone or group_bytes > JOINT_BYTES or messages + rows > MAX_RUN_MESSAGES:
                producer.publish_alone(group)
                continue
            parts.append(_Part(producer, group, rows))
            messages, size, names = messages + rows, size + group_bytes, names + name_bytes
        return parts

    def _publish(self, parts: list[_Part], over: Callable[[], None]) -> None:
        """Publish the parts of several producers as one run, once."""
        batch = joined([one.batch for part in parts for one in part.group])
        run = make_run(batch)
        request = PublishMany(
            producers=tuple([part.producer.name for part in parts]),
            sessions=tuple([part.producer.session for part in parts]),
            first_sequences=tuple([part.first_sequence for part in parts]),
            counts=tuple([part.count for part in parts]),
            follows=tuple([part.producer.last_sequence for part in parts]),
            delayed=run.delayed,
            shape=run.shape,
            crc=run.crc,
            payload=Blob(run.payload, decoded=batch),
            keyed_delay=has_keyed_delay(batch.rows, batch.deliver_at),
        )

        def answered(outcome: Outcome) -> None:
            if isinstance(outcome, Published):
                parts[0].producer.on_published(run, outcome, batch)
                entry = outcome.first_entry
                for part in parts:
                    part.producer.confirm(part.group, outcome.ledger, entry)
                    part.producer.go_on()
                    entry += part.count
            else:
                for part in parts:
                    part.producer.publish_alone(part.group, outcome if isinstance(outcome, Unknown) else None)
            over()

        ask(self._ports, parts[0].producer.address, request, PUBLISH_TIMEOUT, answered)


class AppendTurns:
    """A limit on the appends of a client or a gateway that are under way at once.

    A client that sends to a thousand partitions begins as many appends, and each makes every turn of the event loop
    longer until it is done. A heartbeat takes a dozen of these turns, and an append more: where each takes a second,
    sessions and appends are given up although nothing is wrong with them. So MOST_APPENDS are under way, and the others
    wait in the order in which they came.

    An append whose bookies or owner are away may take for ever. After PATIENCE_MS it does not count any more, so that
    it keeps no other partition waiting for longer.
    """

    def __init__(self, ports: Ports, most: int = MOST_APPENDS) -> None:
        self._ports, self._free = ports, most
        self._waiters: deque[SharedFuture[None]] = deque()

    async def begin(self) -> AppendTurn:
        """Wait until it is its turn. The caller ends it."""
        if (turn := self.begin_now()) is not None:
            return turn
        waiter: SharedFuture[None] = SharedFuture()
        self._waiters.append(waiter)
        await waiter
        return AppendTurn(self._ports, self._let_next)

    def begin_now(self) -> AppendTurn | None:
        """Begin if that needs no wait. The caller ends it."""
        if not self._free:
            return None
        self._free -= 1
        return AppendTurn(self._ports, self._let_next)

    def _let_next(self) -> None:
        if self._waiters:
            self._waiters.popleft().set_result(None)
        else:
            self._free += 1


class AppendTurn:
    """An append that is under way, or its repetition. let_next: called once, when it does not count any more."""

    __slots__ = ("_counts", "_let_next", "_timer")

    def __init__(self, ports: Ports, let_next: Callable[[], None]) -> None:
        self._let_next, self._counts = let_next, True
        self._timer: Timer = ports.process.of(SharedTimers).timer(ports.clock, PATIENCE_MS, self._let_others)

    def end(self) -> None:
        """End the turn of an append that has succeeded or failed, and let others begin."""
        self._timer.cancel()
        self._let_others()

    def _let_others(self) -> None:
        if self._counts:
            self._counts = False
            self._let_next()

"""The log of one partition as its owner keeps it: a chain of ledgers, whose last one may be open.

Taking over: get the record under a new epoch, recover what is open, learn from the frames since the last snapshot
what each producer has stored, close. Appending: the open ledger's writer, bounded in runs and bytes under way; a new
ledger is opened with the first append, and again when the old one is full or old. A roll waits until the old ledger
is wholly confirmed and then closes it and opens the next one in *one* version of the record, so that at most one
ledger is open and positions ascend in the order of confirmation.

No reader sees anything above `last_confirmed`. All state changes follow a check of `stopped` without an await in
between; the writer's callbacks are synchronous.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec

from sluice.actors.ledger.bookies import Bookies
from sluice.actors.ledger.partition_metadata import PartitionMetadata
from sluice.actors.ledger.reader import LedgerReader, StoredFrame, payload_size
from sluice.actors.ledger.record import Fragment, GivenUp, LedgerRecord, LedgerState, PartitionRecord, is_source
from sluice.actors.ledger.recovery_op import recover_ledger
from sluice.actors.ledger.run_offsets import RunOffsets
from sluice.actors.ledger.writer import Append, LedgerWriter, WriterCallbacks
from sluice.actors.messages import HEADS_AT_ONCE, Published, TopicSettings
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Blob
from sluice.actors.runtime.store_attempts import REFUSALS
from sluice.actors.runtime.waiting import Backoff, Signal
from sluice.actors.topic.partition.entry_cache import TAIL_BYTES, EntryCache, cache_run
from sluice.actors.topic.partition.producers import Producers
from sluice.actors.topic.partition.resources import LogResources
from sluice.storage.errors import Corrupt, Fenced, InvariantViolation, Overloaded, Unavailable
from sluice.storage.format.frame import Run, Segment
from sluice.storage.format.position import EARLIEST, MAX_ENTRY, position

T = TypeVar("T")

WINDOW_RUNS = 64
"""Runs that may be under way to the bookies at a time."""
HELD_BYTES = 256 * 1024 * 1024
"""The most payload bytes that wait for copies to be made. Beyond that a publish is refused as Overloaded."""
SNAPSHOT_RUNS = 1000
SNAPSHOT_BYTES = 256 * 1024 * 1024
"""The record learns what producers have stored at least this often, so that a new owner has little to read."""
RETRY_FIRST, RETRY_MOST = 100, 3_000
POSTPONE_ROLL_MS = 5_000


class ManagedLedger:
    """The ledgers of a partition. lost(reason) is called, once, when a newer owner shows up."""

    # With thirty attributes each object would have a dictionary of its own otherwise, which takes 1.2 KB more.
    __slots__ = (
        "_bytes_since", "_ids", "_lost", "_on_wake", "_opened", "_ports", "_producers", "_retired", "_roll_not_before",
        "_rolling", "_room", "_runs_since", "_settings", "_waiters", "_waits_since", "_writer", "bookies", "bytes_in",
        "cache", "close_up_to", "held", "last_confirmed", "lost_bookies", "messages_in", "metadata", "open_bytes",
        "reader", "settled", "stopped", "tables", "waits_for"
    )  # fmt: skip

    def __init__(
        self,
        ports: Ports,
        bookies: Bookies,
        metadata: PartitionMetadata,
        settings: TopicSettings,
        producers: Producers,
        lost: Callable[[str], None],
        resources: LogResources,
    ) -> None:
        self._ports = ports
        self._settings = settings
        self._producers = producers
        self._lost = lost
        self._ids = resources.ids
        self._writer: LedgerWriter | None = None
        self._retired: list[LedgerWriter] = []
        self._rolling = asyncio.Lock()
        self._roll_not_before = self._opened = 0
        """The second: when the open ledger was opened, monotonic."""
        self._room = Signal()
        self.held = self.open_bytes = self._runs_since = self._bytes_since = 0
        self._waiters: list[Signal] = []
        self._on_wake: Callable[[], None] | None = None
        self.bookies = bookies
        self.reader = LedgerReader(ports, bookies, resources.history)
        self.metadata = metadata
        self.cache = EntryCache(TAIL_BYTES, resources.room)
        self.tables: dict[int, RunOffsets] = {}
        self.last_confirmed = EARLIEST
        self.close_up_to = 0
        """Ledgers up to this id are closed as soon as that is possible, however small they are."""
        self.settled: list[int] = []
        """Ledgers closed by this owner whose copies were not counted yet."""
        self.stopped = False
        self.messages_in, self.bytes_in = 0, 0
        self.lost_bookies: list[str] = []
        """Bookies that will not come back."""
        self.waits_for, self._waits_since = "", 0
        """Why the recovery does not go on; empty if it does."""

    @property
    def record(self) -> PartitionRecord:
        """The newest durable record."""
        return self.metadata.record

    @property
    def in_flight(self) -> int:
        """Runs that are not confirmed yet."""
        return 0 if self._writer is None else len(self._writer.state)

    @property
    def epoch(self) -> int:
        """This owner's epoch."""
        return self.metadata.record.epoch

    # -- taking over -------------------------------------------------------------------------------------------------

    async def acquire(self) -> None:
        """Become the owner. Raises Fenced if another new owner was faster."""
        await self.metadata.acquire(self._settings)

    async def recover(self) -> None:
        """Settle every ledger that is not closed; retries while too few bookies answer."""
        now = self._ports.clock.now()
        self._producers.restore(self.record.producers, now)
        if self.record.results:
            self._producers.results.restore(self.record.results, now)
        closed = []
        for ledger in self.record.ledgers:
            settled = ledger
            if ledger.state is not LedgerState.CLOSED:
                self.settled.append(ledger.id)
                lost = partial(self._lost_run, ledger.id)
                work = partial(recover_ledger, self._ports, self.bookies, ledger, self.epoch, lost)
                settled = await self._insist(work)
            closed.append(await self._replay(settled))
        kept = tuple(ledger for ledger in closed if ledger.last_run >= 0)
        empty = [ledger.id for ledger in closed if ledger.last_run < 0]
        await self.metadata.update(
            lambda record: self._covered(msgspec.structs.replace(record, ledgers=kept).with_released(empty))
        )
        self.last_confirmed = position(kept[-1].id, kept[-1].last_entry) if kept else self.record.last_trimmed

    async def _insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat while the bookies are away. Fenced and Corrupt pass through.

        Raises Fenced as well when a newer owner took over meanwhile: it may have settled and deleted this very ledger,
        and then no bookie will ever say what is waited for.
        """
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while True:
            try:
                done = await work()
            except (Unavailable, Overloaded) as error:
                self._ports.log("recovery_waits", error=str(error))
                if not self.waits_for:
                    self._waits_since = self._ports.clock.monotonic()
                self.waits_for = str(error)
            else:
                self.waits_for = ""
                return done
            self.check()
            with contextlib.suppress(Unavailable):
                await self.metadata.verify()
            await wait.pause()

    async def _replay(self, ledger: LedgerRecord) -> LedgerRecord:
        """Learn what producers stored in this ledger after the record's snapshot; returns it with its bytes."""
        record = self.record
        if ledger.id < record.covered_ledger:
            return ledger
        run = record.covered_run + 1 if ledger.id == record.covered_ledger else 0
        size = ledger.bytes
        while run <= ledger.last_run:
            stop = min(run + HEADS_AT_ONCE, ledger.last_run + 1)
            for frame in await self._insist(partial(self._heads, ledger, range(run, stop))):
                self._replay_frame(frame)
                size += payload_size(frame.head)
            run = stop
        return msgspec.structs.replace(ledger, bytes=size)

    async def _heads(self, ledger: LedgerRecord, runs: range) -> list[StoredFrame]:
        """Return the heads of these runs, without those given up: the sends in them are forgotten as well."""
        return await self.reader.heads(ledger, [run for run in runs if self._lost_run(ledger.id, run) is None])

    def _lost_run(self, ledger_id: int, run: int) -> GivenUp | None:
        return self.record.lost_run(ledger_id, run)

    def recovery_waits(self, at_least: int) -> str:
        """Return why the recovery has not gone on for so long (ms); empty if it has."""
        long = self.waits_for and self._ports.clock.monotonic() - self._waits_since >= at_least
        return self.waits_for if long else ""

    def _replay_frame(self, frame: StoredFrame) -> None:
        header = frame.header
        if is_source(header.producer):
            self._producers.results.replay(header.producer, header.positions, self._ports.clock.now())
            return
        entry, now = header.first_entry, self._ports.clock.now()
        for producer, first, count in header.parts:
            self._producers.replay(producer, first, count, header.ledger, entry, now)
            entry += count

    # -- appending ---------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether a run can be appended at this instant."""
        writer = self._writer
        return writer is not None and not self._rolling.locked() and len(writer.state) < WINDOW_RUNS

    @property
    def has_room(self) -> bool:
        """Whether `make_room` would return at once."""
        return self.ready and not self.roll_due and self.held <= HELD_BYTES

    async def make_room(self) -> None:
        """Wait until a run can be appended. Raises Overloaded, Unavailable (no bookies for a ledger), Fenced."""
        while True:
            self.check()
            if self.held > HELD_BYTES:
                raise Overloaded(f"{self.held} bytes are under way to the bookies; slow down")
            if self._writer is None or (self._roll_due() and not self._rolling.locked()):
                await self.roll()
            if self.ready:
                return
            self._room.clear()
            await self._room.wait(self._ports)

    def append(self, run: Run, segments: tuple[Segment, ...], blob: Blob, positions: bytes = b"") -> None:
        """Append a run when `ready`; its segments are confirmed to the producers that wait. positions: of results."""
        writer = self._writer
        if writer is None or self.stopped:
            raise Fenced("the topic has a newer owner")
        inline = blob if blob.handle is None else Blob(run.payload)
        append = writer.append(run, segments, blob, inline, positions)
        self.tables[writer.ledger_id].append(append.pending.first_entry, run.count)
        self.held += inline.size

    def _confirmed(self, appends: list[Append]) -> None:
        now = self._ports.clock.now()
        for append in appends:
            header, size = append.header, append.inline.size
            self.cache.put(cache_run(append, now))
            self.last_confirmed = position(header.ledger, header.last_entry)
            self.messages_in += header.count
            self.bytes_in += size
            self.open_bytes += size
            self._runs_since += 1
            self._bytes_since += size
            entry, outcome = header.first_entry, None
            for producer, first, count in header.parts:
                outcome = self._producers.confirm(producer, first, count, header.ledger, entry) or outcome
                entry += count
            if outcome is not None:
                outcome.set_result(Published(ledger=header.ledger, first_entry=header.first_entry, count=header.count))
        self._room.set()
        self.wake()

    def _stored(self, append: Append) -> None:
        self.held -= append.inline.size

    # -- rolling -----------------------------------------------------------------------------------------------------

    def _roll_due(self) -> bool:
        writer = self._writer
        if writer is None or not writer.state.next_entry:
            return writer is None
        now, settings = self._ports.clock.monotonic(), self._settings
        return now >= self._roll_not_before and (
            writer.state.next_entry >= min(settings.roll_entries, MAX_ENTRY // 2)
            or self.open_bytes >= settings.roll_bytes
            or now - self._opened >= settings.roll_ms
            or writer.ledger_id <= self.close_up_to
        )

    async def roll(self) -> None:
        """Open the next ledger, closing the present one in the same version of the record.

        Raises what the store says when there is no ledger to fall back on; else an impossible roll is put off.
        """
        try:
            async with self._rolling:
                if self._roll_due():
                    await self._roll()
        finally:
            self._room.set()
            self.wake()

    async def _roll(self) -> None:
        try:
            opened = await self._new_ledger()
        except (*REFUSALS, Corrupt) as error:
            if self._writer is None:
                raise
            self._ports.log("roll_postponed", error=str(error))
            self._roll_not_before = self._ports.clock.monotonic() + POSTPONE_ROLL_MS
            return
        old = self._writer
        if old is not None:
            await old.drain()
        self.check()
        if old is not None:
            old.retire()
        await self.metadata.update(lambda record: self._closed(self._covered(record)).with_new_ledger(opened))
        self.check()
        if old is not None:
            self._retired = [writer for writer in (*self._retired, old) if writer.busy]
        self.open_bytes, self._opened = 0, self._ports.clock.monotonic()
        self.tables[opened.id] = RunOffsets()
        self._writer = LedgerWriter(
            self._ports,
            self.bookies,
            opened,
            self.epoch,
            WriterCallbacks(
                save_fragment=self._save_fragment,
                on_confirmed=self._confirmed,
                on_stored=self._stored,
                on_lost=self._lost,
            ),
        )

    def check(self) -> None:
        """Raise Fenced if this owner writes and answers no more."""
        if self.stopped:
            raise Fenced("the topic has a newer owner")

    async def _new_ledger(self) -> LedgerRecord:
        settings = self._settings
        chosen = await self.bookies.choose(settings.ensemble)
        return LedgerRecord(
            id=await self._ids.allocate(self._ports, self.record.highest_ledger),
            state=LedgerState.OPEN,
            ensemble=settings.ensemble,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            fragments=(Fragment(0, 0, chosen),),
            opened_at=self._ports.clock.now(),
        )

    def _closed(self, record: PartitionRecord) -> PartitionRecord:
        """Return the record with the open ledger closed at its writer's end, and without it if it is empty."""
        writer = self._writer
        if writer is None:
            return record
        ledger = record.ledger(writer.ledger_id)
        if ledger is None or len(writer.state):
            raise InvariantViolation(f"ledger {writer.ledger_id} is closed while runs are not confirmed")
        return record.with_ledger(
            msgspec.structs.replace(
                ledger,
                state=LedgerState.CLOSED,
                last_run=writer.state.confirmed_run,
                last_entry=writer.state.last_confirmed,
                closed_at=self._ports.clock.now(),
            )
        )

    async def _save_fragment(self, ledger_id: int, fragment: Fragment) -> None:
        def change(record: PartitionRecord) -> PartitionRecord:
            ledger = record.ledger(ledger_id)
            if ledger is not None and ledger.state is LedgerState.CLOSED:
                return record  # a roll was faster; its writer is retired and needs no other bookies
            if ledger is None or ledger.state is not LedgerState.OPEN:
                raise InvariantViolation(f"ledger {ledger_id} gets a fragment and is not open")
            return record.with_ledger(ledger.with_fragment(fragment))

        await self.metadata.update(change)

    # -- what the record says of producers ---------------------------------------------------------------------------

    def _covered(self, record: PartitionRecord) -> PartitionRecord:
        """Return the record with what producers have stored by now, and how far that reaches."""
        writer = self._writer
        now = self._ports.clock.now()
        producers, known = self._producers.snapshot(now), self._producers.known_results
        results = {} if known is None else known.snapshot(now)
        if writer is not None:
            at, run = writer.ledger_id, writer.state.confirmed_run
            ledger = record.ledger(at)
            if ledger is not None:
                record = record.with_ledger(msgspec.structs.replace(ledger, bytes=self.open_bytes))
        elif record.ledgers:
            at, run = record.ledgers[-1].id, record.ledgers[-1].last_run
        else:
            at, run = record.covered_ledger, record.covered_run
        self._runs_since, self._bytes_since = 0, 0
        return msgspec.structs.replace(record, producers=producers, results=results, covered_ledger=at, covered_run=run)

    def bookie_lost(self, bookie: str) -> None:
        """Stop waiting for this bookie in any run: it will not come back."""
        if self._writer is not None:
            self._writer.replace(bookie)

    @property
    def snapshot_due(self) -> bool:
        """Whether enough was appended since the record was last brought up to date."""
        return self._runs_since >= SNAPSHOT_RUNS or self._bytes_since >= SNAPSHOT_BYTES

    async def snapshot(self) -> None:
        """Bring the record up to date if that is due."""
        if self.snapshot_due and not self.stopped:
            await self.metadata.update(self._covered)

    async def cover(self, change: Callable[[PartitionRecord], PartitionRecord]) -> None:
        """Bring the record up to date, with another change of it: a next owner has little to read then."""
        await self.metadata.update(lambda record: change(self._covered(record)))

    async def seal(self, change: Callable[[PartitionRecord], PartitionRecord]) -> None:
        """Write as `cover` does, with the open ledger closed in that version. The next owner then has nothing to
        recover, and the record knows how far the ledger goes and since when it is closed. A ledger that is still being
        copied stays open.
        """
        async with self._rolling:  # nothing is appended meanwhile
            old = self._writer
            whole = old is not None and not old.busy and old.state.next_entry > 0
            await self.cover(lambda record: change(self._closed(record) if whole else record))
            self.check()
            if whole:
                self._writer, self.open_bytes = None, 0
        self._room.set()
        self.wake()

    @property
    def roll_due(self) -> bool:
        """Whether the open ledger is to be closed; a topic that is deleted has none."""
        return self._writer is not None and not self.stopped and self._roll_due()

    # -- for readers -------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Let waiting readers look again after a confirmation or a change of the chain."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set()
        if self._on_wake is not None:
            self._on_wake()

    def on_wake(self, call: Callable[[], None]) -> None:
        """Call this at each wake."""
        self._on_wake = call

    async def news(self, milliseconds: int) -> bool:
        """Wait for the next wake; False after so long. Nothing may be awaited between looking and calling this."""
        signal = Signal()
        self._waiters.append(signal)
        try:
            return await signal.wait(self._ports, milliseconds, about=True)
        finally:
            if signal in self._waiters:
                self._waiters.remove(signal)

    def last_entry(self, ledger: LedgerRecord) -> int:
        """Return the last entry of a ledger that may be shown, -1 for none."""
        if ledger.state is LedgerState.CLOSED:
            return ledger.last_entry
        writer = self._writer
        return writer.state.last_confirmed if writer is not None and writer.ledger_id == ledger.id else -1

    async def table(self, ledger: LedgerRecord) -> RunOffsets:
        """Return the offsets at which the runs of a ledger begin; asks the bookies the first time. Raises
        Unavailable.
        """
        known = self.tables.get(ledger.id)
        if known is None:
            known = await self.reader.table(ledger)
            self.tables[ledger.id] = known
        return known

    def given_up(self, lost: GivenUp) -> None:
        """Show a run to no reader, and let readers go on behind it: the record says that it was given up."""
        self.cache.drop(lost.ledger, lost.run)
        self.wake()

    def evict(self, ledgers: list[int]) -> None:
        """Drop cached data of trimmed ledgers, and let readers see the new beginning."""
        self.cache.drop_ledgers(ledgers)
        for ledger in ledgers:
            self.tables.pop(ledger, None)
        self.wake()

    def halt(self) -> None:
        """Stop for good: nothing is written, confirmed or answered from now on."""
        if self.stopped:
            return
        self.stopped = True
        self.metadata.abandon()
        for writer in (*self._retired, *([] if self._writer is None else [self._writer])):
            writer.close()
        self._room.set()
        self.wake()

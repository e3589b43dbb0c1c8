"""Compaction: the last message of each key, up to a horizon, becomes a table in the object store.

    the log up to the horizon -> its last messages in objects, read back -> named in the record -> the old ones deleted

The log is read twice: first the keys, to find the last message of each, then the messages, to keep these. What was
compacted before is read in place of the log that it stands for. So a compaction costs what the table and the new part
of the log cost, and needs memory for KEYS_BYTES of keys, however many there are (storage.history.compacted), and for
one file.

The rules are Pulsar's. A message without payload says that its key is gone. Messages without key are left out. A topic
that was compacted keeps its log behind the horizon, whatever retention says: the table would miss what was trimmed
there.

**A key that is gone.** Who reads the table from its beginning is not told of such a key. Who knew the key, because it
had read the log or an earlier table, needs to know: so its last message, without payload, stays in the table for
EMPTY_MS, and until all durable subscriptions have passed it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.actors.ledger.compacted_reader import CompactedReader
from sluice.actors.ledger.fan_out import together
from sluice.actors.ledger.history_objects import compacted_prefix
from sluice.actors.ledger.record import Compacted, CompactedPart, Erasure, LedgerRecord, PartitionRecord
from sluice.actors.messages import Compact, CompactionStatus, TopicSettings
from sluice.actors.runtime.store_attempts import REFUSALS
from sluice.actors.topic.background.leaving import compaction_status
from sluice.actors.topic.background.newer_table import find_newer, fits
from sluice.actors.topic.background.stored_objects import READ_AT_ONCE, RETRY_MS, StoredObjects
from sluice.actors.topic.partition.amounts import bytes_behind
from sluice.actors.topic.partition.hooks import BackgroundJob, JobContext
from sluice.storage.errors import Corrupt, NotFound, SluiceError, Unavailable
from sluice.storage.format.frame import Frame
from sluice.storage.format.position import EARLIEST, entry_of, ledger_of, position
from sluice.storage.history.compacted import KEYS_BYTES, CompactedWriter, LastOfKeys, is_empty, positions_in
from sluice.storage.history.part import GROUP_BYTES, GROUP_ROWS, PART_BYTES, milliseconds, rows_of_runs

EMPTY_MS = 24 * 3600 * 1000
"""A message that deletes its key stays for this long after it was published."""


@dataclass(slots=True)
class CompactionState:
    """How the compaction of a partition stands. error: why the last try failed; empty if it did not."""

    running: bool = False
    read_bytes: int = 0
    all_bytes: int = 0
    error: str = ""


class Compaction(BackgroundJob):
    """The compaction of one partition's owner. It begins with what the record knows."""

    name, request = "compaction", Compact

    def __init__(self, context: JobContext) -> None:
        self._ports, self._log, self._marks = context.ports, context.log, context.marks
        prefix = compacted_prefix(context.topic, context.log.record.partition)
        self.objects = StoredObjects(context.ports, context.log, prefix, self._named_objects, copies=False)
        self.reader = CompactedReader(context.ports)
        self._asked = int(context.log.record.asked.compact)
        """How often it was asked for since the last one began. What operators ask for stands in the record as well."""
        self._not_before = 0
        self._done = self._wrote = False
        """The second: whether this owner has begun to write a table."""
        self.state = CompactionState()

    async def ask(self, request: Compact) -> CompactionStatus:
        """Take an operator's request durably: `status` says when it is done. Raises Fenced."""
        if request.ask:
            self.want()
            await self._log.metadata.update(self._with_asked)
        return self.status()

    def want(self) -> None:
        """Note that compaction is wanted, for a caller that asks again if this owner ends before."""
        self._asked += 1
        self._not_before = 0

    def _with_asked(self, record: PartitionRecord) -> PartitionRecord:
        asked = msgspec.structs.replace(record.asked, compact=self._asked > 0)
        return msgspec.structs.replace(record, asked=asked)

    def _named_objects(self) -> set[str]:
        table = self._log.record.compacted
        return {part.name for part in table.parts} if table is not None else set()

    @property
    def horizon(self) -> int:
        """The position up to which the log was compacted."""
        table = self._log.record.compacted
        return EARLIEST if table is None else table.horizon

    @property
    def holds(self) -> int | None:
        """Behind this position nothing may be trimmed; None: it does not care."""
        if self._log.record.compacted is None and not self.state.running and not self._asked:
            return None
        return self.horizon

    def status(self) -> CompactionStatus:
        """Return how compaction stands."""
        known, state = compaction_status(self._log), self.state
        return msgspec.structs.replace(
            known,
            running=state.running,
            read_bytes=state.read_bytes,
            all_bytes=state.all_bytes,
            asked=self._asked > 0,
            done=self._done or known.done,
            error=state.error,
        )

    def at_work(self, settings: TopicSettings) -> bool:
        """Return whether compaction is under way, or has been asked for."""
        return self.wanted or self.due(settings)

    @property
    def wanted(self) -> bool:
        """Whether it is asked for, or being done."""
        return self.state.running or self._asked > 0

    @property
    def is_clean(self) -> bool:
        """Whether no object is left of tables of before, of earlier owners either, as far as one looked lately."""
        return not self.objects.any_unwanted and not self.objects.collection_due()

    def due(self, settings: TopicSettings) -> bool:
        """Return whether there is something to do."""
        if self._ports.clock.monotonic() < self._not_before:
            return False
        there = self._log.record.compacted is not None or bool(self._log.record.erasures)
        collects = there and self.objects.collection_due()
        return bool(self.objects.any_unwanted or collects or self._asked or self._is_long(settings))

    def concerned(self, settings: TopicSettings) -> bool:
        """Return whether there is something to do, or will be although nothing changes."""
        there = self._log.record.compacted is not None
        return there or self._asked > 0 or self.objects.any_unwanted or self._is_long(settings)

    def _is_long(self, settings: TopicSettings) -> bool:
        limit = settings.compaction_threshold_bytes
        return limit > 0 and bytes_behind(self._log, self.horizon) > limit

    async def turn(self, settings: TopicSettings) -> Sequence[LedgerRecord]:
        """Compact what is to be compacted. Raises Fenced. A failure is reported in `state`, and tried again."""
        try:
            await self.objects.clean_up()
            await self._take_newer()
            if self._asked or self._is_long(settings):
                asked, self.state.running, self._wrote = self._asked, True, True
                await self._compact()
                self._asked -= asked
                self._done = True
                if self._log.record.asked.compact:
                    await self._log.metadata.update(self._with_asked)
            self.state.error = ""
        except (*REFUSALS, Corrupt, NotFound) as error:
            self.state.error = str(error)
            self._not_before = self._ports.clock.monotonic() + RETRY_MS
            self._ports.log("compaction_waits", error=str(error))
        finally:
            self.state.running = False
        return ()

    async def delete(self, last: PartitionRecord) -> None:
        """Delete the objects of a deleted topic's tables."""
        if last.compacted is not None or self._wrote:
            await self.objects.delete_all()

    def release(self) -> None:
        """Keep nothing in memory."""
        self.reader.clear()

    async def _take_newer(self) -> None:
        """Name a table in the record that is newer than it (actors.topic.background.newer_table).

        Raises Fenced, Unavailable.
        """
        kept = self.objects.take_kept()
        table = await find_newer(self._ports, self.reader, kept, self._log.record) if kept else None
        if table is None:
            return

        def change(record: PartitionRecord) -> PartitionRecord:
            if not fits(table, record):
                return record
            known = record.highest_ledger
            highest = None if known is None else max(known, ledger_of(table.horizon))
            return msgspec.structs.replace(record, compacted=table, highest_ledger=highest)

        before = self._named_objects()
        await self._log.metadata.update(change)
        self.objects.unwanted(sorted(before - self._named_objects()))
        self._ports.log("newer_table_found", horizon=table.horizon, messages=table.messages)

    async def _compact(self) -> None:
        """Find, write, compare, name. Raises Fenced, Unavailable, Corrupt, NotFound."""
        record = self._log.record
        before, horizon = record.compacted, self._log.last_confirmed
        if not record.ledgers and before is None:
            return
        begin = position(record.ledgers[0].id, 0) if before is None else before.horizon + 1
        if horizon < begin and not record.erasures:
            return
        horizon = max(horizon, begin - 1)
        self.state.read_bytes, self.state.all_bytes = 0, 2 * self._bytes_of(before)
        last = LastOfKeys(KEYS_BYTES)
        while True:
            async for rows in self._rows(before, begin, horizon):
                await self._ports.work(partial(last.add, rows))
            await self._ports.work(last.end)
            if not last.more:
                break
            last.again()
            self.state.all_bytes += self._bytes_of(before)
        parts: list[CompactedPart] = []
        base = begin if before is None else before.base
        try:
            table = await self._write(
                last, self._rows(before, begin, horizon), Compacted(base, horizon, 0, -1, ()), parts
            )
        except SluiceError:
            self.objects.unwanted(part.name for part in parts)
            raise
        await self._log.metadata.update(lambda newest: msgspec.structs.replace(newest, compacted=table))
        self.objects.unwanted(part.name for part in (() if before is None else before.parts))
        self._ports.log("compacted", horizon=horizon, messages=table.messages, objects=len(parts))

    def _bytes_of(self, before: Compacted | None) -> int:
        return bytes_behind(self._log, self.horizon) + (0 if before is None else before.bytes)

    # -- what is read ------------------------------------------------------------------------------------------------

    async def _rows(self, before: Compacted | None, begin: int, horizon: int) -> AsyncIterator[pa.Table]:
        """Yield the rows of an earlier table, and those of the log from `begin` to the horizon, in order."""
        at = 0
        while before is not None and (group := await self.reader.rows_at(before, at)) is not None:
            self._log.check()
            self.state.read_bytes += group.table.nbytes
            yield not_erased(group.table, self._log.record.erasures)
            at = int(group.positions[-1]) + 1
        ids = [one.id for one in self._log.record.ledgers if ledger_of(begin) <= one.id <= ledger_of(horizon)]
        for ledger_id in ids:
            table = await self._log.table(self._ledger(ledger_id))
            first = entry_of(begin) if ledger_id == ledger_of(begin) else 0
            last = self._log.last_entry(self._ledger(ledger_id))
            last = min(last, entry_of(horizon)) if ledger_id == ledger_of(horizon) else last
            runs = range(table.run_of(first), table.run_of(last) + 1) if first <= last else range(0)
            for start in range(0, len(runs), READ_AT_ONCE):
                self._log.check()
                for frames in await self._frames(ledger_id, runs[start : start + READ_AT_ONCE]):
                    self.state.read_bytes += sum(len(frame.payload) for frame in frames)
                    rows = await self._ports.work(partial(rows_of_runs, frames))
                    yield not_erased(rows, self._log.record.erasures)

    def _ledger(self, ledger_id: int) -> LedgerRecord:
        ledger = self._log.record.ledger(ledger_id)
        if ledger is None:
            raise Unavailable(f"ledger {ledger_id} was trimmed before it was compacted")
        return ledger

    async def _frames(self, ledger_id: int, runs: Sequence[int]) -> list[list[Frame]]:
        """Return the frames of some runs without those that were given up, in stretches that follow one another."""
        ledger, stretches = self._ledger(ledger_id), list[list[Frame]]([[]])
        there = [run for run in runs if self._log.record.lost_run(ledger_id, run) is None]
        reads = [partial(self._log.reader.frame, ledger, run) for run in there]
        for frame in await together(self._ports, "compact", reads):
            stretch = stretches[-1]
            if stretch and frame.header.run != stretch[-1].header.run + 1:
                stretches.append([])
            stretches[-1].append(frame)
        return [stretch for stretch in stretches if stretch]

    # -- what is written ---------------------------------------------------------------------------------------------

    async def _write(
        self, last: LastOfKeys, log: AsyncIterator[pa.Table], table: Compacted, parts: list[CompactedPart]
    ) -> Compacted:
        """Write and compare the last messages. table: what is known of it, which is returned with the rest; parts: what
        is in the store, complete or not, is put here.
        """
        passed, now = min(self._marks().values(), default=table.horizon), self._ports.clock.now()
        grouped, value = _GroupedRows(CompactedWriter()), EARLIEST
        async for rows in log:
            kept = await self._ports.work(partial(_kept, last, rows, passed, now - EMPTY_MS))
            if kept.num_rows and grouped.writer.bytes >= PART_BYTES:
                await self._store(grouped.writer, table.horizon, parts)
                grouped.writer = CompactedWriter()
            value = max(value, _last_with_payload(kept))
            await self._ports.work(partial(grouped.add, kept))
        await self._ports.work(grouped.end)
        table = msgspec.structs.replace(table, at=self._ports.clock.now(), last=value, parts=tuple(parts))
        if grouped.writer.bytes:
            await self._store(grouped.writer, table.horizon, parts, msgspec.to_builtins(table))
        return msgspec.structs.replace(table, parts=tuple(parts))

    async def _store(
        self, writer: CompactedWriter, horizon: int, parts: list[CompactedPart], table: Any = None
    ) -> None:
        """Put a file into the store, read it back and compare its rows. Raises Corrupt, NotFound, Unavailable.

        table: of the last file, what the whole table is.
        """
        sealed = await self._ports.work(partial(writer.finish, table))
        name = self.objects.new_name(ledger_of(horizon))
        groups, messages = sealed.groups, sum(rows.num_rows for rows in sealed.rows)
        size, tail = len(sealed.data), sealed.footer_bytes
        part = CompactedPart(name, size, tail, sealed.footer_crc, groups[0].first, groups[-1].last, messages)
        parts.append(part)
        await self.objects.put(name, sealed.data)
        footer = await self.reader.footer(part)
        for number, wanted in enumerate(sealed.rows):
            self._log.check()
            found = await self.reader.group(part, footer, number)
            if not await self._ports.work(partial(found.table.equals, wanted)):
                raise Corrupt(f"row group {number} does not come out of {name} as it went in")


class _GroupedRows:
    """Makes row groups of rows that come in small pieces."""

    def __init__(self, writer: CompactedWriter) -> None:
        self.writer = writer
        self._pieces: list[pa.Table] = []
        self._bytes = self._count = 0

    def add(self, rows: pa.Table) -> None:
        """Add more rows, behind those before."""
        self._pieces.append(rows)
        self._bytes, self._count = self._bytes + rows.nbytes, self._count + rows.num_rows
        if self._bytes >= GROUP_BYTES or self._count >= GROUP_ROWS:
            self.end()

    def end(self) -> None:
        """Add the rows that have come to the file as a row group."""
        rows = pa.concat_tables(self._pieces) if self._pieces else None
        self._pieces, self._bytes, self._count = [], 0, 0
        if rows is not None and rows.num_rows:
            self.writer.add(rows.combine_chunks())


def _last_with_payload(rows: pa.Table) -> int:
    found = positions_in(rows)[~is_empty(rows)]
    return int(found[-1]) if len(found) else EARLIEST


def _kept(last: LastOfKeys, rows: pa.Table, passed: int, old: int) -> pa.Table:
    """Return the rows that are the last of their key. Left out are rows that delete their key, were published before
    `old` (ms), and have been passed by every durable subscription.
    """
    positions = positions_in(rows)
    mask = last.mask(positions)
    times = milliseconds(rows.column("publish_time")).to_numpy()
    mask &= ~(is_empty(rows) & (times < old) & (positions <= passed))
    return rows.filter(pa.array(mask)) if not mask.all() else rows


def not_erased(rows: pa.Table, erasures: Sequence[Erasure]) -> pa.Table:
    """Return the rows without the messages that are to be forgotten."""
    for one in erasures:
        doomed = pc.and_(pc.equal(rows.column("key"), one.key), pc.less_equal(rows.column("ledger"), one.until))
        rows = rows.filter(pc.invert(pc.fill_null(doomed, False)))
    return rows

"""Sealed ledgers leave for the object store: written as tables, compared, named, and only then deleted from bookies.

    closed -> (its runs in objects, read back) -> named in the record, on bookies too -> released by the bookies

Each arrow is one version of the partition's record, and no step begins before the version of the one before is durable.
An owner that dies on the way leaves at most objects that no record names; the next owner deletes these. Objects' names
carry the epoch and a number of the owner that wrote them and are never used twice, so an owner that was replaced can
write nothing that the newer one has named, and what it writes late is found when the newer one collects again.

Which ledgers: from the oldest on, while closed ledgers take more than `offload_threshold_bytes` on the bookies, and
those that were closed `offload_threshold_seconds` ago; -1 is never, as with Pulsar. And those that an operator asked
for, which stands in the record until it is done. A ledger with a run that was given up stays where it is.

What left, and what went, is then committed to the topic's table, where there is a catalog
(actors.topic.background.table_following).

The bookies keep a ledger for `offload_deletion_lag_ms` after it was named. Until then it is read from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from sluice.actors.ledger.fan_out import together
from sluice.actors.ledger.history_objects import history_prefix
from sluice.actors.ledger.record import Asked, HistoryPart, LedgerRecord, Offloaded, PartitionRecord
from sluice.actors.messages import Offload, OffloadStatus, TopicSettings
from sluice.actors.runtime.store_attempts import REFUSALS
from sluice.actors.topic.background.leaving import NEVER, forgettable, offload_status, offloadable, offloads
from sluice.actors.topic.background.newer_copies import find_copies
from sluice.actors.topic.background.stored_objects import READ_AT_ONCE, RETRY_MS, StoredObjects
from sluice.actors.topic.background.table_following import TableFollowing
from sluice.actors.topic.partition.hooks import BackgroundJob, JobContext
from sluice.storage.errors import Corrupt, NotFound, SluiceError, Unavailable
from sluice.storage.format.frame import Frame
from sluice.storage.history.part import GROUP_BYTES, GROUP_ROWS, PART_BYTES, PartWriter, SealedPart


class LedgerStays(Unavailable):
    """A ledger cannot leave now because of what it is itself, and not because of the store. Others can."""


@dataclass(slots=True)
class OffloadState:
    """How the offloading of a partition stands. error: why the last try failed; empty if it did not. undecoded: see
    OffloadStatus.
    """

    running: int = 0
    runs_done: int = 0
    runs_all: int = 0
    undecoded: int = 0
    error: str = ""


class Offloading(BackgroundJob):
    """The offloading of one partition's owner."""

    name, request = "offload", Offload

    def __init__(self, context: JobContext) -> None:
        self._ports, self._log = ports, log = context.ports, context.log
        prefix = history_prefix(context.topic, log.record.partition)
        self.objects = StoredObjects(ports, log, prefix, self._named_objects, copies=True)
        self.turns = asyncio.Lock()
        """Held by what lets ledgers leave, or writes their objects anew: one at a time."""
        self.table = TableFollowing(ports, log, context.topic, self._named_objects, self.turns.locked)
        self._not_before = 0
        self.state = OffloadState()

    async def ask(self, request: Offload) -> OffloadStatus:
        """Take an operator's request durably: `status` says when it is done. Raises Fenced."""
        if max(request.keep_bytes, request.before) >= 0:
            await self._log.metadata.update(partial(_with_asked, request))
            self._not_before = 0
        return self.status()

    @property
    def wanted(self) -> bool:
        """Whether an operator waits for something."""
        return self._log.record.asked.offload

    def status(self) -> OffloadStatus:
        """Return how offloading stands."""
        state = self.state
        return msgspec.structs.replace(
            offload_status(self._log.record),
            ledger=state.running,
            runs_done=state.runs_done,
            runs_all=state.runs_all,
            undecoded=state.undecoded,
            error=state.error or self.table.error,
        )

    def due(self, settings: TopicSettings) -> bool:
        """Return whether there is something to do, and it is time to try."""
        return self._ports.clock.monotonic() >= self._not_before and self._leaves(settings)

    def at_work(self, settings: TopicSettings) -> bool:
        """Return whether there is something to do, although it may have failed just now."""
        return self.table.behind or self._leaves(settings)

    def _leaves(self, settings: TopicSettings) -> bool:
        now, record = self._ports.clock.now(), self._log.record
        return bool(
            self.objects.any_unwanted
            or self.wanted
            or offloadable(record, settings, now)
            or forgettable(record, settings.offload_deletion_lag_ms, now)
            or (self.objects.collection_due() and self.may_have_left_objects(settings))
        )

    def concerned(self, settings: TopicSettings) -> bool:
        """Return whether there is something to do, or will be although nothing changes."""
        waits = self.wanted or self.objects.any_unwanted or self.table.behind
        return waits or self.may_have_left_objects(settings)

    def may_have_left_objects(self, settings: TopicSettings) -> bool:
        """Return whether ledgers go to the object store, or have gone there."""
        return offloads(settings) or any(ledger.offloaded is not None for ledger in self._log.record.ledgers)

    async def turn(self, settings: TopicSettings) -> list[LedgerRecord]:
        """Offload what is to be, one ledger after the other; returns ledgers that the bookies may forget.

        Raises Fenced. What fails is told in `state` and tried again.
        """
        async with self.turns:
            return await self._turn(settings)

    async def _turn(self, settings: TopicSettings) -> list[LedgerRecord]:
        stays: LedgerStays | None = None
        try:
            await self.objects.clean_up()
            await self._take_newer()
            record, now = self._log.record, self._ports.clock.now()
            asked = record.asked
            for ledger_id in offloadable(record, settings, now, keep_bytes=asked.keep_bytes, before=asked.before):
                ledger = self._log.record.ledger(ledger_id)
                try:
                    if ledger is not None:
                        await self.offload(ledger)
                except LedgerStays as error:
                    stays = stays or error
            if stays is not None:
                raise stays
            if asked.offload:
                await self._log.metadata.update(partial(_without_asked, asked))
            self.state.error = ""
        except (*REFUSALS, Corrupt, NotFound) as error:
            self.state.error = str(error)
            self._not_before = self._ports.clock.monotonic() + RETRY_MS
            self._ports.log("offload_waits", error=str(error))
        finally:
            self.state.running = 0
        return await self._release(settings)

    async def _take_newer(self) -> None:
        """Copies that are newer than the record are named (actors.topic.background.newer_copies). Raises Fenced,
        Unavailable."""
        kept = self.objects.take_kept()
        before = self._log.record
        found = await find_copies(self._ports, self._log.reader.history, kept, before) if kept else {}

        def change(record: PartitionRecord) -> PartitionRecord:
            for number, parts in found.items():
                known, newest = before.ledger(number), record.ledger(number)
                if known is not None and newest is not None and newest.offloaded == known.offloaded:
                    copy = Offloaded(self._ports.clock.now(), parts)
                    record = record.with_ledger(msgspec.structs.replace(newest, offloaded=copy))
            return record

        if found:
            await self._log.metadata.update(change)
            self._log.wake()
            self._ports.log("newer_copies_found", ledgers=list(found))

    async def _release(self, settings: TopicSettings) -> list[LedgerRecord]:
        """Let bookies forget what has been in the object store for long enough."""
        gone: list[LedgerRecord] = []

        def change(record: PartitionRecord) -> PartitionRecord:
            gone[:] = forgettable(record, settings.offload_deletion_lag_ms, self._ports.clock.now())
            for ledger in gone:
                record = record.with_ledger(msgspec.structs.replace(ledger, fragments=()))
            return record.with_released([ledger.id for ledger in gone])

        if forgettable(self._log.record, settings.offload_deletion_lag_ms, self._ports.clock.now()):
            await self._log.metadata.update(change)
        return gone

    # -- one ledger --------------------------------------------------------------------------------------------------

    async def offload(self, ledger: LedgerRecord) -> None:
        """Write, compare, name. Raises Fenced, LedgerStays, Unavailable, Corrupt, NotFound."""
        self.state.running, self.state.runs_done, self.state.runs_all = ledger.id, 0, ledger.last_run + 1
        parts: list[HistoryPart] = []
        try:
            undecoded = await self._write(ledger, parts)
        except SluiceError:
            self.objects.unwanted(part.name for part in parts)
            raise

        def change(record: PartitionRecord) -> PartitionRecord:
            newest = record.ledger(ledger.id)
            if newest is None or newest.offloaded is not None:
                return record  # it was trimmed meanwhile
            return record.with_ledger(
                msgspec.structs.replace(newest, offloaded=Offloaded(self._ports.clock.now(), tuple(parts)))
            )

        await self._log.metadata.update(change)
        self._log.wake()
        newest = self._log.record.ledger(ledger.id)
        if newest is None or newest.offloaded is None or newest.offloaded.parts != tuple(parts):
            self.objects.unwanted(part.name for part in parts)
        self.state.undecoded += undecoded
        self._ports.log("offloaded", ledger=ledger.id, runs=ledger.last_run + 1, objects=len(parts))

    async def _write(self, ledger: LedgerRecord, parts: list[HistoryPart]) -> int:
        """Write and compare all of a ledger; how many payloads did not decode.

        parts: what is in the store, complete or not, is put here.
        """
        run = entry = undecoded = 0
        while run <= ledger.last_run:
            sealed = await self._sealed(ledger, run, entry)
            part = self._named(ledger, sealed, run, entry)
            parts.append(part)
            await self.objects.put(part.name, sealed.data)
            await self._compare(ledger, part, sealed)
            run, entry = sealed.headers[-1].run + 1, sealed.headers[-1].last_entry + 1
            undecoded += sealed.undecoded
        if entry != ledger.last_entry + 1:
            raise LedgerStays(f"ledger {ledger.id} ends at entry {entry - 1}, not {ledger.last_entry}")
        return undecoded

    async def _sealed(self, ledger: LedgerRecord, first_run: int, first_entry: int) -> SealedPart:
        """Return the next file of a ledger: as many whole runs as fit."""
        writer = PartWriter(ledger.id, first_run, first_entry, await self.table.columns())
        run = first_run
        while run <= ledger.last_run and writer.bytes < PART_BYTES:
            try:
                frames = await self._frames(ledger, run)
                await self._ports.work(lambda frames=frames: writer.add(frames))  # type: ignore[misc]
            except (Unavailable, Corrupt) as error:
                raise LedgerStays(str(error)) from error
            run += len(frames)
            self.state.runs_done = run
            self._log.check()
        return await self._ports.work(writer.finish)

    async def _frames(self, ledger: LedgerRecord, run: int) -> list[Frame]:
        """Return the runs of the next row group, from their bookies. Raises Unavailable."""
        frames: list[Frame] = []
        size = rows = 0
        while run <= ledger.last_run and size < GROUP_BYTES and rows < GROUP_ROWS:
            stop = min(run + READ_AT_ONCE, ledger.last_run + 1)
            reads = [partial(self._log.reader.frame, ledger, at) for at in range(run, stop)]
            for frame in await together(self._ports, "offload", reads):
                frames.append(frame)
                size, rows, run = size + len(frame.payload), rows + frame.header.count, run + 1
        return frames

    def _named(self, ledger: LedgerRecord, sealed: SealedPart, run: int, entry: int) -> HistoryPart:
        """Return a file under a name that was never used."""
        name = self.objects.new_name(ledger.id)
        return HistoryPart(name, len(sealed.data), sealed.footer_bytes, sealed.footer_crc, run, entry)

    async def _compare(self, ledger: LedgerRecord, part: HistoryPart, sealed: SealedPart) -> None:
        """Read a file back and hold each of its runs against the ledger's checksums. Raises Corrupt, NotFound."""
        history = self._log.reader.history
        footer = await history.footer(part)
        for number, group in enumerate(footer.groups):
            self._log.check()
            rows = await history.group(part, footer, number)
            headers = sealed.headers[group.first_run - part.first_run : group.stop_run - part.first_run]
            for run in await self._ports.work(lambda rows=rows, headers=headers: rows.unlike(headers)):  # type: ignore[misc]
                wanted = await self._log.reader.frame(ledger, run)
                if not await self._ports.work(partial(rows.has, wanted)):
                    raise Corrupt(f"run {run} of ledger {ledger.id} does not come out of {part.name} as it went in")

    # -- what no record names ----------------------------------------------------------------------------------------

    def _named_objects(self) -> set[str]:
        return {part.name for one in self._log.record.ledgers if one.offloaded for part in one.offloaded.parts}

    def trimmed(self, ledgers: Sequence[LedgerRecord]) -> None:
        """Mark the objects of ledgers that have left the record for deletion."""
        self.objects.unwanted(part.name for one in ledgers if one.offloaded is not None for part in one.offloaded.parts)

    async def delete(self, last: PartitionRecord) -> None:
        """Delete the objects of a deleted topic; its table is told first."""
        if any(ledger.offloaded is not None for ledger in last.ledgers):
            await self.table.turn(last.settings)
            await self.objects.delete_all()


def _with_asked(request: Offload, record: PartitionRecord) -> PartitionRecord:
    kept = [one for one in (request.keep_bytes, record.asked.keep_bytes) if one >= 0]
    before = max(request.before, record.asked.before)
    asked = msgspec.structs.replace(record.asked, keep_bytes=min(kept, default=NEVER), before=before)
    return msgspec.structs.replace(record, asked=asked)


def _without_asked(done: Asked, record: PartitionRecord) -> PartitionRecord:
    """Unless more was asked for meanwhile."""
    asked = record.asked
    if (asked.keep_bytes, asked.before) != (done.keep_bytes, done.before):
        return record
    return msgspec.structs.replace(record, asked=msgspec.structs.replace(asked, keep_bytes=NEVER, before=NEVER))

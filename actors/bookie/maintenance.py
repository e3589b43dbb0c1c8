"""The background work of a bookie: checkpoints, merged tables, garbage, compaction, and space on the disk.

One task does all of it, one thing after the other. What is deleted is never needed by either checkpoint on disk: a
segment goes when nothing in it lives and both checkpoints stand behind it and say so, a table when neither names it. On
a full disk space counts for more than what a checkpoint says: a start that must rebuild the index then takes the
segment for lost, and doubts all ledgers.

The bookie is read-only while the disk has less free space than the settings ask for, and becomes writable again when
there is more and the reserve is back in its place.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sluice.actors.bookie.journal import RESERVE, marks_name, segment_name, segment_of
from sluice.actors.bookie.replay import scan_segment
from sluice.actors.bookie.store import REBUILD, BookieStore
from sluice.actors.ports import DiskFull
from sluice.actors.runtime.waiting import SharedFuture, all_of
from sluice.storage.errors import Corrupt, NotFound, Overloaded, Unavailable
from sluice.storage.format.frame import decode_frame
from sluice.storage.format.journal import Envelope, Kind


class BookieMaintenance:
    """Keeps one store in order."""

    def __init__(self, store: BookieStore) -> None:
        self.store = store
        self.read_only: str | None = None
        self.compacted_bytes = 0
        self.deleted_segments = 0
        self._spoiled: dict[int, str] = {}

    async def prepare(self) -> None:
        """At a start: put the reserve in place and clear away what a crash left behind."""
        await self._check_space()
        await self._collect()

    async def maintain(self) -> None:
        """One round. Raises DiskFailed."""
        store = self.store
        await store.journal.sync_mark()
        try:
            await self._check_space()
            if store.index.damaged is not None:
                await store.disk.replace(REBUILD, store.index.damaged.encode())
                store.on_failed(f"the index must be rebuilt, which a new start does: {store.index.damaged}")
                return
            await self._tidy_index()
            await self._collect()
            await self._compact_one()
        except DiskFull as error:
            self.full(str(error))
        except (Corrupt, NotFound) as error:
            store.index.damaged = store.index.damaged or str(error)  # The next round sees to it.
        except (Overloaded, Unavailable):
            return  # The disk is busy; the next round tries again.

    def full(self, reason: str) -> None:
        """The disk had no space."""
        self.read_only = self.read_only or f"the disk is full: {reason}"

    async def _tidy_index(self) -> None:
        """Merge tables and save a checkpoint, if that is due. What has no room holds up nothing that makes room."""
        try:
            if await self._merge() or self._is_due():
                await self.store.checkpoint()
        except DiskFull as error:
            self.full(str(error))

    async def _merge(self) -> bool:
        """Whether tables were merged, which the next checkpoint makes durable. A block that the disk does not read now,
        or has no room for, leaves them as they are, and nothing else waits for it: without checkpoints the journal
        would fill the disk.
        """
        try:
            return await self.store.index.merge_some(np.array(self.store.ledgers.deleted, np.uint32))
        except DiskFull as error:
            self.full(str(error))
        except Unavailable:
            pass
        return False

    def _is_due(self) -> bool:
        store, settings = self.store, self.store.settings
        if store.index.tail_rows >= settings.checkpoint_runs:
            return True
        if store.journal.written - store.checkpointed >= settings.checkpoint_bytes:
            return True
        # Garbage waits until both checkpoints have passed it.
        return bool(store.segments.garbage(store.journal.applied[0])) and not self._garbage()

    def _garbage(self) -> list[int]:
        """The segments that neither checkpoint would miss."""
        garbage = self.store.segments.garbage(self._kept_from())
        if self.read_only is not None:
            return garbage
        return [segment for segment in garbage if not any(segment in saved.living for saved in self.store.saved)]

    def _kept_from(self) -> int:
        """The first segment that one of the checkpoints would replay."""
        return min((saved.segment for saved in self.store.saved), default=0) if len(self.store.saved) > 1 else 0

    async def _check_space(self) -> None:
        disk, settings = self.store.disk, self.store.settings
        free = await disk.free()
        if free < settings.min_free_bytes:
            self.read_only = f"only {free} bytes are free, {settings.min_free_bytes} are the minimum"
            return
        try:
            missing = settings.reserve_bytes - await disk.size(RESERVE)
            if missing > 0:
                await disk.append(RESERVE, [bytes(missing)], sync=True)
        except DiskFull as error:
            self.full(str(error))
            return
        if self.read_only is not None and free >= settings.min_free_bytes + settings.reserve_bytes:
            self.read_only = None

    async def _collect(self) -> None:
        store = self.store
        for segment in self._garbage():
            await store.disk.delete(segment_name(segment))
            store.segments.gone(segment)
            self.deleted_segments += 1
        needed = {name: True for saved in store.saved for name in saved.tables}
        needed.update((table.name, True) for table in store.index.tables)
        for name in await store.disk.names():
            number = segment_of(name, "marks-")
            if number is not None and number < store.journal.segment:
                await store.disk.delete(marks_name(number))
            elif name.startswith("index-") and name not in needed and len(store.saved) > 1:
                await store.disk.delete(name)

    async def _compact_one(self) -> None:
        store = self.store
        segment = store.segments.sparse(self._kept_from(), store.settings.compact_below, self._spoiled)
        if segment is None or self.read_only is not None:
            return
        try:
            scanned = await scan_segment(store.disk, store.salt, segment, final_size=store.segments.sizes.get(segment))
        except Unavailable as error:
            self._spoiled[segment] = str(error)
            raise
        if scanned.lost or any(finding.verdict != "ok" for finding in scanned.findings):
            self._spoiled[segment] = "it has damage"
            return
        batch: list[SharedFuture[Envelope]] = []
        for finding in scanned.findings:
            if finding.envelope is not None and finding.envelope.kind is Kind.RUN:
                await self._move(finding.envelope, batch)
            if sum(not moved.done() for moved in batch) >= 16:
                await all_of(batch)
                batch.clear()
        await all_of(batch)
        store.segments.emptied(segment)

    async def _move(self, record: Envelope, batch: list[SharedFuture[Envelope]]) -> None:
        """Write a run again at the end of the journal, if this is the copy that the index names."""
        store = self.store
        if record.ledger in store.ledgers.deleted:
            return
        row = await store.index.find(record.ledger, record.run)
        if row is None or (row.segment, row.offset) != (record.segment, record.body):
            return
        data = await store.disk.read(segment_name(record.segment), record.body, record.size)
        try:
            decode_frame(data)
        except Corrupt as error:
            self._spoiled[record.segment] = str(error)
            raise Unavailable(f"a segment was damaged while it was compacted: {error}") from error
        batch.append(store.journal.submit(replace(record, segment=0, offset=0, durable=0), [data]))
        self.compacted_bytes += record.size

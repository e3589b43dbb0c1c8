"""Restores the index from the headers of the buckets that the manifest names (BD-31, BD-34).

Only headers are read, several at a time, in the background. Leading segments whose messages have all fallen due are
skipped: the log still holds those messages, and reading it delivers them. What was never sealed is found the same way,
because the dispatcher reads the log from the mark-delete position and leaves out only what is tracked. An index that
changes owners under readers that go on skips nothing: they have passed those messages and count on the index.

An object that is missing or corrupt is lost: its range goes to a rescan, with an alarm. One that cannot be reached
now goes to a rescan as well, but stays named until its range is done: the next owner may have more luck (BD-33, one
bucket at a time).

Reading may begin before the end of the recovery, if that takes long. What was read by then is kept in memory and not
sealed, and of what a header restores the columns are dropped: nothing is stored twice.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.actors.delayed.bucket_set import BucketSet
from sluice.actors.runtime.store_attempts import REFUSALS
from sluice.actors.runtime.waiting import Signal
from sluice.storage.delayed.bucket import BucketHeader, restore_bitmaps
from sluice.storage.delayed.index import PositionIndex
from sluice.storage.delayed.live import Bucket, first_live_segment
from sluice.storage.delayed.manifest import BucketRecord
from sluice.storage.errors import Corrupt, NotFound, SluiceError

PARALLEL = 8


class IndexRecovery:
    """One recovery. finished: called when every bucket is restored or given up.

    under_readers: subscriptions may have read the log already, and left to the index what was delayed then.
    """

    def __init__(self, bucket_set: BucketSet, finished: Callable[[], None], *, under_readers: bool) -> None:
        self._bucket_set = bucket_set
        self._finished = finished
        self._under_readers = under_readers
        self._waiting: list[BucketRecord] = []
        self._done = Signal()
        self._workers = 0
        self._generation = 0
        self.given = PositionIndex()
        """What was given out while the recovery ran: it must not be tracked again by a header that comes later."""
        self.total = 0
        self.restored = 0
        self.unreachable = 0
        self.lost = 0

    def start(self, records: tuple[BucketRecord, ...]) -> None:
        self._bucket_set.set_names({record.key: record for record in records})
        for record in records:
            if record.epoch == self._bucket_set.manifest.epoch:
                self._bucket_set.reserve(record.number)
        if self._generation:
            # Cleared before it began.
            self._bucket_set.drops.update((record.key, None) for record in records)
            records = ()
        self._waiting = [record for record in reversed(records) if not record.damaged]
        self.total = len(self._waiting)
        self._workers = min(PARALLEL, self.total)
        if not self._workers:
            self._end()
        for worker in range(self._workers):
            self._bucket_set.ports.spawn(self._work(), f"delayed recovery {worker}")

    def cancel(self) -> None:
        """Everything was cleared: restore nothing any more."""
        self._waiting.clear()
        self._generation += 1

    async def wait(self) -> None:
        await self._done.wait(self._bucket_set.ports)

    def progress(self) -> dict[str, int | bool]:
        return {
            "running": self._bucket_set.recovering,
            "buckets": self.total,
            "restored": self.restored,
            "lost": self.lost,
            "unreachable": self.unreachable,
        }

    async def _work(self) -> None:
        while self._waiting and not self._bucket_set.stopped:
            record, generation = self._waiting.pop(), self._generation
            try:
                header = await self._bucket_set.objects.header(record.key, record.header_bytes)
                if generation == self._generation:
                    self._restore(record, header)
                    self.restored += 1
            except (*REFUSALS, NotFound, Corrupt) as error:
                if generation == self._generation:
                    self._give_up(record, error)
        self._workers -= 1
        if not self._workers:
            self._end()

    def _restore(self, record: BucketRecord, header: BucketHeader) -> None:
        bucket_set = self._bucket_set
        if (header.epoch, header.number) != record.key or header.size != record.size:
            raise Corrupt(f"bucket {bucket_set.objects.name(record.key)} is not the one that the manifest names")
        cutoff = bucket_set.core.cutoff(bucket_set.ports.clock.now())
        first = 0 if self._under_readers else first_live_segment(header.table, cutoff)
        bitmaps = list(restore_bitmaps(header, first))
        doubled = PositionIndex()
        for ledger, bitmap in bitmaps:
            doubled.merge(ledger, bucket_set.core.index.overlap(ledger, bitmap))
            bucket_set.core.index.merge(ledger, bitmap)
        if len(doubled):
            bucket_set.core.purge(lambda positions: ~doubled.contains(positions))
        bucket_set.core.index.discard_all(self.given)
        bucket_set.core.index.discard_range(0, bucket_set.mark_delete + 1)
        bucket = Bucket.restored(record, header.table, first)
        bucket_set.add(bucket)
        if record.end <= bucket_set.mark_delete:
            bucket_set.retire(bucket)

    def _give_up(self, record: BucketRecord, error: SluiceError) -> None:
        bucket_set = self._bucket_set
        if isinstance(error, REFUSALS):
            self.unreachable += 1
            bucket_set.refused("recover", bucket_set.objects.name(record.key), error)
        else:
            self.lost += 1
            bucket_set.note_loss(record.key, error)
        if record.end <= bucket_set.mark_delete:
            bucket_set.drops[record.key] = None
        else:
            bucket_set.rescans.append((record.start, record.end))

    def _end(self) -> None:
        self._bucket_set.recovering = False
        self._done.set()
        self.given.clear()
        self._finished()

"""Merges neighbouring buckets when there are too many (BD-21 to BD-23, repaired).

All segments of the sources are read, from the first on, and merged in order of time in a stream, so that no more
than a few segments of each are in memory beside the new object. The new object is stored and read back; one version
of the manifest then names it instead of its sources. Until that, and if anything fails, the sources stay as they
are and go on delivering. The objects of the sources are left to the collector.

What was given out or trimmed is left out of the new object; what is given out between the reading and the swap is
dropped by the index when its time comes again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.actors.delayed.bucket_set import BucketSet, Names
from sluice.actors.delayed.objects import Key
from sluice.actors.delayed.stats import MERGE
from sluice.actors.runtime.store_attempts import REFUSALS
from sluice.storage.delayed.bucket import BucketBuilder, SealedBucket, SegmentTable
from sluice.storage.delayed.entries import EMPTY, END, Bound, concat
from sluice.storage.delayed.live import Bucket, BucketState, record_of
from sluice.storage.delayed.queue import SortedRun
from sluice.storage.delayed.window import Candidate, choose_window
from sluice.storage.errors import Conflict, Corrupt, NotFound, SluiceError

MAX_MERGED = 2_000_000
"""Messages of a merged bucket at most, as long as the limit of buckets can be kept with such."""
BATCH = 65_536
"""Entries of one source read at a time."""


class SourceLost(Exception):
    """A source of a merge cannot be read, and never will be."""

    def __init__(self, bucket: Bucket, error: SluiceError) -> None:
        super().__init__(str(error))
        self.bucket = bucket
        self.error = error


@dataclass(slots=True)
class _Source:
    """One bucket being read from its first segment on."""

    bucket: Bucket
    table: SegmentTable
    data_start: int
    segment: int = 0
    run: SortedRun = field(default_factory=lambda: SortedRun(EMPTY))

    def horizon(self) -> Bound:
        return self.table.bound(self.segment) if self.segment < len(self.table) else END


class Merger:
    """Chooses and merges buckets. limit: the most sealed buckets; 0 or less: no limit."""

    def __init__(self, bucket_set: BucketSet, limit: int, step_ms: int, max_entries: int) -> None:
        self._bucket_set = bucket_set
        self._limit = limit
        self._step_ms = step_ms
        self._max_entries = max_entries

    def too_many(self) -> int:
        """By how many buckets the limit is exceeded."""
        return max(len(self._bucket_set.buckets) - self._limit, 0) if self._limit > 0 else 0

    def choose(self) -> list[Bucket]:
        """The neighbours to merge next; none if there are not too many, or no window fits."""
        if not self.too_many():
            return []
        buckets = self._bucket_set.buckets
        candidates = [Candidate(_mergeable(b), b.record.count if b.record else 0, b.horizon()[0]) for b in buckets]
        window = choose_window(candidates, MAX_MERGED)
        return buckets[window] if window else []

    async def merge(self, sources: list[Bucket]) -> bool:
        """Merge neighbours. False if it failed or was overtaken; the sources then are as they were. Raises Fenced."""
        bucket_set = self._bucket_set
        for bucket in sources:
            bucket.merging = True
        key = bucket_set.new_key()
        try:
            return await bucket_set.objects.timed(MERGE, lambda: self._merge(key, sources))
        except SourceLost as lost:
            bucket_set.lose(lost.bucket, lost.error)
            return True
        except (*REFUSALS, Conflict, Corrupt, NotFound) as error:
            bucket_set.refused("merge", bucket_set.objects.name(key), error)
            return False
        finally:
            bucket_set.release(key)
            for bucket in sources:
                bucket.merging = False
            bucket_set.changed()

    async def _merge(self, key: Key, sources: list[Bucket]) -> bool:
        bucket_set = self._bucket_set
        sealed = await self._build(key, sources)
        record = None
        if sealed is not None:
            await bucket_set.objects.put(key, sealed)
            await bucket_set.objects.verify(key, sealed)
            record = record_of(key, sealed.header)

        def swap(names: Names) -> Names | None:
            if any(bucket.state is not BucketState.LIVE for bucket in sources):
                return None
            for bucket in sources:
                names.pop(bucket.key, None)
            if record is not None:
                names[key] = record
            return names

        if not await bucket_set.commit(swap):
            return False
        if record is not None and sealed is not None:
            self._switch(Bucket.restored(record, sealed.header.table, 0), sources)
        else:
            for bucket in sources:
                bucket_set.remove(bucket)
        return True

    def _switch(self, merged: Bucket, sources: list[Bucket]) -> None:
        """Put the merged bucket in place of those sources that are still there."""
        bucket_set = self._bucket_set
        left = [bucket for bucket in sources if bucket.state is BucketState.LIVE]
        if not left:
            # Everything was trimmed, lost or cleared while the version was being written.
            bucket_set.drops[merged.key] = None
            return
        # What the sources had loaded goes on from memory, so the merged bucket starts behind what they all had.
        table = merged.table
        assert table is not None
        missing = min(bucket.horizon() for bucket in left)[0]
        while len(left) == len(sources) and merged.horizon() < END:
            if int(table.max_time[merged.next_segment]) >= missing:
                break
            merged.next_segment += 1
        for bucket in left:
            bucket_set.core.add_loose(SortedRun(bucket.run.rest()))
            bucket_set.remove(bucket)
        bucket_set.add(merged)

    async def _build(self, key: Key, buckets: list[Bucket]) -> SealedBucket | None:
        sources = [
            _Source(b, b.table, b.record.header_bytes) for b in buckets if b.table is not None and b.record is not None
        ]
        low = min(int(source.table.min_time[0]) for source in sources)
        high = max(int(source.table.max_time.max()) for source in sources)
        builder = BucketBuilder(
            self._bucket_set.objects.owner,
            *key,
            step_ms=self._step_ms,
            max_entries=self._max_entries,
            span=high - low,
        )
        while (least := min(sources, key=_Source.horizon)).horizon() < END:
            await self._read(least)
            until = min(source.horizon() for source in sources)
            due = concat([part for source in sources if len(part := source.run.cut(until))])
            builder.append(due.take(self._bucket_set.core.index.contains(due.positions)).sorted())
            await self._bucket_set.ports.clock.sleep(0)
        return builder.finish()

    async def _read(self, source: _Source) -> None:
        """Append the next segments of a source to its run."""
        first, stop, total = source.segment, source.segment, 0
        while stop < len(source.table) and (stop == first or total + int(source.table.count[stop]) <= BATCH):
            total += int(source.table.count[stop])
            stop += 1
        try:
            entries = await self._bucket_set.objects.segments(
                source.bucket.key, source.data_start, source.table, first, stop
            )
        except (NotFound, Corrupt) as error:
            raise SourceLost(source.bucket, error) from error
        source.segment = stop
        source.run = SortedRun(concat([part for part in (source.run.rest(), entries) if len(part)]))


def _mergeable(bucket: Bucket) -> bool:
    return bucket.state is BucketState.LIVE and not bucket.merging and bucket.horizon() < END

"""Seals the mutable bucket and makes the sealed bucket durable.

A bucket is cut at a ledger border once it holds the least number of entries (BD-11.3), and inside a ledger
once it holds SPILL times as many (at least SPILL_ENTRIES): ledgers are long, memory is not. Its entries stay in memory
and are delivered from there until the object is stored and the manifest names it. If that fails four times, the
bucket is parked: it works from memory, the stats say so, and it is tried again later under a new name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sluice.actors.delayed.bucket_set import BucketSet, Names
from sluice.actors.delayed.stats import CREATE
from sluice.actors.runtime.store_attempts import REFUSALS
from sluice.storage.delayed.bucket import BucketBuilder, SealedBucket
from sluice.storage.delayed.entries import Entries, stable_order
from sluice.storage.delayed.live import Bucket, BucketState, record_of
from sluice.storage.delayed.queue import SortedRun
from sluice.storage.errors import Conflict, Fenced
from sluice.storage.format.position import ledgers_of

SPILL = 4
SPILL_ENTRIES = 262_144
PARALLEL = 2
"""Buckets being written at the same time; further ones wait with their entries in memory."""
SLICE = 32_768
"""Entries encoded between two turns of the event loop."""
PARKED_MS = 30_000
"""Pause before parked buckets are tried again."""
BEHIND = 2
"""Sealed buckets that may be on their way to the store before reading pauses."""


class Sealer:
    """Decides where buckets are cut, and writes them.

    step_ms, max_entries: the segments' cutting rule. finished: called after each attempt to write a bucket, with True
    if an object may have been left over since the last call.
    """

    def __init__(
        self, bucket_set: BucketSet, min_entries: int, step_ms: int, max_entries: int, finished: Callable[[bool], None]
    ) -> None:
        self._bucket_set = bucket_set
        self._min = max(min_entries, 1)
        self._spill = max(SPILL * self._min, SPILL_ENTRIES)
        self.step_ms = step_ms
        self.max_entries = max_entries
        self._finished = finished
        self._leftover = False
        self._turns = asyncio.Semaphore(PARALLEL)
        self.retry_at: int | None = None
        """When parked buckets are tried again, by the monotonic clock."""

    def keep(self, new: Entries) -> None:
        """Put new entries (positions ascending) into the mutable bucket, sealing it where the rule says so."""
        mutable = self._bucket_set.core.mutable
        start = 0
        while start < len(new):
            stop = self._stop(new, start)
            self._bucket_set.core.keep(new.slice(start, stop))
            start = stop
            if start < len(new) or len(mutable) >= self._spill:
                self.seal()

    def _stop(self, new: Entries, start: int) -> int:
        """How far entries may be added before the bucket has to be sealed; seals first if it has to be at once."""
        mutable = self._bucket_set.core.mutable
        ledgers = ledgers_of(new.positions[start:])
        if mutable.last_ledger >= 0 and int(ledgers[0]) > mutable.last_ledger and len(mutable) >= self._min:
            self.seal()
        room = self._spill - len(mutable)
        # The next border behind which the bucket would be full enough.
        needed = max(self._min - len(mutable), 0)
        borders = (ledgers[1:] > ledgers[:-1]).nonzero()[0] + 1
        later = borders[borders >= needed]
        border = int(later[0]) if later.size else ledgers.size
        return start + min(border, max(room, 1), int(ledgers.size))

    def seal(self) -> None:
        """Turn the mutable bucket into a sealed one and start writing it."""
        if self._bucket_set.core.stale:
            self._bucket_set.core.purge()
        self._seal(self._bucket_set.core.mutable.drain())

    def seal_held(self) -> None:
        """Seal the messages that came while sealing was impossible, in buckets of the usual size."""
        if len(self._bucket_set.core.mutable) < self._min:
            return
        entries = self._bucket_set.core.mutable.drain()
        entries = entries.take(stable_order(entries.positions))
        for start in range(0, len(entries), self._spill):
            self._seal(entries.slice(start, min(start + self._spill, len(entries))).copy())

    def _seal(self, entries: Entries) -> None:
        if not len(entries):
            return
        low, high = int(entries.positions.min()), int(entries.positions.max())
        bucket = Bucket(self._bucket_set.new_key(), low, high, SortedRun(entries.sorted()))
        self._bucket_set.core.index.compact(low, high)
        self._bucket_set.add(bucket)
        self._start(bucket)

    def retry_parked(self) -> None:
        """Try to write parked buckets again."""
        self.retry_at = None
        for bucket in [one for one in self._bucket_set.buckets if one.state is BucketState.PARKED]:
            bucket.run = bucket.run.only(self._bucket_set.core.index.contains)
            if not len(bucket.run):
                self._bucket_set.remove(bucket)
                continue
            bucket.key = self._bucket_set.new_key()
            bucket.state = BucketState.BUILDING
            self._start(bucket)

    def _start(self, bucket: Bucket) -> None:
        self._bucket_set.ports.spawn(self._write(bucket), f"delayed seal {bucket.key}")

    async def _write(self, bucket: Bucket) -> None:
        bucket_set, key = self._bucket_set, bucket.key
        async with self._turns:
            try:
                if not bucket_set.stopped and bucket.state is BucketState.BUILDING:
                    await bucket_set.objects.timed(CREATE, lambda: self._create(bucket))
            except (*REFUSALS, Conflict) as error:
                bucket_set.refused("create", bucket_set.objects.name(key), error)
                if bucket.state is BucketState.BUILDING:
                    bucket.state = BucketState.PARKED
                    self.retry_at = bucket_set.ports.clock.monotonic() + PARKED_MS
            except Fenced:
                return
            finally:
                bucket_set.release(key)
        # An unclear write may still land after the collector ran, so it runs again after the next good one.
        leftover, before = bucket.state is not BucketState.LIVE, self._leftover
        self._leftover = leftover
        if not bucket_set.stopped:
            self._finished(leftover or before)
            bucket_set.changed()

    async def _create(self, bucket: Bucket) -> None:
        bucket_set = self._bucket_set
        run = bucket.run = SortedRun(bucket.run.rest())
        sealed = await self._build(bucket.key, run)
        if sealed is None or not bucket.is_in(BucketState.BUILDING):
            return
        await bucket_set.possess()
        await bucket_set.objects.put(bucket.key, sealed)
        record = record_of(bucket.key, sealed.header)

        def add(names: Names) -> Names | None:
            return {**names, record.key: record} if bucket.state is BucketState.BUILDING else None

        if not await bucket_set.commit(add):
            return
        if not bucket.is_in(BucketState.BUILDING):
            # Cleared or trimmed while the version was being written: it must not stay named.
            bucket_set.drops[record.key] = None
            return
        taken = run.head if len(run) else sealed.header.count
        now = bucket_set.ports.clock.now()
        bucket.keep_segment(record, sealed.header.table, taken, bucket_set.core.cutoff(now) + bucket_set.look_ahead_ms)
        bucket_set.touch()

    async def _build(self, key: tuple[int, int], run: SortedRun) -> SealedBucket | None:
        entries = run.rest()
        times = entries.deliver_at
        span = int(times[-1]) - int(times[0]) if len(entries) else 0
        owner = self._bucket_set.objects.owner
        builder = BucketBuilder(owner, *key, step_ms=self.step_ms, max_entries=self.max_entries, span=span)
        for start in range(0, len(entries), SLICE):
            builder.append(entries.slice(start, min(start + SLICE, len(entries))))
            await self._bucket_set.ports.clock.sleep(0)
        return builder.finish()

"""Loads the next segments of buckets, off the dispatch path.

A segment is loaded when it starts within the look-ahead and little of its bucket is left in memory. Neighbouring
segments that are due as soon come in the same range read. All loaded entries together stay within a budget, except
that the bucket with the least horizon may always load one segment once that is due: so dispatch never stops for want of
room, and the order (deliver_at, position) holds.

A store that does not give a segment stalls its bucket: its horizon is ignored, so that what is in memory and what other
buckets have goes on being delivered, and the load is tried again after a growing pause. Retries have a few places of
their own, the longest waiting first: however many objects cannot be read, they take no place from one that can. A store
that says nothing at all for a while counts as one that refuses: its answer may take minutes, until the last connection
has run out of time. Meanwhile the bucket is asked for again, and the first answer counts. A missing or corrupt object
is final: the bucket is lost to a rescan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sluice.actors.delayed.bucket_set import BucketSet
from sluice.actors.delayed.stats import LOAD
from sluice.actors.runtime.store_attempts import BACK_OFF_MS, REFUSALS
from sluice.storage.delayed.entries import NEVER, concat
from sluice.storage.delayed.live import Bucket, BucketState
from sluice.storage.delayed.queue import SortedRun
from sluice.storage.errors import SluiceError, Unavailable

LOAD_ENTRIES = 20_000
"""About how many entries one range read brings, more only if a single segment is larger."""
BUDGET_ENTRIES = 2_000_000
"""Loaded entries of all buckets of a subscription: 40 MB."""
LOW_WATER = 5_000
PARALLEL = 8
RETRIES = 2
"""Loads of stalled buckets that run at the same time, beside the others."""
HANGING = 2
"""A bucket of which so many requests are late is not asked for again before one of them has ended."""
STALLED_MS = 2_000
"""Pause before a stalled bucket is tried once more, when the first, shorter pauses are over."""
LATE_MS = 3_000
"""So long other messages wait for a load that is not answered, and so long it has a place among the loads."""


@dataclass(eq=False, slots=True)
class _Load:
    """A request for a bucket's next segments. again: it was stalled before. late_at: monotonic ms, after which the
    request has no place any more, and others go on without it.
    """

    bucket: Bucket
    again: bool
    late_at: int
    late: bool = False


class Loader:
    """Decides what to load and loads it. finished: called after each load, with True if its bucket was lost."""

    def __init__(self, bucket_set: BucketSet, finished: Callable[[bool], None]) -> None:
        self._bucket_set = bucket_set
        self._finished = finished
        self._running: dict[_Load, None] = {}
        """The loads that have a place."""
        self._stalled: list[Bucket] = []

    def pump(self, now: int) -> None:
        """Start the loads that are due."""
        if self._bucket_set.stopped:
            return
        until = self._bucket_set.core.cutoff(now) + self._bucket_set.look_ahead_ms
        if self._running:
            self._pass_late()
        if self._stalled:
            self._retry(until)
        least = self._bucket_set.horizon()
        places = PARALLEL - self._under_way(again=False)
        if places <= 0 or least[0] > until:
            return
        cutoff = self._bucket_set.core.cutoff(now)
        room = BUDGET_ENTRIES - self._bucket_set.loaded()
        if room < LOAD_ENTRIES and least[0] > cutoff:
            return
        wanted = [bucket for bucket in self._bucket_set.buckets if not bucket.stalled and _needs_load(bucket, until)]
        wanted.sort(key=lambda bucket: (bucket.horizon(), bucket.key))
        for bucket in wanted[:places]:
            urgent = bucket.horizon() <= min(least, (cutoff, NEVER))
            if room < LOAD_ENTRIES and not urgent:
                break
            room -= LOAD_ENTRIES
            self._start(bucket, until)

    def next_time(self) -> int:
        """When `pump` should be called again if nothing else happens, in ms; far away if not at all."""
        return self._bucket_set.horizon()[0] - self._bucket_set.look_ahead_ms - self._bucket_set.core.tick_ms

    def look_at(self) -> int | None:
        """When a stalled bucket is tried again, or a load is late, by the monotonic clock; None if there is neither."""
        times = [load.late_at for load in self._running]
        if self._under_way(again=True) < RETRIES:
            times += [bucket.retry_at for bucket in self._stalled if _may_retry(bucket)]
        return min(times, default=None)

    def _under_way(self, *, again: bool) -> int:
        return sum(load.again is again for load in self._running)

    def _pass_late(self) -> None:
        """Go on without those loads that the store has not answered for too long."""
        over = self._bucket_set.ports.clock.monotonic()
        for load in [load for load in self._running if load.late_at <= over]:
            del self._running[load]
            load.late, load.bucket.loading = True, False
            load.bucket.hanging += 1
            name = self._bucket_set.objects.name(load.bucket.key)
            self._bucket_set.refused("load", name, Unavailable(f"the store has not answered for {LATE_MS} ms"))
            self._stall(load.bucket)
            self._bucket_set.changed()

    def _retry(self, until: int) -> None:
        """Try those stalled buckets again whose pause is over."""
        self._stalled = [bucket for bucket in self._stalled if bucket.stalled and bucket.state is BucketState.LIVE]
        over = self._bucket_set.ports.clock.monotonic()
        again = [bucket for bucket in self._stalled if _may_retry(bucket) and bucket.retry_at <= over]
        again.sort(key=lambda bucket: (bucket.retry_at, bucket.key))
        for bucket in again[: max(RETRIES - self._under_way(again=True), 0)]:
            self._start(bucket, until)

    def _start(self, bucket: Bucket, until: int) -> None:
        bucket.loading = True
        load = _Load(bucket, bucket.stalled, self._bucket_set.ports.clock.monotonic() + LATE_MS)
        self._running[load] = None
        self._bucket_set.ports.spawn(self._load(load, until), f"delayed load {bucket.key}")

    async def _load(self, load: _Load, until: int) -> None:
        bucket_set, bucket, lost = self._bucket_set, load.bucket, False
        try:
            await self._fetch(bucket, until)
        except REFUSALS as error:
            bucket_set.refused("load", bucket_set.objects.name(bucket.key), error)
            if not load.late:  # else it has stalled then, and may have been loaded since
                self._stall(bucket)
        except SluiceError as error:
            if bucket_set.is_final(error):
                bucket_set.lose(bucket, error)
                lost = True
            else:
                bucket_set.fail(error)
        finally:
            if load.late:
                bucket.hanging -= 1
            else:
                bucket.loading = False
                del self._running[load]
        if not bucket_set.stopped:
            self.pump(bucket_set.ports.clock.now())
            self._finished(lost)
            bucket_set.changed()

    def _stall(self, bucket: Bucket) -> None:
        """Stall at the first failure: messages in memory need not wait for the store."""
        pauses = (*BACK_OFF_MS, STALLED_MS)
        bucket.retry_at = self._bucket_set.ports.clock.monotonic() + pauses[min(bucket.refusals, len(pauses) - 1)]
        bucket.refusals += 1
        self._pass_by(bucket)

    def _pass_by(self, bucket: Bucket) -> None:
        """Mark a bucket as stalled: its horizon does not count any more, until it is loaded."""
        if not bucket.stalled:
            bucket.stalled = True
            self._stalled.append(bucket)
            self._bucket_set.touch()

    async def _fetch(self, bucket: Bucket, until: int) -> None:
        bucket_set, table, record = self._bucket_set, bucket.table, bucket.record
        if table is None or record is None:
            return
        first, stop = bucket.next_segment, bucket.plan_load(until, LOAD_ENTRIES)
        data_start = record.header_bytes
        entries = await bucket_set.objects.timed(
            LOAD, lambda: bucket_set.objects.segments_once(bucket.key, data_start, table, first, stop)
        )
        if bucket.state is not BucketState.LIVE or bucket.next_segment != first:
            return
        entries = entries.take(bucket_set.core.index.contains(entries.positions))
        rest = bucket.run.rest()
        bucket.run = SortedRun(concat([part for part in (rest, entries) if len(part)]))
        bucket.next_segment = stop
        bucket.stalled, bucket.refusals = False, 0
        bucket_set.touch()
        if len(entries):
            bucket_set.core.reorder((int(entries.deliver_at[0]), int(entries.positions[0])))


def _may_retry(bucket: Bucket) -> bool:
    return not bucket.loading and bucket.hanging < HANGING


def _needs_load(bucket: Bucket, until: int) -> bool:
    """Whether the next segment starts soon, and little is left before it."""
    return bucket.horizon()[0] <= until and not bucket.loading and len(bucket.run) <= LOW_WATER

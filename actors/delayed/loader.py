"""Loads the next segments of buckets, off the dispatch path.

A segment is loaded when it starts within the look-ahead and little of its bucket is left in memory. Neighbouring
segments that are due as soon come in the same range read. All loaded entries together stay within a budget, except
that the bucket with the least horizon may always load one segment once that is due: so dispatch never stops for want of
room, and the order (deliver_at, position) holds.

A store that is away stalls a bucket: its horizon is ignored, so that what is in memory goes on being
delivered, and the load is tried again. A missing or corrupt object is final: the bucket is lost to a rescan.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.delayed.shelf import Shelf
from actors.delayed.stats import LOAD
from storage.delayed.entries import concat
from storage.delayed.live import Bucket, State
from storage.delayed.queue import Run
from storage.errors import SluiceError, Unavailable

LOAD_ENTRIES = 20_000
"""About how many entries one range read brings, more only if a single segment is larger."""
BUDGET_ENTRIES = 2_000_000
"""Loaded entries of all buckets of a subscription: 40 MB."""
LOW_WATER = 5_000
PARALLEL = 8
STALLED_MS = 2_000
"""Pause before a stalled bucket is tried again; each try has four attempts."""


class Loader:
    """Decides what to load and loads it. lost: called with a bucket that the loader gave to a rescan."""

    def __init__(self, shelf: Shelf, lost: Callable[[Bucket], None]) -> None:
        self._shelf = shelf
        self._lost = lost
        self._running = 0

    def pump(self, now: int) -> None:
        """Start the loads that are due."""
        shelf = self._shelf
        until = shelf.core.cutoff(now) + shelf.look_ahead_ms
        if shelf.stopped or self._running >= PARALLEL or (shelf.horizon() > until and not self._any_stalled()):
            return
        wanted = [b for b in shelf.buckets if not b.loading and b.horizon() <= until and len(b.run) <= LOW_WATER]
        wanted.sort(key=lambda bucket: (bucket.horizon(), bucket.key))
        room = BUDGET_ENTRIES - shelf.loaded()
        least = shelf.horizon()
        for bucket in wanted[: PARALLEL - self._running]:
            urgent = bucket.horizon() <= min(least, shelf.core.cutoff(now))
            if room < LOAD_ENTRIES and not urgent:
                break
            room -= LOAD_ENTRIES
            bucket.loading = True
            self._running += 1
            shelf.ports.spawn(self._load(bucket, until), f"delayed load {bucket.key}")

    def next_time(self) -> int:
        """When `pump` should be called again if nothing else happens; NEVER if not at all."""
        return self._shelf.horizon() - self._shelf.look_ahead_ms - self._shelf.core.tick_ms

    def _any_stalled(self) -> bool:
        return any(bucket.stalled and not bucket.loading for bucket in self._shelf.buckets)

    async def _load(self, bucket: Bucket, until: int) -> None:
        shelf = self._shelf
        try:
            await self._fetch(bucket, until)
        except Unavailable as error:
            shelf.ports.log("delayed_load_failed", bucket=shelf.objects.name(bucket.key), error=str(error))
            bucket.stalled = True
            shelf.touch()
            shelf.changed()
            await shelf.ports.clock.sleep(STALLED_MS)
        except SluiceError as error:
            if shelf.is_final(error):
                shelf.lose(bucket, error)
                self._lost(bucket)
            else:
                shelf.fail(error)
        finally:
            bucket.loading = False
            self._running -= 1
        if not shelf.stopped:
            self.pump(shelf.ports.clock.now())
            shelf.changed()

    async def _fetch(self, bucket: Bucket, until: int) -> None:
        shelf, table, record = self._shelf, bucket.table, bucket.record
        if table is None or record is None:
            return
        first, stop = bucket.next_segment, bucket.plan_load(until, LOAD_ENTRIES)
        data_start = record.header_bytes
        entries = await shelf.objects.timed(
            LOAD, lambda: shelf.objects.segments(bucket.key, data_start, table, first, stop)
        )
        if bucket.state is not State.LIVE or bucket.next_segment != first:
            return
        entries = entries.take(shelf.core.index.contains(entries.positions))
        rest = bucket.run.rest()
        bucket.run = Run(concat([part for part in (rest, entries) if len(part)]))
        bucket.next_segment = stop
        bucket.stalled = False
        shelf.touch()
        if len(entries):
            shelf.core.reorder(int(entries.deliver_at[0]))

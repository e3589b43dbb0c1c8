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

from actors.delayed.retry import REFUSALS
from actors.delayed.shelf import Shelf
from actors.delayed.stats import LOAD
from storage.delayed.entries import NEVER, concat
from storage.delayed.live import Bucket, State
from storage.delayed.queue import Run
from storage.errors import SluiceError

LOAD_ENTRIES = 20_000
"""About how many entries one range read brings, more only if a single segment is larger."""
BUDGET_ENTRIES = 2_000_000
"""Loaded entries of all buckets of a subscription: 40 MB."""
LOW_WATER = 5_000
PARALLEL = 8
STALLED_MS = 2_000
"""Pause before a stalled bucket is tried again; each try has four attempts."""


class Loader:
    """Decides what to load and loads it. finished: called after each load, with True if its bucket was lost."""

    def __init__(self, shelf: Shelf, finished: Callable[[bool], None]) -> None:
        self._shelf = shelf
        self._finished = finished
        self._running = 0

    def pump(self, now: int, *, retry: bool = False) -> None:
        """Start the loads that are due. retry: look at stalled buckets too, which the horizon leaves out."""
        shelf = self._shelf
        until = shelf.core.cutoff(now) + shelf.look_ahead_ms
        if shelf.stopped or self._running >= PARALLEL or (shelf.horizon()[0] > until and not retry):
            return
        room = BUDGET_ENTRIES - shelf.loaded()
        least = shelf.horizon()
        if room < LOAD_ENTRIES and least[0] > shelf.core.cutoff(now) and not retry:
            return
        wanted = [bucket for bucket in shelf.buckets if _needs_load(bucket, until)]
        wanted.sort(key=lambda bucket: (bucket.horizon(), bucket.key))
        for bucket in wanted[: PARALLEL - self._running]:
            urgent = bucket.horizon() <= min(least, (shelf.core.cutoff(now), NEVER))
            if room < LOAD_ENTRIES and not urgent:
                break
            room -= LOAD_ENTRIES
            bucket.loading = True
            self._running += 1
            shelf.ports.spawn(self._load(bucket, until), f"delayed load {bucket.key}")

    def next_time(self) -> int:
        """When `pump` should be called again if nothing else happens, in ms; far away if not at all."""
        return self._shelf.horizon()[0] - self._shelf.look_ahead_ms - self._shelf.core.tick_ms

    async def _load(self, bucket: Bucket, until: int) -> None:
        shelf, lost = self._shelf, False
        try:
            await self._fetch(bucket, until)
        except REFUSALS as error:
            shelf.refused("load", shelf.objects.name(bucket.key), error)
            self._stall(bucket)
            await shelf.ports.clock.sleep(STALLED_MS)
        except SluiceError as error:
            if shelf.is_final(error):
                shelf.lose(bucket, error)
                lost = True
            else:
                shelf.fail(error)
        finally:
            bucket.loading = False
            self._running -= 1
        if not shelf.stopped:
            self.pump(shelf.ports.clock.now(), retry=bucket.stalled)
            self._finished(lost)
            shelf.changed()

    def _stall(self, bucket: Bucket) -> None:
        """A first failure is enough: what is in memory need not wait for the store."""
        if not bucket.stalled:
            bucket.stalled = True
            self._shelf.touch()
            self._shelf.changed()

    async def _fetch(self, bucket: Bucket, until: int) -> None:
        shelf, table, record = self._shelf, bucket.table, bucket.record
        if table is None or record is None:
            return
        first, stop = bucket.next_segment, bucket.plan_load(until, LOAD_ENTRIES)
        data_start = record.header_bytes
        entries = await shelf.objects.timed(
            LOAD,
            lambda: shelf.objects.segments(bucket.key, data_start, table, first, stop, lambda: self._stall(bucket)),
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
            shelf.core.reorder((int(entries.deliver_at[0]), int(entries.positions[0])))


def _needs_load(bucket: Bucket, until: int) -> bool:
    """Whether the next segment starts soon, and little is left before it."""
    return bucket.horizon()[0] <= until and not bucket.loading and len(bucket.run) <= LOW_WATER

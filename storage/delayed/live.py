"""A sealed bucket in use: which part of it is in memory, and where the next segment starts.

    building    its entries are all in memory, the object is being written
    parked      writing failed for good; its entries stay in memory and the object is tried again later (BD-15)
    live        the manifest names it; only loaded segments are in memory
    gone        retired, merged, lost or cleared; a task that still waits for its data drops the result

There is no bookkeeping of "the last entry of the loaded segment": the first entry of the next segment is a horizon,
and nothing at or after the least horizon is given out before that segment is here.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from sluice.storage.delayed.bucket import BucketHeader, SegmentTable
from sluice.storage.delayed.entries import EMPTY, END, Bound
from sluice.storage.delayed.manifest import BucketRecord
from sluice.storage.delayed.queue import SortedRun


class BucketState(Enum):
    """The stage of a bucket's life."""

    BUILDING = "building"
    PARKED = "parked"
    LIVE = "live"
    GONE = "gone"


class Bucket:
    """A sealed bucket as its owner works with it.

    key: (epoch, number) of its object. start, end: lowest and highest position. run: sorted entries in memory.
    stalled: loading fails or takes long, so its horizon is ignored and what is in memory goes on; refusals: how often
    it failed in a row; retry_at: when it is tried again, by the monotonic clock. loading: a request for it is under
    way; hanging: how many more have not been answered for long.
    """

    def __init__(self, key: tuple[int, int], start: int, end: int, run: SortedRun) -> None:
        self.key = key
        self.start = start
        self.end = end
        self.run = run
        self.state = BucketState.BUILDING
        self.record: BucketRecord | None = None
        self.table: SegmentTable | None = None
        self._horizon = END
        self._next_segment = 0
        self.loading = False
        self.hanging = 0
        self.stalled = False
        self.refusals = 0
        self.retry_at = 0
        self.merging = False

    @classmethod
    def restored(cls, record: BucketRecord, table: SegmentTable, next_segment: int) -> Bucket:
        """A bucket from its manifest record and header, with nothing of it in memory."""
        bucket = cls(record.key, record.start, record.end, SortedRun(EMPTY))
        bucket.make_live(record, table, next_segment)
        return bucket

    def make_live(self, record: BucketRecord, table: SegmentTable, next_segment: int) -> None:
        """The manifest names it now."""
        self.state = BucketState.LIVE
        self.record = record
        self.table = table
        self.next_segment = next_segment

    def keep_segment(self, record: BucketRecord, table: SegmentTable, taken: int, load_until: int) -> None:
        """The object is durable: keep in memory only the segment in use, if it starts at or before `load_until`.

        taken: how many entries, counted from the object's first, have left the run since it was built.
        """
        ends = np.cumsum(table.count)
        segment = int(np.searchsorted(ends, taken, "right")) if len(self.run) else len(table)
        self.make_live(record, table, segment)
        if segment == len(table):
            self.run = SortedRun(EMPTY)
        elif int(table.min_time[segment]) <= load_until:
            kept = int(ends[segment]) - taken
            self.run = SortedRun(self.run.rest().slice(0, kept).copy())
            self.next_segment = segment + 1
        else:
            self.run = SortedRun(EMPTY)

    def horizon(self) -> Bound:
        """The least entry that may be missing in memory; END if nothing is."""
        return self._horizon if self.state is BucketState.LIVE else END

    @property
    def next_segment(self) -> int:
        """The number of the first segment that is not loaded."""
        return self._next_segment

    @next_segment.setter
    def next_segment(self, segment: int) -> None:
        # The horizon is asked for far more often than it changes.
        self._next_segment = segment
        known = self.table is not None and segment < len(self.table)
        self._horizon = self.table.bound(segment) if known and self.table is not None else END

    def highest(self) -> int:
        """The highest position in it: of one that is stored, in its object, which is without what came before that."""
        return self.end if self.record is None else self.record.end

    def is_in(self, state: BucketState) -> bool:
        """Whether it stands in a state now; ask again after every await."""
        return self.state is state

    def exhausted(self) -> bool:
        """Whether everything of it was loaded and has left."""
        return self.state is BucketState.LIVE and self.horizon() == END and not len(self.run) and not self.loading

    def plan_load(self, until: int, max_entries: int) -> int:
        """The exclusive end of the segments to load now: at least one, further ones if due at or before `until`."""
        assert self.table is not None
        stop = self.next_segment + 1
        total = int(self.table.count[self.next_segment])
        while stop < len(self.table) and int(self.table.min_time[stop]) <= until:
            total += int(self.table.count[stop])
            if total > max_entries:
                break
            stop += 1
        return stop

    def memory_bytes(self) -> int:
        """The bytes that it occupies in memory."""
        return self.run.memory_bytes() + (self.table.memory_bytes() if self.table is not None else 0) + 512


def record_of(key: tuple[int, int], header: BucketHeader) -> BucketRecord:
    """The manifest record of an object."""
    table = header.table
    return BucketRecord(
        epoch=key[0],
        number=key[1],
        start=header.start,
        end=header.end,
        count=header.count,
        segments=len(table),
        min_time=int(table.min_time[0]),
        max_time=int(table.max_time.max()),
        header_bytes=header.data_start,
        size=header.size,
    )


def first_live_segment(table: SegmentTable, cutoff: int) -> int:
    """How many leading segments have passed: their messages are found by reading the log (BD-31)."""
    alive = np.flatnonzero(table.max_time > cutoff)
    return int(alive[0]) if alive.size else len(table)

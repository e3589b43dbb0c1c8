"""Entries that wait in memory, and how due ones leave it.

Three kinds of columns:

* **staging**: entries as they were added, unsorted, with their least due time. Most of them are sealed before
  anything of them is due, so they are not sorted one by one;
* **runs**: sorted entries with a head that moves forward. Staging becomes a run when something in it falls due or
  when it is full; every loaded part of a bucket is a run;
* **ready**: entries that were pulled together from all runs, sorted, waiting to be taken.

A pull cuts everything before one bound off the heads of all runs, so a later pull can only bring later entries, and
`ready` never has to be merged again. The caller names the least entry that may still be missing (the first of a
segment that is not loaded); nothing at or after it is pulled, so the order (deliver_at, position) holds over
everything, loaded or not, even if a hundred million messages are due in the same millisecond. If the clock jumps back,
or an earlier entry comes in, `ready` goes back to be a run and is pulled again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from sluice.storage.delayed.entries import EMPTY, END, ENTRY_BYTES, NEVER, Bound, Entries, Mask, Times, concat
from sluice.storage.format.position import Positions, ledger_of

PULL = 65_536
"""About how many entries one pull brings when more are due."""
STAGING_LIMIT = 65_536
FAN_IN = 8
"""So many runs of similar size are merged into one."""
_SAMPLES = 16
_SMALLEST = 64
NOTHING: Bound = (-1, 0)
Wanted = Callable[[Positions], Mask]
"""Which of some positions, shape (n,), are wanted."""


class SortedRun:
    """Sorted entries; the first `head` of them are gone. Values that every pull needs are kept as plain ints."""

    __slots__ = ("_first", "entries", "head", "size")

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.head = 0
        self.size = len(entries)
        self._first: Bound | None = None

    def __len__(self) -> int:
        return self.size - self.head

    def bound(self) -> Bound:
        """The first entry, or END."""
        if self.head == self.size:
            return END
        if self._first is None:
            self._first = int(self.entries.deliver_at[self.head]), int(self.entries.positions[self.head])
        return self._first

    def times(self) -> Times:
        """The due times that are left."""
        return self.entries.deliver_at[self.head :]

    def rest(self) -> Entries:
        """The entries that are left, as views."""
        return self.entries.slice(self.head, self.size)

    def count_before(self, bound: Bound) -> int:
        """How many of the entries that are left stand before a bound."""
        times = self.times()
        low = int(np.searchsorted(times, bound[0], "left"))
        if low == times.size or int(times[low]) > bound[0]:
            return low
        high = int(np.searchsorted(times, bound[0], "right"))
        same = self.entries.positions[self.head + low : self.head + high]
        return low + int(np.searchsorted(same, bound[1], "left"))

    def advance(self, count: int) -> Entries:
        """Take off the first entries."""
        part = self.entries.slice(self.head, self.head + count)
        self.head += count
        self._first = None
        if self.head == self.size:
            self.entries, self.head, self.size = EMPTY, 0, 0
        return part

    def cut(self, bound: Bound) -> Entries:
        """Take off everything before a bound."""
        return self.advance(self.count_before(bound))

    def only(self, wanted: Wanted) -> SortedRun:
        """The wanted entries among those that are left."""
        rest = self.rest()
        return SortedRun(rest.take(wanted(rest.positions)))

    def memory_bytes(self) -> int:
        """The bytes that the columns occupy, the part that is gone included."""
        return self.size * ENTRY_BYTES


class Staging:
    """A growing block of unsorted entries."""

    def __init__(self) -> None:
        self._columns = EMPTY
        self._size = 0
        self.first = NEVER

    def __len__(self) -> int:
        return self._size

    def append(self, new: Entries) -> None:
        """Copy entries to the end."""
        size = self._size + len(new)
        if size > len(self._columns):
            capacity = max(size, 2 * len(self._columns), _SMALLEST)
            old = self._columns.slice(0, self._size)
            self._columns = _room(capacity)
            self._write(0, old)
        self._write(self._size, new)
        self._size = size
        self.first = min(self.first, int(new.deliver_at.min()))

    def drain(self) -> Entries:
        """Return all entries in the order of arrival; the block is empty afterwards."""
        entries = self.view()
        # The old block now belongs to the caller.
        self._columns, self._size, self.first = EMPTY, 0, NEVER
        return entries

    def view(self) -> Entries:
        """Return all entries without a copy; valid until the next change."""
        return self._columns.slice(0, self._size)

    def memory_bytes(self) -> int:
        return len(self._columns) * ENTRY_BYTES

    def _write(self, at: int, new: Entries) -> None:
        stop = at + len(new)
        self._columns.deliver_at[at:stop] = new.deliver_at
        self._columns.positions[at:stop] = new.positions
        self._columns.hashes[at:stop] = new.hashes


class Mutable:
    """The mutable bucket: entries that are neither sealed nor due. An in-memory tracker has no other bucket."""

    def __init__(self) -> None:
        self._staging = Staging()
        self._runs: list[SortedRun] = []
        self.last_ledger = -1
        """The highest ledger of an entry that came in since the last seal; -1 for none."""

    def __len__(self) -> int:
        return len(self._staging) + sum(map(len, self._runs))

    def add(self, new: Entries) -> None:
        """Take in entries. The last one has the highest ledger."""
        self._staging.append(new)
        self.last_ledger = max(self.last_ledger, ledger_of(int(new.positions[-1])))
        if len(self._staging) >= STAGING_LIMIT:
            self._flush()

    def bound(self) -> Bound:
        """The least entry in it, or END; of the unsorted block only the time is known."""
        return min([min((self._staging.first, NEVER), END), *(run.bound() for run in self._runs)])

    def runs(self, until: Bound) -> list[SortedRun]:
        """All runs, after sorting the staging block if something of it may stand before `until`."""
        if self._staging.first <= until[0]:
            self._flush()
        return self._runs

    def drain(self) -> Entries:
        """Return all entries unsorted; the queue is empty afterwards."""
        parts = [run.rest() for run in self._runs]
        parts.append(self._staging.drain())
        self._runs = []
        self.last_ledger = -1
        return concat([part for part in parts if len(part)])

    def purge(self, wanted: Wanted) -> None:
        """Drop the entries that are not wanted."""
        entries = self._staging.drain()
        kept = entries.take(wanted(entries.positions))
        if len(kept):
            self._staging.append(kept)
        self._runs = [run for run in (old.only(wanted) for old in self._runs) if len(run)]

    def memory_bytes(self) -> int:
        return self._staging.memory_bytes() + sum(run.memory_bytes() for run in self._runs)

    def parts(self) -> list[Entries]:
        """Return all entries as views, for browsing and recounts."""
        return [self._staging.view(), *(run.rest() for run in self._runs)]

    def _flush(self) -> None:
        self._runs.append(SortedRun(self._staging.drain().sorted()))
        self._runs = tidy(self._runs)


def tidy(runs: list[SortedRun]) -> list[SortedRun]:
    """Drop empty runs and merge FAN_IN runs of similar size, so that their number stays logarithmic."""
    runs = [run for run in runs if len(run)]
    classes: dict[int, list[SortedRun]] = {}
    for run in runs:
        classes.setdefault(len(run).bit_length() // 3, []).append(run)
    for same in classes.values():
        if len(same) >= FAN_IN:
            merged = SortedRun(concat([run.rest() for run in same]).sorted())
            return tidy([run for run in runs if run not in same] + [merged])
    return runs


class Ready:
    """Entries pulled together and not yet taken."""

    def __init__(self) -> None:
        self.run = SortedRun(EMPTY)
        self.until: Bound = NOTHING
        """Everything before this that was in memory has been pulled; NOTHING when there is nothing in it."""

    def __len__(self) -> int:
        return len(self.run)

    def pull(self, runs: Iterable[SortedRun], until: Bound) -> bool:
        """Refill from the heads of sorted runs with about PULL entries before `until`, earliest first."""
        due = [run for run in runs if run.bound() < until]
        if not due:
            self.until = NOTHING
            return False
        counts = [run.count_before(until) for run in due]
        if sum(counts) > 2 * PULL:
            until = _pull_limit(due, counts, until)
            counts = [run.count_before(until) for run in due]
        parts = [run.advance(count) for run, count in zip(due, counts, strict=True) if count]
        self.run = SortedRun(parts[0] if len(parts) == 1 else concat(parts).sorted())
        self.until = until
        return True

    def pop(self, limit: int, cutoff: int) -> Entries:
        """Remove and return up to `limit` entries from the head, none due after `cutoff`."""
        due = int(np.searchsorted(self.run.times()[:limit], cutoff, "right"))
        part = self.run.advance(due)
        if not len(self.run):
            self.run, self.until = SortedRun(EMPTY), NOTHING
        return part

    def purge(self, wanted: Wanted) -> None:
        """Drop the entries that are not wanted."""
        self.run = self.run.only(wanted)
        self.until = self.until if len(self.run) else NOTHING

    def drain(self) -> SortedRun:
        """All that is left, as a sorted run; nothing is ready afterwards."""
        run, self.run, self.until = self.run, SortedRun(EMPTY), NOTHING
        return run


def _pull_limit(due: list[SortedRun], counts: list[int], until: Bound) -> Bound:
    """A bound at or before `until` before which the runs hold about PULL entries, and at least one.

    counts: how many entries before `until` each run has.
    """
    # A few evenly spaced times of each run, weighted with the entries that each stands for, give the quantile.
    times, weights = [], []
    for run, count in zip(due, counts, strict=True):
        at = np.linspace(0, count - 1, min(count, _SAMPLES)).astype(np.int64)
        times.append(run.times()[at])
        weights.append(np.full(at.size, count // at.size))
    all_times = np.concatenate(times)
    order = np.argsort(all_times, kind="stable")
    passed = np.cumsum(np.concatenate(weights)[order])
    limit = int(all_times[order][min(int(np.searchsorted(passed, PULL)), order.size - 1)])
    return min(until, (limit + 1, 0))


def _room(capacity: int) -> Entries:
    return Entries(np.empty(capacity, np.int64), np.empty(capacity, np.int64), np.empty(capacity, np.uint32))

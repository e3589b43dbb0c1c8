"""The synchronous core of every tracker: which messages are tracked, wait in memory, or are due.

Rules: a message whose time is not after the cutoff is not tracked, and if it was, it is taken out (BD-2, BD-11.1: a
tracked message that has fallen due must never be skipped for ever). A tracked position is never tracked twice
(BD-11.2). What is given out leaves the index in the same step; what is no longer in the index when its time comes
(trimmed, given out before, held twice after a merge) is dropped in silence (BD-18). What was trimmed or skipped
before its time leaves the columns too, once it is more than half of them.

The cutoff is `now`, so that nothing is ever early; with a tick it is `now + tick`, and then a message may be early by
up to one tick, as in Pulsar (BD-2, BD-3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from sluice.storage.delayed.entries import EMPTY, END, Bound, Entries, Mask, Times, ascending, concat, stable_order
from sluice.storage.delayed.index import PositionIndex
from sluice.storage.delayed.queue import Mutable, Ready, SortedRun, Wanted, tidy
from sluice.storage.errors import Invalid
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions


def which_wait(deliver_at: Times, now: int, tick_ms: int) -> Mask:
    """Which due times (ms, 0: none) are to be waited for at `now`, shape (n,)."""
    return deliver_at > max(now + tick_ms, 0)


class DelayedCore:
    """Index, mutable bucket, loose runs and ready entries of one subscription.

    loose: sorted runs that no bucket object stands behind (given back by the clock, or kept in memory because their
    object could not be created).
    """

    def __init__(self, tick_ms: int = 0) -> None:
        if tick_ms < 0:
            raise Invalid(f"the tick is {tick_ms} ms, it cannot be negative")
        self.tick_ms = tick_ms
        self.index = PositionIndex()
        self.mutable = Mutable()
        self.loose: list[SortedRun] = []
        self._ready = Ready()
        self.stale = 0
        """At most so many entries in the columns are not tracked any more."""

    def cutoff(self, now: int) -> int:
        """The last due time that counts as due at `now`."""
        return now + self.tick_ms

    def admit(self, positions: Positions, hashes: Hashes, deliver_at: Times, now: int) -> tuple[Mask, Entries]:
        """Decide which messages wait. Returns the mask of those and the entries that are new, positions ascending.

        The new entries are in the index from now on and must be handed to `keep`.
        """
        if not positions.size == hashes.size == deliver_at.size:
            raise Invalid(f"{positions.size} positions, {hashes.size} hashes and {deliver_at.size} times do not match")
        waits = which_wait(deliver_at, now, self.tick_ms)
        if not waits.all():
            self.untrack(positions[~waits])
            if not waits.any():
                return waits, EMPTY
            positions, hashes, deliver_at = positions[waits], hashes[waits], deliver_at[waits]
        new = self.index.add(positions)
        entries = Entries(deliver_at, positions, hashes)
        if not new.all():
            entries = entries.take(new)
        if not ascending(entries.positions):
            entries = entries.take(stable_order(entries.positions))
        return waits, entries

    def untrack(self, positions: Positions) -> int:
        """Track positions no more that nobody was given; returns how many were."""
        return self._forgot(int(np.count_nonzero(self.index.discard(positions))))

    def forget_range(self, start: int, end: int) -> int:
        """Track no position start <= p < end any more; returns how many were."""
        return self._forgot(self.index.discard_range(start, end))

    def purge(self, wanted: Wanted | None = None) -> None:
        """Drop columns of what is not wanted, by default of what is not tracked."""
        if wanted is None:
            wanted, self.stale = self.index.contains, 0
        self.mutable.purge(wanted)
        self._ready.purge(wanted)
        self.loose = [run for run in (old.only(wanted) for old in self.loose) if len(run)]

    def keep(self, new: Entries) -> None:
        """Put admitted entries into the mutable bucket."""
        if len(new):
            self.mutable.add(new)
            self.reorder((int(new.deliver_at.min()), 0))

    def reorder(self, first: Bound) -> None:
        """Entries from `first` on came in from anywhere: what was pulled and is not before them is pulled again."""
        if first < self._ready.until:
            self.add_loose(self._ready.drain())

    def add_loose(self, run: SortedRun) -> None:
        """Keep sorted entries in memory until they are due."""
        if len(run):
            self.loose = tidy([*self.loose, run])
            self.reorder(run.bound())

    def pop_due(
        self, limit: int, now: int, runs: Callable[[], list[SortedRun]] = list, horizon: Bound = END
    ) -> tuple[Positions, Hashes]:
        """Untrack and return up to `limit` due entries, in the order (deliver_at, position).

        runs: gives the sorted runs of buckets. horizon: the least entry that may be missing in memory; nothing at or
        after it is given out.
        """
        cutoff = self.cutoff(now)
        parts: list[Entries] = []
        missing = limit
        while missing > 0:
            if not len(self._ready) and not self._pull(runs, min((cutoff + 1, 0), horizon)):
                break
            part = self._ready.pop(missing, cutoff)
            if not len(part):
                break
            known = self.index.discard(part.positions)
            part = part if known.all() else part.take(known)
            missing -= len(part)
            parts.append(part)
        taken = concat([part for part in parts if len(part)])
        return taken.positions, taken.hashes

    def bound(self) -> Bound:
        """The least entry of what is in the mutable bucket, loose or ready; END if nothing is."""
        if len(self._ready):
            # Whatever was not pulled comes after it.
            return self._ready.run.bound()
        return min([self.mutable.bound(), *(run.bound() for run in self.loose)])

    def has_ready(self) -> bool:
        """Whether entries are pulled together: then nothing else in memory comes before them."""
        return len(self._ready) > 0

    def loaded(self) -> int:
        """Entries in memory, without the runs of buckets."""
        return len(self.mutable) + len(self._ready) + sum(map(len, self.loose))

    def column_bytes(self) -> int:
        ready = self._ready.run.memory_bytes()
        return self.mutable.memory_bytes() + ready + sum(run.memory_bytes() for run in self.loose)

    def parts(self) -> list[Entries]:
        """Return all entries in memory as views, in no order, untracked entries included."""
        return [*self.mutable.parts(), self._ready.run.rest(), *(run.rest() for run in self.loose)]

    def clear(self) -> None:
        self.index.clear()
        self.mutable = Mutable()
        self.loose = []
        self._ready = Ready()
        self.stale = 0

    def _forgot(self, count: int) -> int:
        self.stale += count
        if count and 2 * self.stale > self.loaded():
            self.purge()
        return count

    def _pull(self, runs: Callable[[], list[SortedRun]], until: Bound) -> bool:
        pulled = self._ready.pull([*self.mutable.runs(until), *self.loose, *runs()], until)
        if pulled and self.loose:
            self.loose = [run for run in self.loose if len(run)]
        return pulled


def tracked(parts: Iterable[Entries], index: PositionIndex) -> Entries:
    """Return each tracked position in some columns once, in the order (deliver_at, position)."""
    entries = concat([part for part in parts if len(part)])
    if not len(entries):
        return EMPTY
    entries = entries.take(index.contains(entries.positions))
    unique = np.unique(entries.positions, return_index=True)[1]
    return entries.take(unique).sorted()

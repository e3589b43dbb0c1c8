"""The index in memory: which positions are tracked, as one roaring bitmap for each ledger.

It is the only truth about "is this message delayed" and about the count (BD-9): buckets, segments and columns may hold
a position twice, or still hold one that was given out. The first caller that takes a position out of the index
delivers it. So a merge, a reload or a rescan can never deliver twice, and never has to be exact about what it keeps.

Consecutive entries cost next to nothing, and the worst case is one bit a message: 12.5 MB for 100 million.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap
from sortedcontainers import SortedDict

from sluice.storage.delayed.entries import Mask, ascending, stable_order
from sluice.storage.format.position import MAX_ENTRY, Positions, entry_of, ledger_of, position, split_by_ledger

Entry32 = npt.NDArray[np.uint32]
_Change = Callable[[Positions], Mask]


def bitmap_of(entries: Entry32) -> BitMap:
    """A bitmap of ascending entry ids. Consecutive ones become one range without looking at each."""
    first, last = int(entries[0]), int(entries[-1])
    if last - first + 1 == entries.size:
        return BitMap(range(first, last + 1))
    # pyroaring reads an array.array in C; a numpy array would be walked element by element.
    column = array("I")
    column.frombytes(entries.tobytes())
    return BitMap(column)


def entries_of(bitmap: BitMap) -> Entry32:
    """The ascending entry ids of a bitmap, without a copy of the exported buffer."""
    return np.frombuffer(bitmap.to_array(), np.uint32)


_NO_LEDGERS: SortedDict[int, BitMap] = SortedDict()
"""What every index has that never had a position; nothing is put into it."""


class PositionIndex:
    """A set of positions with column operations. Positions may come in any order unless said otherwise."""

    __slots__ = ("_count", "_ledgers")

    def __init__(self) -> None:
        self._ledgers = _NO_LEDGERS
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def contains(self, positions: Positions) -> Mask:
        """Which of the positions are in the set, shape kept."""
        if self._count == 0 or positions.size == 0:
            return np.zeros(positions.size, np.bool_)
        if ascending(positions):
            return self._contains_ascending(positions)
        distinct, inverse = np.unique(positions, return_inverse=True)
        return self._contains_ascending(distinct)[inverse]

    def add(self, positions: Positions) -> Mask:
        """Put positions in; returns which of them are new. Of a position that comes twice, only the first is new."""
        return self._change(positions, self._add_ascending)

    def discard(self, positions: Positions) -> Mask:
        """Take positions out; returns which of them were in. Of a position that comes twice, only the first was."""
        if self._count == 0:
            return np.zeros(positions.size, np.bool_)
        return self._change(positions, self._discard_ascending)

    def merge(self, ledger: int, bitmap: BitMap) -> None:
        """Put all entries of a bitmap in (BX-3)."""
        present = self._ledgers.get(ledger)
        if present is None:
            present = self._begin(ledger)
        before = len(present)
        present |= bitmap
        self._count += len(present) - before

    def overlap(self, ledger: int, bitmap: BitMap) -> BitMap:
        """Return the entries of a bitmap that are in the set."""
        present = self._ledgers.get(ledger)
        return BitMap() if present is None else present & bitmap

    def discard_all(self, other: PositionIndex) -> None:
        """Take out every position that is in another set."""
        for ledger, bitmap in other.ledgers():
            present = self._ledgers.get(ledger)
            if present is not None:
                before = len(present)
                present -= bitmap
                self._count -= before - len(present)
                if not present:
                    del self._ledgers[ledger]

    def discard_range(self, start: int, end: int) -> int:
        """Take out every position start <= p < end; returns how many were in."""
        if end <= max(start, 0):
            return 0
        dropped = 0
        for ledger in list(self._ledgers.irange(ledger_of(max(start, 0)), ledger_of(max(end - 1, 0)))):
            bitmap = self._ledgers[ledger]
            low, high = _entry_range(ledger, start, end)
            before = len(bitmap)
            bitmap.remove_range(low, high)
            dropped += before - len(bitmap)
            if not bitmap:
                del self._ledgers[ledger]
        self._count -= dropped
        return dropped

    def next_absent(self, start: int, end: int) -> int:
        """The first position start <= p < end that is not in the set, else `end`.

        At the end of a ledger's tracked entries that is the entry behind them, whether or not it exists.
        """
        if start >= end:
            return end
        bitmap = self._ledgers.get(ledger_of(max(start, 0)))
        if start < 0 or bitmap is None:
            return start
        low = entry_of(start)
        if low not in bitmap:
            return start
        # Double the step while everything is in, then halve it: a few dozen rank queries whatever the distance.
        rank = bitmap.rank(low)
        reach = 1
        while low + reach <= MAX_ENTRY and bitmap.rank(low + reach) - rank == reach:
            reach *= 2
        known = reach // 2
        while reach - known > 1:
            middle = (known + reach) // 2
            inside = low + middle <= MAX_ENTRY and bitmap.rank(low + middle) - rank == middle
            known, reach = (middle, reach) if inside else (known, middle)
        return min(start + reach, end)

    def next_present(self, start: int, end: int) -> int:
        """The first position start <= p < end that is in the set, else `end`."""
        if start >= end:
            return end
        for ledger in self._ledgers.irange(ledger_of(max(start, 0)), ledger_of(max(end - 1, 0))):
            low, high = _entry_range(ledger, start, end)
            found = self._ledgers[ledger].next_set_bit(low) if self._ledgers[ledger].max() >= low else high
            if found < high:
                return position(ledger, found)
        return end

    def common(self, other: PositionIndex) -> int:
        """How many positions are in both sets."""
        pairs = ((bitmap, other._ledgers.get(ledger)) for ledger, bitmap in self._ledgers.items())
        return sum(bitmap.intersection_cardinality(theirs) for bitmap, theirs in pairs if theirs is not None)

    def count_range(self, start: int, end: int) -> int:
        """How many positions start <= p < end are in the set."""
        total = 0
        for ledger in self._ledgers.irange(ledger_of(max(start, 0)), ledger_of(max(end - 1, 0))):
            total += self._ledgers[ledger].range_cardinality(*_entry_range(ledger, start, end))
        return total

    def replace(self, other: PositionIndex) -> None:
        """Become a copy of another set."""
        self.clear()
        for ledger, bitmap in other.ledgers():
            self.merge(ledger, bitmap)

    def compact(self, start: int, end: int) -> None:
        """Store consecutive entries as ranges in the ledgers of start .. end; called when a bucket was sealed."""
        for ledger in self._ledgers.irange(ledger_of(start), ledger_of(end)):
            self._ledgers[ledger].run_optimize()

    def clear(self) -> None:
        """Forget everything (BX-4)."""
        self._ledgers = _NO_LEDGERS
        self._count = 0

    def memory_bytes(self) -> int:
        """About how much the bitmaps take, in bytes."""
        total = 0
        for bitmap in self._ledgers.values():
            facts = bitmap.get_statistics()
            total += 64 + sum(facts[f"n_bytes_{kind}_containers"] for kind in ("array", "run", "bitset"))
        return int(total)

    def ledgers(self) -> list[tuple[int, BitMap]]:
        """Every ledger with its bitmap, ascending; not to be changed by the caller."""
        return list(self._ledgers.items())

    def _begin(self, ledger: int) -> BitMap:
        """An empty bitmap for a ledger that has none."""
        if self._ledgers is _NO_LEDGERS:
            self._ledgers = SortedDict()
        bitmap = self._ledgers[ledger] = BitMap()
        return bitmap

    def _change(self, positions: Positions, change: _Change) -> Mask:
        if positions.size == 0:
            return np.zeros(0, np.bool_)
        if ascending(positions):
            return change(positions)
        order = stable_order(positions)
        ordered = positions[order]
        first = np.ones(ordered.size, np.bool_)
        np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
        mask = np.zeros(positions.size, np.bool_)
        mask[order[first]] = change(ordered[first])
        return mask

    def _contains_ascending(self, positions: Positions) -> Mask:
        masks = []
        for ledger, entries in split_by_ledger(positions):
            bitmap = self._ledgers.get(ledger)
            masks.append(np.zeros(entries.size, np.bool_) if bitmap is None else _members(bitmap, entries))
        return masks[0] if len(masks) == 1 else np.concatenate(masks)

    def _add_ascending(self, positions: Positions) -> Mask:
        masks = []
        for ledger, entries in split_by_ledger(positions):
            bitmap = self._ledgers.get(ledger)
            if bitmap is None:
                bitmap = self._begin(ledger)
            new = ~_members(bitmap, entries)
            self._count += int(np.count_nonzero(new))
            bitmap |= bitmap_of(entries)
            masks.append(new)
        return masks[0] if len(masks) == 1 else np.concatenate(masks)

    def _discard_ascending(self, positions: Positions) -> Mask:
        masks = []
        for ledger, entries in split_by_ledger(positions):
            bitmap = self._ledgers.get(ledger)
            if bitmap is None:
                masks.append(np.zeros(entries.size, np.bool_))
                continue
            known = _members(bitmap, entries)
            self._count -= int(np.count_nonzero(known))
            bitmap -= bitmap_of(entries)
            if not bitmap:
                del self._ledgers[ledger]
            masks.append(known)
        return masks[0] if len(masks) == 1 else np.concatenate(masks)


def _members(bitmap: BitMap, entries: Entry32) -> Mask:
    """Which of the ascending entries are in the bitmap."""
    both = bitmap & bitmap_of(entries)
    if not both:
        return np.zeros(entries.size, np.bool_)
    if len(both) == entries.size:
        return np.ones(entries.size, np.bool_)
    mask = np.zeros(entries.size, np.bool_)
    mask[np.searchsorted(entries, entries_of(both))] = True
    return mask


def _entry_range(ledger: int, start: int, end: int) -> tuple[int, int]:
    """The part of start <= p < end that lies in a ledger, as entry ids low <= e < high."""
    low = max(start, position(ledger, 0))
    high = min(end, position(ledger, MAX_ENTRY) + 1)
    return low & MAX_ENTRY, (high - 1 & MAX_ENTRY) + 1

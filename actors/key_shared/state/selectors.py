"""Selectors decide who owns which hash: three for Key_Shared, and one active consumer for Exclusive and Failover.

A selector keeps who takes part and answers with the whole table of owners (uint16 slot numbers, NO_SLOT where
nobody is responsible). Consumers are known by slot, which stands for one incarnation, so two consumers of equal name
are two consumers. A refused consumer leaves no trace (KS-14).

* `ConsistentHashing` (KS-6 .. KS-11): each consumer puts `points` points on a ring of 1 .. 65535. A hash belongs to
  the first point at or after it. When two points fall together the first keeps it and the later ones stand in line,
  so that adding a consumer never moves a hash between two old ones.
* `AutoSplit` (KS-12): each consumer has one part; a newcomer takes the lower half of the biggest.
* `Sticky` (KS-14, KS-16): consumers bring their ranges; gaps belong to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from sortedcontainers import SortedDict

from sluice.actors.key_shared.state.window import NO_SLOT, Reduced
from sluice.actors.messages import SubscriptionSettings
from sluice.storage.errors import Conflict, Invalid
from sluice.storage.format.hashing import HASH_RANGE, masked_hash, reduce_hash

Range = tuple[int, int]
"""Start and end of a range of hashes, both inclusive."""


Share = list[Any]
"""The share of a consumer in the hashes, as its selector describes it; of numbers, texts and lists."""


class Selector(Protocol):
    """Divides the hashes among the slots."""

    start: int
    """Smallest hash: 1 for the ring, 0 elsewhere (KS-3)."""
    size: int
    """How many hash values there are."""

    def add(self, slot: int, name: str, *, ranges: Sequence[Range] = (), priority: int = 0) -> None:
        """Let a consumer take part. Raises Conflict or Invalid and changes nothing then."""

    def rivals(self, ranges: Sequence[Range]) -> list[int]:
        """Return the slots that exclude a consumer with these ranges; it is refused while they take part."""

    def remove(self, *slots: int) -> None:
        """Remove consumers; fine if one never took part."""

    def owners(self) -> Reduced:
        """Return a new table of owners, uint16, shape (65536,)."""

    def layout(self) -> list[tuple[int, Share]]:
        """Return each slot that takes part with its share, in the order in which `restore` makes the same of them."""

    def restore(self, slot: int, share: Share) -> None:
        """Let a slot have a share of a `layout`."""

    def replace(self, slot: int, by: int) -> None:
        """Give the share of this slot to another one."""


@dataclass(slots=True)
class NameIndexes:
    """Tells consumers of equal name apart by the lowest free index, counted by reference (KS-8)."""

    _used: dict[str, dict[int, list[int]]] = field(default_factory=dict)

    def increase(self, name: str, slot: int, by: int = 1) -> int:
        """More references to this consumer; returns its index."""
        slots = self._used.setdefault(name, {})
        if slot not in slots:
            taken = {entry[0] for entry in slots.values()}
            slots[slot] = [next(index for index in range(len(taken) + 1) if index not in taken), 0]
        slots[slot][1] += by
        return slots[slot][0]

    def decrease(self, name: str, slot: int, by: int = 1) -> int:
        """Fewer references; returns the index it had, -1 for a consumer that is not tracked."""
        entry = self._used.get(name, {}).get(slot)
        if entry is None:
            return -1
        entry[1] -= by
        if entry[1] <= 0:
            del self._used[name][slot]
            if not self._used[name]:
                del self._used[name]
        return entry[0]

    def index(self, name: str, slot: int) -> int:
        """Return the index of a tracked consumer, else -1."""
        entry = self._used.get(name, {}).get(slot)
        return -1 if entry is None else entry[0]

    def restore(self, name: str, slot: int, index: int, references: int) -> None:
        """This consumer has this index, which is free."""
        self._used.setdefault(name, {})[slot] = [index, references]

    def replace(self, name: str, slot: int, by: int) -> None:
        """Another consumer is tracked in its place."""
        self._used[name][by] = self._used[name].pop(slot)

    def __len__(self) -> int:
        return len(self._used)


@lru_cache(1_024)
def _points_of(name: str, index: int, points: int) -> Reduced:
    """Return the points of a consumer on the ring, ascending, each once; the same on every partition."""
    texts = [f"{name}\0{index}\0{point}".encode() for point in range(points)]
    masked = np.array([masked_hash(text) for text in texts], np.uint32)
    reduced = reduce_hash(masked, size=ConsistentHashing.size, start=ConsistentHashing.start)
    found: Reduced = np.unique(reduced).astype(np.uint16)
    found.setflags(write=False)
    return found


class ConsistentHashing:
    """The ring with `points` points a consumer. One that is alone has all hashes, wherever its points are, and most
    are: its points are placed when a second one comes.
    """

    start = 1
    size = HASH_RANGE - 1

    def __init__(self, points: int = 100) -> None:
        if points < 1:
            raise Invalid(f"a consumer needs at least one point on the ring, not {points}")
        self.points = points
        self.names = NameIndexes()
        self._points: Reduced = np.zeros(0, np.uint16)
        """The points that are taken, ascending; and by whom, in the same order."""
        self._slots: Reduced = np.zeros(0, np.uint16)
        self._line: dict[int, list[int]] = {}
        self._members: dict[int, tuple[str, Reduced | None]] = {}
        """The name and the points of each, None of one that was alone so far."""

    def add(self, slot: int, name: str, *, ranges: Sequence[Range] = (), priority: int = 0) -> None:
        """Put the consumer's points on the ring (KS-7); ranges and priority play no part."""
        if ranges:
            raise Invalid("ranges are for the sticky selector; this subscription uses consistent hashing")
        self._place(slot, name, self.names.increase(name, slot, self.points))

    def _place(self, slot: int, name: str, index: int) -> None:
        if not self._members:
            self._members[slot] = (name, None)
            return
        first, (other, points) = next(iter(self._members.items()))
        if points is None:
            self._lay(first, other, self.names.index(other, first))
        self._lay(slot, name, index)

    def _lay(self, slot: int, name: str, index: int) -> None:
        points = _points_of(name, index, self.points)
        at = np.searchsorted(self._points, points)
        taken = np.zeros(len(points), np.bool_)
        if len(self._points):
            taken = self._points[np.minimum(at, len(self._points) - 1)] == points
        for point in points[taken].tolist():
            self._line.setdefault(point, []).append(slot)
        at, new = at[~taken], points[~taken]
        self._points, self._slots = np.insert(self._points, at, new), np.insert(self._slots, at, np.uint16(slot))
        self._members[slot] = (name, points)

    def rivals(self, ranges: Sequence[Range]) -> list[int]:
        """There is room for all."""
        return []

    def remove(self, *slots: int) -> None:
        """Take their points off; the first in line takes over each of them (KS-11)."""
        given_up = [row for slot in slots if slot in self._members for row in self._let_go(slot)]
        self._points, self._slots = np.delete(self._points, given_up), np.delete(self._slots, given_up)

    def _let_go(self, slot: int) -> list[int]:
        """Forget a member; returns the rows of its points that nobody takes over."""
        name, points = self._members.pop(slot)
        self.names.decrease(name, slot, self.points)
        given_up: list[int] = []
        if points is None:
            return given_up
        at = np.searchsorted(self._points, points)
        for row, point, holder in zip(at.tolist(), points.tolist(), self._slots[at].tolist(), strict=True):
            line = self._line.get(point)
            if line is None:
                given_up.append(row)
                continue
            if holder != slot:
                line.remove(slot)
            else:
                self._slots[row] = line.pop(0)
            if not line:
                del self._line[point]
        return given_up

    def owners(self) -> Reduced:
        """Each hash belongs to the smallest point at or after it, round the end to the smallest of all (KS-10)."""
        owner: Reduced = np.full(HASH_RANGE, NO_SLOT, np.uint16)
        points, slots = self._points.astype(np.intp), self._slots
        if len(points):
            owner[1 : points[-1] + 1] = np.repeat(slots, np.diff(points, prepend=0))
            owner[points[-1] + 1 :] = slots[0]
        elif self._members:
            owner[self.start :] = next(iter(self._members))
        return owner

    def layout(self) -> list[tuple[int, Share]]:
        """A share is the name and its index, which say where the points are. Where points collide, the first comer's
        stays.
        """
        return [(slot, [name, self.names.index(name, slot)]) for slot, (name, _) in self._members.items()]

    def restore(self, slot: int, share: Share) -> None:
        name, index = str(share[0]), int(share[1])
        self.names.restore(name, slot, index, self.points)
        self._place(slot, name, index)

    def replace(self, slot: int, by: int) -> None:
        """See Selector; the points stay those of the name that they were made of."""
        name, _ = self._members[slot]
        self.names.replace(name, slot, by)
        self._slots[self._slots == slot] = by
        for line in self._line.values():
            line[:] = [by if each == slot else each for each in line]
        self._members = {by if each == slot else each: member for each, member in self._members.items()}


class AutoSplit:
    """A division of the hashes into one part for each consumer, by halving."""

    start = 0

    def __init__(self, size: int = HASH_RANGE) -> None:
        if size < 2 or size & (size - 1):
            raise Invalid(f"the range size must be a power of two and at least 2, not {size}")
        self.size = size
        self._parts: SortedDict = SortedDict()

    def add(self, slot: int, name: str, *, ranges: Sequence[Range] = (), priority: int = 0) -> None:
        """The newcomer takes the lower half of the biggest part, the first of equals."""
        if ranges:
            raise Invalid("ranges are for the sticky selector; this subscription splits automatically")
        if not self._parts:
            self._parts[self.size] = slot
            return
        uppers = list(self._parts)
        width, upper = max(
            ((upper - lower, upper) for lower, upper in zip([0, *uppers], uppers, strict=False)),
            key=lambda part: part[0],
        )
        if width <= 1:
            raise Conflict(f"{len(uppers)} consumers share {self.size} hashes; there is no part left to split")
        self._parts[upper - width // 2] = slot

    def rivals(self, ranges: Sequence[Range]) -> list[int]:
        """Return no slot: each consumer has a part."""
        return []

    def remove(self, *slots: int) -> None:
        """The next higher part grows; below the top bound the next lower consumer moves up."""
        uppers = {owner: bound for bound, owner in self._parts.items()}
        for slot in slots:
            upper = uppers.pop(slot, None)
            if upper is None:
                continue
            del self._parts[upper]
            if upper == self.size and self._parts:
                moved = self._parts.popitem(-1)[1]
                self._parts[upper], uppers[moved] = moved, upper

    def parts(self) -> list[tuple[int, int, int]]:
        """(first hash, last hash, slot) of each part, ascending; the last bound is the range size itself."""
        uppers = list(self._parts)
        firsts = [0, *(upper + 1 for upper in uppers)]
        return [(first, upper, self._parts[upper]) for first, upper in zip(firsts, uppers, strict=False)]

    def owners(self) -> Reduced:
        """Each hash belongs to the part with the smallest upper bound at or after it."""
        owner: Reduced = np.full(HASH_RANGE, NO_SLOT, np.uint16)
        for first, last, slot in self.parts():
            owner[first : last + 1] = slot
        return owner

    def layout(self) -> list[tuple[int, Share]]:
        """A share is the upper bound of the part."""
        return [(slot, [upper]) for upper, slot in self._parts.items()]

    def restore(self, slot: int, share: Share) -> None:
        self._parts[int(share[0])] = slot

    def replace(self, slot: int, by: int) -> None:
        for upper, owner in self._parts.items():
            if owner == slot:
                self._parts[upper] = by


class Sticky:
    """Each consumer brings its ranges (KS-14)."""

    start = 0

    def __init__(self, size: int = HASH_RANGE) -> None:
        if not 1 <= size <= HASH_RANGE:
            raise Invalid(f"the range size must be 1 to {HASH_RANGE}, not {size}")
        self.size = size
        self._owner: Reduced = np.full(HASH_RANGE, NO_SLOT, np.uint16)

    def add(self, slot: int, name: str, *, ranges: Sequence[Range] = (), priority: int = 0) -> None:
        """Take exactly these ranges. Invalid: the list itself is wrong. Conflict: another consumer has a part of it."""
        if not ranges:
            raise Invalid(f"consumer {name!r} brings no ranges, and this subscription uses the sticky selector")
        mine = np.zeros(HASH_RANGE, np.bool_)
        for start, end in ranges:
            if not 0 <= start <= end < self.size:
                raise Invalid(f"range {start}-{end} is not within 0-{self.size - 1}")
            if mine[start : end + 1].any():
                raise Invalid(f"range {start}-{end} overlaps another range of the same consumer")
            mine[start : end + 1] = True
        taken = np.flatnonzero(mine & (self._owner != NO_SLOT))
        if len(taken):
            raise Conflict(f"hash {int(taken[0])} already belongs to a connected consumer, or is kept for one")
        self._owner[mine] = slot

    def rivals(self, ranges: Sequence[Range]) -> list[int]:
        """Return the slots that have a part of these ranges."""
        slots = [self._owner[max(start, 0) : end + 1] for start, end in ranges]
        return [slot for slot in np.unique(np.concatenate(slots)).tolist() if slot != NO_SLOT] if slots else []

    def remove(self, *slots: int) -> None:
        """Their ranges belong to nobody now."""
        self._owner[np.isin(self._owner, slots)] = NO_SLOT

    def owners(self) -> Reduced:
        """Return the ranges as they were given."""
        return self._owner.copy()

    def layout(self) -> list[tuple[int, Share]]:
        """A share is the list of ranges."""
        slots = [slot for slot in np.unique(self._owner).tolist() if slot != NO_SLOT]
        return [(slot, [list(pair) for pair in ranges_of(self._owner, slot)]) for slot in slots]

    def restore(self, slot: int, share: Share) -> None:
        for start, end in share:
            self._owner[int(start) : int(end) + 1] = slot

    def replace(self, slot: int, by: int) -> None:
        self._owner[self._owner == slot] = by


class _Undivided:
    """Base of selectors in which consumers have no shares of the hashes."""

    def layout(self) -> list[tuple[int, Share]]:
        """No share to tell of."""
        return []

    def restore(self, slot: int, share: Share) -> None:
        """Nothing to have."""

    def replace(self, slot: int, by: int) -> None:
        """Nothing to pass on."""


class SingleActive(_Undivided):
    """Exclusive and Failover: one consumer gets everything.

    Failover: of the consumers of the lowest priority number, by their names, the one whose turn the partition's number
    is. So Pulsar divides the partitions of a topic among consumers of one level, whatever order they come in.
    """

    start = 1
    size = HASH_RANGE - 1

    def __init__(self, *, exclusive: bool, partition: int = 0) -> None:
        self.exclusive, self._partition = exclusive, partition
        self._line: list[tuple[int, str, int]] = []

    def add(self, slot: int, name: str, *, ranges: Sequence[Range] = (), priority: int = 0) -> None:
        """Join the line; an exclusive subscription refuses a second consumer with Conflict."""
        if ranges:
            raise Invalid("ranges are for Key_Shared subscriptions with the sticky selector")
        if self.exclusive and self._line:
            raise Conflict("the subscription is exclusive and already has a consumer")
        self._line.append((priority, name, slot))
        self._line.sort(key=lambda member: member[:2])

    def rivals(self, ranges: Sequence[Range]) -> list[int]:
        """Return the one consumer of an exclusive subscription."""
        return [slot for *_, slot in self._line] if self.exclusive else []

    def remove(self, *slots: int) -> None:
        """Leave the line."""
        self._line = [member for member in self._line if member[2] not in slots]

    def owners(self) -> Reduced:
        """Everything to one of the first level."""
        first = [slot for priority, _, slot in self._line if priority == self._line[0][0]]
        return np.full(HASH_RANGE, first[self._partition % len(first)] if first else NO_SLOT, np.uint16)


class Nobody(_Undivided):
    """Shared: hashes play no part; messages are dealt out in turn (see `dispatch_pass`)."""

    start = 1
    size = HASH_RANGE - 1

    def add(self, slot: int, name: str, *, ranges: Sequence[Range] = (), priority: int = 0) -> None:
        """Nothing to divide."""
        if ranges:
            raise Invalid("ranges are for Key_Shared subscriptions with the sticky selector")

    def rivals(self, ranges: Sequence[Range]) -> list[int]:
        """There is room for all."""
        return []

    def remove(self, *slots: int) -> None:
        """Nothing to divide."""

    def owners(self) -> Reduced:
        """No hash has an owner."""
        return np.full(HASH_RANGE, NO_SLOT, np.uint16)


SELECTORS: dict[str, Callable[[SubscriptionSettings], Selector]] = {
    "consistent_hashing": lambda settings: ConsistentHashing(settings.replica_points),
    "auto_split": lambda _: AutoSplit(),
    "sticky": lambda _: Sticky(),
}
"""How each selector of Key_Shared is made. The same names stand among the settings' choices."""


def make_selector(settings: SubscriptionSettings, partition: int = 0) -> Selector:
    """Return the selector of a subscription on a partition. Raises Invalid for an unknown name."""
    if settings.type == "shared":
        return Nobody()
    if settings.type != "key_shared":
        return SingleActive(exclusive=settings.type == "exclusive", partition=partition)
    if settings.selector not in SELECTORS:
        raise Invalid(f"selector is {', '.join(SELECTORS)}, not {settings.selector!r}")
    return SELECTORS[settings.selector](settings)


def ranges_of(owner: Reduced, slot: int) -> list[Range]:
    """Return the ranges of one slot in a table of owners, touching ones joined, ascending (KS-10)."""
    return mask_ranges(owner == slot)


def ranges_by_slot(owner: Reduced) -> dict[int, list[Range]]:
    """Return the ranges of all slots in a table of owners, in one look at it; see `ranges_of`."""
    edges = np.flatnonzero(owner[1:] != owner[:-1]) + 1
    firsts, lasts = np.append(0, edges), np.append(edges, len(owner)) - 1
    found: dict[int, list[Range]] = {}
    for slot, first, last in zip(owner[firsts].tolist(), firsts.tolist(), lasts.tolist(), strict=True):
        found.setdefault(slot, []).append((first, last))
    return found


def same_ranges(one: Iterable[Sequence[int]], other: Iterable[Sequence[int]]) -> bool:
    """Return whether two lists of ranges mean the same hashes."""
    masks = np.zeros((2, HASH_RANGE), np.bool_)
    for mask, ranges in zip(masks, (one, other), strict=True):
        for low, high in ranges:
            mask[max(low, 0) : high + 1] = True
    return bool((masks[0] == masks[1]).all())


def mask_ranges(mask: np.ndarray) -> list[Range]:
    """Return runs of True as inclusive ranges, ascending."""
    padded = np.zeros(len(mask) + 2, np.int8)
    padded[1:-1] = mask
    edges = np.flatnonzero(np.diff(padded))
    return list(zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True))


def difference(before: Reduced, after: Reduced) -> list[tuple[int, int, int, int]]:
    """Return (first, last, old slot, new slot) of every stretch that changed hands, ascending (KS-17)."""
    edges = np.flatnonzero((before[1:] != before[:-1]) | (after[1:] != after[:-1])) + 1
    firsts = np.concatenate(([0], edges))
    ends = np.concatenate((edges, [len(before)]))
    moved = before[firsts] != after[firsts]
    firsts, ends = firsts[moved], ends[moved]
    columns = firsts, ends - 1, before[firsts], after[firsts]
    return list(zip(*(column.tolist() for column in columns), strict=True))

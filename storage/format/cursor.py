"""The cursor of one subscription on one partition: which messages are done.

**Theory.** Done is a prefix and a scatter. The prefix is one number, the mark-delete position: every message at or
below it is done. The scatter is one roaring bitmap a ledger of the messages above it that were acknowledged one by
one. An acknowledgement adds to the scatter; when the scatter touches the prefix, the prefix swallows it. So the
cursor costs memory for the acknowledgements that arrived out of order, not for the backlog and not for the past.

**Ledger ends.** Positions of one ledger are consecutive, but after the last entry of a closed ledger comes entry 0 of
the next one that is not empty. Only the chain of ledgers knows this, and a wrong guess would declare messages done
that nobody has seen. So the mark-delete position crosses from one ledger to another only along the chain that it
was told; where the chain is unknown it waits, and the acknowledgements behind the gap stay in the scatter.

A seek to the first entry of ledger 7 stands at 6:4294967295, the number before it, whether or not there is a ledger
6: everything in front of 7 is done, whatever it may be.

**Monotonic.** Nothing but `reset` (a seek by the user) moves the mark-delete position back, and nothing but an
acknowledgement, `skip_to`, `reset` and a chain said to be complete makes a message done.

**Speed.** Acknowledgements come in columns. A run of consecutive entries becomes one range operation; the advance
of the mark-delete position is found by galloping over range cardinalities, without a look at single messages.

The encoding is `magic, CRC32C, msgpack [version, mark-delete, chain, [ledger, bitmap] ...]`. Its size follows the
number of holes: 12 bytes and a little for a subscription in order, about half a byte a hole for a million of them.
The other records of a subscription begin in the same way, with their kind and a checksum (`seal`).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import google_crc32c
import msgpack
import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from sluice.storage.errors import Corrupt, Invalid, InvariantViolation
from sluice.storage.format.position import (
    EARLIEST,
    ENTRY_BITS,
    MAX_ENTRY,
    MAX_LEDGER,
    Positions,
    entry_of,
    ledger_of,
    positions_of,
    split_by_ledger,
)

_HEAD = struct.Struct("<4sI")


def seal(magic: bytes, body: bytes) -> bytes:
    """The body behind its kind (4 bytes) and its CRC32C."""
    return _HEAD.pack(magic, google_crc32c.value(body)) + body


def unseal(magic: bytes, data: bytes, what: str) -> bytes:
    """The body back. Raises Corrupt, which names `what` it should have been."""
    if len(data) < _HEAD.size:
        raise Corrupt(f"{what} is cut off")
    kind, crc = _HEAD.unpack_from(data)
    body = bytes(data[_HEAD.size :])
    if kind != magic or google_crc32c.value(body) != crc:
        raise Corrupt(f"{what}'s checksum does not fit")
    return body


Mask = npt.NDArray[np.bool_]

MAGIC = b"SLK1"
FORMAT = 1
_DENSE = 64
"""A group of positions that spans up to this many entries a position is looked up through a dense mask."""


class Cursor:
    """The messages of one partition that are done. A plain object: no I/O, no clock, not safe for threads.

    mark_delete: packed position up to which everything is done, EARLIEST (-1) if nothing is.
    """

    __slots__ = ("_ids", "_lasts", "_scatter", "mark_delete")

    def __init__(self, mark_delete: int = EARLIEST) -> None:
        self.mark_delete = mark_delete
        """Invariant: only `reset` lowers it."""
        self._scatter: dict[int, Any] = {}
        """The bitmap of each ledger. Invariant: none is empty, and none holds an entry at or below the prefix."""
        self._ids: list[int] = []
        """The chain. Invariant: ascending, and no ledger lies before that of the mark-delete position."""
        self._lasts: list[int | None] = []
        """Invariant: one for each of `_ids`."""

    # -- what changes it ---------------------------------------------------------------------------------------------

    def acknowledge(self, positions: Positions) -> None:
        """Mark messages as done: positions int64, shape (n,), ascending. A repetition changes nothing.

        Raises Invalid, and changes nothing, when the positions are negative or not ascending.
        """
        if positions.size == 0 or (positions.size == 1 and self._is_next(int(positions[0]))):
            return
        if int(positions[0]) < 0 or (positions.size > 1 and not bool((positions[1:] >= positions[:-1]).all())):
            raise Invalid("acknowledged positions must be ascending and not negative")
        if int(positions[0]) <= self.mark_delete:
            positions = positions[positions.searchsorted(self.mark_delete, side="right") :]
        for ledger, entries in split_by_ledger(positions):
            self._add(ledger, entries)
        self._advance()

    def chain(self, ledgers: Sequence[tuple[int, int | None]], *, complete: bool = False) -> None:
        """Learn the ledgers of the partition: (id, last entry) in order, ids ascending.

        The last entry is None while the ledger is open and -1 for a closed ledger that is empty. Within the span
        that is given no ledger may be left out, and each call's span begins or ends where what is known goes on, so
        the `ended` of successive reads can be given as it comes; a cursor that has nothing done is first told of
        the first ledger. Name the open ledger too, otherwise the mark-delete position cannot enter it. Ledgers that
        lie behind the mark-delete position are forgotten: after a `reset` they must be named again.

        complete: these are all the ledgers that there are; what earlier ledgers held was trimmed and counts as
        done. Raises Invalid when ids do not ascend or a closed ledger changes its end.
        """
        if not ledgers:
            return
        ids = [ledger for ledger, _ in ledgers]
        if any(a >= b for a, b in pairwise(ids)) or not 0 <= ids[0] <= ids[-1] <= MAX_LEDGER:
            raise Invalid(f"ledger ids must ascend, not {ids[:8]}")
        low, high = bisect_left(self._ids, ids[0]), bisect_right(self._ids, ids[-1])
        known = dict(zip(self._ids[low:high], self._lasts[low:high], strict=True))
        lasts: list[int | None] = []
        for ledger, last in ledgers:
            before = known.get(ledger)
            if before is not None and last is not None and before != last:
                raise Invalid(f"ledger {ledger} was closed at entry {before}, and cannot end at {last}")
            lasts.append(before if last is None else last)
        self._ids[low:high], self._lasts[low:high] = ids, lasts
        if complete:
            start = bisect_left(self._ids, ids[0])
            del self._ids[:start], self._lasts[:start]
            if ledger_of(self.mark_delete) < ids[0]:
                self.mark_delete = max(self.mark_delete, (ids[0] << ENTRY_BITS) - 1)
        self._advance()

    def trimmed(self, start: int, ledger: int) -> None:
        """The topic holds nothing between `start` and a later ledger: that is done. What lies before it may not be."""
        home, entry = ledger_of(start), entry_of(start)
        for gone in [held for held in self._scatter if home < held < ledger]:
            del self._scatter[gone]
        last = self._last(home)
        if last is None:
            last = max(entry - 1, self._scatter[home].max() if home in self._scatter else -1)
        if last >= entry:
            self._scatter.setdefault(home, BitMap()).add_range(entry, last + 1)
        self.chain([(home, last), (ledger, None)])

    def pass_over(self, ledger: int, first: int, last: int, kept: npt.NDArray[np.uint32]) -> None:
        """Entries first .. last of a ledger are done, but for `kept` (ascending): the log was compacted."""
        gone = BitMap(range(first, last + 1)) - _bitmap(kept)
        if gone:
            self._scatter[ledger] = self._scatter.get(ledger, BitMap()) | gone
            self._advance()

    def reset(self, position: int) -> None:
        """Seek: everything before `position` is done, it and everything after is not. The only way back."""
        self._scatter.clear()
        self.mark_delete = max(position - 1, EARLIEST)
        self._advance()

    def skip_to(self, position: int) -> None:
        """Mark all before `position` as done (skip, expiry, clear backlog); acknowledgements behind it stay."""
        if position - 1 > self.mark_delete:
            self.mark_delete = position - 1
            self._advance()

    # -- what it knows -----------------------------------------------------------------------------------------------

    def is_acknowledged(self, positions: Positions) -> Mask:
        """Which of these positions (int64, shape (n,), ascending) are done: bool, shape (n,)."""
        mask = positions <= self.mark_delete
        if not self._scatter:
            return mask
        start = int(positions.searchsorted(self.mark_delete, side="right"))
        if start == positions.size:
            return mask
        at = start
        for ledger, entries in split_by_ledger(positions[start:]):
            acked = self._scatter.get(ledger)
            if acked is not None:
                mask[at : at + entries.size] = _members(acked, entries)
            at += entries.size
        return mask

    def next_unacknowledged(self, start: int) -> int:
        """The first position at or after `start` that is not done; it may not have been published yet."""
        at = start if start > self.mark_delete else self._after(self.mark_delete)
        while True:
            ledger, entry = ledger_of(at), entry_of(at)
            acked = self._scatter.get(ledger)
            if acked is not None:
                entry = _first_clear(acked, entry)
            last = self._last(ledger)
            if last is None or entry <= last:
                return ledger << ENTRY_BITS | entry
            following = self._following(ledger)
            if following is None:
                return ledger << ENTRY_BITS | entry
            at = following << ENTRY_BITS

    def open_from(self, start: int, last: int, most: int) -> Positions:
        """The messages of one ledger that are not done, from the first one at or after `start` on (int64, ascending).

        last: the last position that counts. most: how many positions are looked at from the first on. A ledger whose
        end is not known has none, unless it holds `last`.
        """
        first = self.next_unacknowledged(start)
        ledger = ledger_of(first)
        entry = self._last(ledger)
        if entry is None:
            end = last if ledger == ledger_of(last) else first - 1
        else:
            end = min(ledger << ENTRY_BITS | entry, last)
        positions = np.arange(first, min(end, first + most - 1) + 1, dtype=np.int64)
        return positions[~self.is_acknowledged(positions)]

    def beyond(self) -> list[Positions]:
        """Messages that are done behind the mark-delete position: ascending positions, a column a ledger."""
        return [
            positions_of(ledger, np.frombuffer(acked.to_array(), np.uint32))
            for ledger, acked in sorted(self._scatter.items())
        ]

    @property
    def acknowledged_count(self) -> int:
        """Messages acknowledged one by one above the mark-delete position."""
        return sum(len(acked) for acked in self._scatter.values())

    @property
    def holes(self) -> int:
        """Separate ranges of acknowledged messages above the mark-delete position."""
        return sum(len(acked - acked.shift(1)) for acked in self._scatter.values())

    def unacknowledged_in(self, first: int, last: int) -> int:
        """How many messages of first .. last (inclusive packed positions) are not done.

        Exact for ledgers whose end is known; `last` bounds the one it lies in. Ledgers that the chain does not name
        and that hold neither bound are not counted.
        """
        first = max(first, self.mark_delete + 1)
        if first > last:
            return 0
        ends = (ledger_of(first), ledger_of(last))
        inner = self._ids[bisect_right(self._ids, ends[0]) : bisect_left(self._ids, ends[1])]
        total = 0
        for ledger in sorted({*ends, *inner}):
            low = entry_of(first) if ledger == ends[0] else 0
            high = entry_of(last) if ledger == ends[1] else MAX_ENTRY
            known = self._last(ledger)
            high = high if known is None else min(high, known)
            if known is None and ledger != ends[1]:
                continue
            if high >= low:
                acked = self._scatter.get(ledger)
                total += high - low + 1 - (0 if acked is None else acked.range_cardinality(low, high + 1))
        return total

    def check(self) -> None:
        """Raise InvariantViolation for a cursor that holds what no call of this class leaves behind."""
        done, first = ledger_of(self.mark_delete), self._ids[:1]
        home = self._scatter.get(done)
        if len(self._ids) != len(self._lasts) or (first and first[0] < done):
            raise InvariantViolation(f"the chain begins at {first} and has {len(self._lasts)} ends for {self._ids[:8]}")
        if any(ledger < done or not acked for ledger, acked in self._scatter.items()):
            raise InvariantViolation(f"ledgers {sorted(self._scatter)[:8]} are scattered, and up to {done} all is done")
        if home and home.min() <= entry_of(self.mark_delete):
            raise InvariantViolation(f"entry {home.min()} of ledger {done} is scattered, and done by the prefix")

    # -- bytes -------------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The whole cursor as bytes, with a checksum."""
        scatter = []
        for ledger in sorted(self._scatter):
            self._scatter[ledger].run_optimize()
            scatter.append([ledger, self._scatter[ledger].serialize()])
        chain = [list(pair) for pair in zip(self._ids, self._lasts, strict=True)]
        body: bytes = msgpack.packb([FORMAT, self.mark_delete, chain, scatter])
        return seal(MAGIC, body)

    @classmethod
    def decode(cls, data: bytes) -> Cursor:
        """The cursor back. Raises Corrupt on any damage, Invalid on a format that is newer than this code."""
        body = unseal(MAGIC, data, "the cursor")
        try:
            version, mark_delete, chain, scatter = msgpack.unpackb(body)
            if version != FORMAT:
                raise Invalid(f"the cursor has format {version}, this version reads {FORMAT}")
            cursor = cls(int(mark_delete))
            cursor._ids = [int(ledger) for ledger, _ in chain]
            cursor._lasts = [None if last is None else int(last) for _, last in chain]
            cursor._scatter = {int(ledger): BitMap.deserialize(packed) for ledger, packed in scatter}
        except Invalid:
            raise
        except (ValueError, TypeError, LookupError, OverflowError, msgpack.UnpackException) as error:
            raise Corrupt(f"the cursor cannot be read: {error}") from error
        return cursor

    # -- inside ------------------------------------------------------------------------------------------------------

    def _is_next(self, position: int) -> bool:
        """Acknowledge the message behind the mark-delete position, if it is that one, in an open ledger, and no other
        follows: what almost every single one is, without columns.
        """
        if self._scatter or position != self.mark_delete + 1 or not position & MAX_ENTRY:
            return False
        if self._last(ledger_of(position)) is not None:
            return False
        self.mark_delete = position
        return True

    def _add(self, ledger: int, entries: npt.NDArray[np.uint32]) -> None:
        acked = self._scatter.get(ledger)
        if acked is None:
            acked = self._scatter[ledger] = BitMap()
        first, last = int(entries[0]), int(entries[-1])
        if last - first + 1 == entries.size and (entries.size == 1 or bool((entries[1:] != entries[:-1]).all())):
            acked.add_range(first, last + 1)
        else:
            acked.update(_bitmap(entries))

    def _advance(self) -> None:
        """Swallow what the scatter holds right behind the mark-delete position, then drop what lies below it."""
        while True:
            at = self._after(self.mark_delete)
            acked = self._scatter.get(ledger_of(at))
            if acked is None:
                break
            end = _first_clear(acked, entry_of(at))
            last = self._last(ledger_of(at))
            if last is not None:
                end = min(end, last + 1)
            if end <= entry_of(at):
                break
            self.mark_delete = (ledger_of(at) << ENTRY_BITS) + end - 1
        done = ledger_of(self.mark_delete)
        for ledger in sorted(self._scatter):
            if ledger > done:
                break
            acked = self._scatter[ledger]
            acked.remove_range(0, entry_of(self.mark_delete) + 1 if ledger == done else MAX_ENTRY + 1)
            if not acked:
                del self._scatter[ledger]
        stale = bisect_left(self._ids, done)
        if stale:
            del self._ids[:stale], self._lasts[:stale]

    def _last(self, ledger: int) -> int | None:
        """Last entry of a ledger that is known to be closed, None otherwise."""
        at = bisect_left(self._ids, ledger)
        return self._lasts[at] if at < len(self._ids) and self._ids[at] == ledger else None

    def _following(self, ledger: int) -> int | None:
        """The next ledger behind `ledger` on the chain that has or may get entries."""
        for at in range(bisect_right(self._ids, ledger), len(self._ids)):
            if self._lasts[at] != -1:
                return self._ids[at]
        return None

    def _after(self, position: int) -> int:
        """The position behind a done one, across the end of a closed ledger where the chain is known."""
        ledger, entry = ledger_of(position), entry_of(position) + 1
        if entry > MAX_ENTRY and self._named(ledger + 1):
            ledger, entry = ledger + 1, 0
        last = self._last(ledger)
        if position == EARLIEST or (last is not None and entry > last):
            following = self._following(ledger_of(position) if position == EARLIEST else ledger)
            if following is not None:
                return following << ENTRY_BITS
        return position + 1

    def _named(self, ledger: int) -> bool:
        at = bisect_left(self._ids, ledger)
        return at < len(self._ids) and self._ids[at] == ledger


def _first_clear(acked: Any, start: int) -> int:
    """The first entry at or after `start` that is not in the bitmap, by galloping and halving over counts."""
    if start not in acked:
        return start
    step = 1
    while start + step <= MAX_ENTRY and acked.contains_range(start, start + step + 1):
        step *= 2
    low, high = start + step // 2, min(start + step, MAX_ENTRY + 1)  # low is set, high is clear
    while high - low > 1:
        middle = (low + high) // 2
        if acked.contains_range(low, middle + 1):
            low = middle
        else:
            high = middle
    return high


def _bitmap(entries: npt.NDArray[np.uint32]) -> Any:
    return BitMap(array("I", entries.tobytes()))


def _members(acked: Any, entries: npt.NDArray[np.uint32]) -> Mask:
    """Which of the ascending entries are in the bitmap."""
    first, last = int(entries[0]), int(entries[-1])
    if last - first < _DENSE * entries.size:
        hits = np.frombuffer((acked & BitMap(range(first, last + 1))).to_array(), np.uint32)
        dense: Mask = np.zeros(last - first + 1, np.bool_)
        dense[hits - np.uint32(first)] = True
        found: Mask = dense[entries - np.uint32(first)]
        return found
    hits = np.frombuffer((acked & _bitmap(entries)).to_array(), np.uint32)
    if hits.size == 0:
        return np.zeros(entries.size, np.bool_)
    nearest = hits[np.minimum(np.searchsorted(hits, entries), hits.size - 1)]
    return np.asarray(nearest == entries, np.bool_)

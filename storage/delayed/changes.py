"""Delayed messages that were cancelled, or that have another due time, on request.

The log says when a message was to come, once and for ever. What is here wins over that, for one subscription: a
cancelled message is done (the cursor says so too; here it stands that nobody ever got it for that), and a rescheduled
one has its due time here. Both are columns, a roaring bitmap a ledger and 20 bytes a message.
"""

from __future__ import annotations

import msgpack
import numpy as np
from pyroaring import BitMap

from sluice.storage.delayed.entries import EMPTY, Entries, Mask, Times, concat
from sluice.storage.delayed.index import PositionIndex
from sluice.storage.errors import Corrupt, Invalid
from sluice.storage.format.cursor import seal, unseal
from sluice.storage.format.packed_ints import narrow, wide
from sluice.storage.format.position import MAX_LEDGER, Positions, position

MAGIC = b"SLD1"
FORMAT = 1
_BEHIND_ALL = position(MAX_LEDGER, 0)


class DelayChanges:
    """moved: the new due times, int64 ms, by position ascending, each once. cancelled: a set of positions."""

    __slots__ = ("cancelled", "moved")

    def __init__(self) -> None:
        self.moved = EMPTY
        self.cancelled = PositionIndex()

    def __len__(self) -> int:
        return len(self.moved) + len(self.cancelled)

    def move(self, entries: Entries) -> None:
        """Record new due times of entries (positions ascending). A new time replaces an earlier one of its position."""
        if not len(entries):
            return
        both = concat([self.moved.take(~np.isin(self.moved.positions, entries.positions)), entries])
        self.moved = both.take(np.argsort(both.positions, kind="stable"))

    def cancel(self, positions: Positions) -> None:
        """Mark positions as never to be delivered. Their new due times are dropped."""
        self.cancelled.add(positions)
        if len(self.moved):
            self.moved = self.moved.take(~np.isin(self.moved.positions, positions))

    def is_moved(self, positions: Positions) -> Mask:
        """Which of the positions have a new due time, shape (n,)."""
        rows = self._rows(positions)
        return np.zeros(positions.size, np.bool_) if rows is None else self.moved.positions[rows] == positions

    def due(self, positions: Positions, deliver_at: Times) -> Times:
        """The due times that count, ms, shape (n,): the new one where there is one, else what is given."""
        rows = self._rows(positions)
        if rows is None:
            return deliver_at
        return np.where(self.moved.positions[rows] == positions, self.moved.deliver_at[rows], deliver_at)

    def passed(self, mark_delete: int) -> None:
        """Drop the due times up to this position, whose messages are done. Cheap."""
        if len(self.moved) and int(self.moved.positions[0]) <= mark_delete:
            first = int(np.searchsorted(self.moved.positions, mark_delete, "right"))
            self.moved = self.moved.slice(first, len(self.moved))

    def keep(self, wanted: Mask) -> None:
        """Forget the new due times but these, shape (len(moved),)."""
        if not wanted.all():
            self.moved = self.moved.take(wanted)

    def reopen(self, start: int) -> None:
        """Want all messages from a position on again: cancelled ones are not cancelled any more."""
        self.cancelled.discard_range(start, _BEHIND_ALL)

    def trimmed(self, start: int) -> None:
        """The topic begins at this position: nobody can ask about what lay before it."""
        self.cancelled.discard_range(0, start)

    def update(self, later: DelayChanges) -> None:
        """Take in what was changed after this."""
        self.move(later.moved)
        for ledger, bitmap in later.cancelled.ledgers():
            self.cancelled.merge(ledger, bitmap)
        self.keep(~later.cancelled.contains(self.moved.positions))

    def encode(self) -> bytes:
        """The bytes; none for no changes."""
        if not len(self):
            return b""
        moved = self.moved
        first = int(moved.positions[0]) if len(moved) else 0
        base = int(moved.deliver_at.min(initial=1 << 62)) if len(moved) else 0
        body: bytes = msgpack.packb(
            [
                FORMAT,
                len(moved),
                first,
                narrow(np.diff(moved.positions)),
                base,
                narrow(moved.deliver_at - base),
                moved.hashes.astype("<u4").tobytes(),
                [[ledger, bitmap.serialize()] for ledger, bitmap in self.cancelled.ledgers()],
            ]
        )
        return seal(MAGIC, body)

    @classmethod
    def decode(cls, data: bytes) -> DelayChanges:
        """The changes back. Raises Corrupt on any damage, Invalid on a format that is newer than this code."""
        found = cls()
        if not data:
            return found
        body = unseal(MAGIC, data, "the table of changed delays")
        try:
            version, *rest = msgpack.unpackb(body)
            if version != FORMAT:
                raise Invalid(f"the table of changed delays has format {version}, this version reads {FORMAT}")
            count, first, steps, base, waits, hashes, cancelled = rest
            if count:
                positions = np.cumsum(np.concatenate([np.array([first], np.int64), wide(steps)]))
                found.moved = Entries(wide(waits) + base, positions, np.frombuffer(hashes, np.uint32))
            for ledger, bitmap in cancelled:
                found.cancelled.merge(int(ledger), BitMap.deserialize(bitmap))
        except Invalid:
            raise
        except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
            raise Corrupt(f"the table of changed delays cannot be read: {error}") from error
        moved = found.moved
        if not count == len(moved.positions) == len(moved.deliver_at) == len(moved.hashes):
            raise Corrupt("the columns of the table of changed delays differ in length")
        if bool((moved.positions[1:] <= moved.positions[:-1]).any()):
            raise Corrupt("the positions of the table of changed delays are not ascending")
        return found

    def _rows(self, positions: Positions) -> Positions | None:
        """Return the row of each position among the new due times; None if there are none.

        A position without a new due time has the row of the next higher one, or the last row.
        """
        if not len(self.moved):
            return None
        return np.minimum(np.searchsorted(self.moved.positions, positions), len(self.moved) - 1)

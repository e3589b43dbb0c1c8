"""Unacknowledged messages at a client, by the position of the id under which the client knows them.

Pieces go out and come back by the thousand, so they are kept as columns: a table a part, and one dictionary that says
in which table and row a position is. What is done with many of them at once is done with all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.pulsar.codec.varints import Ints, ranges
from sluice.actors.pulsar.conversation.gateway.acked_batch_sizes import acknowledged_rows, open_rows

_BITS = 20
"""The bits of a number for the row in a table; the others are the table's number. A part has fewer rows than fit."""
_ROW = (1 << _BITS) - 1
TABLE_BYTES, PIECE_BYTES, MESSAGE_BYTES = 1_350, 135, 27
"""The memory of a table with its part, and of each piece and each message in it, without the messages' contents."""


class Piece(NamedTuple):
    """Rows of a part that are at the client under one id. indexes: with holes, each one's index in the batch."""

    part: Received
    first: int
    size: int
    indexes: Ints | None = None

    def rows(self, ack_set: Sequence[int] = ()) -> Ints:
        """Return the rows that an acknowledgement of this id means: all, or those whose bit is not set."""
        every = np.arange(self.first, self.first + self.size)
        if not ack_set:
            return every
        if self.indexes is None:
            return self.first + acknowledged_rows(self.size, ack_set)
        return every[~_still_open(self.indexes, ack_set)]


@dataclass(slots=True, eq=False)
class _Table:
    """Pieces of one part. left: how many of them are still at the client. messages: how many all of them were."""

    part: Received
    firsts: Ints
    counts: Ints
    indexes: Mapping[int, Ints]
    left: int
    messages: int


class UnackedFrames:
    """All pieces that a client has and has not acknowledged. changed: told how many bytes more they cost, or less."""

    def __init__(self, changed: Callable[[int], None]) -> None:
        self._changed = changed
        self._numbers: dict[int, int] = {}
        self._tables: dict[int, _Table] = {}
        self._made = 0
        self.messages = 0
        """How many messages all of the pieces are."""
        self._kept = 0
        self._bytes = 0

    def _count_bytes(self) -> None:
        """Tell what it costs now. kept: the messages of all tables."""
        before = self._bytes
        self._bytes = TABLE_BYTES * len(self._tables) + PIECE_BYTES * len(self._numbers) + MESSAGE_BYTES * self._kept
        if self._bytes != before:
            self._changed(self._bytes - before)

    def __contains__(self, position: object) -> bool:
        return position in self._numbers

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._numbers))

    def add(self, part: Received, firsts: Ints, counts: Ints, positions: Ints, indexes: Mapping[int, Ints]) -> None:
        """n pieces of a part were sent; int64, n each. indexes: see Piece, by the number of the piece."""
        many, messages, before = len(positions), int(counts.sum()), len(self._numbers)
        self._tables[self._made] = _Table(part, firsts, counts, indexes, many, messages)
        base = self._made << _BITS
        self._numbers.update(zip(positions.tolist(), range(base, base + many), strict=True))
        self._made += 1
        self.messages += messages
        self._kept += messages
        if len(self._numbers) - before < many:
            self._recount()
        self._count_bytes()

    def _recount(self) -> None:
        """Count again after positions were sent again: their earlier tables do not have them any more."""
        tables, left = np.unique(np.array(list(self._numbers.values())) >> _BITS, return_counts=True)
        counted = dict(zip(tables.tolist(), left.tolist(), strict=True))
        self._tables = {number: table for number, table in self._tables.items() if number in counted}
        for number, many in counted.items():
            self._tables[number].left = many
        self.messages = sum(piece.size for at in self if (piece := self.get(at)) is not None)
        self._kept = sum(table.messages for table in self._tables.values())

    def get(self, position: int) -> Piece | None:
        """Return the piece that the client knows by this position."""
        number = self._numbers.get(position)
        if number is None:
            return None
        table, row = self._tables[number >> _BITS], number & _ROW
        return Piece(table.part, int(table.firsts[row]), int(table.counts[row]), table.indexes.get(row))

    def pop(self, position: int) -> None:
        """Remove a piece, which must be here: the client does not have it any more."""
        number = self._numbers.pop(position)
        self.messages -= int(self._tables[number >> _BITS].counts[number & _ROW])
        self._done(number >> _BITS, 1)
        self._count_bytes()

    def _done(self, number: int, many: int) -> None:
        table = self._tables[number]
        table.left -= many
        if not table.left:
            self._kept -= table.messages
            del self._tables[number]

    def known(self, positions: Ints) -> npt.NDArray[np.bool_]:
        """Return which of these positions the client has."""
        found = map(self._numbers.__contains__, positions.tolist())
        return np.fromiter(found, bool, len(positions))

    def remove(self, positions: Ints) -> tuple[list[tuple[Received, Ints]], Ints]:
        """Remove these: (rows by part, how many rows each position stood for; 0: it is not here)."""
        found = map(self._numbers.pop, positions.tolist(), repeat(-1))
        numbers = np.fromiter(found, np.int64, len(positions))
        counts = np.zeros(len(positions), np.int64)
        known = np.flatnonzero(numbers >= 0)
        tables = numbers[known] >> _BITS
        rows: list[tuple[Received, Ints]] = []
        for number in np.unique(tables).tolist():
            mine = known[tables == number]
            table, which = self._tables[number], numbers[mine] & _ROW
            counts[mine] = table.counts[which]
            rows.append((table.part, ranges(table.firsts[which], counts[mine])))
            self._done(number, len(mine))
        self.messages -= int(counts.sum())
        self._count_bytes()
        return rows, counts

    def oldest_half(self) -> Ints:
        """Return the positions of that half of the pieces that was sent first."""
        return np.fromiter(islice(self._numbers, (len(self._numbers) + 1) // 2), np.int64)


def _still_open(index: Ints, ack_set: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return which of these messages of a batch an acknowledgement leaves open; without `ack_set` none."""
    bits = open_rows(ack_set)
    still = np.zeros(len(index), bool)
    there = index < len(bits)
    still[there] = bits[index[there]]
    return still

"""Columns with a number for each of the 65,536 hashes, with memory only for hashes that were used.

A broker has such columns for each partition of each subscription, and with a thousand partitions a partition has few
keys. A page of each column for each of its hashes would be most of a partition's memory. So hashes come in groups of
GROUP neighbours, and a group gets its rows at the first use of one of its hashes. With more than MOST_GROUPS groups, or
as soon as MANY hashes come at a time, every hash has its own row, and a look-up costs nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.state.window import HashIndex
from sluice.storage.format.hashing import HASH_RANGE
from sluice.storage.format.lazy_zeros import untouched

_BITS = 5
GROUP = 1 << _BITS
MOST_GROUPS = 254
MANY = 256
FEW = 16
"""The most hashes that are looked up one by one, which takes less than looking into a table at once."""
_NONE = 255
"""The place of a group that has no rows."""


class HashGroups:
    """The columns. columns: an array for each type, all 0 at first; they are others whenever `rows` made room."""

    def __init__(self, *dtypes: type[Any]) -> None:
        self._dtypes = dtypes
        self._known: dict[int, int] | None = {}
        """How far behind its hashes the rows of each group are that has some, in the order of the rows; None if every
        hash has its own row.
        """
        self._places: npt.NDArray[np.uint8] | None = None
        """The place of each group among those that have rows, _NONE if it has none; made when more than FEW hashes come
        at a time.
        """
        self.columns: list[npt.NDArray[Any]] = [np.zeros(0, dtype) for dtype in dtypes]

    def rows(self, hashes: HashIndex) -> HashIndex:
        """Return the rows of these hashes in the columns."""
        if self._known is None:
            return hashes
        if len(hashes) <= FEW:
            return self._rows_of_few(hashes, self._known)
        if len(hashes) >= MANY:
            self._widen()
            return hashes
        if self._places is None:
            self._places = np.full(HASH_RANGE // GROUP, _NONE, np.uint8)
            self._places[list(self._known)] = np.arange(len(self._known))
        groups = hashes >> _BITS
        places = self._places[groups]
        if np.maximum.reduce(places) == _NONE:
            new = np.unique(groups[places == _NONE]).astype(np.intp)
            if len(self._known) + len(new) > MOST_GROUPS:
                self._widen()
                return hashes
            self._add(new, self._known)
            places = self._places[groups]
        rows: HashIndex = hashes + ((places - groups) << _BITS)
        return rows

    def _rows_of_few(self, hashes: HashIndex, known: dict[int, int]) -> HashIndex:
        rows = []
        for one in hashes.tolist():
            group = one >> _BITS
            if group not in known:
                if len(known) == MOST_GROUPS:
                    self._widen()
                    return hashes
                self._add(np.array([group]), known)
            rows.append(one + known[group])
        return np.array(rows, np.intp)

    def whole(self, column: int) -> npt.NDArray[Any]:
        """Return a column with a row for each hash, shape (65536,); not to be written to."""
        if self._known is None:
            return self.columns[column]
        every = np.zeros(HASH_RANGE, self._dtypes[column])
        hashes = self._hashes()
        every[hashes] = self.columns[column][: len(hashes)]
        every.setflags(write=False)
        return every

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(column.nbytes for column in self.columns) + (0 if self._places is None else self._places.nbytes)

    def _hashes(self) -> npt.NDArray[np.intp]:
        """Return the hashes that have rows, in the order of the rows."""
        groups = np.array(list(self._known or ()), np.intp)
        return ((groups << _BITS)[:, None] | np.arange(GROUP)).ravel()

    def _widen(self) -> None:
        """Give every hash its own row from now on."""
        hashes, columns = self._hashes(), untouched(HASH_RANGE, *self._dtypes)
        for new, old in zip(columns, self.columns, strict=True):
            new[hashes] = old[: len(hashes)]
        self.columns, self._known, self._places = columns, None, None

    def _add(self, groups: npt.NDArray[np.intp], known: dict[int, int]) -> None:
        """Add rows for these groups."""
        for place, group in enumerate(groups.tolist(), len(known)):
            known[group] = (place - group) << _BITS
        if self._places is not None:
            self._places[groups] = np.arange(len(known) - len(groups), len(known))
        room = len(self.columns[0])
        if len(known) * GROUP > room:
            more = max(room, len(known) * GROUP - room)
            self.columns = [np.concatenate([old, np.zeros(more, old.dtype)]) for old in self.columns]

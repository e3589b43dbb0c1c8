"""Index entries as three columns, and their one order of sorting.

An entry says: the message at `positions[i]` with sticky hash `hashes[i]` is due at `deliver_at[i]`. Entries are never
objects; a million of them are three arrays of 20 bytes a row. What is due is a slice of the sorted columns, and a
k-way merge is a concatenation and a sort: a vectorised sort of 64-bit integers moves 100 million rows a second, more
than any heap in Python could.

The order is (deliver_at, position), as in BD-9. Both keys are packed into one 64-bit integer together with the row
number where they fit, so that one plain sort gives the permutation; where they do not fit, a stable argsort does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions

Times = npt.NDArray[np.int64]
"""Due times in milliseconds since 1970, shape (n,), dtype int64."""
Mask = npt.NDArray[np.bool_]
"""One boolean a row, shape (n,)."""
Rows = npt.NDArray[np.int64]

ENTRY_BYTES = 20
NEVER = (1 << 63) - 1
"""A due time after all others."""
Bound = tuple[int, int]
"""(deliver_at, position): everything strictly before it in that order. `END` is after everything."""
END: Bound = (NEVER, 0)
_FITS = 1 << 62


@dataclass(frozen=True, slots=True)
class Entries:
    """Index entries: due times (int64 ms), positions (int64) and masked hashes (uint32), all of shape (n,)."""

    deliver_at: Times
    positions: Positions
    hashes: Hashes

    def __len__(self) -> int:
        return int(self.positions.size)

    def slice(self, start: int, stop: int) -> Entries:
        """Rows start .. stop-1 as views; the arrays behind them stay alive."""
        return Entries(self.deliver_at[start:stop], self.positions[start:stop], self.hashes[start:stop])

    def take(self, rows: Rows | Mask) -> Entries:
        """The given rows (numbers or a mask) as a copy."""
        return Entries(self.deliver_at[rows], self.positions[rows], self.hashes[rows])

    def copy(self) -> Entries:
        """A copy that keeps no larger array alive."""
        return Entries(self.deliver_at.copy(), self.positions.copy(), self.hashes.copy())

    def sorted(self) -> Entries:
        """The same rows in the order (deliver_at, position)."""
        return self.take(time_order(self.deliver_at, self.positions))


EMPTY = Entries(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32))


def concat(parts: Sequence[Entries]) -> Entries:
    """All rows of all parts behind one another."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return EMPTY
    return Entries(
        np.concatenate([part.deliver_at for part in parts]),
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.hashes for part in parts]),
    )


def ascending(values: npt.NDArray[np.int64]) -> bool:
    """Whether every value is greater than the one before it."""
    return bool((values[1:] > values[:-1]).all())


def stable_order(values: npt.NDArray[np.int64]) -> Rows:
    """The stable ascending permutation of int64 values, shape (n,)."""
    count = values.size
    if count < 2:
        return np.arange(count, dtype=np.int64)
    low, high = int(values.min()), int(values.max())
    # A power of two for the row number makes the way back a mask instead of a division.
    bits = int(count - 1).bit_length()
    if (high - low) << bits >= _FITS:
        return np.argsort(values, kind="stable").astype(np.int64, copy=False)
    keys = (values - low) << bits
    keys |= np.arange(count, dtype=np.int64)
    keys.sort()
    keys &= (1 << bits) - 1
    return keys


def time_order(deliver_at: Times, positions: Positions) -> Rows:
    """The permutation that sorts by (deliver_at, position), shape (n,)."""
    if ascending(positions):
        return stable_order(deliver_at)
    by_position = stable_order(positions)
    return by_position[stable_order(deliver_at[by_position])]

"""Where each run stands: (ledger, run) -> segment, offset, size."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

ROW = np.dtype(
    [
        ("ledger", "<u4"),
        ("run", "<u4"),
        ("first_entry", "<u4"),
        ("count", "<u4"),
        ("segment", "<u4"),
        ("offset", "<u4"),
        ("size", "<u4"),
    ]
)
Rows = npt.NDArray[np.void]
"""Index rows, shape (n,), dtype ROW."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run. offset and size are those of its frame. segment 0: it was here and cannot be read any more."""

    ledger: int
    run: int
    first_entry: int
    count: int
    segment: int
    offset: int
    size: int

    @property
    def damaged(self) -> bool:
        """Whether the run was here and cannot be read."""
        return self.segment == 0


class Index:
    """The runs of all ledgers."""

    def __init__(self) -> None:
        self._tail: dict[int, dict[int, Row]] = {}

    def insert(self, row: Row) -> None:
        """Add a run or replace where it stands."""
        self._tail.setdefault(row.ledger, {})[row.run] = row

    def forget(self, ledger: int) -> None:
        """Drop a deleted ledger."""
        self._tail.pop(ledger, None)

    async def find(self, ledger: int, run: int) -> Row | None:
        """The run, or None if it is not here."""
        return self._tail.get(ledger, {}).get(run)

    async def rows(self, ledger: int) -> Rows:
        """All runs of a ledger, ascending."""
        tail = self._tail.get(ledger, {})
        return np.array([astuple(tail[run]) for run in sorted(tail)], ROW)

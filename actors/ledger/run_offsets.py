"""The first entries of a ledger's runs, with four bytes for each run.

Runs are numbered from 0 without gaps, and so are entries; the first entry of each run in a uint32 array says it all.
The open ledger's table grows with every append. The table of an older ledger is put together from what the bookies
of its fragments say they hold: each run must be reported by at least one bookie, and all must agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.actors.ledger.record import LedgerRecord
from sluice.actors.messages import LedgerIndex
from sluice.storage.errors import Corrupt

UNKNOWN = np.uint32(0xFFFFFFFF)


class RunOffsets:
    """First entries of runs 0 .. len-1, ascending, uint32. end is the entry behind the last run."""

    def __init__(self, first_entries: npt.NDArray[np.uint32] | None = None, end: int = 0) -> None:
        self._firsts = np.empty(64, np.uint32) if first_entries is None else first_entries
        self._count = 0 if first_entries is None else len(first_entries)
        self.end = end

    def __len__(self) -> int:
        return self._count

    def append(self, first_entry: int, count: int) -> None:
        """Add the next run."""
        if self._count == len(self._firsts):
            grown = np.empty(2 * self._count, np.uint32)
            grown[: self._count] = self._firsts
            self._firsts = grown
        self._firsts[self._count] = first_entry
        self._count += 1
        self.end = first_entry + count

    def run_of(self, entry: int) -> int:
        """The run that contains an entry; the entry must be below `end`."""
        # As wide as the column: with any other width the whole column would be converted for each question.
        return int(self._firsts[: self._count].searchsorted(np.uint32(entry), side="right")) - 1

    def runs_of(self, entries: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """The runs that contain entries, int64, same shape; all must be below `end`."""
        return np.searchsorted(self._firsts[: self._count], entries, side="right") - 1

    def first(self, run: int) -> int:
        """The first entry of a run."""
        return int(self._firsts[run])

    def count(self, run: int) -> int:
        """How many entries a run has."""
        following = int(self._firsts[run + 1]) if run + 1 < self._count else self.end
        return following - int(self._firsts[run])


class TableBuilder:
    """Builds the table of a closed ledger from several bookies' answers."""

    def __init__(self, ledger: LedgerRecord) -> None:
        self._ledger = ledger
        self._firsts = np.full(ledger.last_run + 1, UNKNOWN, np.uint32)
        self._counts = np.zeros(ledger.last_run + 1, np.uint32)

    def add(self, index: LedgerIndex) -> None:
        """Take over what one bookie holds, and where what it cannot read stands: a run that is damaged everywhere must
        not hide the others of its ledger. Raises Corrupt if it contradicts what is known.
        """
        self._take(index.runs, index.first_entries, index.counts)
        if len(index.damaged_counts) == len(index.damaged):
            self._take(index.damaged, index.damaged_first_entries, index.damaged_counts)

    def _take(self, runs: npt.NDArray[Any], firsts: npt.NDArray[Any], counts: npt.NDArray[Any]) -> None:
        mine = runs <= self._ledger.last_run
        runs, firsts, counts = runs[mine], firsts[mine], counts[mine]
        known = self._firsts[runs] != UNKNOWN
        if not np.array_equal(self._firsts[runs][known], firsts[known]):
            raise Corrupt(f"bookies disagree about the runs of ledger {self._ledger.id}")
        self._firsts[runs] = firsts
        self._counts[runs] = counts

    @property
    def complete(self) -> bool:
        """Whether every run is known."""
        return not bool((self._firsts == UNKNOWN).any())

    def missing(self) -> int:
        """How many runs no bookie has reported."""
        return int((self._firsts == UNKNOWN).sum())

    def table(self) -> RunOffsets:
        """The table. Raises Corrupt unless the runs follow one another from entry 0 to the ledger's last."""
        ends = self._firsts.astype(np.int64) + self._counts
        expected = np.concatenate(([0], ends[:-1]))
        if len(ends) and not (np.array_equal(self._firsts, expected) and int(ends[-1]) == self._ledger.last_entry + 1):
            raise Corrupt(f"the runs of ledger {self._ledger.id} do not follow one another")
        return RunOffsets(self._firsts, self._ledger.last_entry + 1)


def merge_index(indexes: list[LedgerIndex]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Runs that anybody holds (ascending, once) and their last entries, both int64; for a ledger without an end."""
    if not indexes:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    runs = np.concatenate([index.runs for index in indexes]).astype(np.int64)
    lasts = np.concatenate([index.first_entries.astype(np.int64) + index.counts - 1 for index in indexes])
    unique, firsts = np.unique(runs, return_index=True)
    return unique, lasts[firsts]

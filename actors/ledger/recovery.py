"""How a new owner settles the end of a ledger whose writer is gone, or seems to be.

1. *Fence.* Ask every bookie of the last fragment to refuse the old epoch; (E - Qa) + 1 answers shut the old writer
   out of every possible ack quorum. Only the last fragment matters: a fragment begins at the first run that was not
   confirmed, so all runs before it are confirmed, and the old writer cannot record another fragment.
2. *Find the start.* The highest last-confirmed entry that any of them has seen, mapped to a run by what they hold;
   never before the first run of the last fragment (BK2).
3. *Read forward*, one run after another, with reads that fence as well (BK1): a bookie that answered "no such run"
   can never accept that run from the old writer afterwards. One good copy: the run may have been confirmed, so it is
   written back until Qa bookies have it. (Qw - Qa) + 1 explicit "no such run": it was never confirmed and never will
   be; the ledger ends before it. Silence and damage prove nothing (BK3).
4. *Close*: the last entry, and the fragments that recovery had to change, reach the metadata in one version.

A ledger that so many bookies have forgotten was closed, and let go, by a record that is newer than the one that says
that it is open: this one was restored from a backup. Nothing of the ledger will ever be found, and it ends as an empty
one. An owner that was only slow has a record that is not the newest, and loses its next write.

Should the end come out below an entry that is known to be confirmed, the bookies have lost it: that is Corrupt, and
the ledger stays as it is, for an operator to look at.

This module holds the decisions. `actors.ledger.recovery_op` asks the bookies.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from sluice.actors.ledger.record import Fragment, LedgerRecord, Quorum
from sluice.storage.errors import Corrupt


class Verdict(Enum):
    """The state of one run's recovery: what the answers have proved so far."""

    OPEN = "open"
    FOUND = "found"
    ENDS_HERE = "ends here"
    UNDECIDED = "undecided"
    """Everybody answered or failed, and it proves nothing: try again later."""


class FenceCount:
    """Answers to the fence requests of one ensemble."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self.fenced: list[str] = []
        self._failed: list[str] = []
        self._forgotten: list[str] = []
        self.last_confirmed = -1

    def answered(self, bookie: str, last_confirmed: int) -> None:
        """This bookie refuses the old writer from now on."""
        if bookie not in self.fenced:
            self.fenced.append(bookie)
        self.last_confirmed = max(self.last_confirmed, last_confirmed)

    def failed(self, bookie: str) -> None:
        """No usable answer from this bookie in this round."""
        if bookie not in self._failed:
            self._failed.append(bookie)

    def forgotten(self, bookie: str) -> None:
        """This bookie has forgotten the ledger, because a record had let it go."""
        self.failed(bookie)
        if bookie not in self._forgotten:
            self._forgotten.append(bookie)

    @property
    def let_go(self) -> bool:
        """Whether the ledger was let go: a newer record than the one that names it was here, and is lost."""
        return len(self._forgotten) >= self._quorum.fence_answers

    @property
    def covered(self) -> bool:
        """Whether the old writer is shut out of every ack quorum."""
        return len(self.fenced) >= self._quorum.fence_answers

    @property
    def hopeless(self) -> bool:
        """Whether this round can no longer cover."""
        return len(self._failed) > self._quorum.ensemble - self._quorum.fence_answers


class RunVote:
    """Answers to the recovery reads of one run."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._answered = 0
        self.missing: list[str] = []
        self.found = False

    def has(self) -> Verdict:
        """A copy that fits its checksums."""
        self._answered += 1
        self.found = True
        return self.verdict()

    def has_not(self, bookie: str) -> Verdict:
        """The explicit "no such run" of a fenced bookie."""
        self._answered += 1
        self.missing.append(bookie)
        return self.verdict()

    def unknown(self) -> Verdict:
        """No answer, or damage."""
        self._answered += 1
        return self.verdict()

    def verdict(self) -> Verdict:
        """Return the verdict that the answers prove. One copy outweighs any number of "no such run"."""
        if self.found:
            return Verdict.FOUND
        if len(self.missing) >= self._quorum.missing_answers:
            return Verdict.ENDS_HERE
        return Verdict.UNDECIDED if self._answered >= self._quorum.write else Verdict.OPEN


@dataclass(slots=True)
class LedgerRecovery:
    """The progress of one ledger's recovery. run, entry: the next to look for. ledger carries new fragments."""

    ledger: LedgerRecord
    confirmed: int
    run: int
    entry: int

    @classmethod
    def from_confirmed(
        cls, ledger: LedgerRecord, confirmed: int, runs: npt.NDArray[np.int64], lasts: npt.NDArray[np.int64]
    ) -> LedgerRecovery:
        """Start behind the last run that is known confirmed.

        confirmed: highest entry that any bookie knows confirmed. runs, lasts: ordinals and last entries of the runs
        that bookies hold, int64, by run ascending.
        """
        fragment = ledger.fragments[-1]
        run, entry = fragment.first_run, fragment.first_entry
        settled = np.flatnonzero((lasts <= confirmed) & (runs >= run))
        if len(settled):
            run, entry = int(runs[settled[-1]]) + 1, int(lasts[settled[-1]]) + 1
        return cls(ledger, confirmed, run, entry)

    @property
    def bookies(self) -> tuple[str, ...]:
        """The ensemble that runs are written back to now."""
        return self.ledger.fragments[-1].bookies

    def write_set(self) -> tuple[str, ...]:
        """The bookies that the present run must reach."""
        return self.ledger.quorum.write_set(self.run, self.bookies)

    def accept(self, first_entry: int, count: int) -> None:
        """The run is written back: go on behind it. Raises Corrupt if it does not begin where it must."""
        if first_entry != self.entry:
            raise Corrupt(f"run {self.run} of ledger {self.ledger.id} begins at {first_entry}, not at {self.entry}")
        self.run += 1
        self.entry += count

    def replace(self, failed: str, replacement: str) -> None:
        """From the present run on another bookie takes a failed one's slot. The close makes it known."""
        changed = tuple(replacement if name == failed else name for name in self.bookies)
        self.ledger = self.ledger.with_fragment(Fragment(self.run, self.entry, changed))

    def check_end(self) -> None:
        """Nothing that was confirmed may lie behind the end. Raises Corrupt."""
        if self.entry - 1 < self.confirmed:
            raise Corrupt(
                f"ledger {self.ledger.id} seems to end at entry {self.entry - 1}, but {self.confirmed} was confirmed"
            )

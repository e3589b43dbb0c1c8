"""Quorum arithmetic: which bookies store a run, and what a number of answers proves.

A ledger has an ensemble of E bookies; every run is written to Qw of them and confirmed by Qa. The unit that is
striped is the *run* (one append): run i goes to the Qw slots that start at i mod E. Three numbers follow:

* a run is confirmed when Qa members of its write set have it on disk;
* a writer is shut out when (E - Qa) + 1 bookies of the ensemble refuse it, because then fewer than Qa are left to
  it, whichever write set it tries;
* a run was certainly never confirmed when (Qw - Qa) + 1 members of its write set say explicitly that they do not
  have it *and never will from that writer* (the question fences, BK1): then fewer than Qa can have it.

Silence, damage and time-outs count for nothing in any of the three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.storage.errors import Invalid


@dataclass(frozen=True, slots=True)
class Quorum:
    """Sizes of ensemble, write quorum and ack quorum. Raises Invalid unless E >= Qw >= Qa >= 1."""

    ensemble: int
    write: int
    ack: int

    def __post_init__(self) -> None:
        if not self.ensemble >= self.write >= self.ack >= 1:
            raise Invalid(
                f"ensemble {self.ensemble} >= write quorum {self.write} >= ack quorum {self.ack} >= 1 does not hold"
            )

    @property
    def fence_answers(self) -> int:
        """How many bookies of an ensemble must be fenced before the old writer is certainly shut out."""
        return self.ensemble - self.ack + 1

    @property
    def missing_answers(self) -> int:
        """How many explicit "no such run" prove that a run was never confirmed."""
        return self.write - self.ack + 1

    def write_set(self, run: int, bookies: Sequence[str]) -> tuple[str, ...]:
        """The bookies of an ensemble that store a run, in order of their slots."""
        first = run % self.ensemble
        ring = tuple(bookies)
        return (ring + ring)[first : first + self.write]

    def stored_in(self, slot: int, run: int) -> bool:
        """Whether a slot of the ensemble belongs to the write set of a run."""
        return (slot - run) % self.ensemble < self.write

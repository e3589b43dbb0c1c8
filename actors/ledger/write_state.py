"""The state of a ledger's writer: which runs are under way, which bookies have them, and what is confirmed.

A run is confirmed when Qa bookies of its write set have it *and every run before it is confirmed*; so confirmations
come in order, whatever the order of the bookies' answers. The highest confirmed entry travels in the header of every
later run.

A bookie that fails is replaced by an ensemble change. It takes effect at the first run that is not confirmed: from
there on the new ensemble holds the ledger, and every unconfirmed run must reach *its* write sets. Between the choice
of that run and the moment when the new fragment is durable in the metadata, nothing may be confirmed: a run confirmed
by the old ensemble after the choice would be looked for in the new one and could be missed there. Acknowledgements
that arrive meanwhile are kept and counted afterwards. They are kept by the bookie's name: "B has run 7" stays true
whatever slot B has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.actors.ledger.quorum import Quorum
from sluice.actors.ledger.record import Fragment
from sluice.storage.errors import InvariantViolation


@dataclass(slots=True)
class PendingRun:
    """A run that is not confirmed yet. acked: the bookies that have it on disk, in order of their answers."""

    run: int
    first_entry: int
    count: int
    acked: list[str] = field(default_factory=list)


class WriteState:
    """The writer's decisions for one ledger, without any I/O. Runs and entries start at 0."""

    def __init__(self, quorum: Quorum, bookies: Sequence[str]) -> None:
        self.quorum = quorum
        self.bookies = tuple(bookies)
        self.next_run = 0
        self.next_entry = 0
        self.last_confirmed = -1
        self.confirmed_run = -1
        self._pending: list[PendingRun] = []
        """A few dozen at most. An empty deque takes 760 bytes, a list less than a hundred."""
        self._change: Fragment | None = None

    def __len__(self) -> int:
        """How many runs are not confirmed yet."""
        return len(self._pending)

    @property
    def changing(self) -> bool:
        """Whether an ensemble change waits for its metadata; nothing is confirmed meanwhile."""
        return self._change is not None

    def add(self, count: int) -> PendingRun:
        """Give the next run its place."""
        pending = PendingRun(self.next_run, self.next_entry, count)
        self._pending.append(pending)
        self.next_run += 1
        self.next_entry += count
        return pending

    def write_set(self, run: int) -> tuple[str, ...]:
        """The bookies that an unconfirmed run must reach."""
        return self.quorum.write_set(run, self.bookies)

    def acked(self, pending: PendingRun, bookie: str) -> list[PendingRun]:
        """A bookie has the run on disk; returns the runs that are confirmed by this, in order."""
        if bookie not in pending.acked:
            pending.acked.append(bookie)
        return self._advance()

    def begin_change(self, failed: Sequence[str], candidates: Sequence[str]) -> Fragment | None:
        """Replace failed bookies by candidates, as far as these reach; None if nothing can be replaced.

        The fragment must be made durable, then `finish_change` called; a writer that cannot make it
        durable stops, and confirms nothing any more.
        """
        if self._change is not None:
            raise InvariantViolation("one ensemble change at a time")
        spare = [name for name in candidates if name not in self.bookies]
        changed = list(self.bookies)
        for slot, bookie in enumerate(self.bookies):
            if bookie in failed and spare:
                changed[slot] = spare.pop(0)
        if changed == list(self.bookies):
            return None
        self._change = Fragment(self.confirmed_run + 1, self.last_confirmed + 1, tuple(changed))
        return self._change

    def finish_change(self) -> tuple[list[tuple[PendingRun, str]], list[PendingRun]]:
        """The new fragment is durable. Returns (runs to send now, by bookie; runs that this confirms)."""
        if self._change is None:
            raise InvariantViolation("no ensemble change is under way")
        before, self.bookies = self.bookies, self._change.bookies
        self._change = None
        sends = [
            (pending, bookie)
            for pending in self._pending
            for bookie in self.write_set(pending.run)
            if bookie not in pending.acked and bookie not in self.quorum.write_set(pending.run, before)
        ]
        return sends, self._advance()

    def _advance(self) -> list[PendingRun]:
        confirmed: list[PendingRun] = []
        while self._change is None and self._pending and self._enough(self._pending[0]):
            pending = self._pending.pop(0)
            self.confirmed_run = pending.run
            self.last_confirmed = pending.first_entry + pending.count - 1
            confirmed.append(pending)
        return confirmed

    def _enough(self, pending: PendingRun) -> bool:
        if len(pending.acked) < self.quorum.ack:
            return False
        return sum([bookie in pending.acked for bookie in self.write_set(pending.run)]) >= self.quorum.ack

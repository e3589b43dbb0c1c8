"""A bookie's knowledge of its ledgers: epochs, confirmations, possible losses, and the segments that hold them.

These are decisions only, no I/O.

**Epochs.** `epoch` is the highest epoch that ever spoke to this bookie about the ledger. It rises in memory before its
record is written, so that an older writer is refused at once, and `durable_epoch` follows when the record is synced;
only then may an answer rest on it. Every record stands in the journal in the order in which it was admitted, and an
admission checks the epoch with no `await` before the record is queued. So all adds of older epochs stand in front of
the record that raised the epoch, and are durable and visible when it is. This is why an add that was in flight when
a fence arrived may still be answered Done: the fencing answer, and every fencing read, is given after the fence is
durable, hence after that add can be seen (BK1). An add that was not admitted before the fence is refused.

**Limbo.** A bookie that may have lost records of a ledger cannot say "no such run" of it, nor that it was never fenced.
Such a ledger is in limbo: what is there is served, recovery may write to it, but an explicit negative and the answer
to a fence are Unavailable, and so is a normal add, since the fence that should refuse it may be among the lost
records (BK3). After damage that nobody can name, all ledgers that could have been here are in limbo: those that are
known, and every id below `watermark`, which was made durable before the first record of any ledger below it.

**Deleted ledgers** are remembered as a bitmap of ids, so that a late add does not bring one back to life. A closed
segment of the journal is garbage when no living ledger has a run in it and a start would not replay it. A segment with
only a small living part is emptied by writing that part again at the end of the journal.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from pyroaring import BitMap

from sluice.storage.errors import Fenced, NotFound, Unavailable
from sluice.storage.format.journal import Envelope, Kind


@dataclass(slots=True)
class BookieLedger:
    """One ledger. last_run: highest run that is durable here, -1 for none. limbo: records may be lost."""

    epoch: int = 0
    """Invariant: never falls, and is at least durable_epoch."""
    durable_epoch: int = 0
    last_confirmed: int = -1
    last_run: int = -1
    limbo: bool = False


class FencingState:
    """All ledgers of a bookie, by id."""

    def __init__(self) -> None:
        self.states: dict[int, BookieLedger] = {}
        self.deleted = BitMap()
        self.limbo_below = 0
        """Unknown ledgers with an id below this are in limbo."""

    def get(self, ledger: int) -> BookieLedger:
        """The state of a ledger; a fresh one if it was never heard of. Raises NotFound if it was deleted."""
        if ledger in self.deleted:
            raise NotFound(f"ledger {ledger} was deleted")
        state = self.states.get(ledger)
        if state is None:
            state = self.states[ledger] = BookieLedger(limbo=ledger < self.limbo_below)
        return state

    def peek(self, ledger: int) -> BookieLedger:
        """Like `get`, without remembering a ledger that was only asked for."""
        if ledger in self.deleted:
            raise NotFound(f"ledger {ledger} was deleted")
        return self.states.get(ledger) or BookieLedger(limbo=ledger < self.limbo_below)

    def refuse_older(self, ledger: int, epoch: int) -> BookieLedger:
        """Return what `peek` does. Raises Fenced if a newer epoch spoke before, NotFound if the ledger was deleted."""
        state = self.peek(ledger)
        if epoch < state.epoch:
            raise Fenced(f"ledger {ledger} is at epoch {state.epoch}, this request is of epoch {epoch}")
        return state

    def admit(self, ledger: int, epoch: int, *, recovery: bool = True) -> BookieLedger:
        """Check and raise the epoch of a ledger. Raises Fenced below it, Unavailable for a normal add in limbo."""
        state = self.refuse_older(ledger, epoch)
        if state.limbo and not recovery:
            raise Unavailable(f"ledger {ledger} may have lost records here, among them its fence; use another bookie")
        self.states[ledger] = state
        state.epoch = epoch
        return state

    def apply(self, record: Envelope) -> None:
        """A record became durable, or was replayed."""
        if record.kind is Kind.DELETE:
            self.deleted.add(record.ledger)
            self.states.pop(record.ledger, None)
        elif record.kind in (Kind.RUN, Kind.FENCE) and record.ledger not in self.deleted:
            state = self.get(record.ledger)
            state.epoch = max(state.epoch, record.epoch)
            state.durable_epoch = max(state.durable_epoch, record.epoch)
            if record.kind is Kind.RUN:
                state.last_run = max(state.last_run, record.run)
                state.last_confirmed = max(state.last_confirmed, record.last_confirmed)

    def doubt_all(self, watermark: int) -> None:
        """Records were lost and nobody can say which: every ledger that could have been here is in limbo."""
        self.limbo_below = max(self.limbo_below, watermark)
        for state in self.states.values():
            state.limbo = True

    def ids(self) -> list[int]:
        """Every ledger that has runs here, ascending."""
        return sorted(self.states)


class Segments:
    """Final sizes of closed segments, and the bytes of each ledger in each segment."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.live: dict[int, dict[int, int]] = {}

    def close(self, segment: int, size: int) -> None:
        """A segment has its final size."""
        self.sizes[segment] = size

    def stored(self, segment: int, ledger: int, size: int) -> None:
        """A run of a ledger was written to a segment."""
        ledgers = self.live.setdefault(segment, {})
        ledgers[ledger] = ledgers.get(ledger, 0) + size

    def forget_ledger(self, ledger: int) -> None:
        for ledgers in self.live.values():
            ledgers.pop(ledger, None)

    def emptied(self, segment: int) -> None:
        """All live runs of a segment were moved elsewhere."""
        self.live.pop(segment, None)

    def gone(self, segment: int) -> None:
        self.live.pop(segment, None)
        self.sizes.pop(segment, None)

    def living(self) -> set[int]:
        """The segments in which something lives."""
        return {segment for segment, ledgers in self.live.items() if ledgers}

    def garbage(self, before: int) -> list[int]:
        """Closed segments numbered below `before` in which nothing lives."""
        return [segment for segment in sorted(self.sizes) if segment < before and not self.live.get(segment)]

    def sparse(self, before: int, percent: int, spared: Container[int] = ()) -> int | None:
        """The closed segment below `before` with the smallest live part, if that is below `percent`; none of `spared`,
        which stay as they are.
        """
        shares = [
            (sum(self.live.get(segment, {}).values()) * 100 // max(size, 1), segment)
            for segment, size in sorted(self.sizes.items())
            if segment < before and segment not in spared and self.live.get(segment)
        ]
        return min(shares)[1] if shares and min(shares)[0] < percent else None

"""The writer of one ledger: sends runs to bookies, several at a time, and reports them confirmed in order.

`append` gives a run its place and sends it to each bookie of its write set; nothing in it waits. The answers come by
calls. Only where a bookie does not store a run at once a task repeats the AddRun, until the bookie has the run, is
replaced, or the ledger is closed: an append never fails by itself. It is confirmed sooner or later, or the owner is
fenced and stops - so the caller never has to take back a sequence.

The payload is shared once (Net.share) by the caller; when a bookie cannot serve an add that went by handle, the same
run is sent again with its bytes, because a handle is never the only copy.

**What is confirmed** `WriteState` decides, without any I/O. A run is confirmed when Qa bookies of its write set have it
*and every run before it is confirmed*; so confirmations come in order, whatever the order of the bookies' answers. The
highest confirmed entry travels in the header of every later run.

**A bookie that fails** is replaced by an ensemble change. It takes effect at the first run that is not confirmed: from
there on the new ensemble holds the ledger, and every unconfirmed run must reach *its* write sets. Between the choice
of that run and the moment when the new fragment is durable in the metadata, nothing may be confirmed: a run confirmed
by the old ensemble after the choice would be looked for in the new one and could be missed there. Acknowledgements
that arrive meanwhile are kept and counted afterwards. They are kept by the bookie's name: "B has run 7" stays true
whatever slot B has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from sluice.actors.ledger.bookies import Bookies, NoAnswer
from sluice.actors.ledger.record import Fragment, LedgerRecord, Quorum
from sluice.actors.messages import AddRun, Done
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Blob
from sluice.actors.runtime.waiting import Backoff, Signal
from sluice.storage.errors import (
    Conflict,
    Corrupt,
    Fenced,
    Invalid,
    InvariantViolation,
    NotFound,
    Overloaded,
    SluiceError,
)
from sluice.storage.format.checked_payload import payload_crc
from sluice.storage.format.frame import Header, Run, Segment, encode_head


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


ADD_TIMEOUT = 3_000
RETRY_FIRST, RETRY_MOST = 50, 2_000
RETIRED_TRIES = 5
OVERLOADED_TRIES = 4
"""The number of refusals for overload in a row that counts as a failure of the bookie."""


@dataclass(slots=True)
class Append:
    """One run on its way. blob is what travels; inline the bytes themselves; senders: bookies still being tried."""

    pending: PendingRun
    header: Header
    head: bytes
    blob: Blob
    inline: Blob
    senders: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterCallbacks:
    """save_fragment makes a new fragment durable in the metadata (raises Fenced if it cannot); on_confirmed is called
    with runs in order; on_stored once a run needs no more bytes in hand; on_lost when a newer owner has the ledger.
    """

    save_fragment: Callable[[int, Fragment], Awaitable[None]]
    on_confirmed: Callable[[list[Append]], None]
    on_stored: Callable[[Append], None]
    on_lost: Callable[[str], None]


class LedgerWriter:
    """Appends to an open ledger."""

    def __init__(
        self,
        ports: Ports,
        bookies: Bookies,
        ledger: LedgerRecord,
        epoch: int,
        callbacks: WriterCallbacks,
    ) -> None:
        self._ports = ports
        self._bookies = bookies
        self.ledger_id = ledger.id
        self._epoch = epoch
        self._callbacks = callbacks
        self.state = WriteState(ledger.quorum, ledger.fragments[-1].bookies)
        self._appends: dict[int, Append] = {}
        self._failed: list[str] = []
        self._replacing = False
        self._drained = Signal()
        self.closed = False
        self.retired = False

    def append(
        self, run: Run, segments: tuple[Segment, ...], blob: Blob, inline: Blob, positions: bytes = b""
    ) -> Append:
        """Give a run its place and start sending it. Never waits; the caller bounds what is in flight.

        blob is the payload as it travels, inline the same with its bytes in hand. segments: the messages of each
        producer. positions: see storage.format.frame.Header.
        """
        if self.closed or self.retired:
            raise Fenced(f"ledger {self.ledger_id} takes no more runs")
        pending = self.state.add(run.count)
        producer, first_sequence, _ = segments[0] if len(segments) == 1 else ("", 0, 0)
        header = Header(
            self.ledger_id,
            pending.run,
            pending.first_entry,
            run.count,
            self._epoch,
            self.state.last_confirmed,
            producer,
            first_sequence,
            run.delayed,
            run.shape,
            run.crc,
            positions,
            segments if len(segments) > 1 else (),
        )
        head = encode_head(header, inline.size)
        append = Append(pending, header, head, blob, inline)
        self._appends[pending.run] = append
        for bookie in self.state.write_set(pending.run):
            self._start(append, bookie)
        return append

    async def drain(self) -> None:
        """Wait until every run is confirmed. The caller sees to it that no more are added."""
        while len(self.state) and not self.closed:
            self._drained.clear()
            await self._drained.wait(self._ports)

    def retire(self) -> None:
        """The ledger is closed in the metadata: only finish the copies that are still being made."""
        self.retired = True

    @property
    def busy(self) -> bool:
        """Whether copies are still being made."""
        return bool(self._appends)

    def close(self) -> None:
        """Repeat no request; those on their way may still arrive."""
        self.closed = True
        self._drained.set()

    def _start(self, append: Append, bookie: str) -> None:
        append.senders += 1
        on_answer = partial(self._answered, append, bookie)
        if not self._bookies.ask_now(bookie, self._add(append, append.blob), ADD_TIMEOUT, on_answer):
            self._ports.spawn(self._repeat(append, bookie, None), "add")

    def _add(self, append: Append, blob: Blob) -> AddRun:
        return AddRun(ledger=self.ledger_id, epoch=self._epoch, head=append.head, payload=blob)

    def _answered(self, append: Append, bookie: str, outcome: Done | SluiceError) -> None:
        if isinstance(outcome, SluiceError):
            self._ports.spawn(self._repeat(append, bookie, outcome), "add")
        else:
            self._sent(append, bookie, stored=True)

    async def _repeat(self, append: Append, bookie: str, error: SluiceError | None) -> None:
        try:
            stored = await self._deliver(append, bookie, error)
        except Fenced as fenced:
            self._stop(str(fenced))
            return
        self._sent(append, bookie, stored=stored)

    def _sent(self, append: Append, bookie: str, *, stored: bool) -> None:
        append.senders -= 1
        if self.closed:
            return
        if stored:
            self._report_confirmed(self.state.acked(append.pending, bookie))
        self._let_go(append)

    async def _deliver(self, append: Append, bookie: str, error: SluiceError | None) -> bool:
        """Try until the bookie has the run; False when the run is not needed there any more. Raises Fenced.

        error: the outcome of the first try, if there was one.
        """
        blob = append.blob
        wait, refusals = Backoff(self._ports, RETRY_FIRST, RETRY_MOST), 0
        while not self.closed and bookie in self.state.bookies:
            if error is None and (error := await self._try(append, bookie, blob)) is None:
                return True
            if self._is_needless(append, bookie, error):
                return False
            if blob.handle is not None and not isinstance(error, NoAnswer):
                blob, error = append.inline, None
                continue
            self._ports.log("add_failed", ledger=self.ledger_id, bookie=bookie, error=str(error))
            refusals += 1
            if not isinstance(error, Overloaded) or refusals >= OVERLOADED_TRIES:
                self._bookies.suspect(bookie)
                self._replace_soon(bookie)
            if self.retired and refusals >= RETIRED_TRIES:
                break
            await wait.pause()
            error = None
        return False

    async def _try(self, append: Append, bookie: str, blob: Blob) -> SluiceError | None:
        try:
            await self._bookies.ask(bookie, self._add(append, blob), ADD_TIMEOUT)
        except SluiceError as error:
            return error
        return None

    def _is_needless(self, append: Append, bookie: str, error: SluiceError) -> bool:
        """Whether the run is not needed there, as the error says. Raises Fenced, InvariantViolation for a defect."""
        if isinstance(error, Fenced):
            raise error
        if isinstance(error, NotFound):
            # The ledger was deleted: when it is closed, because everybody has read it; else only by a newer owner.
            if self.retired:
                return True
            raise Fenced(str(error)) from error
        if isinstance(error, Conflict | Invalid):
            self._stop(str(error))
            raise InvariantViolation(f"bookie {bookie} refuses {append.header}: {error}") from error
        if isinstance(error, Corrupt):
            self._check_payload(append)
        return False

    def _check_payload(self, append: Append) -> None:
        """A bookie saw damage. On its way there: try again. In our own hands: this place can never be filled."""
        if payload_crc(append.inline.data or b"") != append.header.crc:
            self._stop("a run was damaged before it was stored")
            raise InvariantViolation(f"the payload of {append.header} does not fit its checksum")

    def _let_go(self, append: Append) -> None:
        """Let the bytes go when the run is confirmed and no copy is still being made."""
        run = append.pending.run
        if append.senders == 0 and run <= self.state.confirmed_run and self._appends.pop(run, None) is not None:
            self._callbacks.on_stored(append)

    def _report_confirmed(self, confirmed: list[PendingRun]) -> None:
        if not confirmed:
            return
        appends = [self._appends[pending.run] for pending in confirmed]
        self._callbacks.on_confirmed(appends)
        for append in appends:
            self._let_go(append)
        if not len(self.state):
            self._drained.set()

    def replace(self, bookie: str) -> None:
        """This bookie will not come back: change the ensemble even if nothing is being written."""
        if bookie in self.state.bookies:
            self._bookies.suspect(bookie)
            self._replace_soon(bookie)

    def _replace_soon(self, bookie: str) -> None:
        if bookie not in self._failed:
            self._failed.append(bookie)
        if not self._replacing and not self.retired:
            self._replacing = True
            self._ports.spawn(self._replace(), "ensemble_change")

    async def _replace(self) -> None:
        """Replace the bookies that failed, one change after another, while there are bookies to replace them."""
        try:
            while self._failed and not self._over():
                await self._bookies.refresh()
                failed, self._failed = self._failed, []
                if self._over():
                    return
                spare = self._bookies.candidates(self.state.bookies)
                healthy = [name for name in spare if not self._bookies.suspected(name)]
                fragment = self.state.begin_change(failed, healthy)
                if fragment is None:
                    return
                await self._callbacks.save_fragment(self.ledger_id, fragment)
                if self._over():
                    return
                self._ports.log("ensemble_change", ledger=self.ledger_id, run=fragment.first_run, to=fragment.bookies)
                self._changed()
        except Fenced as error:
            self._stop(str(error))
        finally:
            self._replacing = False

    def _over(self) -> bool:
        return self.closed or self.retired

    def _changed(self) -> None:
        sends, confirmed = self.state.finish_change()
        for pending, bookie in sends:
            self._start(self._appends[pending.run], bookie)
        self._report_confirmed(confirmed)

    def _stop(self, reason: str) -> None:
        if not self.closed:
            self.close()
            self._callbacks.on_lost(reason)

"""LedgerRecovery's conversation with the bookies; the decisions are in `actors.ledger.recovery`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sluice.actors.ledger.bookies import Bookies
from sluice.actors.ledger.fan_out import FanOut
from sluice.actors.ledger.reader import LedgerReader, StoredFrame, check_answer
from sluice.actors.ledger.record import GivenUp, LedgerRecord, LedgerState
from sluice.actors.ledger.recovery import FenceCount, LedgerRecovery, RunVote, Verdict
from sluice.actors.ledger.run_offsets import merge_index
from sluice.actors.messages import AddRun, DescribeLedger, Done, FenceLedger, FenceState, LedgerIndex, ReadRun, RunRead
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Blob
from sluice.storage.errors import Corrupt, Fenced, NotFound, SluiceError, Unavailable
from sluice.storage.format.position import position, show

FENCE_TIMEOUT = 3_000
DESCRIBE_TIMEOUT = 10_000
READ_TIMEOUT = 3_000
ADD_TIMEOUT = 3_000


async def recover_ledger(
    ports: Ports,
    bookies: Bookies,
    ledger: LedgerRecord,
    epoch: int,
    lost: Callable[[int], GivenUp | None] = lambda run: None,
) -> LedgerRecord:
    """Settle the end of a ledger IN_RECOVERY; returns its CLOSED form, which the caller makes durable.

    Safe to repeat, and to be run by several owners: only the one with the highest epoch gets anywhere. Raises Fenced
    (a newer owner was here), Unavailable (too few bookies answer: try again), Corrupt (confirmed runs are gone).
    lost: what an operator gave up of a run; it keeps its entries, and no copy of it is looked for.
    """
    work = _Recover(ports, bookies, ledger, epoch)
    fence = await work.fence()
    if fence.let_go:
        ports.log("ledger_let_go", ledger=ledger.id)
        return msgspec.structs.replace(ledger, state=LedgerState.CLOSED, last_run=-1, last_entry=-1)
    recovery = await work.find_start(fence)
    while True:
        given_up = lost(recovery.run)
        if given_up is not None:
            recovery.accept(given_up.first_entry, given_up.count)
            continue
        frame = await work.next_run(recovery)
        if frame is None:
            break
        await work.write_back(recovery, frame)
        recovery.accept(frame.header.first_entry, frame.header.count)
    recovery.check_end()
    ports.log("ledger_recovered", ledger=ledger.id, last_entry=recovery.entry - 1, last_run=recovery.run - 1)
    return msgspec.structs.replace(
        recovery.ledger,
        state=LedgerState.CLOSED,
        last_run=recovery.run - 1,
        last_entry=recovery.entry - 1,
        closed_at=ports.clock.now(),
    )


class _Recover:
    """The questions that one recovery asks."""

    def __init__(self, ports: Ports, bookies: Bookies, ledger: LedgerRecord, epoch: int) -> None:
        self._ports = ports
        self._bookies = bookies
        self._ledger = ledger
        self._epoch = epoch
        self._reader = LedgerReader(ports, bookies)

    async def fence(self) -> FenceCount:
        """Shut the old writer out. All bookies are asked; enough of them must answer, or have forgotten the ledger."""
        count = FenceCount(self._ledger.quorum)
        request = FenceLedger(ledger=self._ledger.id, epoch=self._epoch)
        fan: FanOut[str, FenceState] = FanOut(self._ports, "fence")
        for bookie in self._ledger.fragments[-1].bookies:
            fan.start(bookie, self._bookies.ask, bookie, request, FENCE_TIMEOUT)
        reasons = []
        while fan.busy and not count.covered:
            bookie, outcome = await fan.next()
            if isinstance(outcome, Fenced):
                raise outcome
            if isinstance(outcome, SluiceError):
                (count.forgotten if isinstance(outcome, NotFound) else count.failed)(bookie)
                reasons.append(f"{bookie}: {outcome}")
            else:
                count.answered(bookie, outcome.last_confirmed)
            if count.hopeless:
                break
        if not count.covered and not count.let_go:
            raise Unavailable(f"ledger {self._ledger.id} cannot be fenced now ({'; '.join(reasons)})")
        return count

    async def find_start(self, fence: FenceCount) -> LedgerRecovery:
        """Find the first run that is not known as confirmed, from the answers of fenced bookies."""
        indexes = []
        fan: FanOut[str, LedgerIndex] = FanOut(self._ports, "describe")
        for bookie in fence.fenced:
            request = DescribeLedger(ledger=self._ledger.id)
            fan.start(bookie, self._bookies.ask, bookie, request, DESCRIBE_TIMEOUT)
        confirmed = fence.last_confirmed
        while fan.busy:
            _, outcome = await fan.next()
            if not isinstance(outcome, SluiceError):  # without an answer we only start earlier
                indexes.append(outcome)
                confirmed = max(confirmed, outcome.last_confirmed)
        return LedgerRecovery.from_confirmed(self._ledger, confirmed, *merge_index(indexes))

    async def next_run(self, recovery: LedgerRecovery) -> StoredFrame | None:
        """The next run if a copy of it exists, None if it certainly was never confirmed. Raises Unavailable."""
        vote = RunVote(self._ledger.quorum)
        fan: FanOut[str, RunRead] = FanOut(self._ports, "recovery_read")
        request = ReadRun(ledger=self._ledger.id, run=recovery.run, fence_epoch=self._epoch)
        # The votes of the recorded ensemble count, not of bookies that recovery itself brought in: those never had
        # anything of the old writer, and their "no such run" would prove nothing.
        for bookie in self._ledger.write_set(recovery.run):
            fan.start(bookie, self._bookies.ask, bookie, request, READ_TIMEOUT)
        verdict, reasons = Verdict.OPEN, []
        try:
            while verdict is Verdict.OPEN:
                bookie, outcome = await fan.next()
                try:
                    frame = await self._judge(bookie, outcome, recovery.run)
                except Fenced:
                    raise
                except SluiceError as error:
                    reasons.append(f"{bookie}: {error}")
                    verdict = vote.unknown()
                    continue
                if frame is not None:
                    return frame
                verdict = vote.has_not(bookie)
        finally:
            fan.cancel()
        if verdict is Verdict.ENDS_HERE:
            return None
        at = show(position(self._ledger.id, recovery.entry))
        raise Unavailable(
            f"run {recovery.run} of ledger {self._ledger.id}, which begins at {at}, is undecided ({'; '.join(reasons)})"
        )

    async def _judge(self, bookie: str, outcome: RunRead | SluiceError, run: int) -> StoredFrame | None:
        """A verified copy, or None for the explicit "no such run". Raises what makes the answer prove nothing."""
        if isinstance(outcome, SluiceError):
            raise outcome
        frame = check_answer(outcome, self._ledger.id, run, bookie)
        if frame is None:
            return None
        data = await self._reader.verified(frame)
        if data is None:
            raise Corrupt(f"the copy of run {run} is damaged or out of reach")
        frame.payload = Blob(data)
        return frame

    async def write_back(self, recovery: LedgerRecovery, frame: StoredFrame) -> None:
        """Bring a run to Qa bookies of its write set; bookies that fail are replaced. Raises Unavailable."""
        stored: list[str] = []
        await self._bookies.refresh()
        while True:
            failed = await self._write_once(recovery, frame, stored)
            if len([name for name in recovery.write_set() if name in stored]) >= self._ledger.ack_quorum:
                return
            spare = [name for name in self._bookies.candidates(recovery.bookies) if not self._bookies.suspected(name)]
            if not spare or not failed:
                raise Unavailable(f"run {recovery.run} of ledger {self._ledger.id} cannot be written back now")
            recovery.replace(failed[0], spare[0])

    async def _write_once(self, recovery: LedgerRecovery, frame: StoredFrame, stored: list[str]) -> list[str]:
        """One round of adds to the bookies that have not confirmed yet; returns those that failed."""
        fan: FanOut[str, Done] = FanOut(self._ports, "write_back")
        add = AddRun(
            ledger=self._ledger.id, epoch=self._epoch, head=frame.head, payload=frame.payload, recovery=True
        )  # fmt: skip
        for bookie in recovery.write_set():
            if bookie not in stored:
                fan.start(bookie, self._bookies.ask, bookie, add, ADD_TIMEOUT)
        failed = []
        while fan.busy:
            bookie, outcome = await fan.next()
            if isinstance(outcome, Fenced):
                raise outcome
            if isinstance(outcome, SluiceError):
                self._bookies.suspect(bookie)
                failed.append(bookie)
            else:
                stored.append(bookie)
        return failed

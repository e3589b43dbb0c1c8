"""Runs that nobody can read: which ones, since when, and how an operator gives them up.

A run whose copies are all damaged, or whose body nobody can decode, stops every reader in front of it. That is right as
long as a copy may come back, and it is never right to decide it in silence: so the run is named (`line`: in the answer
to a ping, from where it reaches `status` and the alarms), and an operator may give it up. What is given up is written
into the partition's record: readers step over it, a request for its payload is refused with that, and it is not
copied any more. Nothing else of the ledger changes, so all other messages keep their order.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from sluice.actors.ledger.bookies import Bookies, NoAnswer
from sluice.actors.ledger.record import GivenUp, LedgerRecord, LedgerState
from sluice.actors.messages import AcceptLoss, DescribeLedger
from sluice.actors.ports import Ports
from sluice.actors.topic.partition.managed_ledger import ManagedLedger
from sluice.storage.errors import Corrupt, Invalid, NotFound, SluiceError, Unavailable
from sluice.storage.format.batch import decode_body
from sluice.storage.format.position import position, show

ALARM_MS = 3_000
"""A run that is unreadable for this long is an alarm: a bookie that starts again needs less."""
DESCRIBE_TIMEOUT = 5_000
ALL_RUNS = -1
"""In place of a run, where nobody can say where the runs of a ledger begin."""
MOST_GIVEN_UP = 10_000
"""Runs of one partition that can be given up: all of them stand in its record."""


@dataclass(slots=True)
class _Trouble:
    """first: the first entry of the run. since: monotonic ms of the first failure."""

    first: int
    count: int
    since: int
    reason: str


class Unreadable:
    """The runs that could not be read at the last try."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._runs: dict[tuple[int, int], _Trouble] = {}

    def failed(self, ledger: int, run: int, first: int, count: int, error: SluiceError) -> None:
        """Note a run that could not be read."""
        known = self._runs.get((ledger, run))
        if known is None:
            now = self._ports.clock.monotonic()
            self._runs[ledger, run] = _Trouble(first, count, now, str(error))
            self._ports.log("unreadable", ledger=ledger, run=run, first=first, count=count, error=str(error))
        else:
            known.reason = str(error)

    def fine(self, ledger: int, run: int) -> None:
        """Forget a run that was read, or given up."""
        if self._runs and self._runs.pop((ledger, run), None) is not None:
            self._ports.log("readable_again", ledger=ledger, run=run)

    def discard(self, ledgers: list[int]) -> None:
        self._runs = {run: trouble for run, trouble in self._runs.items() if run[0] not in ledgers}

    def rows(self) -> list[dict[str, Any]]:
        """Return the runs that cannot be read for now, for statistics."""
        now = self._ports.clock.monotonic()
        return [
            {
                "run": show(position(ledger, trouble.first)),
                "messages": trouble.count,
                "forMillis": now - trouble.since,
                "reason": trouble.reason,
            }
            for (ledger, _), trouble in self._runs.items()
            if now - trouble.since >= ALARM_MS
        ]

    def line(self, topic: str) -> str:
        """Return one line for an operator; empty if everything can be read."""
        rows = self.rows()
        if not rows:
            return ""
        first = rows[0]
        others = f", and {len(rows) - 1} more" if len(rows) > 1 else ""
        return (
            f"{first['messages']} messages from {first['run']} on cannot be read{others} ({first['reason']}); "
            f"if no copy can be had again: sluice topics accept-loss {topic} --run {first['run']}"
        )


class GivingUp:
    """Carries out AcceptLoss for one partition's owner, even while its log is being recovered."""

    def __init__(self, ports: Ports, bookies: Bookies, log: ManagedLedger) -> None:
        self._ports = ports
        self._bookies = bookies
        self._log = log

    async def accept(self, request: AcceptLoss) -> GivenUp:
        """Give a run up, durably. Raises NotFound, Invalid, Unavailable, Fenced; see messages.AcceptLoss."""
        record = self._log.record
        for known in record.given_up:
            if known.ledger == request.ledger and known.first_entry <= request.entry < known.end:
                return known
        ledger = record.ledger(request.ledger)
        if ledger is None:
            raise NotFound(f"partition {record.partition} of {record.topic!r} has no ledger {request.ledger}")
        lost = await self._run_of(ledger, request.entry)
        await self._check_unreadable(ledger, lost)
        if request.dry_run:
            return lost
        if len(self._log.record.given_up) >= MOST_GIVEN_UP:
            raise Invalid(f"{MOST_GIVEN_UP} runs of this partition are given up; trim it before more follow")
        await self._log.metadata.update(lambda newest: newest.with_given_up(lost))
        self._log.given_up(lost)
        self._ports.log("loss_accepted", ledger=lost.ledger, run=lost.run, first=lost.first_entry, count=lost.count)
        return lost

    async def _run_of(self, ledger: LedgerRecord, entry: int) -> GivenUp:
        """Return the run that holds an entry. Raises NotFound, Unavailable."""
        now = self._ports.clock.now()
        if ledger.state is not LedgerState.IN_RECOVERY:
            if entry > self._log.last_entry(ledger):
                raise NotFound(f"ledger {ledger.id} has no confirmed entry {entry}")
            table = await self._log.table(ledger)
            run = table.run_of(entry)
            return GivenUp(ledger.id, run, table.first(run), table.count(run), now)
        for bookie in ledger.bookies():
            try:
                index = await self._bookies.ask(bookie, DescribeLedger(ledger=ledger.id), DESCRIBE_TIMEOUT)
            except SluiceError as error:
                self._ports.log("describe_missed", ledger=ledger.id, bookie=bookie, error=str(error))
                continue
            runs = [
                *zip(index.runs.tolist(), index.first_entries.tolist(), index.counts.tolist(), strict=True),
                *zip(index.damaged.tolist(), index.damaged_first_entries.tolist(), index.damaged_counts.tolist(),
                     strict=False),
            ]  # fmt: skip
            for run, first, count in runs:
                if first <= entry < first + count:
                    return GivenUp(ledger.id, run, first, count, now)
        raise NotFound(f"no bookie that answers knows entry {entry} of ledger {ledger.id}")

    async def _check_unreadable(self, ledger: LedgerRecord, lost: GivenUp) -> None:
        """Raise Invalid if the run can be read, Unavailable while a bookie that may have it does not answer."""
        if ledger.offloaded is not None:
            await self._check_history(ledger, lost)
        for bookie in ledger.write_set(lost.run) if ledger.fragments else ():
            others = tuple(name for name in ledger.bookies() if name != bookie)
            try:
                frame, data = await self._log.reader.whole(ledger, lost.run, skip=others)
            except Unavailable as error:
                await self._check_answers(ledger, bookie, error)
                continue
            header = frame.header
            try:
                decode_body(data[header.columns_bytes :], header.shape, header.count)
            except Corrupt:
                continue
            raise Invalid(f"entry {lost.first_entry} of ledger {ledger.id} can be read: bookie {bookie} has it")

    async def _check_history(self, ledger: LedgerRecord, lost: GivenUp) -> None:
        """Check a run that is in the object store, perhaps there alone. Raises Invalid if it can be read, Unavailable
        if the store is away.
        """
        with contextlib.suppress(Corrupt):
            await self._log.reader.history.run(ledger, lost.run)
            raise Invalid(f"entry {lost.first_entry} of ledger {ledger.id} can be read: it is in the object store")

    async def _check_answers(self, ledger: LedgerRecord, bookie: str, error: SluiceError) -> None:
        """Raise Unavailable if a bookie is away, because it may come back with a copy."""
        if bookie in self._log.lost_bookies:
            return
        try:
            await self._bookies.ask(bookie, DescribeLedger(ledger=ledger.id), DESCRIBE_TIMEOUT)
        except NoAnswer:
            raise Unavailable(f"bookie {bookie} does not answer and may have a copy: {error}") from error

"""Re-replication: gives every run its copies again after a bookie is lost for good.

The metadata names the slots that a lost bookie had in each fragment, and the striping says which runs were in those
slots. Each such slot is one repair: copy its runs from their other holders to a bookie that is not in the fragment,
then put that bookie into the slot in one version of the record. A copy that no record names yet is only wasted space,
so a repair can stop anywhere and begin again.

A ledger can also lack copies without naming a lost bookie: its writer ended while copies beyond the ack quorum were
under way, or a bookie lost a run to damage. `fill` compares what each bookie should have with what it has.

Only runs whose place is settled are copied: closed ledgers, and of an open one the fragments before the last - there
the writer itself replaces a bookie that fails. The count of fragments that name a lost bookie falls to 0, or stays
and is reported when no other holder of some run is left.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.actors.ledger.bookies import Bookies
from sluice.actors.ledger.fan_out import together
from sluice.actors.ledger.partition_metadata import PartitionMetadata
from sluice.actors.ledger.reader import LedgerReader
from sluice.actors.ledger.record import Fragment, LedgerRecord, LedgerState, PartitionRecord
from sluice.actors.messages import AddRun, DescribeLedger
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Blob
from sluice.storage.errors import Fenced, SluiceError, Unavailable

COPIES_AT_ONCE = 4
ADD_TIMEOUT = 10_000
DESCRIBE_TIMEOUT = 10_000


@dataclass(frozen=True, slots=True)
class Repair:
    """One slot of one fragment that a lost bookie had; the fragment holds the runs first_run .. stop_run-1."""

    ledger: LedgerRecord
    fragment: Fragment
    slot: int
    stop_run: int

    @property
    def lost(self) -> str:
        """The bookie that is gone."""
        return self.fragment.bookies[self.slot]

    def runs(self) -> list[int]:
        """The runs that the lost bookie had a copy of."""
        quorum = self.ledger.quorum
        return [run for run in range(self.fragment.first_run, self.stop_run) if quorum.stored_in(self.slot, run)]


def plan_repairs(record: PartitionRecord, lost: Sequence[str]) -> list[Repair]:
    """Every slot of a settled fragment that names a lost bookie, oldest first."""
    repairs = []
    for ledger in record.ledgers:
        settled = len(ledger.fragments) if ledger.state is LedgerState.CLOSED else len(ledger.fragments) - 1
        for at, fragment in enumerate(ledger.fragments[:settled]):
            following = at + 1 < len(ledger.fragments)
            stop = ledger.fragments[at + 1].first_run if following else ledger.last_run + 1
            for slot, bookie in enumerate(fragment.bookies):
                if bookie in lost:
                    repairs.append(Repair(ledger, fragment, slot, stop))
    return repairs


def expected_runs(ledger: LedgerRecord, bookie: str) -> npt.NDArray[np.int64]:
    """The runs of a closed ledger that a bookie should have, int64, ascending."""
    parts = [np.empty(0, np.int64)]
    for at, fragment in enumerate(ledger.fragments):
        stop = ledger.fragments[at + 1].first_run if at + 1 < len(ledger.fragments) else ledger.last_run + 1
        if bookie in fragment.bookies:
            runs = np.arange(fragment.first_run, stop, dtype=np.int64)
            slot = fragment.bookies.index(bookie)
            parts.append(runs[(slot - runs) % ledger.ensemble < ledger.write_quorum])
    return np.concatenate(parts)


def under_replicated(record: PartitionRecord, lost: Sequence[str]) -> int:
    """How many fragments name a lost bookie, those of the open ledger's end included."""
    return sum(
        any(bookie in lost for bookie in fragment.bookies) for ledger in record.ledgers for fragment in ledger.fragments
    )


def with_repair(record: PartitionRecord, repair: Repair, replacement: str) -> PartitionRecord:
    """The record with the slot given to the replacement; unchanged if the slot has moved on meanwhile."""
    ledger = record.ledger(repair.ledger.id)
    if ledger is None or repair.fragment not in ledger.fragments:
        return record
    bookies = list(repair.fragment.bookies)
    bookies[repair.slot] = replacement
    mended = msgspec.structs.replace(repair.fragment, bookies=tuple(bookies))
    fragments = tuple(mended if fragment == repair.fragment else fragment for fragment in ledger.fragments)
    return record.with_ledger(msgspec.structs.replace(ledger, fragments=fragments))


class Replicator:
    """Carries out the repairs of one partition, for its owner."""

    def __init__(self, ports: Ports, bookies: Bookies, reader: LedgerReader, metadata: PartitionMetadata) -> None:
        self._ports = ports
        self._bookies = bookies
        self._reader = reader
        self._metadata = metadata
        self._running = False
        self._missed: dict[tuple[int, int], None] = {}
        """Runs that could not be copied when that was tried last, by ledger and number."""

    async def run(self, lost: Callable[[], Sequence[str]], silent: Callable[[], Sequence[str]] | None = None) -> None:
        """Do all repairs that are possible now, one after another. Raises Fenced. One call at a time does the work.

        silent: those of the lost that are not read from; None for all of them.
        """
        if self._running:
            return
        self._running = True
        try:
            failed: list[tuple[int, Fragment, int]] = []
            while True:
                todo = [
                    repair
                    for repair in plan_repairs(self._metadata.record, lost())
                    if (repair.ledger.id, repair.fragment, repair.slot) not in failed
                ]
                if not todo:
                    if not failed:
                        self._missed.clear()
                    return
                try:
                    await self._repair(todo[0], lost(), (silent or lost)())
                except Fenced:
                    raise
                except SluiceError as error:
                    self._ports.log("repair_failed", ledger=todo[0].ledger.id, error=str(error))
                    failed.append((todo[0].ledger.id, todo[0].fragment, todo[0].slot))
        finally:
            self._running = False

    async def _repair(self, repair: Repair, lost: Sequence[str], silent: Sequence[str]) -> None:
        await self._bookies.refresh()
        spare = [name for name in self._bookies.candidates(repair.fragment.bookies) if name not in lost]
        if not spare:
            raise Unavailable("there is no bookie to copy to")
        runs = [run for run in repair.runs() if self._metadata.record.lost_run(repair.ledger.id, run) is None]
        again = [run for run in runs if (repair.ledger.id, run) in self._missed]
        # First what was missed: else all that lies before it would be copied again in each round.
        for part in (again, [run for run in runs if run not in again]):
            for start in range(0, len(part), COPIES_AT_ONCE):
                chosen = part[start : start + COPIES_AT_ONCE]
                works = [partial(self._copy, repair.ledger, run, spare[0], silent) for run in chosen]
                await together(self._ports, "copy", works)
        await self._metadata.update(lambda record: with_repair(record, repair, spare[0]))
        self._ports.log("repaired", ledger=repair.ledger.id, lost=repair.lost, to=spare[0], runs=len(runs))

    async def fill(self, ledger: LedgerRecord) -> int:
        """Copy missing runs to each bookie of a closed ledger; returns how many. Raises Fenced; and why something could
        not be copied, once everything else is.
        """
        copied = 0
        errors: list[SluiceError] = []
        for bookie in ledger.bookies():
            try:
                index = await self._bookies.ask(bookie, DescribeLedger(ledger=ledger.id), DESCRIBE_TIMEOUT)
            except SluiceError as error:
                errors.append(error)
                continue
            missing = np.setdiff1d(expected_runs(ledger, bookie), index.runs.astype(np.int64)).tolist()
            lacking = [run for run in missing if self._metadata.record.lost_run(ledger.id, run) is None]
            for start in range(0, len(lacking), COPIES_AT_ONCE):
                chosen = lacking[start : start + COPIES_AT_ONCE]
                works = [partial(self._try_to_copy, ledger, run, bookie) for run in chosen]
                errors += itertools.chain(*await together(self._ports, "copy", works))
            copied += len(lacking)
        if errors:
            raise errors[0]
        return copied

    async def _try_to_copy(self, ledger: LedgerRecord, run: int, to: str) -> list[SluiceError]:
        """Why a bookie of a ledger could not be given its copy, empty if it was. Raises Fenced."""
        try:
            await self._copy(ledger, run, to, (to,))
        except Fenced:
            raise
        except SluiceError as error:
            return [error]
        return []

    async def _copy(self, ledger: LedgerRecord, run: int, to: str, skip: Sequence[str]) -> None:
        try:
            frame, data = await self._reader.whole(ledger, run, skip=tuple(skip))
        except SluiceError:
            self._missed[ledger.id, run] = None
            raise
        self._missed.pop((ledger.id, run), None)
        epoch = self._metadata.record.epoch
        add = AddRun(ledger=ledger.id, epoch=epoch, head=frame.head, payload=Blob(data), recovery=True)
        await self._bookies.ask(to, add, ADD_TIMEOUT)

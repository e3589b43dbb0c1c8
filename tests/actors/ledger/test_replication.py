"""Re-replication: planned slot by slot, copied, and the count goes to zero or says that it cannot."""

from __future__ import annotations

import msgspec
import pytest

from sluice.actors.ledger.partition_metadata import PartitionMetadata
from sluice.actors.ledger.reader import LedgerReader
from sluice.actors.ledger.record import Fragment, LedgerRecord, LedgerState, PartitionRecord
from sluice.actors.ledger.replication import (
    Replicator,
    expected_runs,
    plan_repairs,
    under_replicated,
    with_repair,
)
from sluice.actors.messages import AddRun, TopicSettings
from sluice.storage.errors import SluiceError, Unavailable
from sluice.storage.format.frame import decode_head
from tests.actors.ledger.fakes import Lab, make_ledger
from tests.sim.loop import simulated

RUNS = 12


def make_closed(ledger_id: int = 7) -> LedgerRecord:
    """Runs 0..4 on a b c, runs 5..11 on a d c; Qw 2 of E 3; two entries a run."""
    ledger = make_ledger("abc", write=2, ack=2, ledger_id=ledger_id, state=LedgerState.CLOSED)
    ledger = ledger.with_fragment(Fragment(5, 10, ("a", "d", "c")))
    return msgspec.structs.replace(ledger, last_run=RUNS - 1, last_entry=2 * RUNS - 1)


async def stocked(lab: Lab) -> tuple[PartitionMetadata, Replicator]:
    """A metadata whose partition has that ledger, with all its copies at the bookies."""
    metadata = PartitionMetadata(lab.ports, "t", 0, lambda reason: None)
    await metadata.acquire(TopicSettings())
    ledger = make_closed()
    await metadata.update(lambda record: msgspec.structs.replace(record, ledgers=(ledger,)))
    for run in range(RUNS):
        for bookie in ledger.write_set(run):
            lab.put(bookie, 7, run, 2 * run)
    return metadata, Replicator(lab.ports, lab.bookies, LedgerReader(lab.ports, lab.bookies), metadata)


def test_the_plan_names_every_slot_of_a_lost_bookie() -> None:
    record = PartitionRecord(topic="t", partition=0, settings=TopicSettings(), ledgers=(make_closed(),))
    repairs = plan_repairs(record, ["c"])
    assert [(repair.fragment.first_run, repair.slot, repair.runs()) for repair in repairs] == [
        (0, 2, [1, 2, 4]),
        (5, 2, [5, 7, 8, 10, 11]),
    ]
    for bookie in "abcd":
        planned = [run for repair in plan_repairs(record, [bookie]) for run in repair.runs()]
        assert planned == expected_runs(make_closed(), bookie).tolist()
    assert under_replicated(record, ["b", "d"]) == 2
    assert under_replicated(record, ["x"]) == 0


def test_the_end_of_an_open_ledger_is_left_to_its_writer() -> None:
    ledger = msgspec.structs.replace(make_closed(), state=LedgerState.OPEN, last_run=-1, last_entry=-1)
    record = PartitionRecord(topic="t", partition=0, settings=TopicSettings(), ledgers=(ledger,))
    assert [repair.fragment.first_run for repair in plan_repairs(record, ["a"])] == [0]
    assert under_replicated(record, ["a"]) == 2


def test_a_slot_that_moved_on_meanwhile_is_left_alone() -> None:
    record = PartitionRecord(topic="t", partition=0, settings=TopicSettings(), ledgers=(make_closed(),))
    repair = plan_repairs(record, ["b"])[0]
    mended = with_repair(record, repair, "e")
    assert mended.ledgers[0].fragments[0].bookies == ("a", "e", "c")
    assert with_repair(mended, repair, "d") == mended


@simulated
async def test_everything_a_lost_bookie_had_is_copied() -> None:
    lab = Lab("abcdef")
    metadata, replicator = await stocked(lab)
    lab.wire.rules.append(lambda bookie, request: "lose" if bookie == "c" else None)
    assert under_replicated(metadata.record, ["c"]) == 2
    await replicator.run(lambda: ["c"])
    assert under_replicated(metadata.record, ["c"]) == 0
    ledger = metadata.record.ledgers[0]
    for run in range(RUNS):
        assert all((7, run) in lab.wire.bookies[name].runs for name in ledger.write_set(run))
    await lab.settle()


@simulated
async def test_runs_without_any_other_copy_stay_counted() -> None:
    lab = Lab("abcdef")
    metadata, replicator = await stocked(lab)
    lab.wire.rules.append(lambda bookie, request: "lose" if bookie in "ac" else None)
    await replicator.run(lambda: ["a", "c"])
    assert under_replicated(metadata.record, ["a", "c"]) > 0
    assert any(event == "repair_failed" for event, _ in lab.events)


@simulated
async def test_copies_that_are_missing_on_live_bookies_are_filled_in() -> None:
    lab = Lab("abcdef")
    metadata, replicator = await stocked(lab)
    for bookie, run in (("a", 0), ("d", 6)):
        del lab.wire.bookies[bookie].runs[7, run]
    assert await replicator.fill(metadata.record.ledgers[0]) == 2
    assert await replicator.fill(metadata.record.ledgers[0]) == 0
    assert (7, 0) in lab.wire.bookies["a"].runs
    assert (7, 6) in lab.wire.bookies["d"].runs


@simulated
async def test_a_damaged_copy_is_never_copied_on() -> None:
    lab = Lab("abcdef")
    metadata, replicator = await stocked(lab)
    ledger = metadata.record.ledgers[0]
    holder = next(name for name in ledger.write_set(1) if name != "c")
    head, payload = lab.wire.bookies[holder].runs[7, 1]
    lab.wire.bookies[holder].runs[7, 1] = (head, bytes([payload[0] ^ 1]) + payload[1:])
    await replicator.run(lambda: ["c"])
    assert metadata.record.ledgers[0].fragments[0].bookies[2] == "c"
    assert not any((7, 1) in lab.wire.bookies[name].runs for name in "ef")


@simulated
async def test_a_bookie_that_is_away_keeps_no_other_from_its_copies() -> None:
    lab = Lab("abcdef")
    metadata, replicator = await stocked(lab)
    ledger = metadata.record.ledgers[0]
    lacking = [run for run in range(RUNS) if "a" not in ledger.write_set(run)]
    for run in lacking:
        del lab.wire.bookies[ledger.write_set(run)[-1]].runs[7, run]
    lab.wire.rules.append(lambda bookie, request: "lose" if bookie == "a" else None)
    with pytest.raises(Unavailable, match="bookie a"):
        await replicator.fill(ledger)
    assert all((7, run) in lab.wire.bookies[ledger.write_set(run)[-1]].runs for run in lacking)
    await lab.settle()


@simulated
async def test_a_run_that_nobody_has_keeps_no_other_from_its_copies() -> None:
    """They lie behind it, or are copied together with it."""
    lab = Lab("abcdef")
    metadata, replicator = await stocked(lab)
    ledger = metadata.record.ledgers[0]
    for bookie in ledger.write_set(5):
        del lab.wire.bookies[bookie].runs[7, 5]
    for run in range(6, RUNS):
        del lab.wire.bookies[ledger.write_set(run)[-1]].runs[7, run]
    with pytest.raises(SluiceError):
        await replicator.fill(ledger)
    assert all((7, run) in lab.wire.bookies[name].runs for run in range(6, RUNS) for name in ledger.write_set(run))
    await lab.settle()


@simulated
async def test_missing_run_does_not_have_the_rest_copied_again() -> None:
    """A new try asks for the missing run first: else all runs before it would be copied in each round, for ever."""
    lab = Lab("abcdef")
    metadata, replicator = await stocked(lab)
    copied = list[int]()

    def rule(bookie: str, request: object) -> str | None:
        if isinstance(request, AddRun):
            copied.append(decode_head(request.head).run)
        return "lose" if bookie == "c" else None

    lab.wire.rules.append(rule)
    for bookie in "ab":
        lab.wire.bookies[bookie].runs.pop((7, 11), None)
    await replicator.run(lambda: ["c"])
    assert copied
    copied.clear()
    for _ in range(3):
        await replicator.run(lambda: ["c"])
    assert copied == []
    lab.put("a", 7, 11, 22)
    await replicator.run(lambda: ["c"])
    assert under_replicated(metadata.record, ["c"]) == 0
    await lab.settle()

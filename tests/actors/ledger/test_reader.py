"""Reading runs: from any bookie that has them whole, never from one that answers something else."""

from __future__ import annotations

import msgspec
import pytest

from sluice.actors.ledger.reader import LedgerReader, check_answer
from sluice.actors.ledger.record import LedgerRecord, LedgerState
from sluice.actors.messages import DescribeLedger, ReadHeads, RunRead
from sluice.actors.ports.wire import Blob
from sluice.storage.errors import Corrupt, Unavailable
from tests.actors.ledger.fakes import Lab, make_ledger, make_stored
from tests.sim.loop import simulated


def make_lab() -> tuple[Lab, LedgerReader, LedgerRecord]:
    """Four runs of two entries on a, b and c."""
    lab = Lab("abc")
    ledger = msgspec.structs.replace(make_ledger(state=LedgerState.CLOSED), last_run=3, last_entry=7)
    for run in range(4):
        for bookie in "abc":
            lab.put(bookie, 7, run, 2 * run)
    return lab, LedgerReader(lab.ports, lab.bookies), ledger


@simulated
async def test_any_bookie_of_the_write_set_will_do() -> None:
    lab, reader, ledger = make_lab()
    for dead in ("ab", "bc", "ac"):
        lab.wire.rules[:] = [lambda bookie, request, dead=dead: "lose" if bookie in dead else None]  # type: ignore[misc]
        frame, data = await reader.whole(ledger, 2)
        assert frame.bookie not in dead
        assert (frame.header.run, frame.header.first_entry, len(data)) == (2, 4, frame.full_size)


@simulated
async def test_a_run_that_nobody_gives_is_unavailable_and_not_missing() -> None:
    lab, reader, ledger = make_lab()
    lab.wire.rules.append(lambda bookie, request: "damaged" if bookie == "a" else "lose")
    with pytest.raises(Unavailable, match="cannot be read now"):
        await reader.run(ledger, 1)


@simulated
async def test_damaged_bytes_are_passed_over() -> None:
    lab, reader, ledger = make_lab()
    for bookie in "ab":
        head, payload = lab.wire.bookies[bookie].runs[7, 0]
        lab.wire.bookies[bookie].runs[7, 0] = (head, bytes([payload[0] ^ 255]) + payload[1:])
    assert (await reader.whole(ledger, 0))[0].bookie == "c"


def test_another_run_than_the_one_asked_for_is_corrupt() -> None:
    made, head = make_stored(7, 3, 6)
    answer = RunRead(head=head, payload=Blob(made.payload))
    found = check_answer(answer, 7, 3, "a")
    assert found is not None
    assert found.header.run == 3
    for ledger, run in ((7, 2), (8, 3)):
        with pytest.raises(Corrupt):
            check_answer(answer, ledger, run, "a")
    assert check_answer(RunRead(), 7, 3, "a") is None


@simulated
async def test_the_table_needs_only_as_many_bookies_as_tell_it_whole() -> None:
    lab, reader, ledger = make_lab()
    lab.wire.rules.append(lambda b, r: "lose" if isinstance(r, DescribeLedger) and b != "b" else None)
    table = await reader.table(ledger)
    assert [table.first(run) for run in range(4)] == [0, 2, 4, 6]
    del lab.wire.bookies["b"].runs[7, 2]
    with pytest.raises(Unavailable, match="1 runs"):
        await reader.table(ledger)


@simulated
async def test_a_head_tells_who_wrote_a_run_and_how_long_it_is() -> None:
    _, reader, ledger = make_lab()
    frame = await reader.run(ledger, 3, part="head")
    assert (frame.header.run, frame.header.producer, frame.payload.size) == (3, "p", 0)
    assert frame.full_size == (await reader.run(ledger, 3)).payload.size > 0


@simulated
async def test_the_heads_of_many_runs_are_asked_for_at_once() -> None:
    lab, reader, ledger = make_lab()
    frames = await reader.heads(ledger, range(1, 4))
    assert [frame.header.run for frame in frames] == [1, 2, 3]
    assert [frame.full_size for frame in frames] == [(await reader.run(ledger, run)).full_size for run in (1, 2, 3)]
    asked = [request.runs.tolist() for _, request in lab.wire.calls if isinstance(request, ReadHeads)]
    assert sorted(run for runs in asked for run in runs) == [1, 2, 3]
    assert len(asked) <= 3


@pytest.mark.parametrize("fault", ["lose", "damaged", "absent", "mixed up"])
@simulated
async def test_heads_that_one_bookie_does_not_give_come_from_another(fault: str) -> None:
    lab, reader, ledger = make_lab()
    spoilt = lab.wire.bookies["a"].runs
    if fault == "absent":
        spoilt.clear()
    elif fault == "mixed up":
        spoilt[7, 0], spoilt[7, 3] = spoilt[7, 3], spoilt[7, 0]
    else:
        lab.wire.rules.append(lambda bookie, request: fault if bookie == "a" else None)
    assert [frame.header.run for frame in await reader.heads(ledger, range(4))] == [0, 1, 2, 3]
    lab.wire.rules.append(lambda bookie, request: "lose")
    with pytest.raises(Unavailable, match="cannot be read now"):
        await reader.heads(ledger, range(4))

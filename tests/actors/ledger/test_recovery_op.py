"""Recovery against bookies that are scripted to be late, silent, damaged or new."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.actors.ledger.record import LedgerRecord, LedgerState
from sluice.actors.ledger.recovery_op import recover_ledger
from sluice.actors.messages import AddRun, FenceLedger, ReadRun
from sluice.actors.ports.wire import Blob, Request
from sluice.storage.errors import Corrupt, Fenced, Unavailable
from tests.actors.ledger.fakes import Lab, make_ledger, make_stored
from tests.sim.loop import simulated


async def recover(lab: Lab, ledger: LedgerRecord, epoch: int = 2) -> LedgerRecord:
    return await recover_ledger(lab.ports, lab.bookies, ledger, epoch)


@simulated
async def test_a_run_that_one_bookie_has_is_written_back_and_kept() -> None:
    lab = Lab()
    for bookie in "abc":
        lab.put(bookie, 7, 0, 0)
    lab.put("b", 7, 1, 2, confirmed=1)
    closed = await recover(lab, make_ledger())
    assert (closed.state, closed.last_run, closed.last_entry) == (LedgerState.CLOSED, 1, 3)
    assert len(lab.wire.holders(7, 1)) >= 2
    again = await recover(lab, make_ledger(), epoch=3)
    assert (again.last_run, again.last_entry) == (1, 3)


@simulated
async def test_bk1_a_negative_answer_can_never_turn_positive() -> None:
    # The old writer's run is at a; its add to c is under way. The new owner's fence request to c is lost, a is slow.
    lab = Lab()
    lab.put("a", 7, 0, 0)
    made, head = make_stored(7, 0, 0)

    def rule(bookie: str, request: Request[Any]) -> str | None:
        if bookie == "c" and isinstance(request, FenceLedger):
            return "lose"
        return "lose" if bookie == "a" and isinstance(request, ReadRun) else None

    lab.wire.rules.append(rule)
    closed = await recover(lab, make_ledger())
    assert closed.last_entry == -1
    with pytest.raises(Fenced):
        lab.wire.bookies["c"].answer(AddRun(ledger=7, epoch=1, head=head, payload=Blob(made.payload)))


@simulated
async def test_a_bookie_that_recovery_brought_in_does_not_vote() -> None:
    # Qw = Qa = 2: one explicit "no such run" ends the ledger. b is dead; c takes its slot while run 0 is written back.
    # c never had run 1, a has it, and it was confirmed by a and b.
    lab = Lab("abc")
    lab.put("a", 7, 0, 0)
    lab.put("a", 7, 1, 2)
    slow = {"a": 3}

    def rule(bookie: str, request: Request[Any]) -> str | None:
        if bookie == "b":
            return "lose"
        if bookie == "a" and isinstance(request, ReadRun) and request.run == 1 and slow["a"]:
            slow["a"] -= 1
            return "lose"
        return None

    lab.wire.rules.append(rule)
    ledger = make_ledger("ab", write=2, ack=2)
    while True:
        try:
            closed = await recover(lab, ledger)
            break
        except Unavailable:
            continue
    assert closed.last_entry == 3
    assert closed.fragments[-1].bookies == ("a", "c")
    assert lab.wire.holders(7, 1) == ["a", "c"]


@simulated
async def test_too_few_fences_prove_nothing() -> None:
    lab = Lab()
    lab.wire.rules.append(lambda bookie, request: "lose" if bookie in "bc" else None)
    with pytest.raises(Unavailable, match="fenced"):
        await recover(lab, make_ledger())


@simulated
async def test_bk3_damage_never_ends_a_ledger() -> None:
    lab = Lab()
    lab.put("a", 7, 0, 0)
    lab.put("b", 7, 0, 0)

    def rule(bookie: str, request: Request[Any]) -> str | None:
        return "damaged" if bookie in "ab" and isinstance(request, ReadRun) else None

    lab.wire.rules.append(rule)
    with pytest.raises(Unavailable, match="undecided"):
        await recover(lab, make_ledger())


@simulated
async def test_a_copy_with_flipped_bits_is_no_copy() -> None:
    lab = Lab()
    for bookie in "ab":
        lab.put(bookie, 7, 0, 0)
    head, payload = lab.wire.bookies["a"].runs[7, 0]
    lab.wire.bookies["a"].runs[7, 0] = (head, payload[:-1] + bytes([payload[-1] ^ 1]))
    lab.wire.rules.append(lambda b, r: "lose" if b == "c" and isinstance(r, ReadRun) else None)
    closed = await recover(lab, make_ledger())
    assert closed.last_entry == 1
    assert all(lab.wire.bookies[name].runs[7, 0][1] == payload for name in "bc")


@simulated
async def test_lost_confirmed_runs_are_reported_not_cut_off() -> None:
    lab = Lab()
    for bookie in "abc":
        lab.put(bookie, 7, 0, 0, confirmed=-1)
        lab.wire.bookies[bookie].confirmed[7] = 5
    with pytest.raises(Corrupt, match="5 was confirmed"):
        await recover(lab, make_ledger())


@simulated
async def test_a_newer_owner_ends_the_recovery_of_an_older_one() -> None:
    lab = Lab()
    lab.put("a", 7, 0, 0)
    lab.wire.bookies["b"].epochs[7] = 9
    with pytest.raises(Fenced):
        await recover(lab, make_ledger(), epoch=2)


@simulated
async def test_lost_replies_change_nothing() -> None:
    lab = Lab()
    for bookie in "ab":
        lab.put(bookie, 7, 0, 0)
        lab.put(bookie, 7, 1, 2)
    lost = iter(range(6))
    lab.wire.rules.append(lambda b, r: "lose reply" if next(lost, None) in (1, 4) else None)
    for _ in range(10):
        try:
            closed = await recover(lab, make_ledger())
            break
        except Unavailable:
            continue
    assert (closed.last_run, closed.last_entry) == (1, 3)

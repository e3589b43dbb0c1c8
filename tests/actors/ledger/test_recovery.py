"""LedgerRecovery's decisions: what covers, what ends a ledger, where reading begins."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.actors.ledger.record import Fragment, Quorum
from sluice.actors.ledger.recovery import FenceCount, LedgerRecovery, RunVote, Verdict
from sluice.storage.errors import Corrupt, InvariantViolation
from tests.actors.ledger.fakes import make_ledger


def test_fencing_covers_with_one_bookie_of_every_ack_quorum() -> None:
    count = FenceCount(Quorum(3, 3, 2))
    covered = []
    for bookie, confirmed in (("a", 4), ("a", 4), ("b", 9)):
        count.answered(bookie, confirmed)
        covered.append(count.covered)
    assert covered == [False, False, True]
    assert count.last_confirmed == 9


def test_fencing_is_hopeless_when_too_many_failed() -> None:
    count = FenceCount(Quorum(3, 3, 2))
    hopeless = []
    for bookie in "aab":
        count.failed(bookie)
        hopeless.append(count.hopeless)
    assert hopeless == [False, False, True]


def test_a_ledger_is_let_go_if_every_ack_quorum_forgot_it() -> None:
    count = FenceCount(Quorum(3, 3, 2))
    gone = []
    for bookie in "aab":
        count.forgotten(bookie)
        gone.append((count.let_go, count.hopeless))
    assert gone == [(False, False), (False, False), (True, True)]
    count = FenceCount(Quorum(3, 3, 2))
    count.forgotten("a")
    count.failed("b")
    assert (count.let_go, count.hopeless, count.covered) == (False, True, False)


def test_a_ledger_ends_only_on_explicit_negatives() -> None:
    vote = RunVote(Quorum(3, 3, 2))
    assert vote.has_not("a") is Verdict.OPEN
    assert vote.unknown() is Verdict.OPEN
    assert vote.unknown() is Verdict.UNDECIDED
    vote = RunVote(Quorum(3, 3, 2))
    vote.has_not("a")
    assert vote.has_not("b") is Verdict.ENDS_HERE


def test_one_copy_outweighs_negatives() -> None:
    vote = RunVote(Quorum(3, 3, 1))
    vote.has_not("a")
    vote.has_not("b")
    assert vote.has() is Verdict.FOUND


def begin(confirmed: int, runs: list[int], lasts: list[int], fragments: tuple[Fragment, ...] = ()) -> LedgerRecovery:
    ledger = make_ledger()
    for fragment in fragments:
        ledger = ledger.with_fragment(fragment)
    return LedgerRecovery.from_confirmed(ledger, confirmed, np.array(runs, np.int64), np.array(lasts, np.int64))


def test_reading_begins_behind_the_last_run_known_confirmed() -> None:
    recovery = begin(5, [0, 1, 2, 3], [1, 3, 5, 7])
    assert (recovery.run, recovery.entry) == (3, 6)


def test_a_run_that_is_confirmed_in_part_only_is_read() -> None:
    recovery = begin(4, [0, 1, 2], [1, 3, 5])
    assert (recovery.run, recovery.entry) == (2, 4)


def test_reading_never_begins_before_the_last_fragment() -> None:
    recovery = begin(-1, [0, 1, 2], [1, 3, 5], (Fragment(2, 4, ("a", "b", "d")),))
    assert (recovery.run, recovery.entry) == (2, 4)


def test_a_fragment_before_the_last_is_an_invariant_violation() -> None:
    ledger = make_ledger().with_fragment(Fragment(5, 9, ("a", "b", "d")))
    with pytest.raises(InvariantViolation):
        ledger.with_fragment(Fragment(4, 7, ("a", "b", "e")))
    same = ledger.with_fragment(Fragment(5, 9, ("a", "b", "e")))
    assert [fragment.bookies[2] for fragment in same.fragments] == ["c", "e"]


def test_an_end_below_a_confirmed_entry_is_corrupt() -> None:
    recovery = begin(5, [0, 1], [1, 3])
    with pytest.raises(Corrupt, match="5 was confirmed"):
        recovery.check_end()
    recovery.accept(4, 2)
    recovery.check_end()


def test_a_run_that_does_not_follow_is_corrupt() -> None:
    recovery = begin(-1, [], [])
    with pytest.raises(Corrupt):
        recovery.accept(1, 2)

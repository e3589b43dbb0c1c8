"""The writer's decisions: confirmation in order, and ensemble changes that lose nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.actors.ledger.quorum import Quorum
from sluice.actors.ledger.record import Fragment
from sluice.actors.ledger.write_state import PendingRun, WriteState
from sluice.storage.errors import InvariantViolation


def test_runs_are_confirmed_in_order_whatever_is_answered_first() -> None:
    state = WriteState(Quorum(3, 3, 2), "abc")
    runs = [state.add(5), state.add(3), state.add(1)]
    assert [run.first_entry for run in runs] == [0, 5, 8]
    assert state.acked(runs[2], "a") == state.acked(runs[2], "b") == []
    assert state.acked(runs[0], "a") == state.acked(runs[1], "c") == []
    assert state.acked(runs[0], "c") == [runs[0]]
    assert state.last_confirmed == 4
    assert state.acked(runs[1], "b") == [runs[1], runs[2]]
    assert (state.confirmed_run, state.last_confirmed, len(state)) == (2, 8, 0)


def test_a_repeated_answer_counts_once() -> None:
    state = WriteState(Quorum(3, 3, 2), "abc")
    run = state.add(1)
    assert state.acked(run, "a") == state.acked(run, "a") == []


def test_an_answer_from_outside_the_write_set_does_not_count() -> None:
    state = WriteState(Quorum(3, 2, 2), "abc")
    run = state.add(1)
    assert state.acked(run, "a") == state.acked(run, "c") == []
    assert state.acked(run, "b") == [run]


def test_nothing_is_confirmed_during_an_ensemble_change() -> None:
    state = WriteState(Quorum(3, 3, 2), "abc")
    runs = [state.add(2), state.add(2)]
    state.acked(runs[0], "a")
    state.acked(runs[0], "b")
    assert state.begin_change(["b"], ["d"]) == Fragment(1, 2, ("a", "d", "c"))
    assert state.acked(runs[1], "a") == state.acked(runs[1], "b") == []
    assert state.last_confirmed == 1
    sends, confirmed = state.finish_change()
    assert sends == [(runs[1], "d")]
    assert confirmed == []  # b's copy counts no more: the record names d in its place
    assert state.acked(runs[1], "d") == [runs[1]]


def test_acknowledgements_of_bookies_that_stay_survive_a_change() -> None:
    state = WriteState(Quorum(3, 3, 2), "abc")
    run = state.add(2)
    state.begin_change(["b"], ["d"])
    assert state.acked(run, "a") == state.acked(run, "c") == []
    assert state.finish_change() == ([(run, "d")], [run])


def test_a_change_needs_a_replacement_and_runs_alone() -> None:
    state = WriteState(Quorum(2, 2, 2), "ab")
    assert state.begin_change(["a"], ["b"]) is None
    assert state.begin_change(["x"], ["c"]) is None
    assert state.begin_change(["a"], ["c"]) is not None
    with pytest.raises(InvariantViolation):
        state.begin_change(["b"], ["d"])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_confirmed_run_is_on_an_ack_quorum_of_its_fragment(data: st.DataObject) -> None:
    names = "abcdef"
    ensemble = data.draw(st.integers(1, 4))
    write = data.draw(st.integers(1, ensemble))
    quorum = Quorum(ensemble, write, data.draw(st.integers(1, write)))
    state = WriteState(quorum, names[:ensemble])
    fragments = [Fragment(0, 0, tuple(names[:ensemble]))]
    stored: dict[int, set[str]] = {}
    runs: list[PendingRun] = []
    confirmed: list[PendingRun] = []
    changing: Fragment | None = None
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["add", "ack", "ack", "ack", "begin", "finish"]))
        if action == "add":
            runs.append(state.add(data.draw(st.integers(1, 3))))
            stored[runs[-1].run] = set()
        elif action == "ack" and runs:
            run = data.draw(st.sampled_from(runs))
            bookie = data.draw(st.sampled_from(names))
            stored[run.run].add(bookie)
            confirmed += state.acked(run, bookie)
        elif action == "begin" and changing is None:
            changing = state.begin_change(
                data.draw(st.lists(st.sampled_from(names))), data.draw(st.permutations(names))
            )
        elif action == "finish" and changing is not None:
            if fragments[-1].first_run == changing.first_run:
                fragments.pop()
            fragments.append(changing)
            changing = None
            confirmed += state.finish_change()[1]
    assert [run.run for run in confirmed] == list(range(len(confirmed)))
    for run in confirmed:
        holder = next(f for f in reversed(fragments) if f.first_run <= run.run)
        write_set = quorum.write_set(run.run, holder.bookies)
        assert sum(bookie in stored[run.run] for bookie in write_set) >= quorum.ack

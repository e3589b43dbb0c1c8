"""The writer against bookies that fail: ensembles change, payloads are sent again, a fenced writer stops.

The writer's decisions: confirmation in order, and ensemble changes that lose nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.actors.ledger.record import Fragment, LedgerRecord, LedgerState, Quorum
from sluice.actors.ledger.writer import Append, LedgerWriter, PendingRun, WriterCallbacks, WriteState
from sluice.actors.messages import AddRun, DeleteLedgers
from sluice.actors.ports.wire import Blob, Request
from sluice.storage.errors import Fenced, InvariantViolation
from sluice.storage.format.frame import Run, decode_head
from tests.actors.ledger.fakes import Lab, make_ledger
from tests.actors.topic.cluster import make_test_run
from tests.sim.loop import simulated


class Writing:
    """A writer with everything it reports."""

    def __init__(self, lab: Lab, ledger: LedgerRecord) -> None:
        self.lab = lab
        self.fragments: list[Fragment] = []
        self.confirmed: list[int] = []
        self.stored: list[int] = []
        self.lost: list[str] = []
        self.save_error: Fenced | None = None
        self.writer = LedgerWriter(
            lab.ports,
            lab.bookies,
            ledger,
            1,
            WriterCallbacks(
                save_fragment=self.save, on_confirmed=self.note, on_stored=self.done, on_lost=self.lost.append
            ),
        )

    async def save(self, ledger_id: int, fragment: Fragment) -> None:
        """The metadata."""
        if self.save_error is not None:
            raise self.save_error
        self.fragments.append(fragment)

    def note(self, appends: list[Append]) -> None:
        """Runs are confirmed."""
        self.confirmed += [append.pending.run for append in appends]

    def done(self, append: Append) -> None:
        """A run's bytes are no longer needed."""
        self.stored.append(append.pending.run)

    def append(self, count: int = 2, blob: Blob | None = None) -> Append:
        """Append a small run."""
        run: Run = make_test_run([str(n) for n in range(count)])
        inline = Blob(run.payload)
        return self.writer.append(run, (("p", 0, run.count),), blob or inline, inline)


async def start(lab: Lab, bookies: str = "abc", write: int = 3, ack: int = 2) -> Writing:
    await lab.bookies.refresh()
    return Writing(lab, make_ledger(bookies, write, ack, state=LedgerState.OPEN))


@simulated
async def test_runs_are_pipelined_and_confirmed_in_order() -> None:
    lab = Lab("abc")
    writing = await start(lab)
    for _ in range(10):
        writing.append()
    await writing.writer.drain()
    await lab.settle()
    assert writing.confirmed == list(range(10))
    assert sorted(writing.stored) == list(range(10))
    head = decode_head(lab.wire.bookies["a"].runs[7, 9][0])
    assert (head.first_entry, head.count, head.epoch) == (18, 2, 1)


@simulated
async def test_a_silent_bookie_is_replaced_and_its_rest_written_again() -> None:
    lab = Lab("abcd")
    lab.wire.rules.append(lambda bookie, request: "lose" if bookie == "b" else None)
    writing = await start(lab, "ab", 2, 2)
    for _ in range(3):
        writing.append()
    await writing.writer.drain()
    assert writing.confirmed == [0, 1, 2]
    assert writing.fragments[0].first_run == 0
    replacement = writing.fragments[-1].bookies[1]
    assert replacement in "cd"
    assert lab.wire.holders(7, 2) == ["a", replacement]


@simulated
async def test_nothing_counts_before_the_new_fragment_is_durable() -> None:
    lab = Lab("abc")
    lab.wire.rules.append(lambda bookie, request: "lose" if bookie == "b" else None)
    writing = await start(lab, "ab", 2, 2)
    writing.save_error = Fenced("somebody newer")
    writing.append()
    await lab.settle()
    assert writing.confirmed == []
    assert writing.lost == ["somebody newer"]
    assert lab.wire.holders(7, 0) == ["a"]


@simulated
async def test_a_refused_epoch_stops_the_writer_at_once() -> None:
    lab = Lab("abc")
    lab.wire.bookies["b"].epochs[7] = 5
    writing = await start(lab)
    writing.append()
    await lab.settle()
    assert len(writing.lost) == 1
    calls = len(lab.wire.calls)
    await lab.settle()
    assert len(lab.wire.calls) == calls


@simulated
async def test_a_handle_that_is_gone_is_followed_by_the_bytes() -> None:
    lab = Lab("abc")
    writing = await start(lab)
    append = writing.append(blob=Blob(None, handle="gone", size=10))
    await writing.writer.drain()
    await lab.settle()
    assert lab.wire.holders(7, append.pending.run) == ["a", "b", "c"]
    assert writing.fragments == []


@simulated
async def test_without_a_replacement_the_writer_waits_for_the_bookie() -> None:
    lab = Lab("ab")
    trouble = iter(range(4))
    lab.wire.rules.append(lambda bookie, request: "lose" if bookie == "b" and next(trouble, None) is not None else None)
    writing = await start(lab, "ab", 2, 2)
    writing.append()
    await writing.writer.drain()
    assert writing.confirmed == [0]
    assert writing.fragments == []


@simulated
async def test_lost_replies_and_repetitions_store_a_run_once() -> None:
    lab = Lab("ab")
    answers = iter(["lose reply", "lose reply", None])

    def rule(bookie: str, request: Request[Any]) -> str | None:
        return next(answers, None) if isinstance(request, AddRun) else None

    lab.wire.rules.append(rule)
    writing = await start(lab, "ab", 2, 2)
    writing.append()
    writing.append()
    await writing.writer.drain()
    assert writing.confirmed == [0, 1]
    assert lab.wire.holders(7, 0) == lab.wire.holders(7, 1) == ["a", "b"]


@simulated
async def test_a_bookie_lost_for_good_is_replaced_without_traffic() -> None:
    lab = Lab("abc")
    writing = await start(lab, "ab", 2, 2)
    writing.append()
    await writing.writer.drain()
    writing.writer.replace("a")
    await lab.settle()
    assert writing.fragments == [Fragment(1, 2, ("c", "b"))]


@simulated
async def test_damage_on_the_way_to_a_bookie_is_sent_again() -> None:
    lab = Lab("ab")
    damage = iter(["damaged", "damaged"])
    lab.wire.rules.append(lambda bookie, request: next(damage, None) if bookie == "b" else None)
    writing = await start(lab, "ab", 2, 2)
    writing.append()
    await writing.writer.drain()
    assert lab.wire.holders(7, 0) == ["a", "b"]


@simulated
async def test_a_run_damaged_in_our_own_hands_stops_the_owner() -> None:
    lab = Lab("ab")
    lab.wire.rules.append(lambda bookie, request: "damaged")
    writing = await start(lab, "ab", 2, 2)
    append = writing.append()
    append.inline = Blob(b"something else")
    with pytest.raises(InvariantViolation):
        await lab.settle()
    assert writing.lost != []
    assert writing.confirmed == []


@simulated
async def test_a_copy_of_a_ledger_trimmed_meanwhile_is_given_up() -> None:
    """The third copy is late; the ledger is closed, read by everybody and deleted before it comes."""
    lab = Lab("abc")
    lab.wire.rules.append(lambda bookie, request: "refuse" if bookie == "c" and writing.writer.busy else None)
    writing = await start(lab)
    writing.append()
    await writing.writer.drain()
    writing.writer.retire()
    copying = writing.writer.busy
    assert copying
    lab.wire.bookies["c"].answer(DeleteLedgers(ledgers=[7]))
    lab.wire.rules.clear()
    await lab.settle()
    assert not writing.writer.busy
    assert writing.lost == []
    assert lab.wire.holders(7, 0) == ["a", "b"]


@simulated
async def test_a_writer_whose_open_ledger_was_deleted_was_replaced() -> None:
    """A newer owner found it empty, or trimmed it; the late one stops, and that is no broken promise."""
    lab = Lab("abc")
    writing = await start(lab)
    for bookie in "abc":
        lab.wire.bookies[bookie].answer(DeleteLedgers(ledgers=[7]))
    writing.append()
    await lab.settle()
    assert len(writing.lost) == 1
    assert "deleted" in writing.lost[0]
    assert lab.wire.holders(7, 0) == []


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

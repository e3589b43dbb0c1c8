"""The writer against bookies that fail: ensembles change, payloads are sent again, a fenced writer stops."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.actors.ledger.record import Fragment, LedgerRecord, LedgerState
from sluice.actors.ledger.writer import Append, LedgerWriter, WriterCallbacks
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

"""Positions become the parts of a delivery."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.dispatcher.delivery.unacked_runs import UnackedRuns
from sluice.actors.messages import RunIndex
from sluice.actors.messages.limits import KEPT_MS
from sluice.actors.ports.wire import Blob
from sluice.storage.format.position import Positions, position

NO_COUNTS = np.empty(0, np.uint8)


def run(ledger: int, first: int, count: int) -> RunIndex:
    """Return a run whose columns do not matter."""
    return RunIndex(
        ledger=ledger,
        first_entry=first,
        count=count,
        delayed=False,
        shape=0,
        crc=ledger * 100 + first,
        bytes=10,
        columns=Blob(b""),
    )


def table(*runs: RunIndex) -> UnackedRuns:
    """Return a table of these runs."""
    made = UnackedRuns(lambda: 0)
    for one in runs:
        made.add(one)
    return made


def test_rows_of_two_runs_and_two_ledgers_become_parts_in_order() -> None:
    """Each part names its run and counts rows from its first entry. Dispatches are numbered on from part to part."""
    known = table(run(1, 0, 10), run(1, 10, 5), run(3, 0, 4))
    at = np.array([position(1, 2), position(1, 9), position(1, 10), position(3, 3)], np.int64)
    parts = known.parts(at, np.array([0, 1, 2, 3], np.uint8), 100)
    assert [(p.ledger, p.first_entry, p.count, p.rows.tolist(), p.dispatch) for p in parts] == [
        (1, 0, 10, [2, 9], 100),
        (1, 10, 5, [0], 102),
        (3, 0, 4, [3], 103),
    ]
    assert [p.redeliveries.tolist() for p in parts] == [[0, 1], [2], [3]]


def test_positions_of_forgotten_runs_are_asked_of_the_topic() -> None:
    """A part without a run has count 0, and entry ids as rows; there is one for each ledger."""
    known = table(run(5, 0, 10))
    at = np.array([position(2, 7), position(4, 1), position(5, 3), position(5, 50)], np.int64)
    parts = known.parts(at, NO_COUNTS, 0)
    assert [(p.ledger, p.count, p.rows.tolist()) for p in parts] == [
        (2, 0, [7]),
        (4, 0, [1]),
        (5, 10, [3]),
        (5, 0, [50]),
    ]


def test_runs_below_the_mark_delete_position_are_forgotten() -> None:
    """A run stays as long as one of its messages lies above."""
    known = table(run(1, 0, 10), run(1, 10, 10))
    known.drop_below(position(1, 8))
    assert len(known) == 2
    known.drop_below(position(1, 9))
    assert len(known) == 1
    known.drop_below(position(1, 19))
    assert len(known) == 0


def test_a_run_read_again_replaces_its_twin() -> None:
    """Runs come again after the read position went back, and none is kept twice."""
    known = table(run(1, 0, 10), run(1, 10, 10), run(1, 0, 10))
    assert len(known) == 1


@given(st.data())
def test_every_position_comes_out_once_in_order(data: st.DataObject) -> None:
    """For any request, the parts together are exactly the positions, numbered without a gap."""
    counts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    firsts = np.cumsum([0, *counts[:-1]])
    known = table(*(run(7, int(first), count) for first, count in zip(firsts, counts, strict=True)))
    total = sum(counts) + 3
    entries = sorted(data.draw(st.sets(st.integers(0, total), min_size=1)))
    at = np.array([position(7, entry) for entry in entries], np.int64)
    parts = known.parts(at, NO_COUNTS, 5)
    assert [p.first_entry + row for p in parts for row in p.rows.tolist()] == entries
    numbers = [p.dispatch + index for p in parts for index in range(len(p.rows))]
    assert numbers == list(range(5, 5 + len(entries)))


def small(entry: int, data: bytes = b"") -> RunIndex:
    """Return a run of one message with its payload."""
    made = run(1, entry, 1)
    made.blob, made.bytes = Blob(data), len(data)
    return made


def at(*entries: int) -> Positions:
    """Return positions of ledger 1."""
    return np.array([position(1, entry) for entry in entries], np.int64)


def test_one_stuck_message_keeps_no_later_run() -> None:
    """The kept runs follow the open messages, wherever the mark-delete position stands. Payloads go with their runs."""
    known = UnackedRuns(lambda: 0)
    most = 0
    for entry in range(20_000):
        known.add(small(entry, b"x" * 100))
        if entry:
            known.done(at(entry))
        most = max(most, known.nbytes)
    assert (len(known), known.shared_bytes) == (1, 100)
    assert most <= 3 * 8 * 128
    (part,) = known.parts(at(0), NO_COUNTS, 0)
    assert (part.count, part.rows.tolist()) == (1, [0])


def test_a_run_stays_until_its_last_message_is_done() -> None:
    """Messages of one run are finished in any order and in several steps; unknown ones are passed over."""
    known = table(run(1, 0, 10), run(1, 20, 10))
    known.done(at(0, 3, 9, 12, 25))
    known.done(at(1, 2, 4, 5, 6, 7, 20))
    assert len(known) == 2
    known.done(at(8, 15, 40))
    assert len(known) == 1
    parts = known.parts(at(8, 21), NO_COUNTS, 0)
    assert [(part.first_entry, part.count, part.rows.tolist()) for part in parts] == [(0, 0, [8]), (20, 10, [1])]


def test_an_answer_is_not_kept_by_one_of_its_runs() -> None:
    """The run keeps neither the answer's columns nor a payload inside the memory of the whole answer."""
    whole = bytes(100_000)
    one = run(1, 0, 1)
    one.columns, one.blob, one.bytes = Blob(memoryview(whole)[:4]), Blob(memoryview(whole)[:5_000]), 5_000
    known = table(one)
    assert one.columns.size == 0
    (part,) = known.parts(at(0), NO_COUNTS, 0)
    assert part.blob is not None
    assert part.blob.data is not None
    assert part.blob.data.obj is not whole
    assert part.blob.data == whole[:5_000]


@given(st.data())
def test_the_table_holds_what_a_plain_one_holds(data: st.DataObject) -> None:
    """A dictionary is the model: runs are added, finished, passed by the mark-delete position and read again."""
    known, plain, last, end = UnackedRuns(lambda: 0), dict[int, set[int]](), dict[int, int](), 0
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(("add", "add", "done", "below", "again")))
        entries = [entry for left in plain.values() for entry in left]
        if step == "add":
            count = data.draw(st.integers(1, 4))
            known.add(run(1, end, count))
            plain[end], last[end] = set(range(end, end + count)), end + count - 1
            end += count + data.draw(st.integers(0, 2))
        elif step == "done" and entries:
            gone = data.draw(st.sets(st.sampled_from(entries), min_size=1))
            known.done(at(*sorted(gone)))
            plain = {first: left - gone for first, left in plain.items() if left - gone}
        elif step == "below":
            below = data.draw(st.integers(0, end))
            known.drop_below(position(1, below))
            plain = {first: left for first, left in plain.items() if last[first] > below}
        elif step == "again" and plain:
            first = max(plain)
            known.add(run(1, first, last[first] - first + 1))
            plain[first] = set(range(first, last[first] + 1))
        assert len(known) == len(plain)
    for first in plain:
        (part,) = known.parts(at(first), NO_COUNTS, 0)
        assert (part.count > 0, part.first_entry) == (True, first)


def test_a_payload_is_not_named_when_a_key_may_be_erased() -> None:
    """The run stays: its messages are open, and the consumer asks the topic for them."""
    now = 5
    known = UnackedRuns(lambda: now)
    for first in (0, 10):
        one = run(1, first, 10)
        one.blob = Blob(b"0123456789")
        known.add(one)
        now += KEPT_MS - 1
    at = np.array([position(1, 3), position(1, 13)], np.int64)
    now -= KEPT_MS - 1
    assert [part.blob is not None for part in known.parts(at, NO_COUNTS, 0)] == [True, True]
    now += 1
    parts = known.parts(at, NO_COUNTS, 0)
    assert [(part.count, part.blob is not None) for part in parts] == [(10, False), (10, True)]
    assert known.shared_bytes == 10

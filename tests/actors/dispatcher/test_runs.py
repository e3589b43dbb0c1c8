"""How positions become parts of a delivery."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from actors.dispatcher.runs import RunTable
from actors.messages import RunIndex
from actors.wire import Blob
from storage.position import position

NO_COUNTS = np.empty(0, np.uint8)


def run(ledger: int, first: int, count: int) -> RunIndex:
    """A run whose columns do not matter here."""
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


def table(*runs: RunIndex) -> RunTable:
    """A table of these."""
    made = RunTable()
    for one in runs:
        made.add(one)
    return made


def test_rows_of_two_runs_and_two_ledgers_become_parts_in_order() -> None:
    """Each part names its run, counts rows from its first entry, and numbers its dispatches on."""
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
    """A part without a run has count 0 and entry ids for rows, one a ledger."""
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
    """After the read position went back, runs come again; none is kept twice."""
    known = table(run(1, 0, 10), run(1, 10, 10), run(1, 0, 10))
    assert len(known) == 1


@given(st.data())
def test_every_position_comes_out_once_in_order(data: st.DataObject) -> None:
    """Whatever is asked for: the parts together are exactly the positions, numbered without a gap."""
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

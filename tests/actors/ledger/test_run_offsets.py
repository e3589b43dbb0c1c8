"""The table of runs: lookups, and what bookies must agree on."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from sluice.actors.ledger.record import LedgerRecord, LedgerState
from sluice.actors.ledger.run_offsets import RunOffsets, TableBuilder, merge_index
from sluice.actors.messages import LedgerIndex
from sluice.storage.errors import Corrupt
from tests.actors.ledger.fakes import make_ledger


def index(runs: list[int], firsts: list[int], counts: list[int]) -> LedgerIndex:
    return LedgerIndex(
        runs=np.array(runs, np.uint32), first_entries=np.array(firsts, np.uint32), counts=np.array(counts, np.uint32)
    )


def closed(last_run: int, last_entry: int) -> LedgerRecord:
    return msgspec.structs.replace(make_ledger(state=LedgerState.CLOSED), last_run=last_run, last_entry=last_entry)


def test_every_entry_belongs_to_the_run_it_was_appended_with() -> None:
    table = RunOffsets()
    first = 0
    owner: list[int] = []
    for run in range(300):
        count = run % 4 + 1
        table.append(first, count)
        owner += [run] * count
        assert table.count(run) == count
        first += count
    assert table.end == first
    assert [table.run_of(entry) for entry in range(first)] == owner
    assert table.runs_of(np.arange(first, dtype=np.uint32)).tolist() == owner
    assert table.count(2) == 3


def test_a_table_is_put_together_from_striped_bookies() -> None:
    builder = TableBuilder(closed(3, 9))
    builder.add(index([0, 2], [0, 5], [2, 1]))
    parts = [builder.complete]
    assert builder.missing() == 2
    builder.add(index([1, 2, 3, 4], [2, 5, 6, 10], [3, 1, 4, 1]))
    parts.append(builder.complete)
    assert parts == [False, True]
    table = builder.table()
    assert [table.first(run) for run in range(4)] == [0, 2, 5, 6]
    assert (table.count(3), len(table)) == (4, 4)


def test_bookies_that_disagree_are_corrupt() -> None:
    builder = TableBuilder(closed(1, 3))
    builder.add(index([0, 1], [0, 2], [2, 2]))
    with pytest.raises(Corrupt, match="disagree"):
        builder.add(index([1], [3], [1]))


def test_runs_that_do_not_follow_one_another_are_corrupt() -> None:
    builder = TableBuilder(closed(1, 4))
    builder.add(index([0, 1], [0, 3], [2, 2]))
    with pytest.raises(Corrupt, match="follow"):
        builder.table()


def test_indexes_of_an_open_ledger_are_merged_by_run() -> None:
    runs, lasts = merge_index([index([2, 3], [4, 6], [2, 2]), index([0, 2], [0, 4], [2, 2])])
    assert (runs.tolist(), lasts.tolist()) == ([0, 2, 3], [1, 5, 7])
    assert [part.size for part in merge_index([])] == [0, 0]

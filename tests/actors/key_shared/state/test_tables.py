"""The tables of the hashes: what equal and idle subscriptions share, and what they then do not.

Columns by hash keep what was written, whether few hashes have rows or all of them.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.key_shared.state.tables import (
    GROUP,
    MANY,
    MOST_GROUPS,
    HashGroups,
    HashTables,
    distinct,
    shared_owners,
)
from sluice.storage.format.hashing import HASH_RANGE


def test_equal_owners_are_one_table() -> None:
    one, other = HashTables(), HashTables()
    assert one.owner is other.owner
    one.set_owners(np.full(HASH_RANGE, 3, np.uint16))
    other.set_owners(np.full(HASH_RANGE, 3, np.uint16))
    assert one.owner is other.owner
    assert not one.owner.flags.writeable
    other.set_owners(np.full(HASH_RANGE, 4, np.uint16))
    assert (one.owner == 3).all()
    assert (other.owner == 4).all()


def test_a_table_that_nobody_has_is_made_anew() -> None:
    owner = np.arange(HASH_RANGE, dtype=np.uint16)
    assert shared_owners(owner) is owner
    assert shared_owners(owner.copy()) is owner
    assert (shared_owners(owner[::-1].copy()) == owner[::-1]).all()


def test_draining_of_one_is_not_seen_by_another() -> None:
    one, other = HashTables(), HashTables()
    assert one.drains is other.drains
    for tables in (one, other):
        tables.set_owners(np.full(HASH_RANGE, 0, np.uint16))
    one.sent(np.array([7], np.intp), np.array([0], np.uint16))
    one.set_owners(np.full(HASH_RANGE, 1, np.uint16))
    assert np.flatnonzero(one.drains).tolist() == [7]
    assert not other.drains.any()
    assert one.released(np.array([7], np.intp)).tolist() == [7]
    assert not one.drains.any()


@pytest.mark.parametrize("count", [0, 1, 255, 256, 40_000])
def test_few_and_many_hashes_are_counted_once_alike(count: int) -> None:
    hashes = np.random.default_rng(count).integers(1, HASH_RANGE, count)
    once = sorted(set(hashes.tolist()))
    for found in (distinct(hashes.astype(np.intp)), distinct(hashes.astype(np.uint16))):
        assert found.dtype == np.intp, "it is used as an index"
        assert found.tolist() == once


HASHES = st.lists(st.integers(0, HASH_RANGE - 1) | st.integers(0, 3 * GROUP), max_size=60)


@given(st.lists(HASHES, max_size=8))
def test_the_columns_are_those_of_whole_arrays(writes: list[list[int]]) -> None:
    groups, counts, last = (
        HashGroups(np.int32, np.int64),
        np.zeros(HASH_RANGE, np.int32),
        np.zeros(HASH_RANGE, np.int64),
    )
    for number, chosen in enumerate(writes, 1):
        hashes = np.array(chosen, np.intp)
        rows = groups.rows(hashes)
        first, second = groups.columns
        assert (first[rows] == counts[hashes]).all()
        np.add.at(first, rows, np.int32(1))
        np.add.at(counts, hashes, np.int32(1))
        second[rows], last[hashes] = number, number
    assert (groups.whole(0) == counts).all()
    assert (groups.whole(1) == last).all()


@pytest.mark.parametrize("more", [1, MANY])
def test_every_hash_has_its_row_at_last(more: int) -> None:
    groups = HashGroups(np.uint16)
    few = np.arange(0, MOST_GROUPS * GROUP, GROUP)
    rows = groups.rows(few)
    groups.columns[0][rows] = 7
    assert len(groups.columns[0]) == MOST_GROUPS * GROUP
    others = np.arange(HASH_RANGE - more, HASH_RANGE)
    assert (groups.rows(others) == others).all()
    assert len(groups.columns[0]) == HASH_RANGE
    assert np.flatnonzero(groups.whole(0)).tolist() == few.tolist()
    assert set(groups.whole(0).tolist()) == {0, 7}


def test_one_hash_takes_little() -> None:
    groups = HashGroups(np.uint16, np.int32, np.int64)
    assert groups.nbytes == 0
    groups.rows(np.array([HASH_RANGE - 1]))
    assert 0 < groups.nbytes < 4_096

"""Columns by hash keep what was written, whether few hashes have rows or all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.key_shared.state.hash_groups import GROUP, MANY, MOST_GROUPS, HashGroups
from sluice.storage.format.hashing import HASH_RANGE

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

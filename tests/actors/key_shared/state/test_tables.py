"""The tables of the hashes: what equal and idle subscriptions share, and what they then do not."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.actors.key_shared.state.tables import HashTables, distinct, shared_owners
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

"""Positions: packed, in order, readable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.storage.errors import Invalid
from sluice.storage.format.position import (
    EARLIEST,
    MAX_ENTRY,
    MAX_LEDGER,
    entry_of,
    ledger_of,
    parse,
    position,
    run_positions,
    show,
    split_by_ledger,
)

PAIRS = st.tuples(st.integers(0, MAX_LEDGER), st.integers(0, MAX_ENTRY))


@given(PAIRS, PAIRS)
def test_packed_positions_sort_like_pairs(first: tuple[int, int], second: tuple[int, int]) -> None:
    """And come apart as they were, as numbers and as text."""
    a, b = position(*first), position(*second)
    assert (a < b) == (first < second)
    assert (ledger_of(a), entry_of(a)) == first
    assert parse(show(a)) == a
    assert a > EARLIEST
    assert np.int64(a) == a


@given(st.sets(PAIRS, max_size=30))
def test_splitting_by_ledger_loses_nothing(pairs: set[tuple[int, int]]) -> None:
    """Groups in order, entries in order."""
    ordered = sorted(pairs)
    groups = split_by_ledger(np.array([position(*pair) for pair in ordered], np.int64))
    assert [(ledger, int(entry)) for ledger, entries in groups for entry in entries] == ordered
    assert len({ledger for ledger, _ in groups}) == len(groups)


def test_a_run_is_consecutive() -> None:
    """First entry and count."""
    assert run_positions(2, 5, 3).tolist() == [position(2, 5), position(2, 6), position(2, 7)]


def test_position_before_a_ledger_is_shown_as_in_pulsar() -> None:
    """The position is not shown as entry four billion of the ledger before."""
    assert show(position(6, MAX_ENTRY)) == "7:-1"
    assert parse("7:-1") == position(6, MAX_ENTRY)
    assert show(EARLIEST) == "earliest"


BAD = ["", "7", "a:b", "1:-2", "0:-1", "-1", ":-1", "1:\u00b2", "\u00b2:-1", "1:2:3", f"0:{MAX_ENTRY + 1}"]


@pytest.mark.parametrize("text", [*BAD, f"{MAX_LEDGER + 1}:0"])
def test_bad_text_is_refused(text: str) -> None:
    """With the form that is wanted, or the range."""
    with pytest.raises(Invalid):
        parse(text)

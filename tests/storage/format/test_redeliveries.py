"""Redelivery counts and delays as bytes of a subscription's record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.storage.errors import Corrupt
from sluice.storage.format.redeliveries import NOTHING, Redeliveries, decode, encode, merged

NOW = 1_760_000_000_000
Rows = dict[int, tuple[int, int, bool]]
ROWS: st.SearchStrategy[Rows] = st.dictionaries(
    st.integers(0, 1 << 48),
    st.tuples(st.integers(0, 255), st.one_of(st.just(0), st.integers(1, 1 << 53)), st.booleans()),
    min_size=1,
    max_size=20,
)


def table(rows: Rows) -> Redeliveries:
    """Rows by position."""
    counts = [rows[at][0] for at in sorted(rows)]
    until = [rows[at][1] for at in sorted(rows)]
    return Redeliveries(
        np.array(sorted(rows), np.int64),
        np.array(counts, np.uint8),
        np.array(until, np.int64),
        np.array([rows[at][2] for at in sorted(rows)], np.bool_),
    )


def same(one: Redeliveries, other: Redeliveries) -> bool:
    """Whether all columns are equal, in kind too."""
    columns: list[tuple[np.ndarray, np.ndarray]] = [
        (one.positions, other.positions),
        (one.counts, other.counts),
        (one.until, other.until),
        (one.overtook, other.overtook),
    ]
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in columns)


@given(ROWS)
def test_the_rows_come_back(rows: Rows) -> None:
    assert same(decode(encode(table(rows))), table(rows))


def test_nothing_costs_nothing() -> None:
    assert encode(NOTHING) == b""
    assert same(decode(b""), NOTHING)


@given(ROWS, ROWS)
def test_merging_keeps_the_higher_count_and_the_later_time(first: Rows, second: Rows) -> None:
    none = (0, 0, False)
    both: Rows = {}
    for at in first.keys() | second.keys():
        (one, until, had), (other, later, too) = first.get(at, none), second.get(at, none)
        both[at] = (max(one, other), max(until, later), had or too)
    assert same(merged(table(first), table(second)), table(both))


def test_many_rows_of_one_ledger_take_a_few_bytes_each() -> None:
    rng = np.random.default_rng(1)
    places = (7 << 32) + np.sort(rng.choice(500_000, 50_000, replace=False)).astype(np.int64)
    rows = Redeliveries(
        places, np.ones(50_000, np.uint8), NOW + rng.integers(0, 60_000, 50_000), np.zeros(50_000, bool)
    )
    assert len(encode(rows)) < 50_000 * 6
    assert same(decode(encode(rows)), rows)


@pytest.mark.parametrize("at", [0, 5, 20])
def test_damage_is_noticed(at: int) -> None:
    data = bytearray(encode(table({5: (1, NOW, False), 9: (2, 0, True)})))
    data[at] ^= 1
    with pytest.raises(Corrupt):
        decode(bytes(data))

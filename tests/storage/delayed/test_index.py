"""The runtime index: a set of positions with column operations (BX-1 to BX-4, BT-8)."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from sluice.storage.delayed.index import PositionIndex, bitmap_of, entries_of
from sluice.storage.format.position import position

PLACES = st.lists(st.builds(position, st.integers(1, 4), st.integers(0, 40)), max_size=60)


def column(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def firsts(values: list[int], wanted: set[int]) -> list[bool]:
    seen: set[int] = set()
    return [(value in wanted and value not in seen, seen.add(value))[0] for value in values]  # type: ignore[func-returns-value]


def test_bx_1_tracking_twice_changes_nothing() -> None:
    index = PositionIndex()
    assert index.add(column([position(1, 1)])).all()
    assert index.contains(column([position(1, 1)])).all()
    assert not index.add(column([position(1, 1)])).any()
    assert len(index) == 1


def test_bx_2_untracking_is_true_once() -> None:
    index = PositionIndex()
    index.add(column([position(1, 1)]))
    assert index.discard(column([position(1, 1)])).all()
    assert not index.discard(column([position(1, 1)])).any()
    assert len(index) == 0


def test_bx_3_restored_bitmaps_merge_and_count_distinct() -> None:
    index = PositionIndex()
    index.merge(1, BitMap([1, 2, 3]))
    index.merge(1, BitMap([3, 4]))
    assert len(index) == 4
    assert index.contains(column([position(1, entry) for entry in (1, 2, 3, 4, 5)])).tolist() == [True] * 4 + [False]


def test_bx_4_clear() -> None:
    index = PositionIndex()
    index.add(column([position(1, 1), position(2, 7)]))
    index.clear()
    assert len(index) == 0
    assert not index.contains(column([position(1, 1), position(2, 7)])).any()
    assert index.add(column([position(1, 1)])).all()


def test_bt_8_bitmaps_keep_content_and_bytes() -> None:
    entries = np.array([0, 1, 3, 5, 10, 16, 18, 999], np.uint32)
    data = bitmap_of(entries).serialize()
    restored = BitMap.deserialize(data)
    assert entries_of(restored).tolist() == entries.tolist()
    assert restored.serialize() == data


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "contains", "range"]), PLACES), max_size=12))
def test_index_behaves_as_a_set(steps: list[tuple[str, list[int]]]) -> None:
    index, model = PositionIndex(), set[int]()
    for step, places in steps:
        if step == "add":
            new = set(places) - model
            assert index.add(column(places)).tolist() == firsts(places, new)
            model |= new
        elif step == "discard":
            assert index.discard(column(places)).tolist() == firsts(places, model)
            model -= set(places)
        elif step == "contains":
            assert index.contains(column(places)).tolist() == [place in model for place in places]
        elif places:
            low, high = min(places), max(places)
            gone = {place for place in model if low <= place < high}
            assert index.discard_range(low, high) == len(gone)
            model -= gone
        assert len(index) == len(model)


@settings(max_examples=200, deadline=None)
@given(PLACES, st.integers(0, 40), st.integers(0, 60))
def test_next_absent_is_the_first_gap(places: list[int], start: int, length: int) -> None:
    index = PositionIndex()
    index.add(column(places))
    first = position(2, start)
    expected = next((p for p in range(first, first + length) if p not in places), first + length)
    assert index.next_absent(first, first + length) == expected


def test_next_absent_over_long_ranges() -> None:
    index = PositionIndex()
    index.merge(3, BitMap(range(5_000_000)))
    assert index.next_absent(position(3, 0), position(9, 0)) == position(3, 5_000_000)
    assert index.next_absent(position(3, 17), position(3, 1000)) == position(3, 1000)
    full = BitMap(range((1 << 32) - 10, 1 << 32))
    index.merge(4, full)
    assert index.next_absent(position(4, (1 << 32) - 5), position(5, 3)) == position(5, 0)


@settings(max_examples=100, deadline=None)
@given(PLACES, PLACES, st.integers(0, 40), st.integers(0, 60))
def test_counting_and_the_next_present(places: list[int], others: list[int], start: int, length: int) -> None:
    index, other = PositionIndex(), PositionIndex()
    index.add(column(places))
    other.add(column(others))
    first = position(2, start)
    end = first + length
    inside = [p for p in sorted(set(places)) if first <= p < end]
    assert index.next_present(first, end) == (inside[0] if inside else end)
    assert index.count_range(first, end) == len(inside)
    assert index.common(other) == len(set(places) & set(others))
    other.replace(index)
    assert len(other) == index.common(other) == len(index)


def test_taking_out_everything_of_another_set() -> None:
    index, other = PositionIndex(), PositionIndex()
    index.add(column([position(1, 1), position(1, 2), position(2, 7)]))
    other.add(column([position(1, 2), position(2, 7), position(3, 1)]))
    index.discard_all(other)
    assert len(index) == 1
    assert index.contains(column([position(1, 1)])).all()

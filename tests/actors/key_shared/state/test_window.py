"""The window finds its rows among any that have left, and its size stays within bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.actors.key_shared.state.window import DONE, FRESH, PENDING, REPLAY, Window
from sluice.storage.errors import InvariantViolation
from sluice.storage.format.position import ENTRY_BITS, run_positions
from tests.actors.key_shared.driver import ints


def add(window: Window, positions: np.ndarray, state: int = FRESH) -> None:
    """Add rows whose hash follows from their position."""
    window.add(positions, positions.astype(np.uint32), positions.astype(np.uint16), state, 0, 0)


def drop(window: Window, positions: np.ndarray) -> None:
    """Drop rows."""
    rows = window.find(positions)
    window.move(rows, len(rows), FRESH, DONE)
    window.trim()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 700), st.integers(0, 3), st.integers(1, 5), st.booleans()), max_size=25))
def test_window_agrees_with_a_set(steps: list[tuple[int, int, int, bool]]) -> None:
    window, live, next_position = Window(), set[int](), 1
    asked = np.array([0, 1], np.int64)
    for count, gap, every, new_ledger in steps:
        next_position += new_ledger << ENTRY_BITS
        column = np.arange(next_position, next_position + count * (gap + 1), gap + 1)
        next_position = int(column[-1]) + 1 + gap
        add(window, column)
        live.update(column.tolist())
        gone = np.array(sorted(live)[::every], np.int64)
        drop(window, gone)
        live.difference_update(gone.tolist())
        # Positions that were ever there, those between, and places far behind the end of a ledger.
        far = next_position + 5 + (1 << ENTRY_BITS - 1)
        asked = np.concatenate([asked, np.arange(int(column[0]) - 1, next_position + 3), [far]])
        # Also without anything before the first row and behind the last one.
        for low, high in ((0, far), (int(window.position[window.head]), int(column[-1]))):
            found = window.find(asked[(asked >= low) & (asked <= high)])
            assert window.position[found].tolist() == sorted(live)
        assert (window.hash[found] == window.position[found].astype(np.uint16)).all()
        assert window.live == len(live) == len(window.rows_live())
        few = np.array(sorted(live)[1::3], np.int64)
        assert window.position[window.find(few[::-1])].tolist() == few.tolist()


def test_one_stuck_message_does_not_make_it_grow() -> None:
    window = Window()
    add(window, ints([1]))
    for start in range(2, 2_000_000, 10_000):
        column = np.arange(start, start + 10_000)
        add(window, column)
        drop(window, column)
    assert window.live == 1
    assert window.capacity <= 64 * 1024


def test_window_shrinks_again() -> None:
    window = Window()
    column = run_positions(1, 0, 500_000)
    add(window, column)
    assert window.capacity >= 500_000
    drop(window, column[1:])
    for start in range(2):
        late = run_positions(2 + start, 0, 400_000)
        add(window, late)
        drop(window, late)
    add(window, run_positions(9, 0, 300_000))
    assert window.capacity <= 1 << 21
    assert window.find(column[:1]).tolist() == [window.head]


def test_rows_between_others() -> None:
    window = Window()
    add(window, ints([10, 20, 30]), REPLAY)
    add(window, ints([5, 15, 25, 40]), PENDING)
    assert window.position[window.rows_live()].tolist() == [5, 10, 15, 20, 25, 30, 40]
    assert window.position[window.rows_in(PENDING)].tolist() == [5, 15, 25, 40]
    assert window.count[REPLAY] == 3


def test_fresh_rows_are_a_slice_unless_others_are_among_them() -> None:
    window = Window()
    add(window, ints([10, 20, 30]))
    assert window.rows_fresh() == slice(0, 3)
    add(window, ints([15]), REPLAY)
    rows = window.rows_fresh()
    assert not isinstance(rows, slice)
    assert window.position[rows].tolist() == [10, 20, 30]


def test_positions_must_rise() -> None:
    with pytest.raises(InvariantViolation, match="not ascending"):
        add(Window(), ints([2, 2]))

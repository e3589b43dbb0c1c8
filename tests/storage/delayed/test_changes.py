"""The table of cancelled and rescheduled messages: what it says, and its bytes."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from sluice.storage.delayed.changes import MAGIC, DelayChanges
from sluice.storage.delayed.entries import Entries
from sluice.storage.errors import Corrupt, Invalid
from sluice.storage.format.cursor import seal
from sluice.storage.format.position import position


def entries(*rows: tuple[int, int]) -> Entries:
    """Return entries made of rows (position, due time)."""
    places = np.array([place for place, _ in rows], np.int64)
    return Entries(np.array([due for _, due in rows], np.int64), places, (places & 7).astype(np.uint32))


def positions(*places: int) -> np.ndarray:
    return np.array(places, np.int64)


def test_the_newest_due_time_counts_and_others_keep_theirs() -> None:
    changes = DelayChanges()
    changes.move(entries((5, 100), (9, 200)))
    changes.move(entries((5, 50), (7, 70)))
    assert changes.moved.positions.tolist() == [5, 7, 9]
    assert changes.due(positions(4, 5, 7, 9, 11), np.full(5, 1, np.int64)).tolist() == [1, 50, 70, 200, 1]
    assert changes.is_moved(positions(4, 5, 7, 9, 11)).tolist() == [False, True, True, True, False]


def test_a_cancelled_message_has_no_due_time() -> None:
    changes = DelayChanges()
    changes.move(entries((5, 100), (9, 200)))
    changes.cancel(positions(5, 6))
    assert changes.moved.positions.tolist() == [9]
    assert changes.cancelled.contains(positions(5, 6, 9)).tolist() == [True, True, False]


def test_due_times_go_when_they_are_passed() -> None:
    changes = DelayChanges()
    changes.move(entries((5, 100), (7, 100), (9, 200)))
    changes.passed(4)
    assert len(changes.moved) == 3
    changes.passed(7)
    assert changes.moved.positions.tolist() == [9]
    assert changes.moved.deliver_at.tolist() == [200]


def test_reopen_restores_cancelled_messages_behind_the_seek() -> None:
    changes = DelayChanges()
    first, second = position(1, 5), position(3, 2)
    changes.cancel(positions(first, second))
    changes.reopen(position(2, 0))
    assert changes.cancelled.contains(positions(first, second)).tolist() == [True, False]
    changes.trimmed(position(2, 0))
    assert len(changes) == 0


def test_later_changes_win_over_a_table() -> None:
    table, later = DelayChanges(), DelayChanges()
    table.move(entries((5, 100), (7, 100)))
    table.cancel(positions(1))
    later.move(entries((7, 300)))
    later.cancel(positions(2))
    table.update(later)
    assert table.due(positions(5, 7), np.zeros(2, np.int64)).tolist() == [100, 300]
    assert table.cancelled.contains(positions(1, 2)).all()


def test_the_bytes_are_small_and_come_back() -> None:
    rng = np.random.default_rng(7)
    places = np.sort(rng.choice(1_000_000, 100_000, replace=False)).astype(np.int64) + position(4, 0)
    changes = DelayChanges()
    due = np.int64(1_700_000_000_000) + rng.integers(0, 86_400_000, 100_000)
    changes.move(Entries(due, places, rng.integers(0, 1 << 31, 100_000).astype(np.uint32)))
    changes.cancel(places[::2] + 1)
    data = changes.encode()
    assert len(data) < 1_200_000
    again = DelayChanges.decode(data)
    assert again.moved.positions.tolist() == changes.moved.positions.tolist()
    assert again.moved.deliver_at.tolist() == changes.moved.deliver_at.tolist()
    assert again.moved.hashes.tolist() == changes.moved.hashes.tolist()
    assert again.cancelled.contains(places[::2] + 1).all()
    assert len(again.cancelled) == len(changes.cancelled)


def test_nothing_takes_no_bytes() -> None:
    assert DelayChanges().encode() == b""
    assert len(DelayChanges.decode(b"")) == 0


def test_a_table_of_cancellations_alone_comes_back() -> None:
    changes = DelayChanges()
    changes.cancel(positions(position(2, 1), position(9, 4)))
    again = DelayChanges.decode(changes.encode())
    assert len(again) == 2
    assert len(again.moved) == 0


def test_damage_is_never_read() -> None:
    changes = DelayChanges()
    changes.move(entries((5, 100)))
    data = bytearray(changes.encode())
    data[-1] ^= 1
    with pytest.raises(Corrupt):
        DelayChanges.decode(bytes(data))


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(Invalid, match="format 2"):
        DelayChanges.decode(seal(MAGIC, msgpack.packb([2])))
    with pytest.raises(Corrupt):
        DelayChanges.decode(seal(MAGIC, msgpack.packb([1, 3, 0, [1, b""], 0, [1, b""], b"", []])))

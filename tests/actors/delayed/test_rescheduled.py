"""Messages with a new due time, over an index that knows the log's alone."""

from __future__ import annotations

import numpy as np

from sluice.actors.delayed.memory import InMemoryTracker
from sluice.actors.delayed.tracker import RescheduledTracker
from sluice.storage.delayed.changes import DelayChanges
from sluice.storage.delayed.entries import Entries

DUE = 1_000


class Delays:
    """A tracker over one in memory, and the table in which somebody writes."""

    def __init__(self, changes: DelayChanges | None = None) -> None:
        self.changes = DelayChanges() if changes is None else changes
        self.inner = InMemoryTracker()
        self.tracker = RescheduledTracker(self.inner, self.changes)

    def read(self, *places: int, due: int = DUE, now: int = 0) -> list[bool]:
        """Read messages from the log; return for each whether it waits."""
        positions = np.array(places, np.int64)
        waits = self.tracker.add(positions, positions.astype(np.uint32), np.full(len(places), due), now)
        answer: list[bool] = waits.tolist()
        return answer

    def move(self, due: int, *places: int, now: int = 0) -> None:
        """Give messages another due time."""
        positions = np.array(places, np.int64)
        entries = Entries(np.full(len(places), due, np.int64), positions, positions.astype(np.uint32))
        self.changes.move(entries)
        self.tracker.reschedule(entries, now)

    def take(self, now: int, limit: int = 100) -> list[int]:
        """Take all due messages, with as many calls as needed."""
        taken: list[int] = []
        while (places := self.tracker.pop_due(limit, now)[0].tolist()) != []:
            taken += places
        return taken


def test_a_later_time_counts_and_the_message_comes_once() -> None:
    delays = Delays()
    assert delays.read(1, 2, 3) == [True] * 3
    delays.move(5_000, 2)
    assert delays.tracker.count() == 3
    assert delays.take(DUE) == [1, 3]
    assert delays.take(4_999) == []
    assert delays.tracker.next_due(4_999) == 5_000
    assert delays.take(5_000) == [2]
    assert (delays.take(9_999), delays.tracker.count()) == ([], 0)


def test_an_earlier_time_counts() -> None:
    delays = Delays()
    delays.read(1, 2)
    delays.move(10, 2)
    assert delays.tracker.next_due(0) == 10
    assert delays.take(10) == [2]
    assert delays.take(DUE) == [1]


def test_a_time_that_is_over_is_the_next_moment() -> None:
    delays = Delays()
    delays.read(1)
    delays.move(3, 1, now=500)
    assert delays.tracker.next_due(500) == 501
    assert delays.take(501) == [1]


def test_last_of_several_new_times_counts() -> None:
    delays = Delays()
    delays.read(*range(1, 8))
    delays.move(2_000, 1, 3, 4, 5, 6, 7)
    delays.move(3_000, 1)
    assert delays.take(2_999) == [2, 3, 4, 5, 6, 7]
    assert delays.take(3_000) == [1]


def test_restored_entry_of_a_rescheduled_message_is_skipped() -> None:
    """A bucket that was written before still holds the message, and a new owner restores the bucket."""
    delays = Delays()
    delays.read(1, 2)
    delays.move(5_000, 1)
    delays.inner.add(np.array([1], np.int64), np.array([1], np.uint32), np.array([DUE], np.int64), 0)
    assert delays.take(DUE) == [2]
    assert delays.tracker.contains(np.array([1, 2], np.int64)).tolist() == [True, False]
    assert delays.take(5_000) == [1]
    delays.inner.add(np.array([1], np.int64), np.array([1], np.uint32), np.array([6_000], np.int64), 0)
    assert not delays.tracker.contains(np.array([1], np.int64)).any()
    assert delays.take(9_000) == []


async def test_a_new_owner_knows_the_times_from_the_table() -> None:
    changes = DelayChanges()
    Delays(changes).move(5_000, 1, 4)
    after = Delays(changes)
    await after.tracker.recovered()
    assert after.tracker.contains(np.array([1, 2, 4], np.int64)).tolist() == [True, False, True]
    assert after.read(1, 2, now=2_000) == [True, False]
    assert after.take(5_000) == [1, 4]


async def test_rescheduled_message_leaves_the_restored_index() -> None:
    changes = DelayChanges()
    Delays(changes).move(5_000, 1)
    after = Delays(changes)
    after.inner.add(np.array([1, 2], np.int64), np.array([1, 2], np.uint32), np.array([DUE, DUE]), 0)
    assert after.tracker.count() == 3
    await after.tracker.recovered()
    assert after.tracker.count() == 2


def test_delivered_message_is_due_when_read_again() -> None:
    delays = Delays()
    delays.read(1)
    delays.move(500, 1)
    assert delays.take(500) == [1]
    assert delays.read(1, now=600) == [False]


def test_whole_stretches_are_skipped_over_both() -> None:
    delays = Delays()
    delays.read(1, 2, 3, 4, 6)
    delays.move(5_000, 2, 3)
    assert delays.tracker.next_untracked(1, 10) == 5
    assert delays.tracker.next_untracked(6, 10) == 7


def test_skipped_messages_in_the_index_delay_no_others() -> None:
    """Skipped messages stay at the head of the index until they are looked at."""
    delays = Delays()
    delays.read(1, 2, 3, 4, 5, due=100)
    delays.move(200, 5)
    delays.inner.untrack(np.array([1, 2], np.int64))
    assert delays.tracker.pop_due(2, 300)[0].tolist() == [3, 4]
    assert delays.tracker.pop_due(2, 300)[0].tolist() == [5]


async def test_trimming_and_clearing_forget() -> None:
    delays = Delays()
    delays.read(1, 2, 3)
    delays.move(5_000, 1, 3)
    delays.tracker.trim(1)
    assert delays.tracker.rescheduled() == 1
    assert delays.changes.moved.positions.tolist() == [3]
    await delays.tracker.clear()
    assert delays.tracker.count() == 0
    assert delays.read(2, 3, now=2_000) == [False, True]


def test_a_look_shows_the_times_that_count() -> None:
    delays = Delays()
    delays.read(1, 2)
    delays.move(5_000, 1)
    assert delays.tracker.next_messages(5) == [(DUE, 2), (5_000, 1)]
    assert sum(count for _, _, count in delays.tracker.histogram()) >= 2
    assert delays.tracker.stats()["rescheduled"] == 1
    assert delays.tracker.stats()["pulsar_subscription_delayed"] == 2

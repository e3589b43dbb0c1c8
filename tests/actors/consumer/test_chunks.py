"""Which chunks make a message, and what becomes of those that make none."""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from sluice.actors.consumer import chunks
from sluice.actors.consumer.chunks import ChunkOf, IncompleteMessages, MessageChunk, Whole
from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.consumer.unacked_messages import Received, UnackedMessageTracker

PATIENCE = 100
SOURCE = cast(PartitionConsumer, "partition 0")


def chunk(uuid: bytes, number: int, at: int, *, count: int = 3, key: bytes | None = None) -> MessageChunk:
    """A chunk at a place. key: by default one of its message's own."""
    rows = pa.record_batch(
        {
            "key": pa.array([key or uuid], pa.binary()),
            "payload": pa.array([b"%d" % number], pa.binary()),
            "publish_time": [0],
        }
    )
    none, never = np.zeros(1, np.int64), np.zeros(1, np.uint8)
    part = Received(
        rows=rows, partition=0, positions=np.array([at]), dispatch=none, redeliveries=never, deliver_at=none, epoch=1,
        session=1,
    )  # fmt: skip
    return MessageChunk(part, ChunkOf(uuid, number, count))


class Consumer:
    """Takes chunks, and notes places: of messages, of what was done, and of what was given back."""

    def __init__(self, most: int = 10) -> None:
        self.incomplete = IncompleteMessages(most, PATIENCE)
        self.whole: list[list[int]] = []
        self.done: list[int] = []
        self.back: list[int] = []

    def take(self, *came: MessageChunk, now: int = 0) -> None:
        for each in came:
            decision = self.incomplete.add(SOURCE, each, now)
            self.done += [int(one.positions[0]) for one in decision.done]
            self.back += [int(one.positions[0]) for _, group in decision.back for one in group]
            if decision.whole is not None:
                self.whole.append([int(one.positions[0]) for one in decision.whole])

    def overdue(self, now: int) -> list[list[int]]:
        """Take out what is overdue: the places of each message."""
        found = [self.incomplete.take_overdue(at, now) for at in self.incomplete.overdue(now)]
        return [[int(one.positions[0]) for one in group] for group in found]


def test_chunks_of_two_messages_may_be_mixed() -> None:
    consumer = Consumer()
    consumer.take(*(chunk(uuid, at // 2, at) for at, uuid in enumerate((b"a", b"b") * 3)))
    assert (consumer.whole, consumer.done, consumer.back) == ([[0, 2, 4], [1, 3, 5]], [], [])
    assert not consumer.incomplete


def test_a_chunk_that_is_stored_twice_is_done() -> None:
    consumer = Consumer()
    consumer.take(chunk(b"a", 0, 0), chunk(b"a", 1, 1), chunk(b"a", 1, 2), chunk(b"a", 2, 3))
    assert (consumer.whole, consumer.done) == ([[0, 1, 3]], [2])


def test_a_message_that_begins_again_replaces_the_earlier_chunks() -> None:
    consumer = Consumer()
    consumer.take(chunk(b"a", 0, 0), chunk(b"a", 1, 1), *(chunk(b"a", number, 2 + number) for number in range(3)))
    assert (consumer.whole, consumer.done) == ([[2, 3, 4]], [0, 1])


def test_earlier_chunks_that_come_late_do_not_harm_a_message() -> None:
    consumer = Consumer()
    consumer.take(chunk(b"a", 0, 5), chunk(b"a", 0, 0), chunk(b"a", 1, 1), chunk(b"a", 1, 6), chunk(b"a", 2, 7))
    assert (consumer.whole, consumer.done) == ([[5, 6, 7]], [0, 1])


def test_chunks_that_come_in_another_order_make_a_message() -> None:
    consumer = Consumer()
    consumer.take(chunk(b"a", 2, 2), chunk(b"a", 1, 1), chunk(b"a", 0, 0))
    assert (consumer.whole, consumer.done, consumer.back) == ([[0, 1, 2]], [], [])


def test_later_chunks_of_an_earlier_beginning_are_done() -> None:
    consumer = Consumer()
    consumer.take(chunk(b"a", 1, 1), chunk(b"a", 0, 2), chunk(b"a", 2, 4), chunk(b"a", 1, 3))
    assert (consumer.whole, consumer.done) == ([[2, 3, 4]], [1])


def test_chunks_that_count_differently_are_of_two_messages() -> None:
    """A producer of any client may number them as it likes."""
    consumer = Consumer()
    consumer.take(chunk(b"a", 5, 0, count=6), chunk(b"a", 4, 1, count=6), chunk(b"a", 1, 2, count=3))
    assert (consumer.whole, consumer.done, len(consumer.incomplete)) == ([], [], 2)
    consumer.take(chunk(b"a", 0, 3, count=3), chunk(b"a", 2, 4, count=3), chunk(b"a", 1, 5, count=3))
    assert (consumer.whole, consumer.done, len(consumer.incomplete)) == ([[3, 5, 4]], [2], 1)


def test_a_chunk_without_its_first_one_is_overdue_in_the_end() -> None:
    consumer = Consumer()
    consumer.take(chunk(b"a", 1, 1), now=1_000)
    assert (consumer.done, consumer.back) == ([], [])
    assert consumer.overdue(1_100) == [[1]]


def test_a_chunk_without_its_first_one_takes_no_place() -> None:
    consumer = Consumer(most=1)
    consumer.take(chunk(b"a", 0, 0), chunk(b"b", 0, 1), chunk(b"a", 1, 2), chunk(b"a", 2, 3))
    assert consumer.back == [0]
    consumer.take(chunk(b"b", 1, 4), chunk(b"b", 2, 5), chunk(b"a", 0, 0))
    assert (consumer.whole, consumer.back) == ([[1, 4, 5], [0, 2, 3]], [0])


def test_messages_of_one_key_do_not_take_each_others_place() -> None:
    consumer = Consumer(most=1)
    consumer.take(*(chunk(uuid, at // 2, at, key=b"k") for at, uuid in enumerate((b"a", b"b") * 3)))
    assert (consumer.whole, consumer.back) == ([[0, 2, 4], [1, 3, 5]], [])


def test_a_message_keeps_its_chunks_when_one_is_taken_back() -> None:
    consumer = Consumer()
    first, second = chunk(b"a", 0, 0), chunk(b"a", 1, 1)
    consumer.take(first, second)
    second.close()
    consumer.take(chunk(b"a", 1, 1), chunk(b"a", 2, 2))
    assert consumer.whole == [[0, 1, 2]]


def test_the_oldest_of_too_many_incomplete_ones_is_given_back() -> None:
    consumer = Consumer(most=2)
    consumer.take(chunk(b"a", 0, 0), chunk(b"a", 1, 1), chunk(b"b", 0, 2), chunk(b"c", 0, 3))
    assert (consumer.back, len(consumer.incomplete)) == ([0, 1], 2)


def test_incomplete_messages_have_a_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    one = chunk(b"a", 0, 0)
    monkeypatch.setattr(chunks, "MOST_BYTES", 2 * one.size)
    consumer = Consumer()
    consumer.take(one, chunk(b"b", 0, 1), chunk(b"b", 1, 2))
    assert (consumer.back, len(consumer.incomplete)) == ([0], 1)
    consumer.take(chunk(b"b", 2, 3))
    assert (consumer.whole, len(consumer.incomplete)) == ([[1, 2, 3]], 0)


def test_an_incomplete_message_is_overdue_after_its_last_chunk() -> None:
    consumer = Consumer()
    consumer.take(chunk(b"a", 0, 0), now=0)
    consumer.take(chunk(b"a", 1, 1), now=50)
    assert not consumer.incomplete.overdue(149)
    assert consumer.overdue(150) == [[0, 1]]
    assert not consumer.incomplete


def test_messages_that_take_each_others_place_grow_old() -> None:
    consumer = Consumer(most=1)
    for now in range(0, PATIENCE, 10):
        consumer.take(chunk(b"b" if now % 20 else b"a", 0, now % 20), now=now)
    assert len(consumer.back) == PATIENCE // 10 - 1
    consumer.take(chunk(b"a", 0, 0), now=PATIENCE)
    assert consumer.overdue(PATIENCE) == [[0]]
    consumer.take(chunk(b"a", 0, 0), chunk(b"b", 0, 10), now=2 * PATIENCE)
    assert len(consumer.incomplete) == 2
    assert consumer.overdue(2 * PATIENCE) == [[0], [10]]


def test_a_message_whose_next_chunk_came_is_not_overdue() -> None:
    consumer = Consumer()
    consumer.take(chunk(b"a", 0, 0), now=0)
    (late,) = consumer.incomplete.overdue(PATIENCE)
    consumer.take(chunk(b"a", 1, 1), now=PATIENCE)
    assert not consumer.incomplete.take_overdue(late, PATIENCE)
    consumer.take(chunk(b"a", 2, 2), now=PATIENCE)
    assert consumer.whole == [[0, 1, 2]]
    assert not consumer.incomplete.take_overdue(late, 2 * PATIENCE)


def test_chunks_of_a_session_that_was_lost_are_forgotten() -> None:
    consumer, held = Consumer(), UnackedMessageTracker()
    first = chunk(b"a", 0, 0)
    held.add(first)
    consumer.take(first)
    held.revoke()
    consumer.take(*(chunk(b"a", number, number) for number in range(3)))
    assert (consumer.whole, consumer.done) == ([[0, 1, 2]], [])


def test_a_message_is_taken_back_with_all_chunks() -> None:
    held = UnackedMessageTracker()
    made = [chunk(b"a", number, number) for number in range(3)]
    for each in made:
        held.add(each)
    message = Whole(made, made[-1].rows)
    taken, seen, unseen = held.take_back(np.arange(3), shown_too=True)
    assert (taken.tolist(), seen.tolist(), unseen) == ([0, 1, 2], [], 0)
    assert not message.open.any()
    assert message.taken_back is not None
    assert not len(message.close())


def test_a_message_that_loses_a_chunk_gives_the_others_back() -> None:
    held, back = UnackedMessageTracker(), list[int]()
    made = [chunk(b"a", number, number) for number in range(3)]
    for each in made:
        held.add(each)
    message = Whole(made, made[-1].rows)
    message.on_broken = lambda chunks: back.extend(each.of.number for each in chunks if each.open[0])
    held.take_back(np.array([2]), shown_too=True)
    assert back == [0, 1]
    assert (len(message.close()), len(message.counts())) == (0, 0)
    assert [bool(each.open[0]) for each in made] == [True, True, False]

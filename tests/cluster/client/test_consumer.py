"""The users' consumer: calls that it refuses by itself, and the moments at which it wakes the loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from sluice.actors.consumer.unacked_messages import LostAcks, Received
from sluice.cluster.base.loop import LoopThread
from sluice.cluster.client.blocking import Consumer
from sluice.cluster.client.consumer_core import HAND_OVER_MS
from sluice.cluster.client.message import Batch
from sluice.cluster.client.options import ConsumerOptions
from sluice.cluster.client.receiver_queue import WANTED_S
from sluice.storage.errors import Fenced, Invalid, NotFound, Unavailable


class Silent:
    """A loop on which nothing may be run."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of the loop was asked for")


def test_kst_7_a_cumulative_acknowledgement_is_refused_clearly() -> None:
    consumer = Consumer(
        cast(LoopThread, Silent()),
        ConsumerOptions(topic="orders", subscription="billing", consumer_name="c1", receiver_queue_size=1_000),
        lambda consumer: None,
    )
    with pytest.raises(Invalid) as refused:
        consumer.acknowledge_cumulative(cast(Any, None))
    assert str(refused.value).count("\n") == 0
    assert "acknowledge each message" in str(refused.value)


class Calls:
    """A loop that notes what it was asked to do, and does it when the test says so."""

    def check_process(self) -> None:
        """Accept every process."""

    def check_thread(self) -> None:
        """Accept every thread."""

    def __init__(self) -> None:
        self.at_once: list[Callable[[], object]] = []
        self.timers: list[Callable[[], object]] = []

    def soon(self, call: Callable[[], object]) -> None:
        self.at_once.append(call)

    def later(self, milliseconds: int, call: Callable[[], object]) -> Calls:
        assert milliseconds == HAND_OVER_MS
        self.timers.append(call)
        return self

    def cancel(self) -> None:
        self.timers.clear()


class Told:
    """A partition that notes what it is told."""

    topic = "orders"
    closing = False

    def __init__(self) -> None:
        self.took: list[Received] = []
        self.done: list[tuple[list[int] | None, bool]] = []
        self.held: list[bool] = []

    def hold(self, held: bool) -> None:
        self.held.append(held)

    def taken(self, part: Received) -> None:
        self.took.append(part)

    def acknowledge(self, part: Received, rows: Any = None, *, waited: bool = False) -> None:
        self.done.append((None if rows is None else rows.tolist(), waited))

    def lease_over(self) -> bool:
        return False


def part_of(count: int) -> Received:
    """That many messages of the first partition."""
    numbers = np.arange(count, dtype=np.int64)
    rows = pa.record_batch({"payload": pa.array([b"x"] * count, pa.binary())})
    return Received(rows, 0, numbers, numbers, np.zeros(count, np.uint8), np.zeros(count, np.int64), 1, 1)


def consumer_on(loop: Calls, told: Told, queue_size: int) -> Consumer:
    """A consumer of one partition."""
    consumer = Consumer(
        cast(LoopThread, loop),
        ConsumerOptions(topic="orders", subscription="billing", consumer_name="c1", receiver_queue_size=queue_size),
        lambda consumer: None,
    )
    consumer.join([cast(Any, told)])
    return consumer


def test_a_message_now_and_then_goes_with_the_next_poll() -> None:
    loop, told = Calls(), Told()
    consumer = consumer_on(loop, told, 1_000)
    for _ in range(3):
        consumer.received(cast(Any, told), part_of(2))
        for _ in range(2):
            consumer.acknowledge(consumer.receive())
        assert len(loop.timers) == 1
        consumer.tell_partitions()
        assert not loop.timers
    assert not loop.at_once
    assert len(told.took) == 3
    assert told.done == [([0, 1], False)] * 3


def test_without_a_poll_the_timer_hands_over() -> None:
    loop, told = Calls(), Told()
    consumer = consumer_on(loop, told, 1_000)
    consumer.received(cast(Any, told), part_of(1))
    consumer.acknowledge(consumer.receive())
    loop.timers[0]()
    assert told.done == [([0], True)]
    assert not loop.at_once


def test_late_acknowledgements_wake_the_loop_once() -> None:
    loop, told = Calls(), Told()
    consumer = consumer_on(loop, told, 1_000)
    consumer.received(cast(Any, told), part_of(3))
    messages = [consumer.receive() for _ in range(3)]
    loop.timers[0]()
    for message in messages:
        consumer.acknowledge(message)
    assert len(loop.at_once) == 1
    loop.at_once[0]()
    assert told.done == [([0, 1, 2], False)]


def test_a_good_part_of_the_queue_is_told_at_once() -> None:
    loop, told = Calls(), Told()
    consumer = consumer_on(loop, told, 8)
    consumer.received(cast(Any, told), part_of(1))
    consumer.receive()
    assert not loop.at_once
    consumer.received(cast(Any, told), part_of(1))
    consumer.receive()
    assert len(loop.at_once) == 1
    loop.at_once[0]()
    assert len(told.took) == 2


def test_many_bytes_that_wait_hold_back_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many messages the queue may have. Who wants more of them at once is brought these."""
    loop, told = Calls(), Told()
    consumer = consumer_on(loop, told, 1_000)
    monkeypatch.setattr("sluice.cluster.client.receiver_queue.QUEUED_BYTES", 3 * part_of(1).size)
    for _ in range(3):
        assert told.held == []
        consumer.received(cast(Any, told), part_of(1))
    assert told.held == [True]
    assert consumer.receive_nowait(5) is None
    loop.at_once.pop()()
    assert told.held == [True, False]
    for _ in range(2):
        consumer.received(cast(Any, told), part_of(1))
    assert told.held == [True, False, True]
    assert len(consumer.receive_nowait(3) or ()) == 3
    consumer.tell_partitions()
    assert told.held == [True, False, True, False]


def test_messages_taken_back_hide_no_others() -> None:
    """A caller that asks for some at once would never get them."""
    loop, told = Calls(), Told()
    consumer, part = consumer_on(loop, told, 1_000), part_of(5)
    consumer.received(cast(Any, told), part)
    consumer.receive()
    part.take_back(np.array([1]))
    assert consumer.receive_nowait(4) is None
    assert [message.row for message in consumer.receive_nowait(3) or ()] == [2, 3, 4]


def test_a_wish_for_many_at_once_lapses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("sluice.cluster.client.receiver_queue.time.monotonic", lambda: now)
    monkeypatch.setattr("sluice.cluster.client.receiver_queue.QUEUED_BYTES", 3 * part_of(1).size)
    loop, told = Calls(), Told()
    consumer = consumer_on(loop, told, 1_000)
    for _ in range(3):
        consumer.received(cast(Any, told), part_of(1))
    for _ in range(2):
        assert consumer.receive_nowait(1_000) is None
        now += WANTED_S / 2
    loop.at_once.pop()()
    consumer.received(cast(Any, told), part_of(1))
    assert told.held == [True, False]
    now += WANTED_S
    consumer.received(cast(Any, told), part_of(1))
    assert told.held == [True, False, True]


class Settling:
    """A partition that settles when the test says so."""

    def __init__(self, *, settled: bool) -> None:
        self.losses = LostAcks()
        self.settled = asyncio.Event()
        if settled:
            self.settled.set()

    async def settle(self) -> None:
        await self.settled.wait()


def test_loss_after_a_time_out_is_told_by_the_next_wait() -> None:
    """One partition has lost acknowledgements; another one's took too long, so nobody was told."""
    loop = LoopThread("test")
    lost, late = Settling(settled=True), Settling(settled=False)
    consumer = consumer_on(cast(Calls, loop), Told(), 1_000)
    consumer.parts = dict.fromkeys([cast(Any, lost), cast(Any, late)])
    try:
        lost.losses.count += 1
        with pytest.raises(Unavailable):
            consumer.wait_acknowledged(timeout_ms=50)
        loop.soon(late.settled.set)
        with pytest.raises(Fenced, match="lost before"):
            consumer.wait_acknowledged()
        consumer.wait_acknowledged()  # told once
    finally:
        loop.stop()


ODD_ROWS = [
    [0, 3], [-1], [0.0], [True, False, True], [[0, 1]], 0, "0", [None],
]  # fmt: skip


@pytest.mark.parametrize("rows", ODD_ROWS)
@pytest.mark.parametrize("give", [Consumer.acknowledge, Consumer.negative_acknowledge])
def test_rows_that_a_batch_does_not_have_are_refused(rows: object, give: Callable[..., object]) -> None:
    """They ended the polls of their partition, which received nothing from then on."""
    loop, told = Calls(), Told()
    consumer = consumer_on(loop, told, 1_000)
    consumer.received(cast(Any, told), part_of(3))
    batch = consumer.receive_batch()
    with pytest.raises(Invalid, match="rows are an array of numbers of the batch's rows, 0 to 2"):
        give(consumer, batch, rows=rows)
    consumer.tell_partitions()
    assert told.done == []


@pytest.mark.parametrize("rows", [[2, 0, 2], (0, 2), np.array([2, 0], np.uint8)])
def test_rows_are_any_numbers_of_the_batchs_rows(rows: Any) -> None:
    loop, told = Calls(), Told()
    consumer = consumer_on(loop, told, 1_000)
    consumer.received(cast(Any, told), part_of(3))
    batch = consumer.receive_batch()
    assert batch is not None
    consumer.acknowledge(batch, rows=rows)
    consumer.tell_partitions()
    assert told.done == [([0, 2], False)]


def test_message_of_another_consumer_is_refused() -> None:
    """An earlier version acknowledged on this consumer's thread, and a receipt called it durable too soon."""
    loop, told, others = Calls(), Told(), Told()
    mine, other = consumer_on(loop, told, 1_000), consumer_on(loop, others, 1_000)
    other.received(cast(Any, others), part_of(2))
    message = other.receive()
    foreign = Batch("orders", part_of(1), cast(Any, Told()))
    foreign.received.partition = 7
    for what in (message, message.batch, foreign):
        for give in (mine.acknowledge, mine.negative_acknowledge):
            with pytest.raises(NotFound, match="another consumer received this"):
                give(what)
    mine.tell_partitions()
    assert told.done == []


@pytest.mark.parametrize("what", [None, "1:2:0", b"1:2:0", 5])
def test_object_that_is_no_message_is_refused(what: Any) -> None:
    consumer = consumer_on(Calls(), Told(), 1_000)
    for give in (consumer.acknowledge, consumer.negative_acknowledge):
        with pytest.raises(Invalid, match="give a message, a batch or a message id, not"):
            give(what)


@pytest.mark.parametrize("timeout", [float("nan"), "5"])
def test_a_time_out_that_is_no_number_is_refused(timeout: Any) -> None:
    """A wait for a time-out that is no number had no end, and never slept, because no comparison with it is true."""
    consumer = consumer_on(Calls(), Told(), 1_000)
    for receive in (consumer.receive, consumer.receive_batch, lambda given: asyncio.run(consumer.receive_async(given))):
        with pytest.raises(Invalid, match="a time-out is a number of milliseconds, not"):
            receive(timeout)

"""Several threads of a program that share a consumer: every message comes to one of them, and to one only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import sluice.cluster.client.blocking
import sluice.cluster.client.consumer_core
import sluice.cluster.client.receiver_queue
from sluice.actors.consumer.unacked_messages import Received, UnackedMessageTracker
from sluice.cluster.client.blocking import Consumer
from sluice.cluster.client.client import Client
from sluice.cluster.client.message import Message
from sluice.cluster.client.options import ConsumerOptions
from sluice.cluster.client.receiver_queue import ReceiverQueue
from sluice.storage.errors import Fenced, Timeout
from tests.cluster.helpers import PATIENCE_S, eventually
from tests.sim.threads import Threads

pytestmark = pytest.mark.timeout(300)

SEEDS = 60
WATCHED = (
    sluice.cluster.client.blocking,
    sluice.cluster.client.consumer_core,
    sluice.cluster.client.receiver_queue,
)


class Partition:
    """A partition that notes what it is told."""

    topic = "orders"
    closing = False

    def __init__(self) -> None:
        self.done: list[int] = []

    def lease_over(self) -> bool:
        return False

    def taken(self, part: Received) -> None:
        pass

    def acknowledge(self, part: Received, rows: Any = None, *, waited: bool = False) -> None:
        self.done += part.close(rows).tolist()


def part_of(count: int, first: int = 0) -> Received:
    """That many messages of the first partition."""
    positions = np.arange(first, first + count)
    rows = pa.record_batch({"payload": pa.array([b"x"] * count, pa.binary())})
    return Received(rows, 0, positions, positions, np.zeros(count, np.uint8), np.zeros(count, np.int64), 1, 1)


class Program:
    """A program of several threads on one consumer: a loop's thread that delivers, and threads that receive."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.threads = Threads(seed, patch, *WATCHED)
        self.calls: list[Callable[[], object]] = []
        self.partition = Partition()
        self.consumer = Consumer(
            cast(Any, self),
            ConsumerOptions(topic="orders", subscription="billing", consumer_name="c1", receiver_queue_size=8),
            lambda consumer: None,
        )
        self.consumer.join([cast(Any, self.partition)])
        self.got: list[list[int]] = []
        self.next = 0

    # What the consumer asks of its loop: done by the loop's thread, when it comes to that.

    def check_process(self) -> None:
        """Accept every process."""

    def check_thread(self) -> None:
        """Accept every thread."""

    def soon(self, call: Callable[[], object]) -> None:
        self.calls.append(call)

    def later(self, milliseconds: int, call: Callable[[], object]) -> Any:
        self.calls.append(call)
        return self

    def cancel(self) -> None:
        pass

    def part(self, count: int) -> Received:
        """The next messages."""
        self.next += count
        return part_of(count, self.next - count)

    def deliver(self, *parts: Received) -> None:
        """Deliver these as the loop's thread does, and then make the calls that it was given."""
        for part in parts:
            self.consumer.received(cast(Any, self.partition), part)
            while self.calls:
                self.calls.pop(0)()

    def deliver_and_take_back(self, part: Received, back: list[int]) -> None:
        """The same of one part, whose messages it takes back before they were all received; back: which they were."""
        holding = UnackedMessageTracker()
        holding.add(part)
        positions = part.positions
        self.deliver(part)
        for _ in range(2):
            with self.consumer.taking_back.guard:
                back += holding.take_back(positions, shown_too=False)[0].tolist()

    def receives(self, read: Callable[[Consumer], list[Message]]) -> None:
        """One more thread receives until nothing comes any more, and acknowledges all of it."""
        mine: list[int] = []
        self.got.append(mine)

        def work() -> None:
            while messages := read(self.consumer):
                for message in messages:
                    mine.append(int(message.batch.positions[message.row]))
                    self.consumer.acknowledge(message)

        self.threads.start(work)

    def finish(self) -> list[int]:
        """Run it to its end; what was received, by whomever."""
        self.threads.run()
        while self.calls:
            self.calls.pop(0)()
        return sorted(position for mine in self.got for position in mine)


def one(consumer: Consumer) -> list[Message]:
    """One message, or none."""
    try:
        return [consumer.receive(1_000)]
    except Timeout:
        return []


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_message_comes_to_one_thread_of_three(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(seed, monkeypatch)
    parts = [program.part(count) for count in (3, 1, 4, 2)]
    program.threads.start(lambda: program.deliver(*parts))
    for _ in range(3):
        program.receives(one)
    assert program.finish() == list(range(10))
    assert sorted(program.partition.done) == list(range(10))
    assert all(mine == sorted(mine) for mine in program.got)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_message_taken_back_unseen_reaches_no_thread(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program, back = Program(seed, monkeypatch), list[int]()
    part = program.part(6)
    program.threads.start(lambda: program.deliver_and_take_back(part, back))
    for _ in range(2):
        program.receives(one)
    received = program.finish()
    assert sorted(received + back) == list(range(6))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_many_at_once_are_all_or_none(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver of three at once gets three or none, and the messages that it did not get come to the others, in
    order.
    """
    program = Program(seed, monkeypatch)
    parts = [program.part(count) for count in (2, 2, 1, 3)]

    def three(consumer: Consumer) -> list[Message]:
        return consumer.receive_nowait(3) or one(consumer)

    program.threads.start(lambda: program.deliver(*parts))
    for read in (three, one, three):
        program.receives(read)
    assert program.finish() == list(range(8))
    assert all(mine == sorted(mine) for mine in program.got)


def test_messages_that_are_too_few_stay_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(0, monkeypatch)
    part = program.part(3)
    program.threads.start(lambda: program.deliver(part))
    program.threads.run()
    assert program.consumer.receive_nowait(4) is None
    assert part.shown == 0
    taken = program.consumer.receive_nowait(3)
    assert taken is not None
    assert [message.row for message in taken] == [0, 1, 2]


@pytest.mark.parametrize("seed", range(10))
def test_as_many_threads_wake_as_messages_came(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them sleeps on beside a message that it could have."""
    program, woken = Program(seed, monkeypatch), list[float]()

    def work() -> None:
        program.consumer.receive()
        woken.append(program.threads.now)

    for _ in range(3):
        program.threads.start(work)
    part = program.part(3)

    def deliver() -> None:
        program.threads.sleep(0.5)
        program.deliver(part)

    program.threads.start(deliver)
    program.threads.run()
    assert woken == [0.5] * 3


async def test_task_cancelled_when_woken_wakes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks wait for one message; the first is woken and cancelled before it can look."""
    monkeypatch.setattr(sluice.cluster.client.receiver_queue, "LOOK_S", PATIENCE_S)
    queue = ReceiverQueue(lambda *_: None)
    waits = [asyncio.create_task(queue.receive_async(None)) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add(cast(Any, Partition()), part_of(1))
    waits[0].cancel()
    message = await asyncio.wait_for(waits[1], 20)
    assert (message.row, waits[0].cancelled()) == (0, True)


def test_threads_of_a_real_program_lose_nothing(client: Client) -> None:
    count = 2_000
    producer = client.create_producer("orders")
    keys = [f"key-{number % 50}" for number in range(count)]
    producer.send_batch(pa.record_batch({"key": keys, "payload": [str(number) for number in range(count)]})).result(60)
    got: list[int] = []
    consumer = client.subscribe("orders", "billing", initial_position="earliest")

    def read() -> None:
        while True:
            try:
                message = consumer.receive()
            except Fenced:
                return
            got.append(int(message.data()))
            consumer.acknowledge(message)

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: len(got) >= count, lambda: f"{count - len(got)} messages came to nobody", 60)
        consumer.wait_acknowledged(60_000)
        assert consumer.held() == 0
    finally:
        consumer.close()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert sorted(got) == list(range(count))

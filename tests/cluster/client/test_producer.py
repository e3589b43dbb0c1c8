"""The users' producer: calls that it refuses by itself, and the way from single messages to batches."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from sluice.actors.messages.limits import SEQUENCES
from sluice.actors.producer.batches import Outgoing
from sluice.actors.producer.producer import PartitionProducer, Repartitioned
from sluice.cluster.base.loop import CallersLoop, LoopThread
from sluice.cluster.client.async_producer import AsyncProducer
from sluice.cluster.client.blocking import Producer
from sluice.cluster.client.client import Client
from sluice.cluster.client.delayed import due_time
from sluice.cluster.client.message import MessageId
from sluice.cluster.client.options import Batching, ProducerOptions
from sluice.cluster.client.producer_core import MAX_PENDING_MESSAGES
from sluice.cluster.client.receipts import SentMessage
from sluice.storage.errors import Fenced, Invalid, SluiceError, Unavailable
from sluice.storage.format.batch import MAX_MESSAGE_BYTES, MAX_RUN_MESSAGES
from sluice.storage.format.hashing import masked_hash

NOW, LONGEST = 1_700_000_000_000, 10_000
LATE_S = 20.0


class Loop:
    """Stands in for the client's thread: what is queued runs when the test says so."""

    def __init__(self) -> None:
        self.queued: list[Callable[[], object]] = []
        self.timers: list[tuple[int, Callable[[], object]]] = []
        self.is_here = True

    def check_process(self) -> None:
        pass

    def check_thread(self) -> None:
        pass

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        self.queued.append(lambda: call(*arguments))

    def later(self, milliseconds: int, call: Callable[[], object]) -> None:
        self.timers.append((milliseconds, call))

    def turn(self) -> None:
        while self.queued:
            self.queued.pop(0)()


class Partition:
    """Stands in for a partition's appends: keeps what it is given until it is confirmed."""

    def __init__(self, last_sequence: int = -1) -> None:
        self.last_sequence = last_sequence
        self.got: list[Outgoing] = []
        self._confirmed = 0
        self.closed = self.gives_back = False

    def send(self, outgoing: Outgoing) -> None:
        if self.closed:
            outgoing.done(outgoing.rows, 0, Fenced("closed"))
        elif self.gives_back:
            outgoing.done(outgoing.rows, 0, Repartitioned("another number"))
        else:
            self.got.append(outgoing)

    def close(self) -> None:
        self.closed = True

    def give_back(self) -> None:
        """As if the topic had been made again with another number of partitions."""
        for one in self.got[self._confirmed :]:
            one.done(one.rows, 0, Repartitioned("another number"))
        self._confirmed = len(self.got)

    def payloads(self) -> list[list[bytes]]:
        return [one.batch.rows.column("payload").to_pylist() for one in self.got]

    def confirm(self) -> None:
        while self._confirmed < len(self.got):
            one = self.got[self._confirmed]
            self._confirmed += 1
            one.done(one.rows, 1 << 32 | one.first_sequence, None)


class Stage:
    """A producer on so many partitions, without a broker."""

    def __init__(self, partitions: int = 1, last_sequence: int = -1, **batching: int) -> None:
        self.loop = Loop()
        self.parts = [Partition(last_sequence) for _ in range(partitions)]
        self.remade, self.counted = partitions, 0
        self.missing: SluiceError | None = None
        self.producer = Producer(
            cast(Any, self.loop),
            cast(Any, SimpleNamespace(clock=SimpleNamespace(now=lambda: NOW, monotonic=lambda: 0), spawn=self.spawn)),
            ProducerOptions(topic="orders", name="p", batching=Batching(**batching)),
            cast(list[PartitionProducer], self.parts),
            max_delay_ms=LONGEST,
            on_close=lambda _: None,
            count_again=self.count_again,
        )

    def spawn(self, work: Coroutine[Any, Any, None], _: str) -> None:
        self.loop.soon(asyncio.run, work)

    async def count_again(self) -> int:
        self.counted += 1
        if self.missing is not None:
            raise self.missing
        del self.parts[self.remade :]
        self.parts += [Partition(99) for _ in range(self.remade - len(self.parts))]
        return LONGEST

    def give_back(self, remade: int) -> None:
        self.remade = remade
        for part in list(self.parts):
            part.give_back()
        self.loop.turn()

    def confirm(self) -> None:
        for part in self.parts:
            part.confirm()
        self.loop.turn()


def rows(*due: int) -> pa.RecordBatch:
    return pa.record_batch({"payload": ["x"] * len(due), "deliver_at": pa.array(due, pa.int64())})


def test_dl_12_a_delay_beyond_the_topics_limit_is_refused() -> None:
    stage = Stage(last_sequence=6)
    with pytest.raises(Invalid, match=r"^a delay of 10001 ms is beyond the topic's limit of 10000 ms$"):
        stage.producer.send_batch(rows(0, NOW + LONGEST + 1, NOW + 5))
    with pytest.raises(Invalid, match="beyond the topic's limit"):
        stage.producer.send_async("x", deliver_at=NOW + LONGEST + 1)
    assert stage.loop.queued == []
    stage.producer.send_batch(rows(0, NOW + LONGEST))
    stage.loop.turn()
    (outgoing,) = stage.parts[0].got
    assert (outgoing.first_sequence, len(outgoing.batch)) == (7, 2)


def test_one_message_alone_goes_out_at_once() -> None:
    stage = Stage()
    sent = stage.producer.send_async("a", partition_key="k")
    stage.loop.turn()
    assert stage.parts[0].payloads() == [[b"a"]]
    assert not sent.done()
    with pytest.raises(Unavailable, match="not confirmed"):
        sent.message_id()
    stage.confirm()
    assert sent.result().message_id() == MessageId(0, 1 << 32)


def test_messages_sent_during_a_flight_leave_together() -> None:
    stage = Stage()
    stage.producer.send_async("a")
    stage.loop.turn()
    later = [stage.producer.send_async(text) for text in ("b", "c", "d")]
    stage.loop.turn()
    assert len(stage.parts[0].got) == 1
    stage.confirm()
    assert stage.parts[0].payloads() == [[b"a"], [b"b", b"c", b"d"]]
    stage.confirm()
    assert [one.message_id().entry_id() for one in later] == [1, 2, 3]


def test_nothing_waits_longer_than_the_publish_delay() -> None:
    stage = Stage(max_delay_ms=7)
    stage.producer.send_async("a")
    stage.loop.turn()
    stage.producer.send_async("b")
    stage.producer.send_async("c")
    stage.loop.turn()
    ((milliseconds, ring),) = stage.loop.timers
    assert milliseconds == 7
    ring()
    assert stage.parts[0].payloads() == [[b"a"], [b"b", b"c"]]


@pytest.mark.parametrize("limit", [{"max_messages": 3}, {"max_bytes": 3 * 65}])
def test_a_full_container_does_not_wait(limit: dict[str, int]) -> None:
    stage = Stage(**limit)
    for text in "abcd":
        stage.producer.send_async(text)
        stage.loop.turn()
    assert stage.parts[0].payloads() == [[b"a"], [b"b", b"c", b"d"]]


def test_the_loop_is_told_once_for_many_messages() -> None:
    stage = Stage()
    for number in range(100):
        stage.producer.send_async(str(number))
    assert len(stage.loop.queued) == 1
    stage.loop.turn()
    assert [len(one) for one in stage.parts[0].payloads()] == [100]


def test_single_messages_and_batches_keep_the_order_of_the_calls() -> None:
    stage = Stage()
    stage.producer.send_async("a")
    stage.producer.send_batch(pa.record_batch({"payload": ["b", "c"]}))
    stage.producer.send_async("d")
    stage.loop.turn()
    assert stage.parts[0].payloads() == [[b"a"], [b"b", b"c"], [b"d"]]
    assert [one.first_sequence for one in stage.parts[0].got] == [0, 1, 3]


def test_each_message_goes_to_the_partition_of_its_key() -> None:
    stage = Stage(partitions=4)
    keys = [f"key-{number}" for number in range(40)]
    sent = [stage.producer.send_async(key, partition_key=key) for key in keys]
    stage.loop.turn()
    stage.confirm()
    for key, one in zip(keys, sent, strict=True):
        assert one.message_id().partition_index == masked_hash(key.encode()) % 4
    for part in stage.parts:
        assert part.payloads() == [[key.encode() for key in keys if stage.parts[masked_hash(key.encode()) % 4] is part]]


def test_each_callback_is_told_its_own_outcome_and_may_fail() -> None:
    stage, told = Stage(), list[object]()

    def broken(error: object, message_id: object) -> None:
        raise RuntimeError("the user's own")

    stage.producer.send_async("a", broken)
    stage.producer.send_async("b", lambda error, message_id: told.append((error, message_id)))
    refused = Fenced("a newer producer")
    stage.loop.turn()
    (outgoing,) = stage.parts[0].got
    outgoing.done(outgoing.rows[:1], 1 << 32, None)
    outgoing.done(outgoing.rows[1:], -1, refused)
    assert told == [(refused, None)]


def test_wait_for_one_message_ends_before_the_others() -> None:
    stage = Stage(partitions=2)
    sent = [stage.producer.send_async(text, partition_key=text) for text in ("a", "b", "c", "d")]
    stage.loop.turn()
    first = next(part for part in stage.parts if part.got)
    first.confirm()
    done = [one for one in sent if one.done()]
    assert 0 < len(done) < 4
    assert all(one.message_id().partition_index == stage.parts.index(first) for one in done)


def test_confirmation_and_end_wake_a_wait_for_room() -> None:
    stage = Stage(max_messages=MAX_PENDING_MESSAGES)
    stage.producer.send_batch(pa.record_batch({"payload": ["x"] * MAX_PENDING_MESSAGES}))
    stage.loop.turn()
    outcome: list[SentMessage | Fenced] = []

    def send() -> None:
        try:
            outcome.append(stage.producer.send_async("y"))
        except Fenced as error:
            outcome.append(error)

    waiting = threading.Thread(target=send)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    stage.parts[0].confirm()
    waiting.join(5)
    stage.loop.turn()
    assert isinstance(outcome[0], SentMessage)
    assert stage.parts[0].payloads()[-1] == [b"y"]


def test_chunks_await_room_in_the_loop_of_their_caller() -> None:
    """In a thread that is given up if it blocks: there is no room for all of them."""
    ended = threading.Event()

    async def main() -> None:
        part, clock = Partition(), SimpleNamespace(now=lambda: NOW, monotonic=lambda: 0)
        producer = AsyncProducer[bytes](
            CallersLoop(),
            SimpleNamespace(clock=clock, rng=random.Random(1)),
            ProducerOptions(topic="orders", name="p", batching=Batching(), chunking=True),
            [part],
            max_delay_ms=0,
            on_close=lambda _: None,
            count_again=None,
        )
        await producer.send_batch(pa.record_batch({"payload": ["x"] * (MAX_PENDING_MESSAGES - 1)}))
        large = asyncio.ensure_future(producer.send_async(bytes(MAX_MESSAGE_BYTES + 1)))
        await asyncio.sleep(0)
        assert not large.done()
        part.confirm()
        await large
        ended.set()

    threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
    assert ended.wait(LATE_S)


def test_a_batch_beyond_a_run_has_one_receipt() -> None:
    stage, count = Stage(), 2 * MAX_RUN_MESSAGES + 5
    receipt = stage.producer.send_batch(pa.record_batch({"payload": ["x"] * count}))
    stage.loop.turn()
    assert [len(one.batch) for one in stage.parts[0].got] == [MAX_RUN_MESSAGES, MAX_RUN_MESSAGES, 5]
    assert [one.first_sequence for one in stage.parts[0].got] == [0, MAX_RUN_MESSAGES, 2 * MAX_RUN_MESSAGES]
    assert not receipt.done()
    stage.confirm()
    assert (receipt.result().positions == (1 << 32) + np.arange(count)).all()
    assert (stage.producer._pending_messages, stage.producer._pending_bytes, stage.producer._in_flight) == (0, 0, 0)


def test_batch_settled_in_pieces_frees_all_its_room() -> None:
    stage = Stage()
    for text in "abc":
        stage.producer.send_async(text)
    stage.loop.turn()
    (outgoing,) = stage.parts[0].got
    for row in range(3):
        assert stage.producer._in_flight == 1
        outgoing.done(outgoing.rows[row : row + 1], 1 << 32 | row, None)
    assert (stage.producer._pending_messages, stage.producer._pending_bytes, stage.producer._in_flight) == (0, 0, 0)


def test_outcome_behind_the_end_of_a_client_changes_nothing() -> None:
    stage = Stage()
    receipt = stage.producer.send_batch(pa.record_batch({"payload": ["a", "b"]}))
    stage.loop.turn()
    stage.producer.abandon("the client ends")
    stage.confirm()
    assert receipt.done()
    with pytest.raises(Unavailable, match="its outcome is unknown"):
        receipt.result(0)
    assert receipt.positions.tolist() == [-1, -1]


def test_batch_counts_with_the_bytes_that_are_sent() -> None:
    """A dictionary names a payload many times, and the messages of one partition may be the largest."""
    stage = Stage(partitions=2)
    large = pa.array(["k", "l"] * 50), pa.array([b"x" * 10_000] * 99 + [b"x" * 100_000])
    batch = pa.record_batch([column.dictionary_encode() for column in large], ["key", "payload"])
    stage.producer.send_batch(batch)
    assert stage.producer._pending_bytes > 1_000_000
    stage.loop.turn()
    outgoing = [one for part in stage.parts for one in part.got]
    assert len(outgoing) == 2
    assert [one.bytes >= one.batch.rows.nbytes for one in outgoing] == [True, True]
    stage.confirm()
    assert stage.producer._pending_bytes == 0


@pytest.mark.parametrize(
    "wrong", [{"properties": {"a": "\ud800"}}, {"event_timestamp": 1.5}, {"deliver_at": NOW + 0.5}]
)
def test_call_refuses_a_message_that_cannot_be_stored(wrong: dict[str, Any]) -> None:
    """And not when it is gathered with others already, which would never have an outcome then."""
    stage = Stage()
    stage.producer.send_async("a")
    with pytest.raises(Invalid):
        stage.producer.send_async("b", **wrong)
    stage.producer.send_async("c")
    stage.loop.turn()
    assert stage.parts[0].payloads() == [[b"a", b"c"]]


@pytest.mark.parametrize("wait", [timedelta(milliseconds=1001), timedelta(milliseconds=1000, microseconds=1)])
def test_a_wait_ends_no_earlier_than_was_said(wait: timedelta) -> None:
    """Cover waits for which a float of seconds is too coarse, in milliseconds, and waits of less than one
    millisecond.
    """
    stage = Stage()
    stage.producer.send_async("later", deliver_after=wait)
    stage.loop.turn()
    (sent,) = stage.parts[0].got
    assert sent.batch.deliver_at is not None
    assert sent.batch.deliver_at.tolist() == [NOW + 1001]
    assert due_time(None, wait, NOW) == NOW + 1001


def test_no_batch_is_sent_of_a_message_that_was_refused() -> None:
    """A batch of none would be refused in turn, and end the sending to its partition."""
    stage = Stage()
    with pytest.raises(Invalid):
        stage.producer.send_async("a", deliver_at=-1)
    stage.producer.send_batch(pa.record_batch({"payload": ["b"]}))
    stage.loop.turn()
    assert [len(one.batch) for one in stage.parts[0].got] == [1]


def test_settings_with_which_nothing_could_go_out_are_refused() -> None:
    for wrong in ({"max_messages": 0}, {"max_bytes": 0}, {"max_delay_ms": -1}):
        with pytest.raises(Invalid, match=r"is a whole number, [01] to"):
            Batching(**wrong)


@pytest.mark.parametrize("first", [-1, SEQUENCES, 1 << 64])
def test_a_number_from_which_nothing_can_be_counted_is_refused(client: Client, first: int) -> None:
    with pytest.raises(Invalid, match="initial_sequence_id"):
        client.create_producer("orders", initial_sequence_id=first)


@pytest.mark.parametrize(
    "odd",
    [
        {"partition_key": ["k"]},
        {"partition_key": bytearray(b"k")},
        {"ordering_key": ("k",)},
        {"event_timestamp": True},
        {"properties": ["ab"]},
        {"delay_id": 5},
        {"deliver_after": 5},
        {"deliver_after": timedelta.max},
    ],
)
def test_an_odd_message_takes_no_others_with_it(odd: dict[str, Any]) -> None:
    """All that were gathered with it had no outcome, ever."""
    stage = Stage()
    sent = [stage.producer.send_async("before")]
    with pytest.raises(Invalid):
        stage.producer.send_async("odd", **odd)
    sent.append(stage.producer.send_async("behind"))
    stage.loop.turn()
    stage.confirm()
    assert [one.done() for one in sent] == [True, True]
    assert stage.parts[0].payloads() == [[b"before", b"behind"]]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ZeroDivisionError()])
def test_callback_that_raises_ends_nothing(error: BaseException) -> None:
    """`sys.exit` in one ended the thread that everybody waits for."""
    stage, told = Stage(), list[str]()

    def raises(*_: object) -> None:
        raise error

    stage.producer.send_async("a", raises)
    stage.producer.send_async("b", lambda *_: told.append("b"))
    stage.loop.turn()
    stage.confirm()
    assert told == ["b"]


@pytest.mark.parametrize("value", [0, -1, 1.5, float("nan"), True, None, "5", 1 << 40])
def test_a_batch_of_odd_size_is_refused(value: Any) -> None:
    for name in ("max_messages", "max_bytes"):
        with pytest.raises(Invalid, match=r"^batching_max_\w+ is a whole number, 1 to 2147483647, not "):
            Batching(**{name: value})


def test_partitions_are_flushed_together() -> None:
    """In turn, each partition had the whole time-out. Here each flush ends only when the others have begun."""
    loop, stage = LoopThread("test"), Stage(partitions=3)
    begun = list[int]()
    all_begun = asyncio.Event()

    async def flush() -> None:
        begun.append(len(begun))
        if len(begun) == len(stage.parts):
            all_begun.set()
        await all_begun.wait()

    for part in stage.parts:
        cast(Any, part).flush = flush
    cast(Any, stage.producer)._loop = loop
    try:
        stage.producer.flush(LATE_S)
    finally:
        loop.stop()
    assert begun == [0, 1, 2]

"""Payloads that are too large for one message: sent in chunks, and received as one."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pulsar
import pytest

import sluice
from sluice.actors.pulsar.codec import chunked
from sluice.cluster.client import options, producer_core, receipts, receiver_queue
from sluice.cluster.client.chunk_joiner import ChunkJoiner
from sluice.cluster.client.client import Client
from sluice.storage.errors import Invalid, SluiceError, Unavailable
from tests.cluster.helpers import PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.timeout(120)

LARGE = 12_000_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder: Path = tmp_path_factory.mktemp("data")
    with sluice.connect(embedded=True, data_dir=folder, pulsar_port=0) as client:
        yield client


@pytest.fixture
def theirs(client: Client) -> Iterator[pulsar.Client]:
    pulsars = pulsar.Client(client.pulsar_service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield pulsars
    pulsars.close()


def backlog(client: Client, topic: str) -> int:
    return sum(row["msgBacklog"] for row in client.stats(topic, "s"))


def subscribe(client: Client, topic: str, **settings: Any) -> sluice.Consumer:
    return client.subscribe(topic, "s", initial_position="earliest", **settings)


def send_without_last(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish all chunks of a message but the last, as a producer that dies does."""
    with monkeypatch.context() as patched:
        cut = chunked.cut
        patched.setattr(chunked, "cut", lambda *message: cut(*message)[:-1])
        with client.create_producer(topic, chunking_enabled=True) as producer:
            producer.send(os.urandom(LARGE), partition_key="k")


def test_a_large_payload_is_received_as_one_message(client: Client) -> None:
    client.create_topic("large", 3)
    large = os.urandom(LARGE)
    consumer = subscribe(client, "large", receiver_queue_size=1)
    with client.create_producer("large", chunking_enabled=True) as producer:
        place = producer.send(large, {"by": "till"}, partition_key="k", event_timestamp=7)
        small = producer.send(b"small", partition_key="k")
    message = consumer.receive(PATIENCE_MS)
    assert message.data() == large
    assert (message.key(), message.properties(), message.event_timestamp()) == (b"k", {"by": "till"}, 7)
    assert message.message_id() == place
    consumer.acknowledge(message)
    after = consumer.receive(PATIENCE_MS)
    assert (after.data(), after.message_id()) == (b"small", small)
    consumer.acknowledge(after, ack_receipt=True)
    assert backlog(client, "large") == 0


def test_chunks_without_a_key_come_to_one_of_two_consumers(client: Client) -> None:
    client.create_topic("keyless", 2)
    consumers = [subscribe(client, "keyless") for _ in range(2)]
    sent = [os.urandom(LARGE) for _ in range(6)]
    with client.create_producer("keyless", chunking_enabled=True) as producer:
        for each in sent:
            producer.send_async(each)
    got: list[bytes] = []
    until = time.monotonic() + PATIENCE_S
    while len(got) < len(sent) and time.monotonic() < until:
        for consumer in consumers:
            if (batch := consumer.receive_batch(50)) is not None:
                got += [message.data() for message in batch.messages()]
                consumer.acknowledge(batch, ack_receipt=True)
    assert sorted(got) == sorted(sent)
    assert backlog(client, "keyless") == 0


def test_a_message_that_is_given_back_comes_again_whole(client: Client) -> None:
    client.create_topic("again")
    large = os.urandom(LARGE)
    with client.create_producer("again", chunking_enabled=True) as producer:
        producer.send(large)
    consumer = subscribe(client, "again")
    consumer.negative_acknowledge(consumer.receive(PATIENCE_MS), delay_ms=0)
    message = consumer.receive(PATIENCE_MS)
    assert (message.data(), message.redelivery_count()) == (large, 1)
    consumer.redeliver_unacknowledged_messages()
    message = consumer.receive(PATIENCE_MS)
    assert (message.data(), message.redelivery_count()) == (large, 2)
    consumer.close()
    with subscribe(client, "again") as another:
        message = another.receive(PATIENCE_MS)
        assert message.data() == large
        another.acknowledge(message.message_id(), ack_receipt=True)
        assert backlog(client, "again") == 0


def test_a_callback_hears_once_that_all_chunks_are_stored(client: Client) -> None:
    client.create_topic("told")
    told: list[tuple[SluiceError | None, sluice.MessageId | None]] = []
    with client.create_producer("told", chunking_enabled=True) as producer:
        sent = producer.send_async(os.urandom(LARGE), lambda *outcome: told.append(outcome))
        sent.result(PATIENCE_S)
    assert told == [(None, sent.message_id())]
    with client.create_reader("told", sluice.MessageId.earliest) as reader:
        assert len(reader.read_next(PATIENCE_MS).data()) == LARGE
        assert not reader.has_message_available()


def test_asyncio_sends_and_receives_large_payloads() -> None:
    async def play() -> None:
        async with await sluice.connect_async(embedded=True) as own:
            await own.create_topic("large")
            large = os.urandom(LARGE)
            async with (
                await own.create_producer("large", chunking_enabled=True) as producer,
                await own.subscribe("large", "s", initial_position="earliest") as consumer,
            ):
                place = await producer.send(large)
                message = await consumer.receive(PATIENCE_MS)
                assert (message.data(), message.message_id()) == (large, place)

    asyncio.run(play())


@dataclass
class Picture:
    name: str
    pixels: str


@pytest.mark.parametrize("schema_type", ["json", "avro"])
def test_typed_values_may_be_large(client: Client, schema_type: Literal["json", "avro"]) -> None:
    client.create_topic(f"pictures-{schema_type}")
    sent = Picture("lake", "blue" * 3_000_000)
    consumer = client.subscribe(f"pictures-{schema_type}", "s", schema=Picture, schema_type=schema_type)
    with client.create_producer(
        f"pictures-{schema_type}", schema=Picture, schema_type=schema_type, chunking_enabled=True
    ) as producer:
        producer.send(sent)
    assert consumer.receive(PATIENCE_MS).value() == sent


@pytest.mark.parametrize(
    "codec", [pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib]
)
def test_chunks_of_pulsars_client_are_joined(client: Client, theirs: pulsar.Client, codec: Any) -> None:
    topic = f"theirs-{codec}".replace(".", "-")
    client.create_topic(topic)
    consumer = subscribe(client, topic)
    producer = theirs.create_producer(topic, chunking_enabled=True, batching_enabled=False, compression_type=codec)
    large = os.urandom(LARGE) + bytes(1_000_000)
    producer.send(large, {"by": "till"}, partition_key="k")
    message = consumer.receive(PATIENCE_MS)
    assert (message.data(), message.properties(), message.partition_key()) == (large, {"by": "till"}, "k")
    consumer.acknowledge(message, ack_receipt=True)
    assert backlog(client, topic) == 0


def test_chunks_are_joined_by_pulsars_client(client: Client, theirs: pulsar.Client) -> None:
    client.create_topic("ours")
    consumer = theirs.subscribe(
        "ours", "s", pulsar.ConsumerType.KeyShared, initial_position=pulsar.InitialPosition.Earliest
    )
    large = os.urandom(LARGE)
    with client.create_producer("ours", chunking_enabled=True, compression="lz4") as producer:
        place = producer.send(large, {"by": "till"}, partition_key="k")
        producer.send(b"small", partition_key="k")
    message = consumer.receive(PATIENCE_MS)
    assert (message.data(), message.properties(), message.partition_key()) == (large, {"by": "till"}, "k")
    at = message.message_id()
    assert (at.ledger_id(), at.entry_id()) == (place.ledger_id(), place.entry_id())
    consumer.acknowledge(message)
    assert consumer.receive(PATIENCE_MS).data() == b"small"


def test_a_message_that_its_producer_left_incomplete_expires(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_topic("left")
    monkeypatch.setattr(options, "CHUNKS_MS", 100)
    send_without_last(client, "left", monkeypatch)
    with subscribe(client, "left", expire_time_of_incomplete_chunked_message_ms=100) as consumer:
        with client.create_producer("left") as producer:
            producer.send(b"after", partition_key="k")
        after = consumer.receive(PATIENCE_MS)
        assert after.data() == b"after"
        consumer.acknowledge(after)
        until = time.monotonic() + PATIENCE_S
        while backlog(client, "left") and time.monotonic() < until:
            time.sleep(0.01)
        assert backlog(client, "left") == 0


def test_chunks_stay_while_their_last_one_waits_for_a_full_queue(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, looked, expire = chunked.cut, threading.Event(), ChunkJoiner._expire
    pieces: list[tuple[bytes, bytes]] = []

    def all_but_last(*message: Any) -> list[tuple[bytes, bytes]]:
        pieces.extend(cut(*message))
        return pieces[:-1]

    async def noted(self: ChunkJoiner, *late: Any) -> None:
        await expire(self, *late)
        looked.set()

    monkeypatch.setattr(options, "CHUNKS_MS", 100)
    monkeypatch.setattr(receiver_queue, "QUEUED_BYTES", 1)  # a queue with any message is full
    monkeypatch.setattr(ChunkJoiner, "_expire", noted)
    client.create_topic("full")
    large, others = os.urandom(LARGE), [os.urandom(5_000_000) for _ in range(4)]  # more than is fetched at once
    with client.create_producer("full", chunking_enabled=True) as producer:
        monkeypatch.setattr(chunked, "cut", all_but_last)
        producer.send(large, partition_key="k")
        for other in others:
            producer.send(other, partition_key="other")
        monkeypatch.setattr(chunked, "cut", lambda *message: pieces[-1:])
        producer.send(large, partition_key="k")
    with subscribe(client, "full", expire_time_of_incomplete_chunked_message_ms=2_000) as consumer:
        until = time.monotonic() + PATIENCE_S
        while client.stats("full", "s")[0]["unackedMessages"] < 7 and time.monotonic() < until:
            time.sleep(0.01)
        assert looked.wait(PATIENCE_S)
        assert backlog(client, "full") == 7
        got: list[sluice.Message[Any]] = []
        while len(got) < 5:
            got.append(message := consumer.receive(PATIENCE_MS))
            consumer.acknowledge(message)
        assert [message.data() for message in got] == [*others, large]


def test_a_seek_into_the_midst_of_chunks_drops_the_rest(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_topic("midst")
    monkeypatch.setattr(options, "CHUNKS_MS", 100)
    with client.create_producer("midst", chunking_enabled=True) as producer:
        place = producer.send(os.urandom(LARGE))
        last = producer.send(b"last")
    with subscribe(client, "midst", expire_time_of_incomplete_chunked_message_ms=100) as consumer:
        consumer.seek(place)
        message = consumer.receive(PATIENCE_MS)
        assert message.message_id() == last
        consumer.acknowledge(message)
        until = time.monotonic() + PATIENCE_S
        while backlog(client, "midst") and time.monotonic() < until:
            time.sleep(0.01)
        assert backlog(client, "midst") == 0


def test_chunks_that_are_stored_late_are_not_confirmed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_topic("late")
    large, told = os.urandom(LARGE), list[SluiceError | None]()
    monkeypatch.setattr(receipts, "CHUNKS_MS", -1)
    with client.create_producer("late", chunking_enabled=True) as producer:
        with pytest.raises(Unavailable, match="its outcome is unknown"):
            producer.send(large)
        with pytest.raises(Unavailable, match="its outcome is unknown"):
            producer.send_async(large, lambda error, _: told.append(error)).result(PATIENCE_S)
        producer.send(b"small")
    assert [type(error) for error in told] == [Unavailable]
    with subscribe(client, "late") as consumer:
        assert [consumer.receive(PATIENCE_MS).data() for _ in range(3)] == [large, large, b"small"]


def test_a_consumer_waits_for_chunks_as_long_as_producers_take(client: Client) -> None:
    client.create_topic("patient")
    with pytest.raises(Invalid, match="expire_time_of_incomplete_chunked_message_ms is a whole number, 60000 to"):
        subscribe(client, "patient", expire_time_of_incomplete_chunked_message_ms=59_999)


def test_a_shared_subscription_refuses_chunks(client: Client) -> None:
    client.create_topic("shared")
    with client.create_producer("shared", chunking_enabled=True) as producer:
        producer.send(os.urandom(LARGE))
    with subscribe(client, "shared", type="shared") as consumer, pytest.raises(Invalid, match="use type key_shared"):
        consumer.receive(PATIENCE_MS)


def test_sends_that_cannot_go_in_chunks_are_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_topic("refused")
    large = bytes(LARGE)
    with client.create_producer("refused") as producer, pytest.raises(Invalid, match="chunking_enabled=True"):
        producer.send(large)
    with client.create_producer("refused", chunking_enabled=True) as producer:
        with pytest.raises(Invalid, match="cannot be delayed"):
            producer.send(large, deliver_at=int(time.time() * 1000) + 60_000)
        monkeypatch.setattr(producer_core, "MOST_BYTES", LARGE - 1)
        with pytest.raises(Invalid, match="at most 11999999 bytes"):
            producer.send(large)
        producer.send(large[:-1])
    with pytest.raises(Invalid, match="chunking_enabled is True or False"):
        client.create_producer("refused", chunking_enabled="yes")  # type: ignore[arg-type]

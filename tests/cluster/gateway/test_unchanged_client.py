"""An unchanged `pulsar-client` against a cluster in this process: what its users do, and what they are told."""

from __future__ import annotations

import datetime
import socket
import time
from pathlib import Path

import pulsar
import pytest

import sluice
from sluice.cluster.client.client import Client
from tests.cluster.gateway.clients import EARLIEST, KEY_SHARED, PATIENCE, backlog, joined, received, until

pytestmark = pytest.mark.timeout(240)


def test_message_arrives_with_all_its_fields(client: pulsar.Client) -> None:
    consumer = client.subscribe("fields", "s", initial_position=EARLIEST)
    producer = client.create_producer("fields", producer_name="till")
    before = int(time.time() * 1000)
    sent = producer.send(b"paid", {"currency": "EUR", "länd": "at"}, "k1", ordering_key="o1", event_timestamp=77)
    message = consumer.receive(PATIENCE)
    assert (message.data(), message.partition_key(), message.ordering_key()) == (b"paid", "k1", "o1")
    assert (message.properties(), message.event_timestamp()) == ({"currency": "EUR", "länd": "at"}, 77)
    assert (message.producer_name(), message.redelivery_count()) == ("till", 0)
    assert before <= message.publish_timestamp() <= time.time() * 1000
    assert str(message.message_id()) == str(sent)
    assert message.topic_name() == "persistent://public/default/fields"
    consumer.acknowledge(message)


@pytest.mark.parametrize("compression", ["LZ4", "ZLib", "ZSTD", "SNAPPY", "NONE"])
def test_compressed_batches(client: pulsar.Client, compression: str) -> None:
    topic = f"packed-{compression}"
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(
        topic, compression_type=getattr(pulsar.CompressionType, compression), batching_enabled=True,
        batching_max_publish_delay_ms=50,
    )  # fmt: skip
    for number in range(200):
        producer.send_async(b"x" * number, lambda *_: None, properties={"n": str(number)})
    producer.flush()
    messages = received(consumer, 200)
    assert [len(message.data()) for message in messages] == list(range(200))
    assert [message.properties()["n"] for message in messages] == [str(number) for number in range(200)]
    ids = [message.message_id() for message in messages]
    assert len({str(one) for one in ids}) == 200
    assert {one.batch_index() for one in ids} != {-1}


def test_a_partitioned_topic_and_its_ids(server: Client, client: pulsar.Client) -> None:
    server.create_topic("wide", 4)
    assert len(client.get_topic_partitions("wide")) == 4
    consumer = client.subscribe("wide", "s", consumer_type=KEY_SHARED, initial_position=EARLIEST)
    producer = client.create_producer("wide", batching_type=pulsar.BatchingType.KeyBased)
    for number in range(100):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"k{number % 10}")
    producer.flush()
    messages = received(consumer, 100)
    for message in messages:
        consumer.acknowledge(message)
    of_key: dict[str, list[int]] = {}
    for message in messages:
        of_key.setdefault(message.partition_key(), []).append(int(message.data()))
    assert of_key == {f"k{key}": list(range(key, 100, 10)) for key in range(10)}
    assert {message.message_id().partition() for message in messages} <= {0, 1, 2, 3}
    until(lambda: backlog(server, "wide", "s") == 0)
    consumer.unsubscribe()
    assert server.subscriptions("wide") == []


def test_a_key_stays_with_one_consumer(client: pulsar.Client) -> None:
    topic = "shared-keys"
    consumers = [
        client.subscribe(topic, "s", consumer_type=KEY_SHARED, initial_position=EARLIEST, consumer_name=f"c{number}")
        for number in range(3)
    ]
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(300):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"k{number % 30}")
    producer.flush()
    holder: dict[str, int] = {}
    got: dict[str, list[int]] = {}
    deadline = time.monotonic() + 60
    while sum(map(len, got.values())) < 300 and time.monotonic() < deadline:
        for number, consumer in enumerate(consumers):
            try:
                message = consumer.receive(10)
            except pulsar.Timeout:
                continue
            assert holder.setdefault(message.partition_key(), number) == number
            got.setdefault(message.partition_key(), []).append(int(message.data()))
            consumer.acknowledge(message)
    assert got == {f"k{key}": list(range(key, 300, 30)) for key in range(30)}
    assert len(set(holder.values())) > 1


def test_a_delayed_message_is_not_early(client: pulsar.Client) -> None:
    consumer = client.subscribe("late", "s", consumer_type=pulsar.ConsumerType.Shared, initial_position=EARLIEST)
    producer = client.create_producer("late")
    sent = time.time()
    producer.send(b"later", deliver_after=datetime.timedelta(milliseconds=1500))
    producer.send(b"now")
    assert consumer.receive(PATIENCE).data() == b"now"
    assert consumer.receive(PATIENCE).data() == b"later"
    assert time.time() - sent >= 1.5


def test_given_back_and_then_dead(server: Client, client: pulsar.Client) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=2)
    consumer = client.subscribe(
        "poison", "s", consumer_type=KEY_SHARED, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=policy,
    )  # fmt: skip
    client.create_producer("poison").send(b"bad", partition_key="k")
    for count in range(3):
        message = consumer.receive(PATIENCE)
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)
    dead = client.subscribe("poison-s-DLQ", "all", initial_position=EARLIEST)
    assert dead.receive(PATIENCE).data() == b"bad"
    until(lambda: backlog(server, "poison", "s") == 0)


def test_seek_to_an_id_to_a_time_and_to_the_ends(client: pulsar.Client) -> None:
    consumer = client.subscribe("back", "s", initial_position=EARLIEST)
    producer = client.create_producer("back", batching_enabled=False)
    ids = [producer.send(b"%d" % number) for number in range(5)]
    time.sleep(0.01)
    between = int(time.time() * 1000)
    producer.send(b"5")
    assert [message.data() for message in received(consumer, 6)] == [b"%d" % number for number in range(6)]
    for target, first in ((pulsar.MessageId.earliest, b"0"), (ids[2], b"3"), (between, b"5")):
        consumer.seek(target)
        assert consumer.receive(PATIENCE).data() == first
    consumer.seek(pulsar.MessageId.latest)
    producer.send(b"6")
    assert consumer.receive(PATIENCE).data() == b"6"


def test_a_reader_reads_to_the_end_and_on(client: pulsar.Client) -> None:
    producer = client.create_producer("log", batching_enabled=True, batching_max_publish_delay_ms=100)
    for number in range(20):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    reader = client.create_reader("log", pulsar.MessageId.earliest)
    got = []
    while reader.has_message_available():
        got.append(reader.read_next(PATIENCE))
    assert [message.data() for message in got] == [b"%d" % number for number in range(20)]
    reader.seek(got[4].message_id())
    assert reader.read_next(PATIENCE).data() == b"5"
    for start, inclusive, first in ((got[7].message_id(), False, b"8"), (got[7].message_id(), True, b"7")):
        again = client.create_reader("log", start, start_message_id_inclusive=inclusive)
        assert again.read_next(PATIENCE).data() == first
    tail = client.create_reader("log", pulsar.MessageId.latest)
    assert not tail.has_message_available()
    producer.send(b"20")
    assert tail.read_next(PATIENCE).data() == b"20"


def test_native_and_wire_on_one_topic(server: Client, client: pulsar.Client) -> None:
    consumer = client.subscribe("both", "s", consumer_type=KEY_SHARED, initial_position=EARLIEST)
    ours = server.subscribe("both", "native", initial_position="earliest")
    with server.create_producer("both") as native:
        native.send(b"native", {"a": "b"}, partition_key=b"\xff\x00")
    client.create_producer("both").send(b"wire", partition_key="k")
    first, second = received(consumer, 2)
    assert (first.data(), first.properties(), second.data()) == (b"native", {"a": "b"}, b"wire")
    assert [ours.receive(PATIENCE).data() for _ in range(2)] == [b"native", b"wire"]
    for message in (first, second):
        consumer.acknowledge(message)
    until(lambda: backlog(server, "both", "s") == 0)


def test_missing_feature_is_told_at_once(client: pulsar.Client) -> None:
    began = time.monotonic()
    for name in ("persistent://other/ns/topic", "non-persistent://public/default/topic"):
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(name)
    first = client.subscribe("alone", "s", consumer_type=pulsar.ConsumerType.Exclusive)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe("alone", "s", consumer_type=pulsar.ConsumerType.Exclusive)
    first.close()
    assert time.monotonic() - began < 30


def test_ids_and_fields_survive_a_restart(tmp_path: Path) -> None:
    with sluice.connect(embedded=True, data_dir=tmp_path, pulsar_port=0) as server:
        one = joined(server)
        consumer = one.subscribe("kept", "s", consumer_type=KEY_SHARED, initial_position=EARLIEST)
        producer = one.create_producer("kept", producer_name="till", batching_max_publish_delay_ms=100)
        for number in range(10):
            producer.send_async(b"%d" % number, lambda *_: None, partition_key="k", properties={"n": str(number)})
        producer.flush()
        messages = received(consumer, 10)
        before = [(str(m.message_id()), m.data(), m.properties(), m.producer_name()) for m in messages]
        kept = messages[3].message_id().serialize()
        one.close()
    with sluice.connect(embedded=True, data_dir=tmp_path, pulsar_port=0) as server:
        one = joined(server)
        consumer = one.subscribe("kept", "s", consumer_type=KEY_SHARED)
        again = received(consumer, 10)
        assert [(str(m.message_id()), m.data(), m.properties(), m.producer_name()) for m in again] == before
        for message in again:
            consumer.acknowledge(message)
        until(lambda: backlog(server, "kept", "s") == 0)
        reader = one.create_reader("kept", pulsar.MessageId.deserialize(kept))
        assert reader.read_next(PATIENCE).data() == b"4"
        one.close()


def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(sluice.Unavailable, match=f"port {port} is in use") as told:
            sluice.connect(embedded=True, pulsar_port=port)
    assert "\n" not in str(told.value)

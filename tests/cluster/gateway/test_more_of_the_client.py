"""Features of `pulsar-client` that fewer users need: types of subscriptions, schemas, patterns, chunks, limits."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pulsar
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String, StringSchema

from sluice.cluster.client.client import Client
from tests.cluster.gateway.clients import EARLIEST, KEY_SHARED, PATIENCE, backlog, nothing_comes, received, until

pytestmark = pytest.mark.timeout(240)

SHARED, FAILOVER = pulsar.ConsumerType.Shared, pulsar.ConsumerType.Failover
STICKY = pulsar.KeySharedMode.Sticky


class Order(Record):  # type: ignore[misc]
    """A record with a schema."""

    article = String()
    count = Integer()


def send_batch(client: pulsar.Client, topic: str, count: int) -> Any:
    """Send `count` messages in one batch, and return the producer."""
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    for number in range(count):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    return producer


def row_of(message: pulsar.Message) -> int:
    """Return the row of a message in its ledger, whether it came in a batch or alone."""
    place = message.message_id()
    return int(place.entry_id()) + max(int(place.batch_index()), 0)


def test_single_messages_of_a_batch_are_done_for_good(server: Client, client: pulsar.Client) -> None:
    consumer = client.subscribe(
        "index", "s", initial_position=EARLIEST, consumer_type=SHARED, batch_index_ack_enabled=True
    )
    send_batch(client, "index", 10)
    messages = received(consumer, 10)
    for number in (0, 2, 3, 7):
        consumer.acknowledge(messages[number])
    until(lambda: backlog(server, "index", "s") == 6)
    consumer.redeliver_unacknowledged_messages()
    again = received(consumer, 6)
    assert [message.data() for message in again] == [b"1", b"4", b"5", b"6", b"8", b"9"]
    assert {message.redelivery_count() for message in again} == {1}
    assert [row_of(message) for message in again] == [row_of(messages[number]) for number in (1, 4, 5, 6, 8, 9)]
    for message in again:
        consumer.acknowledge(message)
    until(lambda: backlog(server, "index", "s") == 0)


def test_everything_up_to_a_message_is_done(server: Client, client: pulsar.Client) -> None:
    consumer = client.subscribe("upto", "s", initial_position=EARLIEST)
    producer = send_batch(client, "upto", 10)
    for number in range(10, 15):
        producer.send(b"%d" % number)
    consumer.acknowledge_cumulative(received(consumer, 15)[11])
    until(lambda: backlog(server, "upto", "s") == 3)
    consumer.close()
    consumer = client.subscribe("upto", "s")
    assert [message.data() for message in received(consumer, 3)] == [b"12", b"13", b"14"]


def test_an_id_of_an_earlier_connection_is_acknowledged(server: Client, client: pulsar.Client) -> None:
    consumer = client.subscribe("early", "s", initial_position=EARLIEST, consumer_type=SHARED)
    send_batch(client, "early", 5)
    kept = [message.message_id() for message in received(consumer, 5)]
    consumer.close()
    consumer = client.subscribe("early", "s", consumer_type=SHARED, receiver_queue_size=0)
    for one in kept:
        consumer.acknowledge(one)
    until(lambda: backlog(server, "early", "s") == 0)


def test_a_line_divides_the_partitions(server: Client, client: pulsar.Client) -> None:
    """By the names of the consumers, as Pulsar does; who stays gets what the other had."""
    server.create_topic("lines", partitions=4)
    consumers = {
        name: client.subscribe("lines", "s", initial_position=EARLIEST, consumer_type=FAILOVER, consumer_name=name)
        for name in ("b", "a")
    }
    producers = [client.create_producer(f"lines-partition-{partition}") for partition in range(4)]
    for producer in producers:
        producer.send(b"first")
    for name, mine in (("a", [0, 2]), ("b", [1, 3])):
        got = received(consumers[name], 2)
        assert sorted(message.message_id().partition() for message in got) == mine
        for message in got:
            consumers[name].acknowledge(message)
    until(lambda: backlog(server, "lines", "s") == 0)
    consumers["a"].close()
    for producer in producers:
        producer.send(b"second")
    assert {message.message_id().partition() for message in received(consumers["b"], 4)} == {0, 1, 2, 3}


def test_the_next_in_line_takes_over(client: pulsar.Client) -> None:
    first, second = (
        client.subscribe("line", "s", initial_position=EARLIEST, consumer_type=FAILOVER, consumer_name=name)
        for name in ("a", "b")
    )
    producer = client.create_producer("line")
    producer.send(b"1")
    message = first.receive(PATIENCE)
    assert nothing_comes(second, 200)
    first.acknowledge(message)
    first.close()
    producer.send(b"2")
    got = second.receive(PATIENCE)
    if got.data() == b"1":  # the first one left before its acknowledgement went out
        got = second.receive(PATIENCE)
    assert got.data() == b"2"


def test_ranges_of_hashes_do_not_overlap(client: pulsar.Client) -> None:
    def subscribe(first: int, last: int) -> Any:
        policy = pulsar.ConsumerKeySharedPolicy(key_shared_mode=STICKY, sticky_ranges=[(first, last)])
        return client.subscribe(
            "ranges", "s", initial_position=EARLIEST, consumer_type=KEY_SHARED, key_shared_policy=policy
        )

    consumers = [subscribe(0, 32767), subscribe(32768, 65535)]
    with pytest.raises(pulsar.ConsumerAssignError):
        subscribe(100, 200)
    producer = client.create_producer("ranges")
    for number in range(20):
        producer.send(b"%d" % number, partition_key=f"k{number}")
    counts = [0, 0]
    while sum(counts) < 20:
        for number, consumer in enumerate(consumers):
            try:
                consumer.acknowledge(consumer.receive(20))
                counts[number] += 1
            except pulsar.Timeout:
                pass
    assert min(counts) > 0


def test_topics_by_a_pattern(client: pulsar.Client) -> None:
    producers = [client.create_producer(f"pattern-{number}") for number in range(2)]
    pattern = re.compile("persistent://public/default/pattern-.*")
    consumer = client.subscribe(pattern, "s", initial_position=EARLIEST)
    for number, producer in enumerate(producers):
        producer.send(b"%d" % number)
    assert sorted(message.data() for message in received(consumer, 2)) == [b"0", b"1"]


def test_schemas_are_versions(client: pulsar.Client) -> None:
    text = client.subscribe("texts", "s", initial_position=EARLIEST, schema=StringSchema())
    client.create_producer("texts", schema=StringSchema()).send("größer")
    assert text.receive(PATIENCE).value() == "größer"
    consumer = client.subscribe("records", "s", initial_position=EARLIEST, schema=JsonSchema(Order))
    client.create_producer("records", schema=JsonSchema(Order)).send(Order(article="pen", count=3))
    message = consumer.receive(PATIENCE)
    assert (message.value().article, message.value().count) == ("pen", 3)
    assert message.schema_version() == "\0" * 8
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("records", schema=StringSchema())


def test_chunks_of_a_large_message_pass_through(client: pulsar.Client) -> None:
    consumer = client.subscribe("chunks", "s", initial_position=EARLIEST)
    producer = client.create_producer(
        "chunks", batching_enabled=False, chunking_enabled=True, compression_type=pulsar.CompressionType.LZ4
    )
    large = os.urandom(12_000_000)
    sent = producer.send(large)
    message = consumer.receive(PATIENCE)
    assert message.data() == large
    assert str(message.message_id()) == str(sent)


def test_chunks_without_a_key_come_to_one_of_two(client: pulsar.Client) -> None:
    got: list[bytes] = []

    def heard(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        got.append(message.data())
        consumer.acknowledge(message)

    for _ in range(2):
        client.subscribe(
            "chunks-split", "s", consumer_type=KEY_SHARED, initial_position=EARLIEST, message_listener=heard
        )
    producer = client.create_producer("chunks-split", batching_enabled=False, chunking_enabled=True)
    sent = [os.urandom(12_000_000) for _ in range(4)]
    for each in sent:
        producer.send(each)
    until(lambda: len(got) >= len(sent))
    assert sorted(got) == sorted(sent)


def test_a_message_that_is_refused_harms_no_other(client: pulsar.Client) -> None:
    consumer = client.subscribe("refused", "s", initial_position=EARLIEST)
    producer = client.create_producer("refused")
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"never", partition_key="k" * 2000)
    producer.send(b"x" * (5 * 1024 * 1024 - 200), partition_key="k")
    assert len(consumer.receive(PATIENCE).data()) == 5 * 1024 * 1024 - 200
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer("refused", producer_name=producer.producer_name())


def test_repeated_message_is_stored_once(server: Client, client: pulsar.Client) -> None:
    """Over a reconnection and by the producer's name; the client learns where it stands."""
    server.create_topic("once", deduplication_enabled=True)
    consumer = client.subscribe("once", "s", initial_position=EARLIEST)
    producer = client.create_producer("once", producer_name="till", batching_enabled=False)
    for number in range(5):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    assert producer.last_sequence_id() == 4
    producer.close()
    again = client.create_producer("once", producer_name="till", batching_enabled=False, initial_sequence_id=2)
    for number in range(3, 8):
        again.send(b"%d" % number)
    assert [message.data() for message in received(consumer, 8)] == [b"%d" % number for number in range(8)]
    assert nothing_comes(consumer)
    again.close()
    assert client.create_producer("once", producer_name="till").last_sequence_id() == 7


def test_chunks_on_a_topic_with_deduplication_arrive(server: Client, client: pulsar.Client) -> None:
    """All of them have one sequence id, and none is stored twice when the producer sends the message again."""
    server.create_topic("chunks-once", deduplication_enabled=True)
    consumer = client.subscribe("chunks-once", "s", initial_position=EARLIEST)
    asked = {"producer_name": "till", "batching_enabled": False, "chunking_enabled": True}
    large = os.urandom(15 * 1024 * 1024)
    producer = client.create_producer("chunks-once", **asked)
    sent = [b"first", b"second", large]
    for each in sent:
        producer.send(each)
    assert [message.data() for message in received(consumer, 3)] == sent
    stored = backlog(server, "chunks-once", "s")
    assert (stored, producer.last_sequence_id()) == (6, 2)
    producer.close()
    again = client.create_producer("chunks-once", initial_sequence_id=1, **asked)
    again.send(large)
    assert backlog(server, "chunks-once", "s") == stored
    again.send(b"last")
    assert consumer.receive(PATIENCE).data() == b"last"
    again.close()
    assert client.create_producer("chunks-once", **asked).last_sequence_id() == 3


def test_a_message_that_is_refused_leaves_no_gap(server: Client, client: pulsar.Client) -> None:
    """On a topic with deduplication, while others are under way: those are stored once, in order."""
    server.create_topic("refused-once", deduplication_enabled=True)
    consumer = client.subscribe("refused-once", "s", initial_position=EARLIEST)
    producer = client.create_producer("refused-once", batching_enabled=False)
    outcomes: dict[int, Any] = {}
    for number in range(12):
        key = "k" * 2000 if number == 5 else "k"
        producer.send_async(
            b"%d" % number, lambda how, _, number=number: outcomes.update({number: how}), partition_key=key
        )
    until(lambda: len(outcomes) == 12)
    fine = [number for number in range(12) if outcomes[number] == pulsar.Result.Ok]
    assert fine == [number for number in range(12) if number != 5]
    assert [message.data() for message in received(consumer, 11)] == [b"%d" % number for number in fine]
    assert nothing_comes(consumer)


def test_a_topic_for_one_producer(client: pulsar.Client) -> None:
    mode = pulsar.ProducerAccessMode
    first = client.create_producer("own", access_mode=mode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer("own")
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer("own", access_mode=mode.Exclusive)
    second = client.create_producer("own", access_mode=mode.ExclusiveWithFencing)
    second.send(b"mine")
    with pytest.raises(pulsar.PulsarException):
        first.send(b"no more")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.create_producer, "own", access_mode=mode.WaitForExclusive)
        assert not waiting.done()
        second.close()
        waiting.result(PATIENCE / 1000).send(b"at last")


def test_acknowledging_again_takes_nothing_from_others(server: Client, client: pulsar.Client) -> None:
    """A producer's batch is shared by two, and the client of one of them says the ids of its part again."""
    first, second = (
        client.subscribe(
            "shared-out",
            "s",
            initial_position=EARLIEST,
            consumer_type=pulsar.ConsumerType.KeyShared,
            consumer_name=name,
            batch_index_ack_enabled=True,
        )
        for name in ("a", "b")
    )
    producer = client.create_producer("shared-out", batching_enabled=True, batching_max_publish_delay_ms=200)
    for number in range(200):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"key-{number % 20}")
    producer.flush()
    until(lambda: sum(row["unackedMessages"] for row in server.stats("shared-out", "s")) == 200)
    stats = server.stats("shared-out", "s")[0]
    mine = next(row["unackedMessages"] for row in stats["consumers"] if row["consumerName"] == "a")
    assert 0 < mine < 200
    done = set()
    for message in received(first, mine):
        done.add(message.data())
        for _ in range(3):
            first.acknowledge(message)
    until(lambda: backlog(server, "shared-out", "s") <= 200 - mine)
    second.close()
    assert {message.data() for message in received(first, 200 - mine)} == {b"%d" % n for n in range(200)} - done


@pytest.mark.parametrize("batched", [False, True])
def test_message_that_fails_too_often_is_moved(server: Client, client: pulsar.Client, batched: bool) -> None:
    """By a subscription that counts redeliveries itself. Of a batch the middle alone fails, and comes alone then."""
    topic = f"failing-{batched}"
    server.create_topic(topic)
    producer = client.create_producer(topic, batching_enabled=batched, batching_max_publish_delay_ms=1000)
    for name in ("first", "bad", "last"):
        producer.send_async(name.encode(), lambda *_: None, partition_key=name, event_timestamp=7)
    producer.flush()
    with server.subscribe(topic, "s", initial_position="earliest", max_redeliver_count=1) as consumer:
        place = ""
        for _ in range(4):
            message = consumer.receive(PATIENCE)
            if message.data() == b"bad":
                place = f"{message.message_id()}"
                consumer.negative_acknowledge(message, delay_ms=0)
            else:
                consumer.acknowledge(message)
        until(lambda: f"{topic}-s-DLQ" in [row["topic"] for row in server.topics()])
    looking = client.subscribe(f"{topic}-s-DLQ", "look", initial_position=EARLIEST)
    moved = looking.receive(PATIENCE)
    assert (moved.data(), moved.partition_key(), moved.event_timestamp()) == (b"bad", "bad", 7)
    assert moved.properties() == {"REAL_TOPIC": topic, "ORIGIN_MESSAGE_ID": place}
    last = looking.get_last_message_id()
    assert (last.ledger_id(), last.entry_id()) == (moved.message_id().ledger_id(), moved.message_id().entry_id())
    looking.acknowledge(moved)
    looking.close()

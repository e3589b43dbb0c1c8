"""Behaviour that clients take for granted of a broker, where the protocol alone does not say it."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

from sluice.actors.pulsar.codec.frames import encode
from sluice.actors.pulsar.codec.protocol import Metadata, ServerError, command
from sluice.actors.pulsar.conversation.consuming.wire_consumer import MOST_GRANTED
from sluice.cluster.client.client import Client
from tests.cluster.gateway.clients import EARLIEST, PATIENCE, backlog, nothing_comes, received, until
from tests.cluster.gateway.raw import Raw

pytestmark = pytest.mark.timeout(240)

EXCLUSIVE, SHARED, FAILOVER = 0, 1, 2
NOWHERE = (1 << 64) - 1


def sent_batch(client: pulsar.Client, topic: str, count: int) -> None:
    """One batch of messages 0, 1, ..."""
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=10_000)
    for number in range(count):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    producer.close()


def subscribe(raw: Raw, topic: str, number: int = 0, **asked: Any) -> None:
    """A consumer by hand."""
    asked = {"subscription": "s", "initial_position": 1, "consumer_name": f"c{number}"} | asked
    raw.say("subscribe", topic=topic, consumer_id=number, request_id=number, **asked)


def test_rest_of_a_batch_keeps_its_ids(server: Client, client: pulsar.Client) -> None:
    """Clients that acknowledge single messages of a batch rely on this."""

    def subscribed() -> pulsar.Consumer:
        return client.subscribe("left", "s", initial_position=EARLIEST, batch_index_ack_enabled=True)

    consumer = subscribed()
    sent_batch(client, "left", 10)
    first = {message.data(): message for message in received(consumer, 10)}
    for number in (0, 1, 4, 9):
        consumer.acknowledge(first[b"%d" % number])
    until(lambda: backlog(server, "left", "s") == 6)
    consumer.close()
    consumer = subscribed()
    again = received(consumer, 6)
    assert [message.data() for message in again] == [b"2", b"3", b"5", b"6", b"7", b"8"]
    assert [message.message_id() for message in again] == [first[message.data()].message_id() for message in again]
    for message in again[:5]:
        consumer.acknowledge(message)
    until(lambda: backlog(server, "left", "s") == 1)
    consumer.acknowledge(again[5])
    until(lambda: backlog(server, "left", "s") == 0)


def test_a_batch_for_which_there_is_no_room_is_sent_whole(server: Client, client: pulsar.Client) -> None:
    """As Pulsar does it. A client may say twice that it is done with a message."""
    consumer = client.subscribe("no-room", "s", initial_position=EARLIEST, receiver_queue_size=3)
    for _ in range(4):
        sent_batch(client, "no-room", 10)
    found = []
    for _ in range(40):
        message = consumer.receive(PATIENCE)
        found.append((int(message.data()), message.message_id().batch_index()))
        consumer.acknowledge_cumulative(message)
        consumer.acknowledge(message)
    assert found == [(number, number) for number in range(10)] * 4
    until(lambda: backlog(server, "no-room", "s") == 0)


def test_up_to_a_message_of_a_part_of_a_batch(server: Client, client: pulsar.Client) -> None:
    """The client says the id before that of the part that it is in the middle of: a message that was skipped."""
    consumer = client.subscribe("middle", "s", initial_position=EARLIEST)
    consumer.close()
    sent_batch(client, "middle", 10)
    server.admin("middle", "s", "skip", messages=3)
    consumer = client.subscribe("middle", "s", initial_position=EARLIEST)
    fifth = received(consumer, 5)[-1]
    assert (int(fifth.data()), fifth.message_id().batch_index()) == (7, 4)
    consumer.acknowledge_cumulative(fifth)
    consumer.close()
    consumer = client.subscribe("middle", "s", initial_position=EARLIEST)
    assert int(consumer.receive(PATIENCE).data()) == 3


@pytest.mark.parametrize(("ack_set", "left"), [([], 0), ([0b111000], 3)], ids=["all", "a part"])
def test_up_to_an_id_of_an_earlier_connection(
    server: Client, client: pulsar.Client, raw: Raw, ack_set: list[int], left: int
) -> None:
    """Everything up to an id in a batch is done, however much of the batch this connection was sent."""
    topic = f"up-to-{left}"
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    for count in (4, 6):
        sent_batch(client, topic, count)
    last = received(consumer, 10)[-1].message_id()
    consumer.close()
    raw.greet()
    subscribe(raw, topic)
    raw.next("success")
    known = {"ledger": last.ledger_id(), "entry": last.entry_id(), "ack_set": ack_set}
    raw.say("ack", consumer_id=0, ack_type=1, message_id=[known], request_id=5)
    raw.say("flow", consumer_id=0, permits=100)
    assert raw.next("ack_answer").message == ""
    until(lambda: backlog(server, topic, "s") == left)


def test_a_reader_begins_at_the_last_message_or_behind_it(client: pulsar.Client) -> None:
    sent_batch(client, "ends", 3)
    reader = client.create_reader("ends", pulsar.MessageId.latest)
    assert not reader.has_message_available()
    reader.close()
    reader = client.create_reader("ends", pulsar.MessageId.latest, start_message_id_inclusive=True)
    assert reader.has_message_available()
    assert reader.read_next(PATIENCE).data() == b"2"
    assert not reader.has_message_available()
    reader.close()


def test_a_reader_waits_for_nothing_that_is_gone(server: Client, client: pulsar.Client) -> None:
    """A message that every subscription has passed is deleted, and is not the last message any more."""
    server.create_topic("gone", roll_entries=5, retention_ms=0)
    consumer = client.subscribe("gone", "s", initial_position=EARLIEST)
    producer = client.create_producer("gone")
    reader = client.create_reader("gone", pulsar.MessageId.earliest)
    for number in range(5):
        producer.send(b"%d" % number)
    assert reader.has_message_available()
    for message in received(consumer, 5):
        consumer.acknowledge(message)

    def nothing_is_left() -> bool:
        later = client.create_reader("gone", pulsar.MessageId.earliest)
        left = later.has_message_available()
        later.close()
        return not left

    until(nothing_is_left)
    producer.send(b"next")
    assert client.create_reader("gone", pulsar.MessageId.earliest).read_next(PATIENCE).data() == b"next"


def test_a_reader_is_told_what_lies_before_its_start(client: pulsar.Client, raw: Raw) -> None:
    sent_batch(client, "before", 3)
    raw.greet()
    told = []
    for number, start in enumerate(
        [{"ledger": NOWHERE >> 1, "entry": NOWHERE >> 1}, {"ledger": NOWHERE, "entry": NOWHERE}]
    ):
        subscribe(raw, "before", number, subscription=f"s{number}", durable=False, start_message_id=start)
        raw.next("success")
        raw.say("get_last_id", consumer_id=number, request_id=9)
        told.append(raw.next("last_id_answer"))
    latest, earliest = told
    assert (latest.mark_delete.ledger, latest.mark_delete.entry) == (latest.last.ledger, latest.last.entry)
    assert (latest.last.batch_index, earliest.mark_delete.entry) == (2, NOWHERE)
    assert earliest.mark_delete.ledger == latest.last.ledger


def test_readers_of_one_name_keep_each_other_out(server: Client, raw: Raw) -> None:
    """On a partition, as long as the earlier one is there."""
    server.create_topic("alone", partitions=2)
    raw.greet()
    subscribe(raw, "alone-partition-0", 0, durable=False)
    raw.next("success")
    subscribe(raw, "alone-partition-0", 1, durable=False)
    raw.next("ping")
    raw.say("pong")
    assert raw.next("error").error == ServerError.CONSUMER_BUSY
    subscribe(raw, "alone-partition-1", 2, durable=False)
    assert raw.next("success").request_id == 2
    raw.say("close_consumer", consumer_id=0, request_id=5)
    raw.next("success")
    subscribe(raw, "alone-partition-0", 3, durable=False)
    assert raw.next("success").request_id == 3


def test_a_reader_that_shows_no_sign_of_life_makes_room(server: Client, raw: Raw) -> None:
    silent = Raw(server.pulsar_service_url)
    for one in (silent, raw):
        one.greet()
        subscribe(one, "silent", durable=False)
        one.next("success")
    assert silent.closed()


def test_a_table_of_the_last_values(client: pulsar.Client, raw: Raw) -> None:
    """The topic is not compacted, so its reader is given everything, and the client keeps the last values."""
    producer = client.create_producer("table")
    for value in (b"old", b"new"):
        producer.send(value, partition_key="k")
    view = client.create_table_view("table")
    assert view.get("k") == b"new"
    view.close()
    raw.greet()
    subscribe(raw, "table", 0, type=SHARED, read_compacted=True)
    assert raw.next("error").error == ServerError.NOT_ALLOWED


def test_a_subscription_that_is_made_with_a_producer(raw: Raw, client: pulsar.Client) -> None:
    """Producers of dead letters ask for one, so that nothing is lost before the first consumer comes."""
    raw.greet()
    raw.say("producer", topic="dead", producer_id=0, request_id=1, initial_subscription="later")
    assert raw.next("producer_success").producer_ready
    client.create_producer("dead").send(b"x")
    assert client.subscribe("dead", "later").receive(PATIENCE).data() == b"x"


def test_a_name_that_is_made_up_is_short(raw: Raw) -> None:
    """So that 32 bytes are enough for what stands beside a message, which clients count on."""
    raw.greet()
    raw.say("producer", topic="short", producer_id=0, request_id=1)
    name = raw.next("producer_success").producer_name
    assert len(Metadata(producer_name=name.encode(), sequence_id=1, publish_time=1 << 41).SerializeToString()) <= 32


def test_message_small_enough_when_compressed_passes(client: pulsar.Client) -> None:
    consumer = client.subscribe("squeezed", "s", initial_position=EARLIEST)
    data = b"paid " * 1_300_000
    for batching in (False, True):
        producer = client.create_producer(
            "squeezed", compression_type=pulsar.CompressionType.ZLib, batching_enabled=batching
        )
        producer.send(data, {"batched": str(batching)})
        message = consumer.receive(PATIENCE)
        assert (message.data(), message.properties()) == (data, {"batched": str(batching)})
        consumer.acknowledge(message)
    assert nothing_comes(consumer)


def test_refused_subscription_is_told_why(raw: Raw) -> None:
    raw.greet()
    subscribe(raw, "in-vain", 0, type=3, key_shared={"mode": 1})
    assert raw.next("error").error == ServerError.CONSUMER_ASSIGN
    subscribe(raw, "in-vain", 1, subscription="")
    assert raw.next("error").error == ServerError.PRODUCER_BUSY


def test_a_passing_subscription_goes_with_its_last_consumer(server: Client, raw: Raw, client: pulsar.Client) -> None:
    raw.greet()
    for number in (0, 1):
        subscribe(raw, "passing", number, type=SHARED, durable=False, initial_position=0)
        raw.next("success")
    assert server.subscriptions("passing") == ["s"]
    raw.say("close_consumer", consumer_id=0, request_id=5)
    raw.next("success")
    assert server.subscriptions("passing") == ["s"]
    raw.close()
    until(lambda: server.subscriptions("passing") == [])


def test_failover_consumers_learn_which_one_is_active(raw: Raw) -> None:
    raw.greet()
    told = []
    subscribe(raw, "relay", 0, type=FAILOVER, consumer_name="a")
    told.append(raw.next("active_consumer"))
    subscribe(raw, "relay", 1, type=FAILOVER, consumer_name="b")
    told.append(raw.next("active_consumer"))
    raw.say("close_consumer", consumer_id=0, request_id=5)
    told.append(raw.next("active_consumer"))
    assert [(each.consumer_id, each.is_active) for each in told] == [(0, True), (1, False), (1, True)]


def test_new_consumer_changes_the_active_one(server: Client, raw: Raw) -> None:
    """The second partition belongs to the second name, of the first level of priorities."""
    server.create_topic("turns", partitions=2)
    raw.greet()
    told: dict[int, bool] = {}
    for number, (name, level) in enumerate([("c", 1), ("b", 0), ("a", 0)]):
        options = {"type": FAILOVER, "consumer_name": name, "priority_level": level}
        subscribe(raw, "turns-partition-1", number, **options)
        while told.get(number) is None or list(told.values()).count(True) != 1:
            said = raw.next("active_consumer")
            told[said.consumer_id] = said.is_active
        assert told == [{0: True}, {0: False, 1: True}, {0: False, 1: True, 2: False}][number]


def test_permits_without_measure_are_given_a_little_at_a_time(raw: Raw, client: pulsar.Client) -> None:
    raw.greet()
    subscribe(raw, "greedy", 0)
    raw.next("success")  # what is granted before is granted to nobody
    for _ in range(3):
        raw.say("flow", consumer_id=0, permits=(1 << 32) - 1)
    sent_batch(client, "greedy", 5)
    assert raw.next("message").consumer_id == 0
    raw.say("consumer_stats", consumer_id=0, request_id=7)
    assert raw.next("consumer_stats_answer").available_permits == 3 * ((1 << 32) - 1) - 5
    assert MOST_GRANTED < 1 << 20


@pytest.mark.parametrize(
    ("name", "asked", "code"),
    [
        ("lookup", {"topic": "here", "listener": "inside"}, ServerError.NOT_ALLOWED),
        ("partition_metadata", {"topic": "persistent://tenant/ns/there"}, ServerError.TOPIC_NOT_FOUND),
    ],
)
def test_missing_service_is_told_in_its_own_answer(raw: Raw, name: str, asked: dict[str, Any], code: int) -> None:
    raw.greet()
    raw.say(name, request_id=3, **asked)
    assert raw.next(f"{name}_answer").error == code


def test_to_ask_for_partitions_makes_no_topic(server: Client, client: pulsar.Client) -> None:
    """The topic has no partitions yet, so it can still be made with some, or by its first use."""
    asked = "persistent://public/default/asked"
    assert client.get_topic_partitions("asked") == [asked]
    assert "asked" not in [row["topic"] for row in server.topics()]
    server.create_topic("asked", 3)
    assert client.get_topic_partitions("asked") == [f"{asked}-partition-{number}" for number in range(3)]
    client.create_producer("used").close()
    assert "used" in [row["topic"] for row in server.topics()]


def test_there_are_no_topics_where_there_is_no_namespace(raw: Raw) -> None:
    raw.greet()
    raw.say("topics_of", request_id=3, namespace="public/other")
    assert list(raw.next("topics_of_answer").topics) == []


def test_nothing_is_read_twice_after_a_seek(client: pulsar.Client) -> None:
    consumer = client.subscribe("twice", "s", initial_position=EARLIEST)
    sent_batch(client, "twice", 3)
    messages = received(consumer, 3)
    consumer.seek(pulsar.MessageId.earliest)
    assert [message.data() for message in received(consumer, 3)] == [message.data() for message in messages]
    assert nothing_comes(consumer)


def test_acknowledgement_before_a_close_counts(server: Client, client: pulsar.Client, raw: Raw) -> None:
    """Also by ids of an earlier connection, which are looked up first."""
    producer = client.create_producer("closes", batching_enabled=False)
    consumer = client.subscribe("closes", "s")
    ids = [producer.send(b"%d" % number) for number in range(20)]
    consumer.close()
    raw.greet()
    subscribe(raw, "closes")
    raw.next("success")
    known = [{"ledger": one.ledger_id(), "entry": one.entry_id()} for one in ids]
    acknowledge = command("ack", consumer_id=0, message_id=known)
    raw.send(encode(acknowledge) + encode(command("close_consumer", consumer_id=0, request_id=1)))
    assert raw.next("success").request_id == 1
    until(lambda: backlog(server, "closes", "s") == 0)


def test_messages_given_back_together_return_in_order(client: pulsar.Client, raw: Raw) -> None:
    producer = client.create_producer("in-order", batching_enabled=False)
    for number in range(6):
        producer.send(b"%d" % number)
    raw.greet()
    subscribe(raw, "in-order", type=SHARED)
    raw.next("success")
    entries = []
    for _ in range(6):  # one by one, as a client without a queue
        raw.say("flow", consumer_id=0, permits=1)
        entries.append(raw.next("message").message_id)
    back = [{"ledger": one.ledger, "entry": one.entry} for one in reversed(entries)]
    raw.say("redeliver", consumer_id=0, message_ids=back)
    again = []
    for _ in range(6):
        raw.say("flow", consumer_id=0, permits=1)
        again.append(raw.next("message").message_id.entry)
    assert again == [one.entry for one in entries]

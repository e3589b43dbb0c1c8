"""A compacted topic as an unchanged client reads it: by readers, table views and subscriptions."""

from __future__ import annotations

import pulsar
import pytest

from sluice.cluster.client.client import Client
from tests.cluster.gateway.clients import EARLIEST, PATIENCE, backlog, nothing_comes, received, until

pytestmark = pytest.mark.timeout(240)


def compact(server: Client, topic: str) -> None:
    server.compact(topic)
    until(lambda: not any(row["asked"] for row in server.compaction_status(topic)))


def publish(client: pulsar.Client, topic: str, *values: tuple[str, bytes | None], batched: bool = False) -> None:
    producer = client.create_producer(topic, batching_enabled=batched, batching_max_publish_delay_ms=10_000)
    for key, value in values:
        producer.send_async(value, lambda *_: None, partition_key=key)
    producer.flush()
    producer.close()


def read(reader: pulsar.Reader) -> list[tuple[str, bytes]]:
    """All that there is for it now."""
    found = []
    while reader.has_message_available():
        message = reader.read_next(PATIENCE)
        found.append((message.partition_key(), message.data()))
    return found


def reader_of(client: pulsar.Client, topic: str) -> pulsar.Reader:
    return client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)


@pytest.mark.parametrize("batched", [False, True])
def test_a_reader_begins_with_the_last_messages(server: Client, client: pulsar.Client, batched: bool) -> None:
    topic = f"read-{batched}"
    values: list[tuple[str, bytes | None]] = [("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("b", b"")]
    publish(client, topic, *values, batched=batched)
    assert len(read(reader_of(client, topic))) == 5, "nobody has compacted it"
    compact(server, topic)
    reader = reader_of(client, topic)
    assert read(reader) == [("a", b"2"), ("c", b"1")]
    publish(client, topic, ("a", b"3"), ("a", b"4"), batched=batched)
    assert read(reader) == [("a", b"3"), ("a", b"4")], "it goes on in the log"
    compact(server, topic)
    assert read(reader_of(client, topic)) == [("c", b"1"), ("a", b"4")]
    assert len(read(client.create_reader(topic, pulsar.MessageId.earliest))) == 7


def test_a_reader_comes_back_where_it_was(server: Client, client: pulsar.Client) -> None:
    publish(client, "back", ("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"))
    compact(server, "back")
    first = reader_of(client, "back").read_next(PATIENCE)
    assert first.data() == b"1"
    reader = client.create_reader("back", first.message_id(), is_read_compacted=True)
    assert read(reader) == [("a", b"2"), ("c", b"1")]
    reader.seek(pulsar.MessageId.earliest)
    assert read(reader) == [("b", b"1"), ("a", b"2"), ("c", b"1")]


def test_a_table_view_begins_with_the_last_messages(server: Client, client: pulsar.Client) -> None:
    publish(client, "table", ("a", b"1"), ("b", b"1"), ("a", b"2"), ("b", None), ("d", b""))
    compact(server, "table")
    view = client.create_table_view("table")
    assert (len(view), view.get("a")) == (1, b"2")
    publish(client, "table", ("c", b"1"), ("a", b"3"))
    until(lambda: view.get("a") == b"3" and view.get("c") == b"1")
    view.close()


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover])
def test_a_subscription_reads_compacted(server: Client, client: pulsar.Client, kind: pulsar.ConsumerType) -> None:
    topic = f"subscribed-{kind.name}"

    def subscribed() -> pulsar.Consumer:
        return client.subscribe(topic, "s", consumer_type=kind, initial_position=EARLIEST, is_read_compacted=True)

    subscribed().close()
    publish(client, topic, ("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("b", None))
    compact(server, topic)
    consumer = subscribed()
    messages = received(consumer, 2)
    assert [message.data() for message in messages] == [b"2", b"1"]
    consumer.acknowledge(messages[0])
    until(lambda: backlog(server, topic, "s") == 1)
    consumer.close()
    # What was not acknowledged comes again, and what was compacted away is done.
    consumer = subscribed()
    again = consumer.receive(PATIENCE)
    assert (again.partition_key(), again.data()) == ("c", b"1")
    publish(client, topic, ("a", b"3"), ("a", b"4"))
    more = received(consumer, 2)
    assert [message.data() for message in more] == [b"3", b"4"]
    consumer.acknowledge_cumulative(more[-1])
    until(lambda: backlog(server, topic, "s") == 0)
    assert nothing_comes(consumer)


def test_message_compacted_away_counts_as_done(server: Client, client: pulsar.Client) -> None:
    """Also where nothing of it was read before: the cursor passes it over."""
    publish(client, "away", ("a", b"1"), ("b", b"1"), ("b", None), ("a", b"2"), ("c", b"1"), ("c", b""))
    compact(server, "away")
    consumer = client.subscribe("away", "s", initial_position=EARLIEST, is_read_compacted=True)
    message = consumer.receive(PATIENCE)
    assert message.data() == b"2"
    consumer.acknowledge(message)
    until(lambda: backlog(server, "away", "s") == 0)


def test_deleted_key_is_told_to_a_subscription_that_knew_it(server: Client, client: pulsar.Client) -> None:
    consumer = client.subscribe("knew", "s", initial_position=EARLIEST, is_read_compacted=True)
    publish(client, "knew", ("a", b"1"))
    consumer.acknowledge(consumer.receive(PATIENCE))
    until(lambda: backlog(server, "knew", "s") == 0)
    consumer.close()
    publish(client, "knew", ("a", b"2"), ("b", b"1"), ("a", b""))
    compact(server, "knew")
    consumer = client.subscribe("knew", "s", initial_position=EARLIEST, is_read_compacted=True)
    assert [(one.partition_key(), one.data()) for one in received(consumer, 2)] == [("b", b"1"), ("a", b"")]


def test_sluices_own_consumers_read_compacted(server: Client, client: pulsar.Client) -> None:
    publish(client, "own", ("a", b"1"), ("b", b"1"), ("a", b"2"))
    compact(server, "own")
    options = {"type": "exclusive", "initial_position": "earliest", "read_compacted": True}
    with server.subscribe("own", "s", **options) as consumer:  # type: ignore[arg-type]
        values = [consumer.receive(PATIENCE).data() for _ in range(2)]
    assert values == [b"1", b"2"]

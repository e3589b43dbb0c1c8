"""Each row of the table beside Pulsar's client, and the methods that have one meaning in both, on one cluster."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

import sluice
from sluice.cluster.client.client import Client
from sluice.storage.errors import Fenced, Invalid, ProducerFenced, Timeout
from tests.cluster.helpers import PATIENCE_MS, PATIENCE_S, ROOT, eventually

NUMBERS = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Client]:
    """One cluster for all tests of the module; each has topics of its own."""
    with sluice.connect(embedded=True, pulsar_port=0) as client:
        yield client


@pytest.fixture
def topic(broker: Client) -> str:
    """A fresh topic of one partition."""
    name = f"topic-{next(NUMBERS)}"
    broker.create_topic(name)
    return name


def filled(broker: Client, topic: str, **settings: Any) -> sluice.Consumer:
    """A consumer of three messages of two keys."""
    consumer = broker.subscribe(topic, "s", initial_position="earliest", **settings)
    with broker.create_producer(topic) as producer:
        for number in range(3):
            producer.send(str(number), partition_key=f"k{number % 2}")
    return consumer


# -- the rows of the table --------------------------------------------------------------------------------------------


def shutdown(broker: Client, topic: str) -> None:
    with sluice.connect(embedded=True) as other:
        other.create_topic(topic)
        sent = other.create_producer(topic).send_async(b"on its way")
        other.close()
        assert sent.done()
        assert sent.error is None


def create_table_view(broker: Client, topic: str) -> None:
    filled(broker, topic).close()
    table: dict[str, bytes] = {}
    with broker.create_reader(topic, sluice.MessageId.earliest) as reader:
        while reader.has_message_available():
            message = reader.read_next(PATIENCE_MS)
            table[message.partition_key()] = message.data()
    assert table == {"k0": b"2", "k1": b"1"}


def get_service_info(broker: Client, topic: str) -> None:
    assert any(row["kind"] == "bookie" for row in broker.status()["actors"])


def message_listener(broker: Client, topic: str) -> None:
    came: list[bytes] = []
    done = threading.Event()

    def listen(message: sluice.Message) -> None:
        came.append(message.data())
        if len(came) == 3:
            done.set()

    filled(broker, topic).close()
    with sluice.Workers(topic, "s", listen, client=broker, name=topic):
        assert done.wait(PATIENCE_S)
    assert sorted(came) == [b"0", b"1", b"2"]
    with pytest.raises(Invalid, match="unknown setting 'message_listener'"):
        broker.subscribe(topic, "s", message_listener=listen)  # type: ignore[call-arg]


def is_connected(broker: Client, topic: str) -> None:
    with broker.create_producer(topic) as producer:
        producer.send(b"x")
    assert broker.troubles() == []


def access_mode(broker: Client, topic: str) -> None:
    with broker.create_producer(topic, access_mode="exclusive"), pytest.raises(ProducerFenced):
        broker.create_producer(topic, access_mode="exclusive")
    older, newer = (broker.create_producer(topic, "one-name") for _ in range(2))
    newer.send(b"x")
    with pytest.raises(ProducerFenced):
        older.send(b"y")


def chunking_enabled(broker: Client, topic: str) -> None:
    with broker.subscribe(topic, "s") as consumer:
        with broker.create_producer(topic, chunking_enabled=True) as producer:
            producer.send(b"small", partition_key="k")
            producer.send(bytes(6 << 20), partition_key="k")
        assert [len(consumer.receive(PATIENCE_MS).data()) for _ in range(2)] == [5, 6 << 20]


def auto_ack(broker: Client, topic: str) -> None:
    with pytest.raises(Invalid, match="unknown setting 'auto_ack_oldest_chunked_message_on_queue_full'"):
        broker.subscribe(topic, "s", auto_ack_oldest_chunked_message_on_queue_full=True)  # type: ignore[call-arg]


def batch_receive(broker: Client, topic: str) -> None:
    with filled(broker, topic) as consumer:
        rows = [row for batch in consumer.batches(500) for row in batch.rows.column("payload").to_pylist()]
    assert sorted(rows) == [b"0", b"1", b"2"]


def acknowledge_cumulative(broker: Client, topic: str) -> None:
    with filled(broker, topic, type="exclusive") as consumer:
        message = consumer.receive(PATIENCE_MS)
        with pytest.raises(Invalid, match="acknowledge each message"):
            consumer.acknowledge_cumulative(message)


def seek(broker: Client, topic: str) -> None:
    with broker.create_producer(topic) as producer:
        places = [producer.send(str(number)) for number in range(3)]
    with broker.subscribe(topic, "s", initial_position="earliest") as consumer:
        consumer.seek(places[1])
        assert consumer.receive(PATIENCE_MS).data() == b"1"
    with broker.create_reader(topic, sluice.MessageId.latest) as reader:
        reader.seek(places[1])
        assert reader.read_next(PATIENCE_MS).data() == b"1"


def pause_message_listener(broker: Client, topic: str) -> None:
    with broker.subscribe(topic, "s", initial_position="earliest") as consumer:
        consumer.pause()
        with broker.create_producer(topic) as producer:
            for number in range(3_000):
                producer.send_async(str(number))
        eventually(lambda: broker.stats(topic, "s")[0]["consumers"][0]["availablePermits"] <= 0, "permits are left")
        came = sum(len(batch) for batch in consumer.batches(200))
        assert came < 3_000
        consumer.resume()
        assert int(consumer.receive(PATIENCE_MS).data()) == came


def has_null_value(broker: Client, topic: str) -> None:
    with broker.subscribe(topic, "s") as consumer, broker.create_producer(topic) as producer:
        producer.send(b"")
        assert consumer.receive(PATIENCE_MS).data() == b""


def no_attribute(name: str) -> Callable[[Client, str], None]:
    """Test that messages have no such attribute, and say so."""

    def test(broker: Client, topic: str) -> None:
        with filled(broker, topic) as consumer:
            message: Any = consumer.receive(PATIENCE_MS)
            with pytest.raises(AttributeError, match=name):
                getattr(message, name)

    return test


@dataclass
class Order:
    """A typed value."""

    article: str


def schema_version(broker: Client, topic: str) -> None:
    with broker.subscribe(topic, "s", schema=Order) as consumer:
        broker.create_producer(topic, schema=Order).send(Order("pen"))
        assert consumer.receive(PATIENCE_MS).value() == Order("pen")


def wrap(broker: Client, topic: str) -> None:
    with broker.create_producer(topic) as producer:
        at = producer.send(b"x")
    assert sluice.MessageId.parse(str(at)) == sluice.MessageId.deserialize(at.serialize()) == at


ROWS: dict[str, Callable[[Client, str], None]] = {
    "`Client.shutdown`": shutdown,
    "`Client.create_table_view`": create_table_view,
    "`Client.get_service_info`": get_service_info,
    "`Client.subscribe` with `message_listener`": message_listener,
    "`Producer.is_connected`": is_connected,
    "`create_producer` with `access_mode`": access_mode,
    "`create_producer` with `chunking_enabled`": chunking_enabled,
    "`subscribe` with `auto_ack_oldest_chunked_message_on_queue_full`": auto_ack,
    "`Consumer.batch_receive`": batch_receive,
    "`Consumer.acknowledge_cumulative` of an exclusive subscription": acknowledge_cumulative,
    "`Consumer.seek` and `Reader.seek` to a message": seek,
    "`Consumer.pause_message_listener`": pause_message_listener,
    "`Consumer.resume_message_listener`": pause_message_listener,
    "`Message.has_null_value`": has_null_value,
    "`Message.producer_name`": no_attribute("producer_name"),
    "`Message.encryption_context`": no_attribute("encryption_context"),
    "`Message.schema_version`": schema_version,
    "`MessageId.wrap`": wrap,
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table_is_as_it_says(broker: Client, topic: str, row: str) -> None:
    ROWS[row](broker, topic)


def test_each_row_of_the_table_is_tested() -> None:
    page = (ROOT / "docs" / "python-client.md").read_text(encoding="utf-8")
    table = page[page.index("| Pulsar | Sluice |") :]
    assert set(re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)) == set(ROWS)


# -- the same name and meaning in both --------------------------------------------------------------------------------


@dataclass
class Side:
    """One of the two clients, and the words that differ."""

    client: Any
    module: Any
    errors: dict[str, type[Exception]]

    def subscribe(self, topic: str, kind: str = "Exclusive") -> Any:
        """A consumer from the beginning on."""
        if self.module is sluice:
            return self.client.subscribe(topic, "s", type=kind.lower(), initial_position="earliest")
        return self.client.subscribe(
            topic,
            "s",
            consumer_type=getattr(self.module.ConsumerType, kind),
            initial_position=self.module.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=100,
        )


def produced(side: Side, topic: str) -> list[Any]:
    """Send and receive with everything that a message may have."""
    consumer, told = side.subscribe(topic), threading.Event()
    producer = side.client.create_producer(topic, producer_name=f"p-{topic}")
    producer.send(b"1", properties={"a": "b"}, partition_key="k", ordering_key="o", event_timestamp=5)
    producer.send_async(b"2", lambda *_: told.set())
    producer.flush()
    assert told.wait(PATIENCE_S)
    producer.send(b"3", deliver_after=timedelta(milliseconds=1))
    found: list[Any] = [producer.topic().rpartition("/")[2], producer.producer_name()]
    for _ in range(2):
        message = consumer.receive(60_000)
        found += [
            message.data(), message.value(), message.properties(), message.partition_key(), message.ordering_key(),
            message.event_timestamp(), message.redelivery_count(), message.topic_name().rpartition("/")[2],
            message.publish_timestamp() > 0,
        ]  # fmt: skip
        consumer.acknowledge(message)
    found += [consumer.topic().rpartition("/")[2], consumer.subscription_name(), consumer.is_connected()]
    producer.close()
    consumer.close()
    return found


def given_back(side: Side, topic: str) -> list[Any]:
    """Give back one message, and then everything."""
    consumer, producer = side.subscribe(topic, "Shared"), side.client.create_producer(topic)
    producer.send(b"x")
    message = consumer.receive(60_000)
    if side.module is sluice:
        consumer.negative_acknowledge(message, delay_ms=100)
    else:
        consumer.negative_acknowledge(message)
    again = consumer.receive(60_000)
    consumer.redeliver_unacknowledged_messages()
    last = consumer.receive(60_000)
    consumer.acknowledge(last)
    return [message.data(), again.data(), again.redelivery_count(), last.data()]


def sought(side: Side, topic: str) -> list[Any]:
    """Seek a consumer and a reader to the beginning, and read from an id on."""
    consumer, producer = side.subscribe(topic), side.client.create_producer(topic)
    ids = [producer.send(str(number).encode()) for number in range(4)]
    for _ in range(4):
        consumer.acknowledge(consumer.receive(60_000))
    consumer.seek(side.module.MessageId.earliest)
    found = [consumer.receive(60_000).data()]
    found.append(consumer.get_last_message_id().entry_id() == ids[3].entry_id())
    reader = side.client.create_reader(topic, ids[1])
    while reader.has_message_available():
        found.append(reader.read_next(60_000).data())
    reader.seek(side.module.MessageId.earliest)
    found += [reader.read_next(60_000).data(), reader.topic().rpartition("/")[2], reader.is_connected()]
    reader.close()
    consumer.unsubscribe()
    return found


def waited(side: Side, topic: str) -> list[Any]:
    """Wait for nothing, and use what is closed."""
    consumer, producer = side.subscribe(topic), side.client.create_producer(topic)
    with pytest.raises(side.errors["timeout"]):
        consumer.receive(50)
    producer.close()
    with pytest.raises(side.errors["closed"]):
        producer.send(b"x")
    consumer.close()
    with pytest.raises(side.errors["closed"]):
        consumer.receive(50)
    return [len(side.client.get_topic_partitions(topic))]


def ids(side: Side, topic: str) -> list[Any]:
    """Compare message ids, and read them back."""
    producer = side.client.create_producer(topic)
    first, second = producer.send(b"1"), producer.send(b"2")
    kind = side.module.MessageId
    back = kind.deserialize(first.serialize())
    return [
        first < second, first != second, back == first, kind.earliest < first < kind.latest,
        second.entry_id() - first.entry_id(), first.batch_index(),
    ]  # fmt: skip


@pytest.mark.parametrize("play", [produced, given_back, sought, waited, ids])
def test_a_method_of_both_clients_has_one_meaning(
    broker: Client, topic: str, play: Callable[[Side, str], list[Any]]
) -> None:
    pulsar = pytest.importorskip("pulsar")
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    theirs = pulsar.Client(broker.pulsar_service_url, logger=logger)
    names = f"{topic}-ours", topic
    broker.create_topic(names[0])
    try:
        sides = (
            Side(broker, sluice, {"timeout": Timeout, "closed": Fenced}),
            Side(theirs, pulsar, {"timeout": pulsar.Timeout, "closed": pulsar.AlreadyClosed}),
        )
        ours, pulsars = (play(side, name) for side, name in zip(sides, names, strict=True))
    finally:
        theirs.close()
    assert [str(one).replace("-ours", "") for one in ours] == [str(one) for one in pulsars]

"""A client that is known floods what is its own, and reads no answer: memory stays bounded, and others go on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import pulsar
import pyarrow as pa
import pytest

from sluice.actors.pulsar.codec.frames import encode
from sluice.actors.pulsar.codec.protocol import MessageId, command
from sluice.cluster.client.client import Client
from tests.actors.pulsar.made import frame, single
from tests.cluster.gateway.clients import EARLIEST, joined, received
from tests.cluster.gateway.raw import Raw
from tests.cluster.gateway.test_attackers import FLOOD, MOST_GROWTH, check_costs_little, resident

pytestmark = pytest.mark.timeout(240)
LARGE, MANY = 100_000, 4_000
"""400 MB of messages wait on a topic: more than what memory may grow by."""
SMALL = 20_000
"""Messages of a few bytes that lie before large ones."""
MOST_PERMITS = (1 << 32) - 1


def sends(size: int) -> Callable[[int], bytes]:
    """To its own producer, messages of this size."""

    def make(number: int) -> bytes:
        body = single(b"x" * size, sequence_id=number).body
        return frame(command("send", producer_id=1, sequence_id=number), bytes(body.metadata), bytes(body.payload))

    return make


def flows(number: int) -> bytes:
    """Room for more messages than there are."""
    return encode(command("flow", consumer_id=1, permits=MOST_PERMITS))


def acks(*, ledger: int, ids: int) -> Callable[[int], bytes]:
    """Each asks for the confirmation that it is durable. ledger: 0 for one that the topic has."""

    def make(number: int) -> bytes:
        first = number * ids
        wanted = [MessageId(ledger=ledger, entry=at) for at in range(first, first + ids)]
        return encode(command("ack", consumer_id=1, ack_type=0, message_id=wanted, request_id=number))

    return make


def seeks(number: int) -> bytes:
    """A seek sends its consumer away, so it subscribes again, under another number."""
    return subscription(number + 1, number) + encode(
        command("seek", consumer_id=number, request_id=number, publish_time=1)
    )


def subscription(consumer: int, request: int, topic: str = "owned") -> bytes:
    asked = {"topic": topic, "subscription": "mine", "type": 3, "consumer_name": "c", "initial_position": 1}
    return encode(command("subscribe", consumer_id=consumer, request_id=request, **asked))


FLOODS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "send": ("producer", sends(1_000)),
    "send little": ("producer", sends(1)),
    "send large": ("producer", sends(1_000_000)),
    "flow": ("owned", flows),
    "flow, large behind small": ("jump", flows),
    "ack": ("owned", acks(ledger=0, ids=1)),
    "ack many": ("owned", acks(ledger=0, ids=1_000)),
    "ack nothing": ("owned", acks(ledger=1 << 40, ids=1_000)),
    "seek": ("owned", seeks),
}


def flood(make: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield commands of a kind until they have FLOOD bytes, but no more than 100,000."""
    sent = 0
    for number in itertools.count(1):
        part = make(number)
        sent += len(part)
        yield part
        if sent > FLOOD or number > 100_000:
            return


def known(server: Client, what: str) -> Raw:
    """A connection with a producer, or with a consumer of a topic, that is there, both under number 1."""
    raw = Raw(server.pulsar_service_url)
    raw.greet()
    if what == "producer":
        raw.say("producer", topic="taking", producer_id=1, request_id=1)
        assert raw.next("producer_success").producer_ready
    else:
        raw.send(subscription(1, 1, what))
        assert raw.next("success").request_id == 1
    return raw


@pytest.fixture(scope="module")
def large(server: Client) -> None:
    """Topics on which far more waits than memory may grow by, one of them read once, so that what caches it is full."""
    small = pa.record_batch({"key": [b"k"] * SMALL, "payload": [b"x"] * SMALL})
    batch = pa.record_batch({"key": [b"k"] * 100, "payload": [b"x" * LARGE] * 100})
    for topic, batches in (("jump", [small]), ("owned", [])):
        server.create_topic(topic, partitions=1)
        producer = server.create_producer(topic)
        for each in [*batches, *[batch] * (MANY // 100)]:
            producer.send_batch(each).result()
        producer.close()
    client = joined(server)
    consumer = client.subscribe("owned", "reader", initial_position=EARLIEST)
    for message in received(consumer, MANY):
        consumer.acknowledge(message)
    client.close()


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", FLOODS)
def test_client_that_floods_and_never_reads_costs_little(server: Client, name: str) -> None:
    what, make = FLOODS[name]
    check_costs_little(server, lambda: known(server, what), flood(make))


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", ["reader", "exclusive", "failover", "key_shared"])
def test_client_that_never_acknowledges_costs_little(server: Client, kind: str) -> None:
    """The gateway keeps a client's messages by their ids alone, however many there are."""
    client = joined(server)
    if kind == "reader":
        reader = client.create_reader("owned", pulsar.MessageId.earliest, receiver_queue_size=10)
        read_next: Callable[[], pulsar.Message] = partial(reader.read_next, 60_000)
    else:
        types = {"exclusive": "Exclusive", "failover": "Failover", "key_shared": "KeyShared"}
        consumer = client.subscribe(
            "owned",
            f"never-{kind}",
            pulsar.ConsumerType.__members__[types[kind]],
            initial_position=EARLIEST,
            receiver_queue_size=10,
        )
        read_next = partial(consumer.receive, 60_000)
    read_next()
    before = resident()
    for _ in range(MANY - 1):
        read_next()
    assert resident() - before < MOST_GROWTH
    client.close()

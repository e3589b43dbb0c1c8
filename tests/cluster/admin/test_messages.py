"""Messages that are looked at by HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pulsar
import pytest

from sluice.actors.pulsar.codec.frames import encode_message
from sluice.actors.pulsar.codec.protocol import Metadata, command
from sluice.storage.format.batch import LAST_TIME
from tests.cluster.admin.asking import BASE, Tool
from tests.cluster.gateway.clients import PATIENCE
from tests.cluster.gateway.raw import Raw

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def ids(tool: Tool) -> Iterator[list[pulsar.MessageId]]:
    """Three messages that came alone, then a batch of four; the first and the third are acknowledged."""
    client = pulsar.Client(tool.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    tool.ask("PUT", f"{BASE}/seen/subscription/early")
    consumer = client.subscribe("seen", "s", pulsar.ConsumerType.Shared)
    alone = client.create_producer("seen", "p")
    made = [alone.send(str(number).encode(), partition_key="k", properties={"a": "b"}) for number in range(3)]
    batched = client.create_producer("seen", batching_enabled=True, batching_max_publish_delay_ms=1000)
    for number in range(4):
        batched.send_async(f"batch-{number}".encode(), lambda _, at: made.append(at))
    batched.flush()
    for _ in range(3):
        message = consumer.receive(PATIENCE)
        if message.data() in (b"0", b"2"):
            consumer.acknowledge(message)
    consumer.close()
    yield made
    client.close()


def test_a_message_by_its_id(tool: Tool, ids: list[pulsar.MessageId]) -> None:
    answer = tool.ask("GET", f"{BASE}/seen/ledger/{ids[1].ledger_id()}/entry/{ids[1].entry_id()}")
    assert (answer.status, answer.body) == (200, b"1")
    assert answer.headers["X-Pulsar-Message-ID"] == f"{ids[1].ledger_id()}:{ids[1].entry_id()}"
    assert json.loads(answer.headers["X-Pulsar-PROPERTY"]) == {"a": "b"}
    assert (answer.headers["X-Pulsar-partition-key"], answer.headers["X-Pulsar-producer-name"]) == ("k", "p")
    assert answer.headers["X-Pulsar-num-batch-message"] is None
    assert tool.ask("GET", f"{BASE}/seen/ledger/{ids[1].ledger_id()}/entry/99999").status == 404
    assert tool.ask("GET", f"{BASE}/seen/ledger/{2**62}/entry/1").status == 404


@pytest.mark.parametrize(
    ("at", "told"),
    [
        (1704067200123, "2024-01-01T00:00:00.123Z"),
        (LAST_TIME + 1, str(LAST_TIME + 1)),
        (1704067200123456789, "1704067200123456789"),
        ((1 << 64) - 1, str((1 << 64) - 1)),
    ],
)
def test_any_number_may_be_the_time_of_an_event(tool: Tool, client: pulsar.Client, at: int, told: str) -> None:
    """Clients whose clocks count in nanoseconds, and those that send -1."""
    producer = client.create_producer(f"events-{at}")
    sent = producer.send(b"x", event_timestamp=at)
    answer = tool.ask("GET", f"{BASE}/events-{at}/ledger/{sent.ledger_id()}/entry/{sent.entry_id()}")
    assert (answer.status, answer.headers["X-Pulsar-event-time"]) == (200, told)
    producer.close()


def test_a_batch_is_one_entry(tool: Tool, ids: list[pulsar.MessageId]) -> None:
    answer = tool.ask("GET", f"{BASE}/seen/ledger/{ids[3].ledger_id()}/entry/{ids[3].entry_id()}")
    assert (answer.status, answer.headers["X-Pulsar-num-batch-message"]) == (200, "4")
    assert b"batch-0" in answer.body
    assert b"batch-3" in answer.body


def test_peek_shows_waiting_messages_and_takes_none(tool: Tool, ids: list[pulsar.MessageId]) -> None:
    path = f"{BASE}/seen/subscription/s/position"
    assert tool.get(f"{path}/1") == b"1"
    assert b"batch-3" in tool.get(f"{path}/2")
    assert tool.ask("GET", f"{path}/3").status == 404
    assert tool.ask("GET", f"{path}/0").status == 412
    assert tool.get(f"{path}/1") == b"1"


def test_peek_without_a_consumer_shows_waiting_messages(tool: Tool, ids: list[pulsar.MessageId]) -> None:
    path = f"{BASE}/seen/subscription/nobody"
    assert tool.ask("PUT", path, {"ledgerId": -1, "entryId": -1}).status == 204
    assert tool.get(f"{path}/position/2") == b"1"


def test_the_ends_of_a_topic(tool: Tool, ids: list[pulsar.MessageId]) -> None:
    path = f"{BASE}/seen/examinemessage"
    assert tool.get(f"{path}?initialPosition=earliest&messagePosition=1") == b"0"
    assert tool.get(f"{path}?initialPosition=earliest&messagePosition=3") == b"2"
    assert b"batch-0" in tool.get(f"{path}?initialPosition=latest&messagePosition=1")
    assert tool.get(f"{path}?initialPosition=latest&messagePosition=2") == b"2"
    last = tool.get(f"{BASE}/seen/lastMessageId")
    assert (last["ledgerId"], last["entryId"]) == (ids[6].ledger_id(), ids[6].entry_id())
    assert last["batchIndex"] == 3
    first = tool.get(f"{BASE}/seen/messageid/1")
    assert (first["ledgerId"], first["entryId"]) == (ids[0].ledger_id(), ids[0].entry_id())


def test_an_empty_topic_has_no_messages(tool: Tool) -> None:
    tool.ask("PUT", f"{BASE}/bare")
    assert tool.ask("GET", f"{BASE}/bare/examinemessage").status == 404
    assert tool.get(f"{BASE}/bare/lastMessageId") == {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}


STRANGE = [
    ({"producer_name": b"a\r\nX-Other: 1"}, "X-Pulsar-producer-name", "a??X-Other: 1"),
    ({"event_time": LAST_TIME - 999}, "X-Pulsar-event-time", "9999-12-31T23:59:59.000Z"),
    ({"event_time": LAST_TIME + 1}, "X-Pulsar-event-time", str(LAST_TIME + 1)),
    ({"event_time": 2**64 - 1}, "X-Pulsar-event-time", str(2**64 - 1)),
]


@pytest.mark.parametrize(("said", "header", "shown"), STRANGE, ids=range(len(STRANGE)))
def test_fields_that_clients_set_are_shown_with_a_message(
    tool: Tool, said: dict[str, object], header: str, shown: str
) -> None:
    """Whatever it is: no line more in the head of the answer, and no date that there is not."""
    topic = f"strange-{STRANGE.index((said, header, shown))}"
    with Raw(tool.service_url) as raw:
        raw.greet()
        raw.say("producer", topic=topic, producer_id=1, request_id=1)
        raw.next("producer_success")
        metadata = Metadata(**{"producer_name": b"p", "sequence_id": 1, "publish_time": 5, **said})
        told = command("send", producer_id=1, sequence_id=1)
        raw.send(encode_message(told.SerializeToString(), metadata.SerializeToString(), b"x"))
        raw.next("send_receipt")
    answer = tool.ask("GET", f"{BASE}/{topic}/examinemessage?initialPosition=latest&messagePosition=1")
    assert (answer.status, answer.body, answer.headers[header]) == (200, b"x", shown)
    assert answer.headers["X-Other"] is None

"""Topics of which nothing is kept, with an unchanged client, and as tools see them."""

from __future__ import annotations

import pulsar
import pytest

from tests.cluster.pulsar.admin.asking import Tool
from tests.cluster.pulsar.clients import KEY_SHARED, nothing_comes, received, until

pytestmark = pytest.mark.timeout(240)
TOPIC = "non-persistent://public/default/"
BASE = "/admin/v2/non-persistent/public/default"
SHARED = pulsar.ConsumerType.Shared


def ready(tool: Tool, topic: str, subscription: str, consumers: int = 1) -> None:
    """The broker knows that consumers have room: what came before that would be dropped, as with Pulsar."""

    def has_room() -> bool:
        stats = tool.get(f"{BASE}/{topic}/stats")["subscriptions"][subscription]
        return len(stats["consumers"]) == consumers and all(one["availablePermits"] for one in stats["consumers"])

    until(has_room)


def test_messages_and_batches_go_to_who_is_there(tool: Tool, client: pulsar.Client) -> None:
    producer = client.create_producer(f"{TOPIC}now", batching_enabled=True, batching_max_publish_delay_ms=20)
    producer.send(b"before anybody is there")
    consumer = client.subscribe(f"{TOPIC}now", "s", SHARED)
    reader = client.create_reader(f"{TOPIC}now", pulsar.MessageId.latest)
    ready(tool, "now", "s")
    until(lambda: len(tool.get(f"{BASE}/now/stats")["subscriptions"]) == 2)
    for name in tool.get(f"{BASE}/now/stats")["subscriptions"]:
        ready(tool, "now", name)
    for number in range(20):
        producer.send_async(b"%d" % number, lambda *_: None, properties={"n": str(number)})
    producer.flush()
    messages = received(consumer, 20)
    assert [message.data() for message in messages] == [b"%d" % number for number in range(20)]
    assert messages[7].properties() == {"n": "7"}
    assert [reader.read_next(60_000).data() for _ in range(20)] == [message.data() for message in messages]
    for message in messages:
        consumer.acknowledge(message)
    consumer.redeliver_unacknowledged_messages()
    assert nothing_comes(consumer)
    consumer.close()
    producer.send(b"while nobody is there")
    again = client.subscribe(f"{TOPIC}now", "s", SHARED, initial_position=pulsar.InitialPosition.Earliest)
    ready(tool, "now", "s")
    producer.send(b"last")
    assert again.receive(60_000).data() == b"last"


def test_keys_patterns_and_schemas(tool: Tool, client: pulsar.Client) -> None:
    class Paid(pulsar.schema.Record):  # type: ignore[misc]
        amount = pulsar.schema.Integer()

    schema = pulsar.schema.AvroSchema(Paid)
    producer = client.create_producer(f"{TOPIC}paid", schema=schema)
    both = [client.subscribe(f"{TOPIC}paid", "keyed", KEY_SHARED, schema=schema) for _ in range(2)]
    ready(tool, "paid", "keyed", consumers=2)
    for number in range(20):
        producer.send(Paid(amount=number), partition_key=f"key-{number % 10}")
    found: dict[str, set[int]] = {}
    for which, consumer in enumerate(both):
        while True:
            try:
                message = consumer.receive(1_000)
            except pulsar.Timeout:
                break
            found.setdefault(message.partition_key(), set()).add(which)
    assert len(found) == 10
    assert all(len(holders) == 1 for holders in found.values())


def test_tools_see_them_while_they_are_used(tool: Tool, client: pulsar.Client) -> None:
    assert tool.ask("GET", f"{BASE}/seen/stats").status == 404
    assert tool.get(f"{BASE}/seen/partitions") == {"partitions": 0, "deleted": False}
    lookup = tool.get("/lookup/v2/topic/non-persistent/public/default/seen")
    assert lookup == tool.get("/lookup/v2/topic/persistent/public/default/seen")
    producer = client.create_producer(f"{TOPIC}seen", "till")
    consumer = client.subscribe(f"{TOPIC}seen", "s", SHARED, receiver_queue_size=1)
    ready(tool, "seen", "s")
    for number in range(5):
        producer.send(b"%d" % number)
    stats = tool.get(f"{BASE}/seen/stats")
    assert stats["msgInCounter"] == 5
    assert [one["producerName"] for one in stats["publishers"]] == ["till"]
    own = stats["subscriptions"]["s"]
    assert (own["type"], own["msgOutCounter"] + own["msgDropCount"]) == ("Shared", 5)
    assert own["msgDropCount"] >= 3
    assert f"{TOPIC}seen" in tool.get(BASE)
    assert tool.get("/admin/v2/persistent/public/default") == []
    refused = tool.ask("PUT", f"{BASE}/seen")
    assert (refused.status, "is there while clients use it" in refused.body["reason"]) == (405, True)
    producer.close()
    consumer.close()
    until(lambda: f"{TOPIC}seen" not in tool.get(BASE))
    assert tool.ask("GET", "/admin/v2/non-persistent/no/where/t/partitions").status == 404


@pytest.mark.parametrize(
    ("mode", "kinds"), [("", (0,)), ("PERSISTENT", (0,)), ("NON_PERSISTENT", (1,)), ("ALL", (0, 1))]
)
def test_topics_are_listed_by_their_kind(tool: Tool, client: pulsar.Client, mode: str, kinds: tuple[int, ...]) -> None:
    both = ["persistent://public/default/listed", f"{TOPIC}listed"]
    producers = [client.create_producer(topic) for topic in both]
    told = tool.get(f"/admin/v2/namespaces/public/default/topics?mode={mode}")
    assert [topic for topic in told if topic in both] == [both[kind] for kind in kinds]
    for producer in producers:
        producer.close()

"""Topics, subscriptions and their figures, as Pulsar's tools ask for them."""

from __future__ import annotations

import re

import pulsar
import pytest

from sluice.actors.dispatcher.operator.seek import Seeker
from sluice.storage.errors import Unavailable
from tests.cluster.admin.asking import BASE, Tool
from tests.cluster.gateway.clients import EARLIEST, PATIENCE
from tests.cluster.gateway.raw import Raw
from tests.cluster.helpers import eventually

pytestmark = pytest.mark.timeout(240)
NAME = "persistent://public/default/"


def test_topics_are_made_listed_and_deleted(tool: Tool) -> None:
    assert tool.ask("PUT", f"{BASE}/made").status == 204
    assert tool.ask("PUT", f"{BASE}/made").status == 409
    assert tool.ask("PUT", f"{BASE}/made-3/partitions", 3).status == 204
    assert tool.ask("PUT", f"{BASE}/made-3/partitions", 3).status == 409
    assert tool.ask("PUT", f"{BASE}/made-0/partitions", 0).status == 412
    assert tool.get(f"{BASE}/made/partitions")["partitions"] == 0
    assert tool.get(f"{BASE}/made-3/partitions")["partitions"] == 3
    listed = tool.get(BASE)
    assert {f"{NAME}made", f"{NAME}made-3-partition-2"} <= set(listed)
    assert f"{NAME}made-3" in tool.get(f"{BASE}/partitioned")
    assert tool.get("/admin/v2/non-persistent/public/default/partitioned") == []
    assert tool.ask("DELETE", f"{BASE}/made-3").status == 409
    for path in ("made", "made-3/partitions"):
        assert tool.ask("DELETE", f"{BASE}/{path}").status == 204
        assert tool.ask("DELETE", f"{BASE}/{path}").status == 404
    assert not [name for name in tool.get(BASE) if "made" in name]


def test_a_topic_may_come_back_with_other_partitions(tool: Tool, client: pulsar.Client) -> None:
    """Clients that ask the same gateway are told of the new ones."""
    tool.ask("PUT", f"{BASE}/again/partitions", 2)
    assert len(client.get_topic_partitions("again")) == 2
    tool.ask("DELETE", f"{BASE}/again/partitions")
    tool.ask("PUT", f"{BASE}/again/partitions", 4)
    assert len(client.get_topic_partitions("again")) == 4


def test_connected_client_keeps_a_topic(tool: Tool, client: pulsar.Client) -> None:
    producer = client.create_producer("kept")
    assert tool.ask("DELETE", f"{BASE}/kept").status == 412
    producer.close()
    consumer = client.subscribe("kept", "s")
    assert tool.ask("DELETE", f"{BASE}/kept").status == 412
    assert tool.ask("DELETE", f"{BASE}/kept/subscription/s").status == 412
    consumer.close()
    assert tool.ask("DELETE", f"{BASE}/kept").status == 204


def test_consumers_of_one_name_are_told_apart(tool: Tool) -> None:
    raws = [Raw(tool.service_url) for _ in range(2)]
    for number, raw in enumerate(raws):
        raw.say("connect", client_version=f"v{number}", protocol_version=20)
        raw.next("connected")
        raw.say("subscribe", topic="twins", subscription="s", type=2, consumer_name="c", consumer_id=0, request_id=1)
        raw.next("success")
    told = tool.get(f"{BASE}/twins/stats")["subscriptions"]["s"]["consumers"]
    assert sorted(each["clientVersion"] for each in told) == ["v0", "v1"]
    for raw in raws:
        raw.close()


def test_figures_are_true(tool: Tool, client: pulsar.Client) -> None:
    consumer = client.subscribe(
        "figures",
        "s",
        pulsar.ConsumerType.KeyShared,
        consumer_name="c",
        properties={"who": "me"},
        initial_position=EARLIEST,
    )
    producer = client.create_producer("figures", "p", properties={"where": "here"})
    for number in range(10):
        producer.send(b"0123456789", partition_key=str(number % 3))
    for _ in range(4):
        consumer.acknowledge(consumer.receive(PATIENCE))
    eventually(lambda: tool.get(f"{BASE}/figures/stats")["subscriptions"]["s"]["msgBacklog"] == 6, "not acknowledged")
    stats = tool.get(f"{BASE}/figures/stats")
    assert (stats["msgInCounter"], stats["deduplicationStatus"]) == (10, "Disabled")
    assert stats["storageSize"] >= 100
    assert 0 < stats["backlogSize"] <= stats["storageSize"]
    [publisher] = stats["publishers"]
    assert (publisher["producerName"], publisher["metadata"]) == ("p", {"where": "here"})
    assert publisher["clientVersion"].startswith("Pulsar-CPP")
    assert (publisher["accessMode"], publisher["address"][:11]) == ("Shared", "/127.0.0.1:")
    told = stats["subscriptions"]["s"]
    assert (told["type"], told["msgOutCounter"], told["isDurable"]) == ("Key_Shared", 10, True)
    assert told["msgRedeliverCounter"] == told["msgRateRedeliver"] == 0, "nobody gave anything back"
    [one] = told["consumers"]
    assert (one["consumerName"], one["metadata"], one["keyHashRanges"]) == ("c", {"who": "me"}, ["[1, 65535]"])
    assert told["msgBacklog"] == tool.get(f"{BASE}/figures/partitioned-stats")["subscriptions"]["s"]["msgBacklog"]
    internal = tool.get(f"{BASE}/figures/internalStats")
    assert (internal["entriesAddedCounter"], internal["state"]) == (10, "LedgerOpened")
    assert internal["ledgers"][-1]["entries"] == internal["currentLedgerEntries"] == 10
    assert set(internal["cursors"]) == {"s"}
    assert re.fullmatch(r"-?\d+:-?\d+", internal["cursors"]["s"]["markDeletePosition"])
    consumer.close()
    producer.close()


def test_readers_are_shown_as_subscriptions(tool: Tool, client: pulsar.Client) -> None:
    """As with Pulsar: each one of its own, exclusive and not durable; and they keep a topic from being deleted."""
    producer = client.create_producer("read")
    for number in range(6):
        producer.send(str(number).encode())
    reader = client.create_reader("read", pulsar.MessageId.earliest, reader_name="r", receiver_queue_size=2)
    assert reader.read_next(PATIENCE).data() == b"0"
    [(name, told)] = tool.get(f"{BASE}/read/stats")["subscriptions"].items()
    assert name.startswith("reader")
    assert (told["type"], told["isDurable"], told["activeConsumerName"]) == ("Exclusive", False, "r")
    assert told["msgOutCounter"] + told["msgBacklog"] == 6
    assert told["msgOutCounter"] > 0
    [one] = told["consumers"]
    assert one["address"].startswith("/127.0.0.1:")
    assert one["clientVersion"].startswith("Pulsar-CPP")
    assert tool.get(f"{BASE}/read/partitioned-stats")["subscriptions"][name]["consumersCount"] == 1
    producer.close()
    assert tool.ask("DELETE", f"{BASE}/read").status == 412
    reader.close()
    assert tool.get(f"{BASE}/read/stats")["subscriptions"] == {}


def test_partitions_are_summed_up(tool: Tool, client: pulsar.Client) -> None:
    tool.ask("PUT", f"{BASE}/sums/partitions", 2)
    tool.ask("PUT", f"{BASE}/sums/subscription/s", {"ledgerId": -1, "entryId": -1})
    producer = client.create_producer("sums", message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    for number in range(6):
        producer.send(str(number).encode())
    whole = tool.get(f"{BASE}/sums/partitioned-stats?perPartition=true")
    parts = [whole["partitions"][f"{NAME}sums-partition-{number}"] for number in range(2)]
    assert whole["msgInCounter"] == sum(part["msgInCounter"] for part in parts) == 6
    assert whole["subscriptions"]["s"]["msgBacklog"] == 6
    assert whole["metadata"]["partitions"] == 2
    assert tool.get(f"{BASE}/sums/partitioned-stats?perPartition=false")["partitions"] == {}
    assert set(tool.get(f"{BASE}/sums/partitioned-internalStats")["partitions"]) == set(whole["partitions"])
    assert tool.get(f"{BASE}/sums-partition-1/stats") == parts[1]
    assert tool.ask("GET", f"{BASE}/sums-partition-7/stats").status == 404
    producer.close()


def test_clients_are_sent_away_and_come_back(tool: Tool, client: pulsar.Client) -> None:
    consumer = client.subscribe("moved", "s", initial_position=EARLIEST)
    producer = client.create_producer("moved")
    producer.send(b"before")
    before = tool.get(f"{BASE}/moved/stats")["publishers"][0]["connectedSince"]
    assert tool.ask("PUT", f"{BASE}/moved/unload").status == 204
    producer.send(b"after")
    got: set[bytes] = set()
    while got != {b"before", b"after"}:  # the first one may have come before the unload, and come again
        message = consumer.receive(PATIENCE)
        consumer.acknowledge(message)
        got.add(message.data())
    [publisher] = tool.get(f"{BASE}/moved/stats")["publishers"]
    assert publisher["connectedSince"] > before
    producer.close()
    consumer.close()


def test_a_subscription_that_is_refused_is_not_made(tool: Tool, client: pulsar.Client) -> None:
    """Otherwise a second request with the right place would find the subscription made, with another start."""
    producer = client.create_producer("placed")
    first, second = (producer.send(text) for text in (b"0", b"1"))
    path = f"{BASE}/placed/subscription/s"
    wrong = tool.ask("PUT", path, {"ledgerId": first.ledger_id() + 99, "entryId": 0})
    assert wrong.status == 412
    assert "there is no message" in wrong.body["reason"]
    assert tool.get(f"{BASE}/placed/subscriptions") == []
    assert tool.ask("PUT", path, {"ledgerId": second.ledger_id(), "entryId": second.entry_id()}).status == 204
    assert tool.get(f"{BASE}/placed/stats")["subscriptions"]["s"]["msgBacklog"] == 1
    producer.close()


def test_a_subscription_misses_nothing_when_its_start_fails(
    tool: Tool, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscription is there by then, and a second request makes no other: twice is better than never."""

    async def away(*_: object) -> int:
        raise Unavailable("the topic does not answer")

    producer = client.create_producer("unplaced")
    _, second = (producer.send(text) for text in (b"0", b"1"))
    path = f"{BASE}/unplaced/subscription/s"
    with monkeypatch.context() as broken:
        broken.setattr(Seeker, "to_message", away)
        assert tool.ask("PUT", path, {"ledgerId": second.ledger_id(), "entryId": second.entry_id()}).status == 503
    assert tool.get(f"{BASE}/unplaced/stats")["subscriptions"]["s"]["msgBacklog"] == 2
    producer.close()


def test_subscriptions_are_made_moved_and_removed(tool: Tool, client: pulsar.Client) -> None:
    producer = client.create_producer("cursor")
    ids = [producer.send(str(number).encode()) for number in range(6)]
    path = f"{BASE}/cursor/subscription/s"
    assert tool.ask("PUT", path, {"ledgerId": -1, "entryId": -1}).status == 204
    assert tool.ask("PUT", path).status == 409

    def backlog() -> int:
        return int(tool.get(f"{BASE}/cursor/stats")["subscriptions"]["s"]["msgBacklog"])

    def place(number: int, **more: bool) -> dict[str, int | bool]:
        return {"ledgerId": ids[number].ledger_id(), "entryId": ids[number].entry_id(), "partitionIndex": -1, **more}

    assert backlog() == 6
    assert tool.ask("POST", f"{path}/skip/2").status == 204
    assert backlog() == 4
    assert tool.ask("POST", f"{path}/resetcursor", place(1)).status == 204
    assert backlog() == 5
    assert tool.ask("POST", f"{path}/resetcursor", place(1, isExcluded=True)).status == 204
    assert backlog() == 4
    assert tool.ask("POST", f"{path}/resetcursor/1").status == 204
    assert backlog() == 6
    assert tool.ask("POST", f"{path}/skip_all").status == 204
    assert backlog() == 0
    assert tool.ask("POST", f"{path}/resetcursor", {"ledgerId": -1, "entryId": -1}).status == 204
    assert tool.ask("POST", f"{BASE}/cursor/all_subscription/expireMessages/3600").status == 204
    assert backlog() == 6
    assert tool.get(f"{BASE}/cursor/subscriptions") == ["s"]
    assert tool.ask("DELETE", path).status == 204
    assert tool.ask("DELETE", path).status == 404
    assert tool.ask("POST", f"{path}/skip/2").status == 404
    producer.close()

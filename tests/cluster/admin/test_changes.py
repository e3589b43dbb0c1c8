"""More partitions for a topic, and its end, as Pulsar's tools ask for them, and as unchanged clients see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

import sluice
from sluice.cluster.gateway.ports import WEB, port_of, service_url
from sluice.cluster.launch.embedded import running
from sluice.cluster.settings.options import ClusterOptions
from tests.cluster.admin.asking import BASE, Tool
from tests.cluster.gateway.clients import EARLIEST, PATIENCE, received
from tests.cluster.gateway.raw import Raw

pytestmark = pytest.mark.timeout(240)
ROUND_ROBIN = pulsar.PartitionsRoutingMode.RoundRobinDistribution
TERMINATED = 15
"""Pulsar's code."""


@pytest.fixture
def raw(tool: Tool) -> Iterator[Raw]:
    """A connection whose bytes are made by hand."""
    one = Raw(tool.service_url)
    one.greet()
    yield one
    one.close()


def test_a_topic_gets_more_partitions(tool: Tool, client: pulsar.Client) -> None:
    """Messages on new partitions wait for an earlier subscription, also before one of its consumers comes."""
    tool.ask("PUT", f"{BASE}/grown/partitions", 2)
    client.subscribe("grown", "s").close()
    producer = client.create_producer("grown", batching_enabled=False, message_routing_mode=ROUND_ROBIN)
    ids = [producer.send(b"before") for _ in range(4)]
    producer.close()
    assert tool.ask("POST", f"{BASE}/grown/partitions", 4).status == 204
    assert tool.get(f"{BASE}/grown/partitions")["partitions"] == 4
    assert len(client.get_topic_partitions("grown")) == 4
    producer = client.create_producer("grown", batching_enabled=False, message_routing_mode=ROUND_ROBIN)
    ids += [producer.send(b"after") for _ in range(8)]
    assert {one.partition() for one in ids} == {0, 1, 2, 3}
    stats = tool.get(f"{BASE}/grown/partitioned-stats")
    assert stats["subscriptions"]["s"]["msgBacklog"] == 12
    consumer = client.subscribe("grown", "s")
    came = received(consumer, 12)
    assert sorted(str(message.message_id()) for message in came) == sorted(str(one) for one in ids)
    late = client.subscribe("grown", "late", initial_position=EARLIEST)
    assert len(received(late, 12)) == 12


def test_a_partitioned_topic_may_have_one_partition(tool: Tool, client: pulsar.Client) -> None:
    assert tool.ask("PUT", f"{BASE}/single/partitions", 1).status == 204
    only = "persistent://public/default/single-partition-0"
    assert client.get_topic_partitions("single") == [only]
    consumer = client.subscribe("single", "s")
    first = client.create_producer("single").send(b"before")
    assert first.partition() == 0
    assert tool.get(f"{BASE}/single/partitions")["partitions"] == 1
    assert only in tool.get(BASE)
    assert "persistent://public/default/single" in tool.get(f"{BASE}/partitioned")
    assert list(tool.get(f"{BASE}/single/partitioned-stats")["partitions"]) == [only]
    assert tool.ask("POST", f"{BASE}/single/terminate").status == 405
    assert tool.ask("DELETE", f"{BASE}/single").status == 409
    assert tool.ask("POST", f"{BASE}/single/partitions", 3).status == 204
    assert len(client.get_topic_partitions("single")) == 3
    assert consumer.receive(PATIENCE).data() == b"before"


def test_partitions_are_refused_as_pulsar_refuses_them(tool: Tool) -> None:
    tool.ask("PUT", f"{BASE}/three/partitions", 3)
    fewer = tool.ask("POST", f"{BASE}/three/partitions", 2)
    assert (fewer.status, fewer.body["reason"][:20]) == (422, "Desired partitions 2")
    assert tool.ask("POST", f"{BASE}/three/partitions", 100_000).status == 412
    assert tool.ask("POST", f"{BASE}/three/partitions", "many").status == 412
    assert tool.ask("POST", f"{BASE}/nowhere/partitions", 2).status == 404
    tool.ask("PUT", f"{BASE}/plain-one")
    plain = tool.ask("POST", f"{BASE}/plain-one/partitions", 2)
    assert (plain.status, "is not the partitioned topic" in plain.body["reason"]) == (409, True)
    assert tool.get(f"{BASE}/three/partitions")["partitions"] == 3


def test_partitions_that_were_added_are_there_after_a_restart(tmp_path: Path) -> None:
    options = ClusterOptions(tmp_path, pulsar_port=0, pulsar_web_port=0)
    for start in range(2):
        with running(options):
            tool = Tool(port_of(tmp_path, WEB), service_url(tmp_path, 0))
            if not start:
                tool.ask("PUT", f"{BASE}/kept/partitions", 2)
                assert tool.ask("POST", f"{BASE}/kept/partitions", 5).status == 204
            assert tool.get(f"{BASE}/kept/partitions")["partitions"] == 5


def test_sluices_own_clients_learn_partitions_when_they_open() -> None:
    with sluice.connect(embedded=True) as client:
        client.create_topic("own", partitions=2)
        before = client.create_producer("own")
        consumer = client.subscribe("own", "s", initial_position="earliest")
        client.add_partitions("own", 3)
        assert (before.partitions, client.create_producer("own").partitions) == (2, 3)
        assert len(client.stats("own", "s")) == 3
        consumer.close()
        with pytest.raises(sluice.Invalid, match="cannot become 2"):
            client.add_partitions("own", 2)


def test_a_terminated_topic_takes_nothing_and_is_drained(tool: Tool, client: pulsar.Client, raw: Raw) -> None:
    consumer = client.subscribe("last", "s")
    producer = client.create_producer("last", batching_enabled=False)
    ids = [producer.send(b"%d" % number) for number in range(3)]
    told = tool.ask("POST", f"{BASE}/last/terminate")
    assert told.status == 200
    end = {"ledgerId": ids[-1].ledger_id(), "entryId": ids[-1].entry_id(), "partitionIndex": -1}
    assert told.body == end
    with pytest.raises(pulsar.TopicTerminated):
        producer.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer("last")
    assert [message.data() for message in received(consumer, 3)] == [b"0", b"1", b"2"]
    reader = client.create_reader("last", pulsar.MessageId.earliest)
    for number in range(3):
        assert reader.has_message_available()
        assert reader.read_next().data() == b"%d" % number
    assert not reader.has_message_available()
    assert tool.ask("POST", f"{BASE}/last/terminate").body == end, "once more is the same"
    assert tool.get(f"{BASE}/last/internalStats")["state"] == "Terminated"
    raw.say("producer", topic="last", producer_id=1, request_id=7)
    assert raw.next("error").error == TERMINATED


def test_consumers_are_told_when_everything_is_done(tool: Tool, client: pulsar.Client, raw: Raw) -> None:
    """Not before the last acknowledgement; who comes later is told at once; and so is a reader."""
    name = "persistent://public/default/drained"
    raw.say("subscribe", topic=name, subscription="s", type=1, consumer_id=1, request_id=1, initial_position=1)
    raw.next("success")
    client.create_producer("drained").send(b"only")
    assert tool.ask("POST", f"{BASE}/drained/terminate").status == 200
    raw.say("flow", consumer_id=1, permits=10)
    at = raw.next("message").message_id
    raw.say("get_last_id", consumer_id=1, request_id=2)
    said = raw.read()
    assert said.HasField("last_id_answer"), "the end was told before the last message was acknowledged"
    raw.say("ack", consumer_id=1, message_id=[{"ledger": at.ledger, "entry": at.entry}])
    assert raw.next("reached_end").consumer_id == 1
    raw.say("subscribe", topic=name, subscription="s", type=1, consumer_id=2, request_id=3, initial_position=1)
    raw.next("success")
    assert raw.next("reached_end").consumer_id == 2
    start = {"ledger": at.ledger, "entry": at.entry}
    raw.say(
        "subscribe",
        topic=name,
        subscription="reader",
        consumer_id=3,
        request_id=4,
        durable=False,
        start_message_id=start,
    )
    raw.next("success")
    raw.say("flow", consumer_id=3, permits=10)
    raw.next("message")
    raw.say("ack", consumer_id=3, ack_type=1, message_id=[start])
    assert raw.next("reached_end").consumer_id == 3


def test_all_partitions_end_together(tool: Tool, client: pulsar.Client) -> None:
    tool.ask("PUT", f"{BASE}/ends/partitions", 3)
    assert tool.ask("POST", f"{BASE}/ends/terminate").status == 405
    producer = client.create_producer("ends", batching_enabled=False, message_routing_mode=ROUND_ROBIN)
    ids = {one.partition(): one for one in [producer.send(b"x") for _ in range(3)]}
    producer.close()
    told = tool.ask("POST", f"{BASE}/ends/terminate/partitions").body
    assert {int(key): (end["ledgerId"], end["entryId"], end["partitionIndex"]) for key, end in told.items()} == {
        partition: (one.ledger_id(), one.entry_id(), partition) for partition, one in ids.items()
    }
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer("ends")
    assert tool.ask("POST", f"{BASE}/nowhere/terminate").status == 404
    tool.ask("PUT", f"{BASE}/whole")
    assert tool.ask("POST", f"{BASE}/whole/terminate/partitions").status == 405


def test_the_end_outlives_a_restart_and_is_the_end_for_all(tmp_path: Path) -> None:
    with sluice.connect(embedded=True, data_dir=tmp_path) as client:
        client.create_topic("gone")
        producer = client.create_producer("gone")
        producer.send(b"one")
        assert len(client.terminate_topic("gone")) == 1
        with pytest.raises(sluice.Invalid, match="takes no more messages"):
            producer.send(b"two")
    with sluice.connect(embedded=True, data_dir=tmp_path) as client:
        with pytest.raises(sluice.Invalid, match="takes no more messages"):
            client.create_producer("gone")
        with client.subscribe("gone", "s", initial_position="earliest") as consumer:
            assert consumer.receive(60_000).data() == b"one"


def test_closed_ledgers_leave_as_pulsars_tools_ask(tool: Tool) -> None:
    """The tool reads from stats-internal which ledger is the first that stays."""
    tool.ask("PUT", f"{BASE}/leaving")
    unknown = tool.ask("PUT", f"{BASE}/leaving/offload", {"entryId": 0})
    assert (unknown.status, unknown.body["reason"]) == (412, "a message id has a ledgerId, which is a number")
    assert tool.get(f"{BASE}/leaving/offload")["status"] == "NOT_RUN"
    assert tool.ask("PUT", f"{BASE}/leaving/offload", {"ledgerId": 0, "entryId": 0, "partitionIndex": -1}).status == 204
    assert "firstUnoffloadedMessage" in tool.get(f"{BASE}/leaving/offload")
    tool.ask("PUT", f"{BASE}/divided/partitions", 2)
    assert tool.ask("PUT", f"{BASE}/divided/offload", {"ledgerId": 1, "entryId": 0}).status == 409


def test_a_topic_is_compacted_as_pulsars_tools_ask(tool: Tool) -> None:
    tool.ask("PUT", f"{BASE}/empty")
    assert tool.get(f"{BASE}/empty/compaction") == {"status": "NOT_RUN", "lastError": ""}
    assert tool.ask("PUT", f"{BASE}/empty/compaction").status == 204
    while (status := tool.get(f"{BASE}/empty/compaction")["status"]) == "RUNNING":
        pass
    assert status == "SUCCESS", "of nothing"
    assert tool.get(f"{BASE}/empty/internalStats")["compactedLedger"]["ledgerId"] == -1
    tool.ask("PUT", f"{BASE}/empty-pair/partitions", 2)
    assert tool.get(f"{BASE}/empty-pair/compaction")["status"] == "NOT_RUN"
    assert tool.ask("PUT", f"{BASE}/nowhere/compaction").status == 404

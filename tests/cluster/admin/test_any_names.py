"""Names of letters that only Pulsar's clients may use."""

from __future__ import annotations

import re
from urllib.parse import quote

import pulsar
import pytest

from tests.cluster.admin.asking import BASE, Tool
from tests.cluster.gateway.clients import EARLIEST, PATIENCE

pytestmark = pytest.mark.timeout(240)
SPACE = "persistent://public/default/"
TOPIC, SUBSCRIPTION, CONSUMER = "::,orders @%*)(&!$#><é", "public/default/fn:1", "host 1 (a)"
AT = f"{BASE}/{quote(TOPIC, safe='')}"


def test_a_client_may_call_everything_what_it_likes(tool: Tool, client: pulsar.Client) -> None:
    consumer = client.subscribe(SPACE + TOPIC, SUBSCRIPTION, consumer_name=CONSUMER, initial_position=EARLIEST)
    client.create_producer(SPACE + TOPIC, "p 1").send(b"paid")
    message = consumer.receive(PATIENCE)
    assert (message.data(), message.topic_name()) == (b"paid", SPACE + TOPIC)
    assert SPACE + TOPIC in tool.get(BASE)
    assert tool.get(f"{AT}/subscriptions") == [SUBSCRIPTION]
    stats = tool.get(f"{AT}/stats")
    [told] = stats["subscriptions"][SUBSCRIPTION]["consumers"]
    assert (told["consumerName"], told["clientVersion"][:10]) == (CONSUMER, "Pulsar-CPP")
    assert stats["subscriptions"][SUBSCRIPTION]["activeConsumerName"] == CONSUMER
    assert stats["publishers"][0]["producerName"] == "p 1"
    assert list(tool.get(f"{AT}/internalStats")["cursors"]) == [SUBSCRIPTION]
    consumer.unsubscribe()
    assert tool.get(f"{AT}/subscriptions") == []


def test_tools_name_it_so_as_well(tool: Tool, client: pulsar.Client) -> None:
    at = f"{BASE}/{quote('-of tools', safe='')}"
    by = f"{at}/subscription/{quote('a/b', safe='')}"
    assert tool.ask("PUT", f"{at}/partitions", 2).status == 204
    assert client.get_topic_partitions(f"{SPACE}-of tools") == [f"{SPACE}-of tools-partition-{p}" for p in (0, 1)]
    assert tool.ask("PUT", by).status == 204
    assert tool.get(f"{at}/subscriptions") == ["a/b"]
    assert tool.ask("POST", f"{by}/skip_all").status == 204
    assert tool.ask("DELETE", by).status == 204
    assert tool.ask("DELETE", f"{at}/partitions").status == 204
    assert tool.ask("GET", f"{at}/partitions").status == 404


def test_a_pattern_finds_it(client: pulsar.Client) -> None:
    client.create_producer(f"{SPACE}found by: pattern").send(b"x")
    pattern = re.compile(f"{SPACE}found by.*")
    consumer = client.subscribe(pattern, "s", initial_position=EARLIEST)
    assert consumer.receive(PATIENCE).topic_name() == f"{SPACE}found by: pattern"

"""Changes by tools to all topics of a namespace at once."""

from __future__ import annotations

import pulsar
import pytest

from tests.cluster.admin.asking import Tool
from tests.cluster.gateway.clients import until

pytestmark = pytest.mark.timeout(240)
SPACE, TOPICS = "/admin/v2/namespaces/public/cleared", "/admin/v2/persistent/public/cleared"
BUNDLE = "0x00000000_0xffffffff"


def backlogs(tool: Tool) -> dict[str, int]:
    """By topic and subscription."""
    return {
        f"{topic}/{name}": row["msgBacklog"]
        for topic in ("a", "b")
        for name, row in tool.get(f"{TOPICS}/{topic}/stats")["subscriptions"].items()
    }


def test_backlogs_and_subscriptions_of_all_topics_go(tool: Tool, client: pulsar.Client) -> None:
    assert tool.ask("PUT", SPACE).status == 204
    for topic in ("a", "b"):
        assert tool.ask("PUT", f"{TOPICS}/{topic}").status == 204
        for name in ("s", "t"):
            assert tool.ask("PUT", f"{TOPICS}/{topic}/subscription/{name}").status == 204
        client.create_producer(f"persistent://public/cleared/{topic}").send(b"1")
    assert tool.ask("POST", f"{SPACE}/clearBacklog/s").status == 204
    assert backlogs(tool) == {"a/s": 0, "b/s": 0, "a/t": 1, "b/t": 1}
    assert tool.ask("POST", f"{SPACE}/{BUNDLE}/clearBacklog").status == 204
    assert not any(backlogs(tool).values())
    client.subscribe("persistent://public/cleared/a", "t", pulsar.ConsumerType.Shared)
    assert tool.ask("POST", f"{SPACE}/unsubscribe/t").status == 412
    assert tool.ask("POST", f"{SPACE}/{BUNDLE}/unsubscribe/s").status == 204
    assert "s" not in {name.partition("/")[2] for name in backlogs(tool)}
    assert tool.ask("POST", f"{SPACE}/0x00000000_0x7fffffff/clearBacklog").status == 412
    assert tool.ask("POST", "/admin/v2/namespaces/public/nowhere/clearBacklog").status == 404


def test_a_bundle_is_unloaded_and_its_clients_come_back(tool: Tool, client: pulsar.Client) -> None:
    topic = f"{TOPICS}/unloaded"
    tool.ask("PUT", SPACE)
    tool.ask("PUT", topic)
    producer = client.create_producer("persistent://public/cleared/unloaded")
    before = tool.get(f"{topic}/stats")["publishers"][0]["producerId"]
    assert tool.ask("PUT", f"{SPACE}/{BUNDLE}/unload").status == 204
    producer.send(b"again")
    until(lambda: [one["producerId"] for one in tool.get(f"{topic}/stats")["publishers"]] == [before])
    assert tool.ask("PUT", f"{SPACE}/0x00000000_0x7fffffff/unload").status == 412

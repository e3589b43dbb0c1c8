"""Retention and time to live as Pulsar's tools set them, of namespaces and of topics."""

from __future__ import annotations

import pulsar
import pytest

from tests.cluster.admin.asking import BASE, Tool
from tests.cluster.gateway.clients import EARLIEST, PATIENCE, until

pytestmark = pytest.mark.timeout(240)
SPACES = "/admin/v2/namespaces"
HOUR = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10}
EVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


def test_a_namespaces_holds_unless_a_topic_has_its_own(tool: Tool) -> None:
    space, topic = f"{SPACES}/public/kept", "/admin/v2/persistent/public/kept/one"
    tool.ask("PUT", space)
    tool.ask("PUT", topic)
    assert tool.ask("GET", f"{space}/retention").status == 204
    assert tool.ask("GET", f"{space}/messageTTL").status == 204
    assert tool.ask("POST", f"{space}/retention", HOUR).status == 204
    assert tool.ask("POST", f"{space}/messageTTL", 120).status == 204
    assert tool.get(f"{space}/retention") == HOUR
    assert tool.get(f"{space}/messageTTL") == 120
    policies = tool.get(space)
    assert (policies["retention_policies"], policies["message_ttl_in_seconds"]) == (HOUR, 120)
    assert tool.ask("GET", f"{topic}/retention").status == 204
    assert tool.get(f"{topic}/retention?applied=true") == HOUR
    assert tool.get(f"{topic}/messageTTL?applied=true") == 120
    assert tool.ask("POST", f"{topic}/retention", EVER).status == 204
    assert tool.ask("POST", f"{topic}/messageTTL?messageTTL=0").status == 204
    assert tool.get(f"{topic}/retention?applied=true") == EVER
    assert tool.get(f"{topic}/messageTTL") == 0
    for path in ("retention", "messageTTL"):
        assert tool.ask("DELETE", f"{topic}/{path}").status == 204
        assert tool.ask("GET", f"{topic}/{path}").status == 204
        assert tool.ask("DELETE", f"{space}/{path}").status == 204
        assert tool.ask("GET", f"{space}/{path}").status == 204
    assert "retention_policies" not in tool.get(space)


def test_impossible_retention_is_refused(tool: Tool) -> None:
    path = f"{SPACES}/public/default"
    for body in (
        None,
        [1],
        {"retentionTimeInMinutes": 1},
        {**HOUR, "retentionSizeInMB": 0},
        {**HOUR, "retentionSizeInMB": "1"},
    ):
        assert tool.ask("POST", f"{path}/retention", body).status == 412, body
    assert tool.ask("POST", f"{path}/retention", {**HOUR, "retentionTimeInMinutes": -2}).status == 412
    assert tool.ask("POST", f"{path}/messageTTL", -1).status == 412
    assert tool.ask("POST", f"{path}/messageTTL", 10**15).status == 412
    assert tool.ask("POST", f"{path}/messageTTL").status == 412
    assert tool.ask("POST", f"{SPACES}/public/nowhere/retention", HOUR).status == 404
    assert tool.ask("POST", f"{BASE}/nowhere/messageTTL?messageTTL=1").status == 404
    assert tool.ask("GET", f"{path}/retention").status == 204


@pytest.mark.parametrize("number", [1 << 31, (1 << 63) - 1, 1 << 63, 10**30, 10**400])
def test_numbers_beyond_all_times_are_refused(tool: Tool, number: int) -> None:
    path, quota = f"{SPACES}/public/default", {"policy": "producer_exception"}
    asked: list[tuple[str, object]] = [
        ("messageTTL", number * 1000),
        ("retention", {**HOUR, "retentionTimeInMinutes": number}),
        ("retention", {**HOUR, "retentionSizeInMB": number}),
        ("backlogQuota", {**quota, "limitSize": number << 32}),
        ("backlogQuota?backlogQuotaType=message_age", {**quota, "limitTime": number << 32}),
    ]
    for where, body in asked:
        refused = tool.ask("POST", f"{path}/{where}", body)
        assert refused.status in (400, 412), (where, refused)
        assert "\n" not in refused.body["reason"].strip()
    assert tool.ask("GET", f"{path}/retention").status == 204
    assert tool.ask("GET", f"{path}/messageTTL").status == 204
    assert tool.get(f"{path}/backlogQuotaMap") == {}


def test_a_new_topic_or_namespace_of_the_name_has_none(tool: Tool) -> None:
    space = f"{SPACES}/public/forgetful"
    for path, kept in ((space, space), (f"{BASE}/forgetful", f"{BASE}/forgetful")):
        tool.ask("PUT", path)
        assert tool.ask("POST", f"{kept}/retention", HOUR).status == 204
        assert tool.ask("DELETE", path).status == 204
        tool.ask("PUT", path)
        assert tool.ask("GET", f"{kept}/retention").status == 204


def test_message_older_than_its_lifetime_counts_as_done(tool: Tool, client: pulsar.Client) -> None:
    tool.ask("PUT", f"{BASE}/short-lived")
    assert tool.ask("POST", f"{BASE}/short-lived/messageTTL?messageTTL=1").status == 204
    client.create_producer("short-lived").send(b"old")
    client.subscribe("short-lived", "s", initial_position=EARLIEST).close()
    until(lambda: tool.get(f"{BASE}/short-lived/stats")["subscriptions"]["s"]["msgBacklog"] == 0)
    assert tool.ask("DELETE", f"{BASE}/short-lived/messageTTL").status == 204
    client.create_producer("short-lived").send(b"new")
    consumer = client.subscribe("short-lived", "s")
    assert consumer.receive(PATIENCE).data() == b"new"


def test_thresholds_of_a_namespace_and_a_topic(tool: Tool) -> None:
    space, topic = f"{SPACES}/public/leaving", "/admin/v2/persistent/public/leaving/one"
    tool.ask("PUT", space)
    tool.ask("PUT", topic)
    assert (tool.get(f"{space}/offloadThreshold"), tool.get(f"{space}/offloadThresholdInSeconds")) == (-1, -1)
    for name, value in (("offloadThreshold", 1000), ("offloadThresholdInSeconds", 60), ("offloadDeletionLagMs", 0)):
        assert tool.ask("PUT", f"{space}/{name}", value).status == 204
        assert tool.get(f"{space}/{name}") == value
        assert tool.ask("PUT", f"{space}/{name}", "much").status == 412
        assert tool.ask("PUT", f"{space}/{name}", -2).status == 412
    assert tool.ask("PUT", f"{space}/compactionThreshold", 500).status == 204
    assert tool.ask("GET", f"{topic}/compactionThreshold").status == 204
    assert tool.get(f"{topic}/compactionThreshold?applied=true") == 500
    assert tool.ask("POST", f"{topic}/compactionThreshold", 0).status == 204
    assert tool.get(f"{topic}/compactionThreshold?applied=true") == 0
    policies = tool.get(space)
    assert [policies[name] for name in ("offload_threshold", "offload_deletion_lag_ms")] == [1000, 0]
    for path in (f"{space}/offloadDeletionLagMs", f"{space}/compactionThreshold", f"{topic}/compactionThreshold"):
        assert tool.ask("DELETE", path).status == 204
        assert tool.ask("GET", path).status == 204
    assert tool.ask("PUT", f"{SPACES}/public/nowhere/offloadThreshold", 1).status == 404

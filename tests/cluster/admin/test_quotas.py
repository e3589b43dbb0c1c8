"""Backlog quotas as Pulsar's tools set them: who is kept out, with which words, and until when."""

from __future__ import annotations

import pulsar
import pytest

from tests.cluster.admin.asking import BASE, Tool
from tests.cluster.gateway.clients import EARLIEST, received, until
from tests.cluster.gateway.raw import Raw

pytestmark = pytest.mark.timeout(240)
SPACES = "/admin/v2/namespaces"
LIMIT = 10_000
HOLD, EXCEPTION = "producer_request_hold", "producer_exception"


def quota(policy: str, limit: int = LIMIT) -> dict[str, object]:
    """As Pulsar's tools say it."""
    return {"limit": limit, "limitSize": limit, "limitTime": -1, "policy": policy}


def code_of(tool: Tool, topic: str) -> int:
    """Pulsar's code for a producer that is refused; 0 if it is let in."""
    raw = Raw(tool.service_url)
    raw.greet()
    raw.say("producer", topic=topic, producer_id=1, request_id=1)
    said = raw.read()
    raw.close()
    return int(said.error.error) if said.HasField("error") else 0


@pytest.mark.parametrize(("policy", "code"), [(HOLD, 7), (EXCEPTION, 8)])
def test_producers_are_kept_out_until_there_is_room(tool: Tool, client: pulsar.Client, policy: str, code: int) -> None:
    name = f"full-{code}"
    consumer = client.subscribe(name, "s")
    assert tool.ask("POST", f"{BASE}/{name}/backlogQuota", quota(policy)).status == 204
    producer = client.create_producer(name)
    for _ in range(3):
        producer.send(b"x" * 5_000)
    assert code_of(tool, f"persistent://public/default/{name}") == code
    with pytest.raises((pulsar.ProducerBlockedQuotaExceededError, pulsar.ProducerBlockedQuotaExceededException)):
        client.create_producer(name)
    until(lambda: tool.get(f"{BASE}/{name}/stats")["publishers"] == [])
    stats = tool.get(f"{BASE}/{name}/stats")
    assert stats["backlogQuotaLimitSize"] == LIMIT
    assert stats["msgInCounter"] == 3
    for message in received(consumer, 3):
        consumer.acknowledge(message)
    until(lambda: code_of(tool, name) == 0)
    client.create_producer(name).send(b"again")


def test_a_topic_without_a_subscription_is_never_full(tool: Tool, client: pulsar.Client) -> None:
    assert tool.ask("PUT", f"{BASE}/unread").status == 204
    assert tool.ask("POST", f"{BASE}/unread/backlogQuota", quota(HOLD, 1)).status == 204
    client.create_producer("unread").send(b"x" * 5_000)
    assert code_of(tool, "unread") == 0
    client.subscribe("unread", "s", initial_position=EARLIEST)
    assert code_of(tool, "unread") == 7


def test_a_namespace_has_one_for_its_topics(tool: Tool, client: pulsar.Client) -> None:
    """A topic's own goes before it; deleting either is the end of it."""
    assert tool.ask("PUT", f"{SPACES}/public/limited").status == 204
    path, topics = f"{SPACES}/public/limited", "/admin/v2/persistent/public/limited"
    assert tool.get(f"{path}/backlogQuotaMap") == {}
    assert tool.ask("POST", f"{path}/backlogQuota?backlogQuotaType=destination_storage", quota(HOLD)).status == 204
    assert tool.get(f"{path}/backlogQuotaMap") == {"destination_storage": quota(HOLD)}
    name = "persistent://public/limited/one"
    client.subscribe(name, "s")
    client.create_producer(name).send(b"x" * 20_000)
    assert code_of(tool, name) == 7
    assert tool.get(f"{topics}/one/backlogQuotaMap") == {}
    assert tool.get(f"{topics}/one/backlogQuotaMap?applied=true") == {"destination_storage": quota(HOLD)}
    assert tool.ask("POST", f"{topics}/one/backlogQuota", quota(EXCEPTION, 100_000)).status == 204
    assert code_of(tool, name) == 0
    assert tool.ask("DELETE", f"{topics}/one/backlogQuota").status == 204
    assert code_of(tool, name) == 7
    assert tool.ask("DELETE", f"{path}/backlogQuota").status == 204
    assert code_of(tool, name) == 0
    assert tool.ask("POST", f"{path}/backlogQuota", {"limit": "1024", "policy": HOLD}).status == 204
    assert tool.get(f"{path}/backlogQuotaMap") == {"destination_storage": quota(HOLD, 1024)}


def test_unsupported_quota_is_refused(tool: Tool) -> None:
    path = f"{SPACES}/public/default/backlogQuota"
    assert tool.ask("POST", f"{path}?backlogQuotaType=message_age", quota(HOLD)).status == 405
    assert tool.ask("POST", f"{path}?backlogQuotaType=message_age", {"policy": HOLD}).status == 412
    assert tool.ask("POST", f"{path}?backlogQuotaType=message_count", quota(HOLD)).status == 412
    assert tool.ask("POST", path, {"limitTime": 60, "policy": HOLD}).status == 405
    assert tool.ask("POST", path, quota("whatever")).status == 412
    assert tool.ask("POST", path, {"policy": HOLD}).status == 412
    assert tool.ask("POST", path, [1]).status == 412
    assert tool.ask("POST", f"{SPACES}/public/nowhere/backlogQuota", quota(HOLD)).status == 404
    assert tool.ask("POST", f"{BASE}/nowhere/backlogQuota", quota(HOLD)).status == 404
    assert tool.get(f"{SPACES}/public/default/backlogQuotaMap") == {}


def test_message_that_waits_too_long_keeps_producers_out(tool: Tool, client: pulsar.Client) -> None:
    """Until it is done; by then both kinds of quotas hold side by side."""
    name, aged = "waiting", "backlogQuotaType=message_age"
    consumer = client.subscribe(name, "s")
    producer = client.create_producer(name)
    producer.send(b"long ago")
    body = {"limitTime": 1, "policy": EXCEPTION}
    assert tool.ask("POST", f"{BASE}/{name}/backlogQuota?{aged}", body).status == 204
    assert tool.ask("POST", f"{BASE}/{name}/backlogQuota", quota(HOLD)).status == 204
    told = {"limit": -1, "limitSize": -1, "limitTime": 1, "policy": EXCEPTION}
    assert tool.get(f"{BASE}/{name}/backlogQuotaMap") == {"message_age": told, "destination_storage": quota(HOLD)}
    until(lambda: code_of(tool, name) == 8)
    assert tool.get(f"{BASE}/{name}/stats")["backlogQuotaLimitTime"] == 1
    for message in received(consumer, 1):
        consumer.acknowledge(message)
    until(lambda: code_of(tool, name) == 0)
    assert tool.ask("DELETE", f"{BASE}/{name}/backlogQuota?{aged}").status == 204
    assert tool.get(f"{BASE}/{name}/backlogQuotaMap") == {"destination_storage": quota(HOLD)}


def test_message_that_waits_too_long_is_evicted(tool: Tool, client: pulsar.Client) -> None:
    name, body = "evicted", {"limitTime": 1, "policy": "consumer_backlog_eviction"}
    tool.ask("PUT", f"{BASE}/{name}")
    assert tool.ask("POST", f"{BASE}/{name}/backlogQuota?backlogQuotaType=message_age", body).status == 204
    client.create_producer(name).send(b"long ago")
    client.subscribe(name, "s", initial_position=EARLIEST).close()
    until(lambda: tool.get(f"{BASE}/{name}/stats")["subscriptions"]["s"]["msgBacklog"] == 0)
    assert code_of(tool, name) == 0


def test_backlog_over_the_quota_is_evicted(tool: Tool, client: pulsar.Client) -> None:
    name = "too-much"
    tool.ask("PUT", f"{BASE}/{name}")
    assert tool.ask("POST", f"{BASE}/{name}/backlogQuota", quota("consumer_backlog_eviction")).status == 204
    producer = client.create_producer(name)
    sent = [b"%4d" % number * 250 for number in range(20)]
    for payload in sent:
        producer.send(payload)
    client.subscribe(name, "s", initial_position=EARLIEST).close()

    def waiting() -> int:
        return int(tool.get(f"{BASE}/{name}/stats")["subscriptions"]["s"]["msgBacklog"])

    until(lambda: waiting() < 20)
    remain = waiting()
    assert 5 <= remain <= 10
    assert tool.get(f"{BASE}/{name}/backlogQuotaMap") == {"destination_storage": quota("consumer_backlog_eviction")}
    producer.send(b"one more")
    consumer, came = client.subscribe(name, "s"), [b""]
    while came[-1] != b"one more":
        came += [message.data() for message in received(consumer, 1)]
    assert came[1:-1] == sent[-remain:]


def test_a_new_topic_of_the_name_has_none(tool: Tool) -> None:
    tool.ask("PUT", f"{BASE}/forgotten")
    tool.ask("POST", f"{BASE}/forgotten/backlogQuota", quota(HOLD))
    tool.ask("DELETE", f"{BASE}/forgotten")
    tool.ask("PUT", f"{BASE}/forgotten")
    assert tool.get(f"{BASE}/forgotten/backlogQuotaMap") == {}

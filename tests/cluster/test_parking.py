"""Parked and blocked keys through the client, in one process: what the application sees, and what operators decide."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

import sluice
from sluice.cluster.client.blocking import Consumer
from sluice.cluster.client.client import Client
from sluice.cluster.client.message import Message, MessageId
from sluice.storage.errors import Invalid, Timeout
from tests.cluster.helpers import eventually

pytestmark = pytest.mark.timeout(300)


def consumer_of(client: Client, policy: Literal["block", "park"] = "park", **settings: Any) -> Consumer:
    """One consumer; a message fails when it is given back for the second time."""
    return client.subscribe(
        "orders",
        "billing",
        initial_position="earliest",
        nack_order="key",
        max_redeliver_count=1,
        dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=0,
        **settings,
    )


def send(client: Client, *messages: str) -> None:
    """Messages that are called by their key and a number."""
    producer = client.create_producer("orders")
    keys = [one.rstrip("0123456789").encode() for one in messages]
    rows = pa.record_batch({"key": keys, "payload": [one.encode() for one in messages]})
    producer.send_batch(rows).result(60)


def take(consumer: Consumer, *wanted: str) -> list[str]:
    """Receive and acknowledge until all of `wanted` were there; returns everything that came."""
    open_ones, seen = set(wanted), []
    while open_ones:
        message: Message = consumer.receive(60_000)
        seen.append(message.data().decode())
        consumer.acknowledge(message)
        open_ones.discard(seen[-1])
    consumer.wait_acknowledged(60_000)
    return seen


def reject(client: Client, consumer: Consumer, keys: str, *others: str) -> None:
    """Give back whatever is of these keys (a letter each) until each has failed; acknowledge the others."""
    open_ones = set(others)
    end = time.monotonic() + 120
    while open_ones or stats(client)["keysParkedTotal"] < len(keys):
        assert time.monotonic() < end, stats(client)
        try:
            message = consumer.receive(100)
        except Timeout:
            continue
        name = message.data().decode()
        if name[0] in keys:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
            open_ones.discard(name)
    consumer.wait_acknowledged(60_000)


def stats(client: Client) -> dict[str, Any]:
    """Return the statistics of the subscription on the first partition."""
    return client.stats("orders", "billing")[0]


def parked(client: Client, messages: int, name: str = "msgParked") -> dict[str, Any]:
    """The statistics as soon as so many messages are parked."""
    eventually(lambda: stats(client)[name] == messages, lambda: str(stats(client)))
    return stats(client)


def nothing_more(consumer: Consumer) -> None:
    """Nothing is delivered now."""
    with pytest.raises(Timeout):
        consumer.receive(100)


def test_a_key_is_parked_and_comes_back_in_order(client: Client) -> None:
    send(client, "a1", "b1", "a2", "b2")
    with consumer_of(client) as consumer:
        reject(client, consumer, "a", "b1", "b2")
        send(client, "a3", "b3")
        assert take(consumer, "b3") == ["b3"]
        told = parked(client, 3)
        assert (told["parkedKeys"], told["msgBacklog"], told["unackedMessages"]) == (1, 3, 0)
        (listed,) = client.admin("orders", "billing", "parked")[0]["keys"]
        assert (listed["key"], listed["state"], listed["messages"], listed["bytes"]) == ("a", "parked", 3, 9)
        assert client.admin("orders", "billing", "redrive", key="a") == [{"keys": 1, "messages": 3}]
        send(client, "a4")
        assert take(consumer, "a1", "a2", "a3", "a4") == ["a1", "a2", "a3", "a4"]
        assert client.admin("orders", "billing", "redrive", key="a") == [{"keys": 0, "messages": 0}]
    assert stats(client)["msgBacklog"] == 0


def test_the_next_start_keeps_them(tmp_path: Path) -> None:
    with sluice.connect(embedded=True, data_dir=tmp_path / "data") as client:
        client.create_topic("orders", 1)
        send(client, "a1", "b1", "a2")
        with consumer_of(client) as consumer:
            reject(client, consumer, "a", "b1")
            parked(client, 2)
    with sluice.connect(embedded=True, data_dir=tmp_path / "data") as client, consumer_of(client) as consumer:
        send(client, "a3", "b2")
        assert take(consumer, "b2") == ["b2"]
        parked(client, 3)
        client.admin("orders", "billing", "redrive", everything=True)
        assert take(consumer, "a1", "a2", "a3") == ["a1", "a2", "a3"]


def test_discarded_message_never_comes_again(client: Client) -> None:
    send(client, "a1", "b1", "a2", "c1", "c2")
    with consumer_of(client) as consumer:
        reject(client, consumer, "a", "b1", "c1", "c2")
        assert client.admin("orders", "billing", "discard", key="a") == [{"keys": 1, "messages": 2}]
        send(client, "a3")
        assert take(consumer, "a3") == ["a3"]
        nothing_more(consumer)
    assert stats(client)["msgBacklog"] == 0
    assert stats(client)["msgDiscardedTotal"] == 2


def test_the_failed_message_alone_is_discarded(client: Client) -> None:
    send(client, "a1", "a2", "b1", "a3")
    with consumer_of(client) as consumer:
        reject(client, consumer, "a", "b1")
        parked(client, 3)
        failed = client.admin("orders", "billing", "parked")[0]["keys"][0]["failed"]
        message_id, partition = failed.rsplit(":", 1)
        answer = client.admin(
            "orders", "billing", "discard", message_id=message_id, only_failed=True, partition=int(partition)
        )
        assert answer == [{"keys": 1, "messages": 1}]
        assert take(consumer, "a2", "a3") == ["a2", "a3"]
        nothing_more(consumer)


def test_a_blocked_key_waits_for_somebody_to_decide(client: Client) -> None:
    send(client, "a1", "b1", "a2")
    with consumer_of(client, "block") as consumer:
        reject(client, consumer, "a", "b1")
        parked(client, 2, "msgBlockedByKey")
        assert client.admin("orders", "billing", "parked")[0]["keys"][0]["state"] == "blocked"
        reason = client.explain("orders", "billing", key="a")["reasons"][0]
        assert reason["gate"] == "blocked"
        assert reason["text"].startswith("blocked since 20")
        assert "redrive orders billing --key a" in reason["unblocks"]
        client.admin("orders", "billing", "redrive", key="a")
        assert take(consumer, "a1", "a2") == ["a1", "a2"]


def test_explain_says_since_when_it_is_parked(client: Client) -> None:
    send(client, "a1", "b1", "a2")
    with consumer_of(client) as consumer:
        reject(client, consumer, "a", "b1")
        parked(client, 2)
        told = client.explain("orders", "billing", key="a")
        assert told["verdict"] == "parked"
        assert told["reasons"][0]["text"].startswith("parked since 20")
        stored = next(iter(client.read("orders", client.stored("orders")[0])))
        second = MessageId(0, int(stored.positions[2]))
        assert client.explain("orders", "billing", message_id=second)["verdict"] == "parked"


def test_the_limit_is_an_alarm_and_loses_nothing(client: Client) -> None:
    send(client, "a1", "a2", "c1", "b1", "c2")
    with consumer_of(client, park_max_keys=1) as consumer:
        reject(client, consumer, "ac", "b1")
        eventually(
            lambda: any("parking is at its limit" in alarm for alarm in client.alarms()), lambda: str(client.alarms())
        )
        client.admin("orders", "billing", "redrive", everything=True)
        again = take(consumer, "a1", "a2", "c1", "c2")
        assert sorted(again) == ["a1", "a2", "c1", "c2"]
        assert [one for one in again if one[0] == "a"] == ["a1", "a2"]


def test_a_seek_lets_every_key_go(client: Client) -> None:
    send(client, "a1", "b1")
    with consumer_of(client) as consumer:
        reject(client, consumer, "a", "b1")
        parked(client, 1)
        client.admin("orders", "billing", "seek", message_id="earliest")
        assert take(consumer, "a1", "b1") == ["a1", "b1"]
        assert stats(client)["parkedKeys"] == 0


def test_wrong_choices_are_refused(client: Client) -> None:
    send(client, "a1")
    with pytest.raises(Invalid, match="nack_order"):
        client.subscribe("orders", "other", dead_letter_policy="park", max_redeliver_count=1)
    with consumer_of(client), pytest.raises(Invalid, match="say which keys"):
        client.admin("orders", "billing", "redrive")
    with client.subscribe("orders", "plain"), pytest.raises(Invalid, match="parks no keys"):
        client.admin("orders", "plain", "discard", everything=True)

"""Delayed messages are taken back and moved through a real cluster in this process, and the answers are true."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sluice.cluster.client.client import Client
from sluice.cluster.client.delayed import requests
from sluice.cluster.client.message import MessageId
from sluice.cluster.launch import embedded
from sluice.cluster.launch.embedded import EmbeddedCluster
from sluice.cluster.settings.options import ClusterOptions
from sluice.storage.errors import Invalid, NotFound
from tests.cluster.helpers import eventually

pytestmark = pytest.mark.timeout(300)

LATER = timedelta(hours=1)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[tuple[EmbeddedCluster, Client]]:
    """A cluster, and a client of it, on a folder."""
    options = ClusterOptions(data_dir=tmp_path / "data")
    with embedded.running(options) as inner, Client(None, inner.net, inner.loop) as client:
        client.create_topic("reminders", 2)
        yield inner, client


def answers(rows: list[dict[str, Any]]) -> list[str]:
    return [message["answer"] for row in rows for message in row["messages"]]


def total(rows: list[dict[str, Any]], kind: str) -> int:
    return sum(row[kind] for row in rows)


def test_every_answer_is_true(one: tuple[EmbeddedCluster, Client]) -> None:
    _, client = one
    consumer = client.subscribe("reminders", "dunning", consumer_name="c1", initial_position="earliest")
    producer = client.create_producer("reminders")
    first, second, third = (producer.send(f"{n}", partition_key="k", deliver_after=LATER) for n in range(3))
    assert answers(client.cancel_delayed("reminders", "dunning", message_id=first)) == ["cancelled"]
    assert answers(client.cancel_delayed("reminders", "dunning", message_id=str(first))) == ["cancelled"]
    explained = client.explain("reminders", "dunning", message_id=first)
    assert explained["reasons"][0]["text"] == "it was cancelled"
    now = timedelta(milliseconds=1)
    moved = client.reschedule_delayed("reminders", "dunning", message_id=[second, first], deliver_after=now)
    assert sorted(answers(moved)) == ["cancelled", "rescheduled"]
    message = consumer.receive(60_000)
    assert message.data() == b"1"
    assert answers(client.cancel_delayed("reminders", message_id=second)) == ["too late: at consumer c1"]
    consumer.acknowledge(message)
    consumer.wait_acknowledged()
    assert answers(client.cancel_delayed("reminders", message_id=second)) == ["too late: delivered"]
    client.reschedule_delayed("reminders", "dunning", message_id=third, deliver_after=2 * LATER)
    explained = client.explain("reminders", "dunning", message_id=third)
    assert "rescheduled" in explained["reasons"][0]["text"]
    nowhere = MessageId(first.partition_index, first.position + 100)
    assert answers(client.cancel_delayed("reminders", "dunning", message_id=nowhere)) == ["unknown"]
    stats = client.stats("reminders", "dunning")
    assert sum(row["msgDelayedCancelledTotal"] for row in stats) == 1
    assert sum(row["msgDelayedRescheduledTotal"] for row in stats) == 2
    assert sum(row["msgDelayed"] for row in stats) == 1


def test_a_key_a_time_and_everything(one: tuple[EmbeddedCluster, Client]) -> None:
    _, client = one
    client.subscribe("reminders", "dunning", initial_position="earliest").close()
    producer = client.create_producer("reminders")
    base = int(time.time() * 1000) + 3_600_000
    for number in range(60):
        producer.send(f"{number}", partition_key=f"k{number % 3}", deliver_at=base + number)
    dry = client.cancel_delayed("reminders", "dunning", key="k1", dry_run=True)
    assert total(dry, "cancelled") == 20
    assert total(client.cancel_delayed("reminders", "dunning", key="k1"), "cancelled") == 20
    later = client.reschedule_delayed("reminders", due_from=base, due_to=base + 30, deliver_after=2 * LATER)
    assert total(later, "rescheduled") == 20
    assert total(client.cancel_delayed("reminders", due_from=base, due_to=base + 30), "cancelled") == 10
    left = client.cancel_delayed("reminders", "dunning", everything=True, dry_run=True)
    assert total(left, "cancelled") == 60
    assert total(client.cancel_delayed("reminders", "dunning", everything=True), "cancelled") == 60
    assert client.stats("reminders", "dunning")[0]["msgBacklog"] == 0


def test_the_senders_own_id_is_enough(one: tuple[EmbeddedCluster, Client]) -> None:
    _, client = one
    consumer = client.subscribe("reminders", "dunning", initial_position="earliest")
    producer = client.create_producer("reminders")
    old = producer.send("old", delay_id="invoice-1", deliver_after=LATER)
    producer.send("other", delay_id="invoice-2", deliver_after=LATER)
    producer.send("keyed", partition_key="customer", delay_id="invoice-3", deliver_after=LATER)
    new = producer.send("new", delay_id="invoice-1", deliver_after=LATER)
    replaced = client.cancel_delayed("reminders", delay_id="invoice-1", before=new)
    assert [(row["messageId"], row["answer"]) for row in replaced[0]["messages"]] == [(str(old), "cancelled")]
    assert answers(client.cancel_delayed("reminders", delay_id="invoice-3", key="customer")) == ["cancelled"]
    assert answers(client.cancel_delayed("reminders", delay_id="invoice-9")) == ["unknown"]
    soon = timedelta(milliseconds=1)
    client.reschedule_delayed("reminders", delay_id=["invoice-1"], deliver_after=soon)
    message = consumer.receive(60_000)
    assert (message.data(), message.properties()["delay_id"]) == (b"new", "invoice-1")


def test_other_subscriptions_get_what_one_gave_up(one: tuple[EmbeddedCluster, Client]) -> None:
    _, client = one
    first = client.subscribe("reminders", "first", initial_position="earliest")
    second = client.subscribe("reminders", "second", initial_position="earliest")
    producer = client.create_producer("reminders")
    kept = producer.send("kept", partition_key="k", deliver_after=timedelta(seconds=2))
    given_up = producer.send("given up", partition_key="k", deliver_after=timedelta(seconds=1))
    assert answers(client.cancel_delayed("reminders", "first", message_id=given_up)) == ["cancelled"]
    assert [first.receive(60_000).message_id()] == [kept]
    assert {second.receive(60_000).message_id() for _ in range(2)} == {kept, given_up}


def test_cancellation_outlives_the_cluster(tmp_path: Path) -> None:
    options = ClusterOptions(data_dir=tmp_path / "data")
    with embedded.running(options) as inner, Client(None, inner.net, inner.loop) as client:
        client.create_topic("reminders", 1)
        client.subscribe("reminders", "dunning", initial_position="earliest").close()
        producer = client.create_producer("reminders")
        ids = [producer.send(f"{n}", partition_key="k", deliver_after=LATER) for n in range(6)]
        client.cancel_delayed("reminders", message_id=ids[:3])
        client.reschedule_delayed("reminders", message_id=ids[4], deliver_after=timedelta(milliseconds=1))
    with embedded.running(options) as inner, Client(None, inner.net, inner.loop) as client:
        assert set(answers(client.cancel_delayed("reminders", message_id=ids[:3]))) == {"cancelled"}
        consumer = client.subscribe("reminders", "dunning", initial_position="earliest")
        assert consumer.receive(60_000).message_id() == ids[4]
        # It may come before the log is read, because the record has its new time.
        eventually(lambda: total(client.stats("reminders", "dunning"), "msgDelayed") == 2, "the other two wait")


@pytest.mark.parametrize(
    ("chosen", "error"),
    [
        ({}, Invalid),
        ({"message_id": "1:2:0", "key": "k"}, Invalid),
        ({"everything": True, "key": "k"}, Invalid),
        ({"message_id": "1:2:7"}, NotFound),
        ({"message_id": "first"}, Invalid),
        ({"due_from": "soon"}, Invalid),
        ({"delay_id": 7}, Invalid),
        ({"keys": "k"}, Invalid),
    ],
)
def test_bad_choices_are_refused(chosen: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        requests("cancel_delayed", chosen, 2)


def test_only_the_partitions_that_matter_are_asked() -> None:
    assert list(requests("cancel_delayed", {"message_id": ["1:2:1", "1:3:1"]}, 4)) == [1]
    assert len(requests("cancel_delayed", {"key": "k"}, 4)) == 1
    assert len(requests("cancel_delayed", {"due_to": 5}, 4)) == 4
    assert list(requests("cancel_delayed", {"due_to": 5, "before": "3:1:2"}, 4)) == [2]

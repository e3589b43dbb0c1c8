"""The public client against a real cluster: what a user of Pulsar would try first, and what must survive a kill -9."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sluice
from sluice.cluster.client.blocking import Consumer
from sluice.cluster.client.client import Client
from sluice.cluster.launch import launch
from tests.cluster.helpers import PATIENCE_MS, PATIENCE_S, Received, batch, eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One cluster for all tests of this module."""
    folder: Path = tmp_path_factory.mktemp("cluster")
    with launch.local(folder, brokers=2), sluice.connect() as connected:
        yield connected


def collect(consumers: list[Consumer], count: int, acknowledge: bool = True) -> dict[str, list[int]]:
    """Receive `count` messages in all; the numbers of each key in order of arrival."""
    seen: dict[str, list[int]] = {}
    left = count
    deadline = time.monotonic() + PATIENCE_S
    while left > 0:
        assert time.monotonic() < deadline, f"{left} of {count} messages did not come"
        for consumer in consumers:
            got = consumer.receive_batch(50)
            if got is None:
                continue
            left -= len(got)
            pairs = zip(got.rows.column("key").to_pylist(), got.rows.column("payload").to_pylist(), strict=True)
            for key, payload in pairs:
                seen.setdefault(key.decode(), []).append(int(payload))
            if acknowledge:
                consumer.acknowledge(got)
    return seen


def backlog(client: Client, topic: str, subscription: str) -> int:
    """Messages that are not done, over all partitions."""
    return sum(row["msgBacklog"] for row in client.stats(topic, subscription))


def test_single_messages_as_in_pulsar(client: Client) -> None:
    """send, receive, acknowledge, with key, properties, times and ids."""
    client.create_topic("single", partitions=2)
    consumer = client.subscribe("single", "s", initial_position="earliest")
    with client.create_producer("single") as producer:
        sent = producer.send(b"paid", {"kind": "order"}, partition_key="customer-7", event_timestamp=17)
        message = consumer.receive(timeout_millis=PATIENCE_MS)
        assert message.data() == b"paid"
        assert message.partition_key() == "customer-7"
        assert message.properties() == {"kind": "order"}
        assert message.event_timestamp() == 17
        assert message.message_id() == sent
        assert message.redelivery_count() == 0
        consumer.acknowledge(message, ack_receipt=True)
    eventually(lambda: backlog(client, "single", "s") == 0, "the backlog stays")
    with pytest.raises(sluice.Invalid, match="acknowledge each message"):
        consumer.acknowledge_cumulative(message)
    consumer.close()


def test_a_topic_goes_by_pulsars_full_name_as_well(client: Client) -> None:
    full = "persistent://public/default/by-full-name"
    client.create_topic(full, partitions=2)
    consumer = client.subscribe(full, "s", initial_position="earliest")
    with client.create_producer(full) as producer:
        producer.send(b"1", partition_key="k")
    assert consumer.receive(timeout_millis=PATIENCE_MS).data() == b"1"
    assert client.subscriptions(full) == client.subscriptions("by-full-name") == ["s"]
    assert client.get_topic_partitions(full) == ["by-full-name-partition-0", "by-full-name-partition-1"]
    assert len(client.stats(full, "s")) == len(client.stats("by-full-name")) == 2
    assert sum(len(list(client.read(full, part))) for part in client.stored(full)) == 1
    consumer.close()
    client.delete_subscription(full, "s")
    client.delete_topic(full)
    assert "by-full-name" not in [row["topic"] for row in client.topics()]


def test_each_key_arrives_in_order_at_two_consumers(client: Client) -> None:
    """Columns in, columns out; every key complete and rising; nothing is left over."""
    client.create_topic("ordered", partitions=3)
    consumers = [client.subscribe("ordered", "s", initial_position="earliest", receiver_queue_size=600) for _ in "ab"]
    producer = client.create_producer("ordered")
    receipts = [producer.send_batch(batch(50, 40, first=40 * part)) for part in range(5)]
    for receipt in receipts:
        assert (receipt.result(PATIENCE_S).positions >= 0).all()
    seen = collect(consumers, 50 * 200)
    assert {key: numbers for key, numbers in seen.items() if numbers != list(range(200))} == {}
    assert len(seen) == 50
    for consumer in consumers:
        consumer.wait_acknowledged(PATIENCE_MS)
    assert backlog(client, "ordered", "s") == 0
    rows = client.stats("ordered", "s")
    assert sum(row["orderCheckedTotal"] for row in rows) >= 10_000
    assert sum(row["orderViolationsTotal"] for row in rows) == 0
    for consumer in consumers:
        consumer.close()


def test_a_delayed_message_is_never_early(client: Client) -> None:
    """The undelayed ones come first; the delayed one not before its time."""
    client.create_topic("late")
    consumer = client.subscribe("late", "s", initial_position="earliest")
    producer = client.create_producer("late")
    begun = time.time()
    producer.send(b"later", partition_key="k", deliver_after=timedelta(seconds=1.5))
    producer.send(b"now", partition_key="k")
    assert consumer.receive(timeout_millis=PATIENCE_MS).data() == b"now"
    later = consumer.receive(timeout_millis=PATIENCE_MS)
    assert later.data() == b"later"
    assert time.time() - begun >= 1.5
    assert later.deliver_at() > 0
    consumer.close()


def test_a_negative_acknowledgement_brings_it_again(client: Client) -> None:
    """Redelivered with its count raised, to the same subscription."""
    client.create_topic("nack")
    consumer = client.subscribe("nack", "s", initial_position="earliest")
    client.create_producer("nack").send(b"x", partition_key="k")
    first = consumer.receive(timeout_millis=PATIENCE_MS)
    consumer.negative_acknowledge(first, delay_ms=10)
    again = consumer.receive(timeout_millis=PATIENCE_MS)
    assert again.message_id() == first.message_id()
    assert again.redelivery_count() == 1
    consumer.acknowledge(again)
    consumer.close()


def test_too_often_given_back_goes_to_the_dead_letter_topic(client: Client) -> None:
    """After max_redeliver_count redeliveries it is done here and stored there, once, whenever it died."""
    client.create_topic("poison", partitions=2)
    consumer = client.subscribe("poison", "s", initial_position="earliest", max_redeliver_count=2)
    names = [f"bad-{number}" for number in range(30)]
    with client.create_producer("poison") as producer:
        for name in names:
            producer.send(name.encode(), partition_key=name, properties={"kind": "poison"})
    given = {}
    for _ in range(3 * len(names)):
        message = consumer.receive(timeout_millis=PATIENCE_MS)
        given[message.data()] = str(message.message_id())
        consumer.negative_acknowledge(message, delay_ms=0)
    eventually(lambda: backlog(client, "poison", "s") == 0, "the dead letters stay in the backlog")
    dead = client.subscribe("poison-s-DLQ", "look", initial_position="earliest")
    buried = [dead.receive(timeout_millis=PATIENCE_MS) for _ in names]
    assert sorted(message.data() for message in buried) == sorted(given)
    for message in buried:
        origin = {"REAL_TOPIC": "poison", "ORIGIN_MESSAGE_ID": given[message.data()]}
        assert message.properties() == {"kind": "poison", **origin}
    dead.close()
    consumer.close()


def test_a_dead_letter_topic_that_could_not_be_used_is_refused(client: Client) -> None:
    client.create_topic("refusing")
    for name, topic, why in (
        ("s", "refusing", "refusing itself"),
        ("s", "persistent://public/default/refusing", "refusing itself"),
        ("s", "../x", "not allowed"),
        ("s" * 128, "", "at most 128"),
    ):
        with pytest.raises(sluice.Invalid, match=why):
            client.subscribe("refusing", name, max_redeliver_count=1, dead_letter_topic=topic)
    assert client.subscriptions("refusing") == []


def test_an_identical_repetition_stores_nothing_twice(client: Client) -> None:
    """Same producer name, same first sequence, same rows: the same places (S4, S19)."""
    client.create_topic("dedup", partitions=2)
    first = client.create_producer("dedup", "task-1", initial_sequence_id=0)
    stored = first.send_batch(batch(10, 30)).result(PATIENCE_S)
    again = client.create_producer("dedup", "task-1", initial_sequence_id=0)
    repeated = again.send_batch(batch(10, 30)).result(PATIENCE_S)
    assert np.array_equal(stored.positions, repeated.positions)
    consumer = client.subscribe("dedup", "s", initial_position="earliest")
    assert {tuple(numbers) for numbers in collect([consumer], 300).values()} == {tuple(range(30))}
    assert consumer.receive_batch(300) is None
    with pytest.raises(sluice.Fenced):
        first.send_batch(batch(1, 1)).result(PATIENCE_S)
    consumer.close()


def test_seek_and_clear(client: Client) -> None:
    """Back to the beginning, then everything skipped."""
    client.create_topic("moves")
    consumer = client.subscribe("moves", "s", initial_position="earliest")
    client.create_producer("moves").send_batch(batch(3, 20)).result(PATIENCE_S)
    assert sum(map(len, collect([consumer], 60).values())) == 60
    consumer.wait_acknowledged(PATIENCE_MS)
    client.admin("moves", "s", "seek", message_id="earliest")
    assert sum(map(len, collect([consumer], 60, acknowledge=False).values())) == 60
    assert backlog(client, "moves", "s") == 60
    client.admin("moves", "s", "clear_backlog")
    assert backlog(client, "moves", "s") == 0
    consumer.close()


def test_explain_names_the_holder_of_a_draining_hash(client: Client) -> None:
    """A key whose messages are still with its former owner waits, and says for whom."""
    client.create_topic("why")
    first = client.subscribe("why", "s", initial_position="earliest", consumer_name="first")
    producer = client.create_producer("why")
    producer.send_batch(batch(200, 1)).result(PATIENCE_S)
    held = [first.receive_batch(5_000)]
    second = client.subscribe("why", "s", consumer_name="second")
    producer.send_batch(batch(200, 1, first=1)).result(PATIENCE_S)
    eventually(lambda: client.stats("why", "s")[0]["msgInReplay"] > 0, "nothing waits")
    waiting = [key for key in range(200) if "drain" in str(client.explain("why", "s", key=f"key-{key}"))]
    assert waiting, "no key is draining although a second consumer took half of them"
    told = str(client.explain("why", "s", key=f"key-{waiting[0]}"))
    assert "first" in told
    for got in held:
        assert got is not None
        first.acknowledge(got)
    seen = collect([first, second], 200)
    assert all(numbers == [1] for numbers in seen.values())
    first.close()
    second.close()


def test_wrong_calls_get_one_clear_line(client: Client) -> None:
    """Invalid names, settings, columns and topics are refused with what to do."""
    with pytest.raises(sluice.NotFound, match="there is no topic 'nowhere'"):
        client.create_producer("nowhere")
    with pytest.raises(sluice.Invalid):
        client.create_topic("../etc")
    with pytest.raises(sluice.Invalid, match="partition"):
        client.create_topic("none", partitions=0)
    with pytest.raises(sluice.Invalid, match="unknown setting"):
        client.create_topic("odd", colour="red")  # type: ignore[call-arg]
    client.create_topic("single", partitions=2)
    with pytest.raises(sluice.Conflict, match="other settings"):
        client.create_topic("single", partitions=5)
    producer = client.create_producer("single")
    with pytest.raises(sluice.Invalid, match="payload"):
        producer.send_batch(pa.record_batch({"key": ["a"]}))
    with pytest.raises(sluice.Invalid, match="unknown column 'colour'"):
        producer.send_batch(pa.record_batch({"payload": ["a"], "colour": ["red"]}))


def pids(client: Client, kind: str, topic: str = "") -> list[int]:
    """Processes that run actors of a kind (for a topic)."""
    import ray

    rows = client.status()["actors"]
    hosts = {row["address"].partition("/")[0] for row in rows if row["kind"] == kind and topic in row["name"]}
    return [int(ray.get(ray.get_actor(host, "sluice").usage.remote())["pid"]) for host in sorted(hosts - {""})]


@pytest.mark.parametrize("kind", ["dispatcher", "topic", "bookie"])
@pytest.mark.slow
def test_a_killed_process_loses_and_repeats_nothing(client: Client, kind: str) -> None:
    """SIGKILL under load: every confirmed message arrives, each key's first deliveries rise, the rest is zero."""
    topic = f"kill-{kind}"
    client.create_topic(topic, partitions=2, ensemble=3)
    consumers = [client.subscribe(topic, "s", initial_position="earliest", receiver_queue_size=400) for _ in "ab"]
    producer = client.create_producer(topic)
    receipts = [producer.send_batch(batch(40, 20, first=20 * part)) for part in range(10)]
    for victim in pids(client, kind, "bookie-1" if kind == "bookie" else topic):
        os.kill(victim, signal.SIGKILL)
    receipts += [producer.send_batch(batch(40, 20, first=20 * part)) for part in range(10, 20)]
    received = Received()
    eventually(lambda: received.take(consumers) >= 0 and received.complete(40, 400), lambda: received.missing(40, 400))
    for receipt in receipts:
        receipt.result(PATIENCE_S)
    received.check(40, 400)
    received.settle(consumers, client, topic, "s")
    for consumer in consumers:
        consumer.close()


def test_policy_decides_about_a_key_with_a_delay(client: Client) -> None:
    """`block_key`: later messages of the key wait. `reject`: refused at publish; keyless delays pass."""
    client.create_topic("held-back")
    consumer = client.subscribe("held-back", "s", initial_position="earliest", delay_key_policy="block_key")
    producer = client.create_producer("held-back")
    producer.send(b"first", partition_key="a", deliver_after=timedelta(seconds=1))
    producer.send(b"second", partition_key="a")
    producer.send(b"other", partition_key="b")
    assert [consumer.receive(timeout_millis=PATIENCE_MS).data() for _ in range(3)] == [b"other", b"first", b"second"]
    consumer.close()

    client.create_topic("strict")
    consumer = client.subscribe("strict", "s", initial_position="earliest", delay_key_policy="reject")
    producer = client.create_producer("strict")
    with pytest.raises(sluice.Invalid, match="key and a delay"):
        producer.send(b"no", partition_key="a", deliver_after=timedelta(seconds=1))
    producer.send(b"later", deliver_after=timedelta(milliseconds=100))
    producer.send(b"now", partition_key="a")
    assert {consumer.receive(timeout_millis=PATIENCE_MS).data() for _ in range(2)} == {b"later", b"now"}
    consumer.close()


def test_an_impossible_subscription_is_refused_and_forgotten(client: Client) -> None:
    """One clear line; a right subscription of the same name works afterwards."""
    client.create_topic("picky")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"policy": "guess"}, "choose one of draining_hashes"),
        ({"lease_ms": 10}, "it is 2000 to"),
        ({"initial_position": "middle"}, "choose one of latest, earliest"),
    ]
    for settings, words in wrong:
        with pytest.raises(sluice.Invalid, match=words):
            client.subscribe("picky", "s", **settings)
    client.subscribe("picky", "s").close()


def test_messages_past_their_time_to_live_are_done(client: Client) -> None:
    """ttl_ms of the topic: nobody consumes, and the backlog goes all the same."""
    client.create_topic("short-lived", ttl_ms=500)
    client.subscribe("short-lived", "s", initial_position="earliest").close()
    client.create_producer("short-lived").send_batch(batch(3, 5)).result(PATIENCE_S)
    eventually(lambda: backlog(client, "short-lived", "s") == 0, "old messages stay")

"""One consumer over several topics: a list, or a pattern that topics begin and cease to match while it runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sluice
from sluice.cluster.client.blocking import Consumer
from sluice.cluster.client.client import Client
from sluice.cluster.client.topic_pattern import matches
from sluice.storage.errors import Fenced, Invalid, NotFound, Timeout
from tests.cluster.helpers import PATIENCE_MS

pytestmark = pytest.mark.timeout(300)

COUNT = 20
SOON: dict[str, Any] = {"initial_position": "earliest", "pattern_auto_discovery_period": 0.1}


def sent(client: Client, topic: str, count: int = COUNT) -> list[sluice.MessageId]:
    with client.create_producer(topic) as producer:
        return [producer.send(f"{topic} {number}", partition_key=f"k{number % 3}") for number in range(count)]


def received(consumer: Consumer, count: int) -> dict[tuple[str, str], list[int]]:
    """Receive and acknowledge so many; the numbers of each key of each topic."""
    seen: dict[tuple[str, str], list[int]] = {}
    for _ in range(count):
        message = consumer.receive(PATIENCE_MS)
        topic, number = message.data().decode().split()
        assert message.topic_name() == topic
        seen.setdefault((topic, message.partition_key()), []).append(int(number))
        consumer.acknowledge(message)
    return seen


def in_order(seen: dict[tuple[str, str], list[int]], *topics: str, count: int = COUNT) -> bool:
    """Whether each key of each topic came whole and in order."""
    return seen == {(topic, f"k{key}"): list(range(key, count, 3)) for topic in topics for key in range(3)}


def until(true: Callable[[], bool], consumer: Consumer) -> None:
    """Look again until it is so; a consumer that waits lets its loop go on meanwhile."""
    for _ in range(PATIENCE_MS // 10):
        if true():
            return
        with pytest.raises(Timeout):
            consumer.receive(10)
    raise AssertionError("it never came true")


@pytest.fixture
def client(client: Client) -> Client:
    client.create_topic("refunds", 2)
    return client


def test_a_list_of_topics_comes_to_one_consumer_in_order(client: Client) -> None:
    with client.subscribe(["orders", "refunds"], "s", initial_position="earliest") as consumer:
        assert consumer.topics() == ["orders", "refunds"]
        assert consumer.topic() == "orders, refunds"
        for topic in consumer.topics():
            sent(client, topic)
        assert in_order(received(consumer, 2 * COUNT), "orders", "refunds")
        consumer.wait_acknowledged(PATIENCE_MS)
    with client.subscribe(["orders", "refunds"], "s") as again, pytest.raises(Timeout):
        again.receive(100)


def test_ids_of_several_topics_are_acknowledged_and_given_back(client: Client) -> None:
    with client.subscribe(["orders", "refunds"], "s", initial_position="earliest") as consumer:
        for topic in consumer.topics():
            sent(client, topic, 1)
        first, second = consumer.receive(PATIENCE_MS), consumer.receive(PATIENCE_MS)
        consumer.acknowledge(first.message_id(), ack_receipt=True)
        consumer.negative_acknowledge(second.message_id(), delay_ms=0)
        assert consumer.receive(PATIENCE_MS).data() == second.data()
        with pytest.raises(NotFound):
            consumer.acknowledge(first.message_id())


def test_a_seek_to_an_id_moves_the_topic_that_has_it(client: Client) -> None:
    with client.subscribe(["orders", "refunds"], "s", initial_position="earliest") as consumer:
        sent(client, "orders")
        (place,) = sent(client, "refunds", 1)
        received(consumer, COUNT + 1)
        consumer.seek(place)
        assert received(consumer, 1) == {("refunds", "k0"): [0]}
        with pytest.raises(Timeout):
            consumer.receive(100)
        consumer.seek(sluice.MessageId.earliest)
        received(consumer, COUNT + 1)
        assert len(consumer.get_last_message_ids()) == 3


def test_unsubscribing_deletes_the_subscription_of_each_topic(client: Client) -> None:
    consumer = client.subscribe(["orders", "refunds"], "s")
    consumer.unsubscribe()
    assert [client.subscriptions(topic) for topic in ("orders", "refunds")] == [[], []]
    with pytest.raises(Fenced):
        consumer.receive(0)


def test_one_topic_that_is_missing_leaves_no_consumer_behind(client: Client) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        client.subscribe(["orders", "nowhere"], "s", type="exclusive")
    client.subscribe("orders", "s", type="exclusive").close()


@pytest.mark.parametrize("topics", [[], ["orders", 7], re.compile(b"orders"), 7, None])
def test_topics_that_are_no_names_are_refused(client: Client, topics: Any) -> None:
    with pytest.raises(Invalid):
        client.subscribe(topics, "s")


def test_a_topic_that_is_made_later_is_joined_at_its_start(client: Client) -> None:
    settings = SOON | {"initial_position": "latest"}
    with client.subscribe(re.compile("orders.*"), "s", **settings) as consumer:
        assert consumer.topics() == ["orders"]
        client.create_topic("orders-eu", 2)
        sent(client, "orders-eu")
        sent(client, "refunds")
        assert in_order(received(consumer, COUNT), "orders-eu")
        assert consumer.topics() == ["orders", "orders-eu"]
        with pytest.raises(Timeout):
            consumer.receive(100)


def test_a_topic_that_is_deleted_leaves_the_others_going(client: Client) -> None:
    client.create_topic("orders-eu")
    with client.subscribe(re.compile("orders.*"), "s", **SOON) as consumer:
        sent(client, "orders-eu", 1)
        held = consumer.receive(PATIENCE_MS)
        client.delete_topic("orders-eu", force=True)
        until(lambda: consumer.topics() == ["orders"], consumer)
        consumer.acknowledge(held)  # of no effect, and no error
        sent(client, "orders")
        assert in_order(received(consumer, COUNT), "orders")
        client.create_topic("orders-eu")
        sent(client, "orders-eu")
        assert in_order(received(consumer, COUNT), "orders-eu")


def test_a_pattern_with_a_slash_is_of_full_names(client: Client) -> None:
    for full in ("persistent://public/default/ord.*", "public/default/o.*s"):
        with client.subscribe(re.compile(full), "s", **SOON) as consumer:
            assert consumer.topics() == ["orders"]
    assert matches(re.compile("persistent://sales/eu/.*"), "sales..eu..orders")
    assert not matches(re.compile(".*"), "sales..eu..orders")
    assert not matches(re.compile("public/default/.*"), "sales..eu..orders")


def test_dead_letters_of_a_pattern_do_not_come_to_itself(client: Client) -> None:
    settings = SOON | {"max_redeliver_count": 1}
    with client.subscribe(re.compile("orders.*"), "s", **settings) as consumer:
        sent(client, "orders", 1)
        for _ in range(2):
            consumer.negative_acknowledge(consumer.receive(PATIENCE_MS), delay_ms=0)
        until(lambda: any(one["topic"] == "orders-s-DLQ" for one in client.topics()), consumer)
        with pytest.raises(Timeout):
            consumer.receive(500)
        assert consumer.topics() == ["orders"]


def test_an_asyncio_program_follows_a_pattern(tmp_path: Path) -> None:
    async def play() -> None:
        async with await sluice.connect_async(embedded=True, data_dir=tmp_path / "data") as client:
            consumer = await client.subscribe(re.compile("orders.*"), "s", **SOON)
            for topic in ("orders-a", "orders-b"):
                await client.create_topic(topic)
                async with await client.create_producer(topic) as producer:
                    await producer.send(topic, partition_key="k")
            seen = [await consumer.receive(PATIENCE_MS) for _ in range(2)]
            assert {message.topic_name() for message in seen} == {"orders-a", "orders-b"}
            await asyncio.gather(*(consumer.acknowledge(message, ack_receipt=True) for message in seen))
            await consumer.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(play())

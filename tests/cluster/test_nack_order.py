"""Ordered negative acknowledgement through the client: what the application sees, in one process."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
import pytest

from sluice.cluster.client.blocking import Consumer
from sluice.cluster.client.client import Client
from sluice.cluster.client.message import Message, MessageId
from sluice.cluster.workers.pool import Workers
from sluice.storage.errors import Conflict, Invalid, Timeout
from sluice.storage.format.batch import LAST_TIME
from tests.cluster.helpers import eventually

pytestmark = pytest.mark.timeout(300)


def consumer_of(client: Client, nack_order: Literal["none", "key"]) -> Consumer:
    """One consumer, whose queue takes everything."""
    return client.subscribe("orders", "billing", initial_position="earliest", nack_order=nack_order)


def send(client: Client, keys: list[bytes]) -> None:
    """A message a key, numbered."""
    producer = client.create_producer("orders")
    payloads = [b"%d" % number for number in range(len(keys))]
    producer.send_batch(pa.record_batch({"key": keys, "payload": payloads})).result(60)


def everything(consumer: Consumer, count: int) -> list[Message]:
    """Receive `count` messages, one at a time."""
    return [consumer.receive(60_000) for _ in range(count)]


def numbers(messages: list[Message]) -> list[int]:
    """Which messages these are."""
    return [int(message.data()) for message in messages]


def test_a_consumer_that_names_no_setting_changes_none(client: Client) -> None:
    """Later consumers find the settings in force that an earlier one named: else they would be refused."""
    chosen: dict[str, Any] = {
        "nack_order": "key",
        "max_redeliver_count": 3,
        "dead_letter_policy": "park",
        "lease_ms": 9_000,
    }
    client.subscribe("orders", "billing", **chosen).close()
    client.subscribe("orders", "billing").close()
    with client.subscribe("orders", "billing", initial_position="earliest"):
        client.subscribe("orders", "billing", **chosen).close()
        with pytest.raises(Conflict, match="max_redeliver_count is 3, not 4"):
            client.subscribe("orders", "billing", max_redeliver_count=4)
    client.subscribe("orders", "billing", max_redeliver_count=4).close()
    with client.subscribe("orders", "billing"):
        client.subscribe("orders", "billing", **{**chosen, "max_redeliver_count": 4}).close()


def test_a_pool_is_joined_without_its_settings(client: Client) -> None:
    def keep(message: Message) -> None:
        pass

    with Workers("orders", "billing", keep, client=client):
        client.subscribe("orders", "billing").close()


def test_seen_messages_come_again_behind_the_one_given_back(client: Client) -> None:
    send(client, [b"a", b"a", b"b", b"a"])
    with consumer_of(client, "key") as consumer:
        first = everything(consumer, 3)
        consumer.negative_acknowledge(first[0], delay_ms=0)
        assert [message.taken_back() for message in first] == [False, True, False]
        consumer.acknowledge(first[1])  # it was taken back: this has no effect
        consumer.acknowledge(first[2])
        again = everything(consumer, 3)
        assert numbers(again) == [0, 1, 3]
        assert [message.overtook() for message in again] == [False, True, False]
        assert [message.redelivery_count() for message in again] == [1, 0, 0]
        for message in again:
            consumer.acknowledge(message)
        consumer.wait_acknowledged(60_000)
        with pytest.raises(Timeout):
            consumer.receive(50)


def test_without_the_option_later_messages_go_first(client: Client) -> None:
    send(client, [b"a", b"a", b"a"])
    with consumer_of(client, "none") as consumer:
        first = consumer.receive(60_000)
        consumer.negative_acknowledge(first, delay_ms=0)
        assert numbers(everything(consumer, 3)) == [1, 2, 0]


def test_explain_names_what_the_key_waits_for(client: Client) -> None:
    send(client, [b"a", b"a"])
    with consumer_of(client, "key") as consumer:
        consumer.negative_acknowledge(consumer.receive(60_000), delay_ms=3_600_000)

        def verdict() -> Any:
            told = client.explain("orders", "billing", message_id=str(second))
            return told.get("partitions", [told])[0]

        stored = next(iter(client.read("orders", client.stored("orders")[0])))
        second = MessageId(0, int(stored.positions[1]))
        eventually(lambda: verdict()["verdict"] == "waits_for_redelivery", verdict)
        assert verdict()["reasons"][0]["text"].startswith("waits for a redelivery")


def test_an_unordered_subscription_refuses_it(client: Client) -> None:
    with pytest.raises(Invalid, match="nack_order"):
        client.subscribe("orders", "billing", type="shared", nack_order="key")


@pytest.mark.parametrize("delay", [0.5, LAST_TIME + 1])
def test_a_delay_that_cannot_be_kept_gives_nothing_back(client: Client, delay: int) -> None:
    """The call refuses the delay, and the message stays in place; an earlier version lost it, and held its key back."""
    send(client, [b"a"])
    with consumer_of(client, "none") as consumer:
        (message,) = everything(consumer, 1)
        with pytest.raises(Invalid, match="redelivery delay"):
            consumer.negative_acknowledge(message, delay_ms=delay)
        assert consumer.held() == 1
        consumer.negative_acknowledge(message, delay_ms=-1)
        assert numbers(everything(consumer, 1)) == [0]

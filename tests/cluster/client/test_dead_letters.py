"""Dead letters of a subscription as an object: in the dead letter topic, and at parked keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import sluice
from sluice.cluster.client.client import Client
from sluice.storage.errors import Invalid
from tests.cluster.helpers import PATIENCE_MS, PATIENCE_S, eventually


def fail(client: Client, *failing: str, **settings: Any) -> None:
    """Send four messages of each key; those of failing keys are given back until they are dead letters."""
    with client.create_producer("orders") as producer:
        for number in range(2):
            for key in ("a", "b"):
                producer.send(f"{key}{number}", {"n": str(number)}, partition_key=key)
    with client.subscribe(
        "orders", "billing", initial_position="earliest", max_redeliver_count=1,
        negative_ack_redelivery_delay_ms=0, **settings,
    ) as consumer:  # fmt: skip

        def dead() -> bool:
            batch = consumer.receive_batch(50)
            for message in batch.messages() if batch is not None else ():
                if message.partition_key() in failing:
                    consumer.negative_acknowledge(message)
                else:
                    consumer.acknowledge(message)
            return len(client.dead_letters("orders", "billing").letters()) >= 2 * len(failing)

        eventually(dead, "the messages do not die")


@pytest.fixture
def moved(client: Client) -> Client:
    """Four letters in the dead letter topic, of two keys."""
    fail(client, "a", "b")
    return client


def backlog(client: Client) -> list[str]:
    """Receive and acknowledge the backlog of the subscription."""
    count = client.stats("orders", "billing")[0]["msgBacklog"]
    with client.subscribe("orders", "billing") as consumer:
        got = []
        for _ in range(count):
            message = consumer.receive(PATIENCE_MS)
            got.append(message.data().decode())
            consumer.acknowledge(message)
        consumer.wait_acknowledged(PATIENCE_MS)
    return got


def test_letters_say_where_they_come_from(moved: Client) -> None:
    letters = moved.dead_letters("orders", "billing").letters()
    assert sorted(one.data for one in letters) == [b"a0", b"a1", b"b0", b"b1"]
    sent = next(one for one in letters if one.data == b"b1")
    assert (sent.key, sent.state, sent.properties["n"]) == (b"b", "moved", "1")
    (stored,) = moved.stored("orders")
    assert stored.first <= sent.message_id.entry_id() <= stored.last
    assert len(moved.dead_letters("orders", "billing").letters(top=3)) == 3


@pytest.mark.parametrize(
    ("topic", "at", "theirs"),
    [
        ("persistent://public/default/orders-partition-0", "3:0:-1", 1),
        ("orders", "3:0:-1:2", 1),
        ("orders", "", 1),
        ("no topic", "3:0", 0),
        ("returns", "3:0:0", 0),
    ],
)
def test_letters_of_other_programs_hide_no_others(moved: Client, topic: str, at: str, theirs: int) -> None:
    """A client of Pulsar writes its own, and anybody may say anything there."""
    with moved.create_producer("orders-billing-DLQ") as producer:
        place = producer.send(b"theirs", {"REAL_TOPIC": topic, "ORIGIN_MESSAGE_ID": at})
    dead = moved.dead_letters("orders", "billing")
    found = [one.message_id for one in dead.letters() if one.data == b"theirs"]
    assert found == [place] * theirs
    assert dead.discard(everything=True).messages == 4 + theirs


def test_a_redriven_key_is_handled_again(moved: Client) -> None:
    dead = moved.dead_letters("orders", "billing")
    decided = dead.redrive(key="a")
    assert (decided.keys, decided.messages) == (1, 2)
    assert sorted(one.data for one in dead.letters()) == [b"b0", b"b1"]
    assert backlog(moved) == ["a0", "a1"]
    with moved.create_reader("orders", sluice.MessageId.earliest) as reader:
        again = [reader.read_next(PATIENCE_MS) for _ in range(6)][4:]
    assert [(one.partition_key(), one.properties()) for one in again] == [("a", {"n": "0"}), ("a", {"n": "1"})]


def test_discarded_letters_are_gone(moved: Client) -> None:
    dead = moved.dead_letters("orders", "billing")
    one = dead.letters()[0]
    assert dead.discard(message_id=one.message_id).messages == 1
    assert len(dead.letters()) == 3
    assert dead.discard(everything=True).messages == 3
    assert dead.letters() == []
    assert backlog(moved) == []


def test_parked_keys_are_letters_too(client: Client) -> None:
    fail_parked(client)
    dead = client.dead_letters("orders", "billing")
    (letter,) = dead.letters()
    assert (letter.key, letter.state, letter.data, letter.messages) == (b"a", "parked", b"a0", 2)
    assert dead.discard(message_id=str(letter.message_id), only_failed=True).keys == 1
    assert dead.letters() == []
    assert backlog(client) == ["a1"]


def fail_parked(client: Client) -> None:
    """Park one key with two messages."""
    with client.create_producer("orders") as producer:
        for text in ("a0", "a1"):
            producer.send(text, partition_key="a")
    with client.subscribe(
        "orders", "billing", initial_position="earliest", max_redeliver_count=1, nack_order="key",
        dead_letter_policy="park", negative_ack_redelivery_delay_ms=0,
    ) as consumer:  # fmt: skip

        def parked() -> bool:
            if (batch := consumer.receive_batch(50)) is not None:
                consumer.negative_acknowledge(batch)
            letters = client.dead_letters("orders", "billing").letters()
            return bool(letters) and letters[0].messages == 2

        eventually(parked, "the key is not parked")


def test_a_decision_says_its_letters_in_one_way(client: Client) -> None:
    with client.subscribe("orders", "billing", max_redeliver_count=1):
        dead = client.dead_letters("orders", "billing")
        assert dead.letters() == []
        assert dead.redrive(everything=True).messages == 0
        for wrong in ({}, {"key": "a", "everything": True}):
            with pytest.raises(Invalid, match="say which letters: one of key, message_id"):
                dead.redrive(**wrong)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="unknown argument of discard 'all'"):
            dead.discard(all=True)  # type: ignore[call-arg]


def test_letters_are_decided_by_tasks(tmp_path: Path) -> None:
    async def run() -> None:
        async with await sluice.connect_async(embedded=True, data_dir=tmp_path) as client:
            await client.create_topic("orders")
            async with await client.create_producer("orders") as producer:
                await producer.send(b"paid", partition_key="k")
            dead = client.dead_letters("orders", "billing")
            async with await client.subscribe(
                "orders", "billing", initial_position="earliest", max_redeliver_count=1
            ) as consumer:
                for _ in range(2):
                    await consumer.negative_acknowledge(await consumer.receive(PATIENCE_MS), delay_ms=0)
                while not (letters := await dead.letters()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                assert [letter.data for letter in letters] == [b"paid"]
                assert (await dead.redrive(everything=True)).keys == 1
                assert (await consumer.receive(PATIENCE_MS)).data() == b"paid"
            assert await dead.letters() == []

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))

"""Numbers that no client of Pulsar sends: each is answered, with an ERROR at least, and the topic serves others on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from sluice.actors.pulsar.codec.protocol import Metadata, Single, command
from sluice.cluster.client.client import Client
from tests.actors.pulsar.made import NOW, U32, fill, frame
from tests.cluster.gateway.clients import EARLIEST, PATIENCE
from tests.cluster.gateway.raw import Raw

pytestmark = pytest.mark.timeout(240)

EDGES = (1 << 63, (1 << 63) - 1, (1 << 64) - 1)
MOST_INT = (1 << 31) - 1


def single(name: str, value: int) -> Callable[[], bytes]:
    """A SEND of one message whose metadata has a number."""
    return lambda: sent(b"x", {name: value})


def sent(payload: bytes, metadata: dict[str, Any], **fields: Any) -> bytes:
    """A SEND as bytes."""
    made = Metadata(producer_name=b"p", sequence_id=0, publish_time=NOW)
    fill(made, **metadata)
    told = command("send", producer_id=1, sequence_id=fields.pop("sequence_id", 0), **fields)
    return frame(told, made.SerializeToString(), payload)


def batched(name: str, value: int) -> Callable[[], bytes]:
    """A SEND of a batch of one message, whose own metadata has a number."""
    one = Single(payload_size=1)
    setattr(one, name, value)
    encoded = one.SerializeToString()
    return lambda: sent(U32.pack(len(encoded)) + encoded + b"x", {"num_messages": 1}, num_messages=1)


SENDS = {
    **{
        f"{name}-{value}": single(name, value)
        for name in ("publish_time", "event_time", "sequence_id", "highest_sequence_id")
        for value in EDGES
    },
    **{f"deliver_at-{value}": single("deliver_at_time", value) for value in (-1, -(1 << 63), (1 << 63) - 1)},
    **{f"metadata-count-{value}": single("num_messages", value) for value in (-1, -(1 << 31), 0, MOST_INT)},
    **{f"{name}-in-batch-{value}": batched(name, value) for name in ("event_time", "sequence_id") for value in EDGES},
    **{f"payload-size-{value}": batched("payload_size", value) for value in (-1, -(1 << 31), MOST_INT)},
    **{
        f"send-{name}-{value}": lambda name=name, value=value: sent(b"x", {}, **{name: value})  # type: ignore[misc]
        for name in ("sequence_id", "highest_sequence_id")
        for value in EDGES
    },
    **{
        f"send-count-{value}": lambda value=value: sent(b"x", {}, num_messages=value)  # type: ignore[misc]
        for value in (-1, -(1 << 31), 0, MOST_INT)
    },
}


def serves_others(server: Client, client: pulsar.Client, topic: str) -> None:
    """Another client publishes on the topic, and another subscription has it."""
    consumer = client.subscribe(topic, "others", initial_position=EARLIEST)
    client.create_producer(topic).send(b"others")
    while (message := consumer.receive(PATIENCE)).data() != b"others":
        consumer.acknowledge(message)
    consumer.close()
    with server.subscribe(topic, "ours", initial_position="earliest") as ours:
        while (one := ours.receive(PATIENCE)).data() != b"others":
            ours.acknowledge(one)


def answered(raw: Raw, *names: str) -> str:
    """Which of these the client is told, or `error`. Nobody is sent away without a word."""
    while (said := raw.read()) is not None:
        if told := [name for name in (*names, "error") if said.HasField(name)]:
            return told[0]
    raise AssertionError("the connection ended without a word")


@pytest.mark.parametrize("name", SENDS)
def test_a_send_with_it_is_answered(server: Client, client: pulsar.Client, raw: Raw, name: str) -> None:
    topic = f"send-{name}"
    raw.greet()
    raw.say("producer", topic=topic, producer_id=1, producer_name="p", request_id=1)
    raw.next("producer_success")
    raw.say("subscribe", topic=topic, subscription="s", type=1, consumer_id=1, request_id=2, initial_position=1)
    raw.next("success")
    raw.say("flow", consumer_id=1, permits=100)
    raw.send(SENDS[name]())
    answered(raw, "send_receipt", "send_error")
    serves_others(server, client, topic)


@pytest.mark.parametrize("value", [0, *EDGES])
@pytest.mark.parametrize("number", ["ledger", "entry", "publish_time"])
def test_a_seek_to_it_is_answered(server: Client, client: pulsar.Client, raw: Raw, number: str, value: int) -> None:
    topic = f"seek-{number}-{value}"
    raw.greet()
    raw.say("subscribe", topic=topic, subscription="s", type=1, consumer_id=1, request_id=1)
    raw.next("success")
    whole = {"ledger": 1, "entry": 0, "partition": -5, "batch_index": -(1 << 31)}
    more = {number: value} if number == "publish_time" else {"message_id": {**whole, number: value}}
    raw.say("seek", consumer_id=1, request_id=2, **more)
    answered(raw, "success")
    serves_others(server, client, topic)


SUBSCRIBES: dict[str, dict[str, Any]] = {
    **{f"permits-{value}": {"permits": value} for value in (0, 1 << 31, (1 << 32) - 1)},
    **{f"priority-{value}": {"priority_level": value} for value in (-1, -(1 << 31), MOST_INT)},
    **{f"type-{value}": {"type": value} for value in (4, -1, MOST_INT)},
    **{f"start-{value}": {"start_rollback_seconds": value, "durable": False, "type": 0} for value in EDGES},
    **{
        f"ranges-{start}-{end}": {"type": 3, "key_shared": {"mode": 1, "hash_ranges": [{"start": start, "end": end}]}}
        for start, end in ((-1, 5), (0, 65_536), (9, 3), (-(1 << 31), MOST_INT), (MOST_INT, MOST_INT))
    },
}


@pytest.mark.parametrize("name", SUBSCRIBES)
def test_a_consumer_with_it_is_answered(server: Client, client: pulsar.Client, raw: Raw, name: str) -> None:
    more, topic = dict(SUBSCRIBES[name]), f"subscribe-{name}"
    permits = more.pop("permits", 1)
    raw.greet()
    asked = {"topic": topic, "subscription": "s", "type": 1, "consumer_id": 1, "initial_position": 1}
    raw.say("subscribe", request_id=1, **{**asked, **more})
    if answered(raw, "success") == "success":
        for _ in range(3):
            raw.say("flow", consumer_id=1, permits=permits)
        raw.say("ping")
        raw.next("pong")
    serves_others(server, client, topic)

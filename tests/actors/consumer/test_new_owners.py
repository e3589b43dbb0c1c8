"""Messages are given back across a change of owner with `nack_order=key`: what follows of their key goes as well."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scenarios.key_shared.broker import Broker, Client, Message, play
from tests.sim.net import LinkFaults

OF_ORDER: dict[str, Any] = {"nack_order": "key", "lease_ms": 30_000}


async def holding(broker: Broker) -> Client:
    """A consumer whose application has seen four messages, and finished none."""
    client = await broker.join("c1", acking=False)
    await broker.publish("a", "b", "a", "b")
    await broker.until(lambda: len(client.got) == 4)
    for message in client.got:
        message.part.shown = len(message.part)
    return client


def there(messages: list[Message]) -> list[tuple[str, int]]:
    """Return key and number of the messages that the application may still handle."""
    return [(message.key, message.number) for message in messages if message.part.open[message.row]]


def crash(broker: Broker, *kinds: str) -> None:
    """Kill the owners of these kinds."""
    for kind in kinds:
        broker.world.crash(next(iter(broker.world.alive(f"{kind}-"))))


@pytest.mark.parametrize("told", ["to no owner", "to an owner that knows nothing"])
def test_following_messages_are_taken_back_before_a_nack_returns(told: str) -> None:
    """The new owner cannot ask for it yet: it knows no key before the topic has answered."""

    async def scenario(broker: Broker) -> None:
        client = await holding(broker)
        (part,), session, first = client.parts, client.parts[0].session, list(client.got)
        pairs = broker.world.network.pairs
        pairs["broker", "c1"] = LinkFaults(delay_ms=(800, 800))  # what an owner asks for comes late
        if told == "to no owner":
            crash(broker, "dispatcher")
        else:
            pairs["broker", "bookie-0"] = LinkFaults(loss=1.0)
            crash(broker, "topic", "dispatcher")
            await broker.until(lambda: part.session not in (0, session))
        await client.nack(first[0])
        assert there(first) == [("b", 0), ("b", 1)]
        pairs.clear()
        await broker.until(lambda: len(client.got) == 6)
        again = client.got[4:]
        assert [(message.key, message.number, message.again) for message in again] == [("a", 0, 1), ("a", 1, 0)]
        client.ack(*there_of(first, "b"), *again)
        await part.wait_confirmed()
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario, **OF_ORDER)


def there_of(messages: list[Message], key: str) -> list[Message]:
    """The messages of a key."""
    return [message for message in messages if message.key == key]

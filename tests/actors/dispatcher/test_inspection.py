"""What operators are told of messages that wait."""

from __future__ import annotations

from typing import Any

from actors.messages import Explain, shown
from tests.scenarios.key_shared.broker import Broker, play

LEASE_MS = 3_000


async def explained(broker: Broker, key: str) -> dict[str, Any]:
    """Why the messages of a key wait."""
    told = await broker.ask(Explain(key=key.encode()))
    found: dict[str, Any] = shown(told)
    return found


def test_explain_tells_when_the_lease_of_a_frozen_holder_ends() -> None:
    async def scenario(broker: Broker) -> None:
        keys = [str(key) for key in range(40)]
        frozen = await broker.join("frozen", acking=False)
        await broker.publish(*keys)
        await broker.until(lambda: len(frozen.got) == len(keys))
        broker.world.pause("frozen")
        await broker.join("other", acking=False)
        await broker.publish(*keys)
        await broker.quiet(1_000)
        answers = [await explained(broker, key) for key in keys]
        waits = [answer for answer in answers if answer["verdict"] == "draining"]
        assert 0 < len(waits) < len(keys), "its keys that belong to the other one now wait for it"
        for answer in waits:
            (holds,) = answer["reasons"][0]["held"]
            assert holds["consumer"].startswith("frozen#")
            assert 0 < holds["lease_ends_in_ms"] <= LEASE_MS - 900
            assert f"in {holds['lease_ends_in_ms']} ms" in answer["reasons"][0]["unblocks"]
            assert 900 <= holds["heard_ms_ago"] == LEASE_MS - holds["lease_ends_in_ms"]
        await broker.quiet(2 * LEASE_MS)
        assert not [key for key in keys if (await explained(broker, key))["verdict"] == "draining"]

    play(scenario, lease_ms=LEASE_MS)


def test_explain_tells_a_hanging_application_from_a_frozen_one() -> None:
    """The process of the one is heard again and again, and its lease never ends."""

    async def scenario(broker: Broker) -> None:
        hangs = await broker.join("hangs", acking=False, taking=False)
        await broker.publish("a")
        await broker.until(lambda: len(hangs.got) == 1)
        await broker.quiet(3 * LEASE_MS)
        answer = await explained(broker, "a")
        (holds,) = answer["reasons"][0]["held"]
        assert answer["verdict"] == "delivered"
        assert holds["age_ms"] >= 3 * LEASE_MS > LEASE_MS > holds["heard_ms_ago"]

    play(scenario, lease_ms=LEASE_MS)

"""A producer lives on when its partition knows nothing of it any more: what it sends next is no gap."""

from __future__ import annotations

import pytest

from actors.messages import CreateTopic, RemoveTopic
from actors.ports import Unknown
from actors.topic import producers
from storage.errors import SluiceError
from tests.scenarios.key_shared.broker import CONTROLLER, TOPIC, Broker, play


async def publish(broker: Broker, *keys: str) -> None:
    """As Broker.publish, within a time."""
    outcomes: list[list[SluiceError]] = []

    async def offer() -> None:
        outcomes.append(await broker.offer(*keys))

    broker.world.background(offer(), "offer")
    await broker.until(lambda: bool(outcomes))
    assert outcomes == [[]]


def test_in_a_topic_that_was_deleted_and_made_again() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish("a", "b")
        for request in (RemoveTopic(topic=TOPIC, force=True), CreateTopic(topic=TOPIC, settings=broker.topic)):
            assert not isinstance(await broker.ports.net.call(CONTROLLER, request, 10_000), Unknown)
        await publish(broker, "c")
        await publish(broker, "d")
        broker.directory.forget(TOPIC)
        later = await broker.join("later")
        await broker.until(lambda: later.came() == ["c", "d"])

    play(scenario)


def test_after_it_was_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partition was closed meanwhile, and the next owner has forgotten it."""
    monkeypatch.setattr(producers, "FORGET_MS", 1_000)

    async def scenario(broker: Broker) -> None:
        await broker.publish("a", "b")
        for _ in range(2):
            await broker.quiet(2_000)
            address = await broker.directory.topic(TOPIC, 0)
            broker.world.stop(address)
            await broker.directory.suspect(address)
        await publish(broker, "c")
        await publish(broker, "d")
        later = await broker.join("later")
        await broker.until(lambda: later.came() == ["a", "b", "c", "d"])

    play(scenario)

"""A consumer that did not hear that its subscription was deleted comes to one of the same name."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.actors.messages import CreateTopic, RemoveSubscription, RemoveTopic
from sluice.actors.ports import Unknown
from tests.scenarios.key_shared.broker import CONTROLLER, SUBSCRIPTION, TOPIC, Broker, play


@pytest.mark.parametrize("deleted", ["topic", "subscription"])
def test_its_acknowledgements_count_from_the_beginning(deleted: str) -> None:
    """Confirmed acknowledgements of the old one do not count for the new one, which would wait for them for ever."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        for number in range(3):
            await broker.publish("a")
            await broker.until(lambda number=number: len(client.got) > number)  # type: ignore[misc]
            await client.parts[0].wait_confirmed()
        broker.world.pause("c")
        for address in [await broker.address(), await broker.directory.topic(TOPIC, 0)]:
            broker.world.stop(address)
            await broker.directory.suspect(address)
        await broker.stats()
        requests: list[Any] = [RemoveSubscription(topic=TOPIC, subscription=SUBSCRIPTION)]
        if deleted == "topic":
            requests = [RemoveTopic(topic=TOPIC, force=True), CreateTopic(topic=TOPIC, settings=broker.topic)]
        for request in requests:
            assert not isinstance(await broker.ports.net.call(CONTROLLER, request, 60_000), Unknown)
        broker.world.resume("c")
        await broker.publish("b")
        await broker.until(lambda: "b" in client.came())
        confirmed: list[None] = []

        async def wait() -> None:
            await client.parts[0].wait_confirmed()
            confirmed.append(None)

        broker.world.background(wait(), "wait")
        await broker.until(lambda: bool(confirmed))

    play(scenario)

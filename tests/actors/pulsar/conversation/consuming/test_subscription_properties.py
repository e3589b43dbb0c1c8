"""Properties of a subscription: the first client's are kept, operators replace them, and they outlive every process."""

from __future__ import annotations

import pytest

from sluice.actors.messages import SetProperties, SubscriptionSettings
from sluice.actors.messages.settings import MOST_PROPERTY_BYTES
from sluice.storage.errors import Invalid
from tests.actors.pulsar.two_gateways import GATEWAYS, Clients, with_gateways
from tests.sim.worlds.wire import Refusal

MANY = 1
NAME = "pulsar"
FIRST, SECOND = {"team": "billing"}, {"team": "shipping", "since": "today"}


def pairs(properties: dict[str, str]) -> list[dict[str, bytes]]:
    return [{"key": key.encode(), "value": value.encode()} for key, value in properties.items()]


async def replace(clients: Clients, properties: dict[str, str]) -> None:
    await clients.broker.ask(SetProperties(properties=properties), subscription=NAME)


async def kept(clients: Clients) -> dict[str, str]:
    found: dict[str, str] = (await clients.broker.stats(0, NAME))["subscriptionProperties"]
    return found


def test_the_first_ones_are_kept_over_a_change_of_owners() -> None:
    async def scenario(clients: Clients) -> None:
        clients.broker.settings = SubscriptionSettings(type="shared", initial_position="earliest")
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.consumer(wire, MANY, "a")
        assert await kept(clients) == {}
        for number, properties in enumerate((FIRST, SECOND), 1):
            await clients.consumer(
                wire, MANY, f"a{number}", consumer_id=number, subscription_properties=pairs(properties)
            )
            assert await kept(clients) == FIRST
        for number in (1, 2):  # else they bring them again
            await wire.ask("close_consumer", consumer_id=number)
        for name in clients.broker.world.alive("dispatcher-"):
            clients.broker.world.crash(name)
        await clients.broker.quiet(10_000)
        assert await kept(clients) == FIRST
        await replace(clients, SECOND)
        for name in clients.broker.world.alive("dispatcher-"):
            clients.broker.world.crash(name)
        await clients.broker.quiet(10_000)
        assert await kept(clients) == SECOND

    with_gateways(scenario)


def test_more_than_a_record_carries_is_refused() -> None:
    async def scenario(clients: Clients) -> None:
        clients.broker.settings = SubscriptionSettings(type="shared", initial_position="earliest")
        wire = await clients.join("c0", GATEWAYS[0])
        large = {"text": "x" * MOST_PROPERTY_BYTES}
        with pytest.raises(Refusal, match="are the most"):
            await clients.consumer(wire, MANY, "a", subscription_properties=pairs(large))
        await clients.consumer(wire, MANY, "a")
        with pytest.raises(Invalid, match="are the most"):
            await replace(clients, large)
        assert await kept(clients) == {}

    with_gateways(scenario)

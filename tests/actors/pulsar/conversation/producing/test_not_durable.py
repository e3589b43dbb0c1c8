"""Subscriptions that are not durable go with their last consumer, however its gateway ended."""

from __future__ import annotations

import pytest

from sluice.actors.controller.closed_owners import LOOK_MS
from sluice.actors.controller.controller import Controller
from sluice.actors.messages import ListSubscriptions, SubscriptionSettings
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.scenarios.key_shared.broker import CONTROLLER, TOPIC, Broker
from tests.sim.worlds.wire import Refusal, message_id

MANY = 1
LEASE_MS = SubscriptionSettings().lease_ms
NAME = "pulsar"
SOON_MS = 4 * LEASE_MS
"""A lease until the consumer counts as gone, another one of patience, and some time to look."""


async def there(broker: Broker) -> bool:
    """Whether the topic has the subscription."""
    reply = await broker.ports.net.call(CONTROLLER, ListSubscriptions(topic=TOPIC), 10_000)
    return NAME in reply.names  # type: ignore[union-attr]


async def gone(broker: Broker, milliseconds: int = SOON_MS) -> None:
    """Wait until it is there no more."""
    end = broker.world.loop.now + milliseconds
    while await there(broker):
        assert broker.world.loop.now < end, f"it is there after {milliseconds} ms"
        await broker.quiet(100)


def owners(broker: Broker) -> list[str]:
    """The processes of dispatchers."""
    return list(broker.world.alive("dispatcher-"))


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("owner_too", [False, True])
def test_goes_with_its_gateway(partitions: int, owner_too: bool) -> None:
    async def scenario(clients: Clients) -> None:
        broker = clients.broker
        wire = await clients.join("c0", GATEWAYS[0])
        for number in range(partitions):
            topic = TOPIC if partitions == 1 else f"{TOPIC}-partition-{number}"
            await clients.consumer(wire, MANY, "a", durable=False, topic=topic, consumer_id=number)
        await broker.quiet(SOON_MS)
        assert await there(broker)
        broker.world.crash(GATEWAYS[0])
        if owner_too:
            for name in owners(broker):
                broker.world.crash(name)
        await gone(broker)
        await broker.quiet(SOON_MS)
        assert not await there(broker)

    with_gateways(scenario, partitions=partitions)


def test_a_durable_one_outlives_its_gateway() -> None:
    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.consumer(wire, MANY, "a")
        clients.broker.world.crash(GATEWAYS[0])
        await clients.broker.quiet(2 * SOON_MS)
        assert await there(clients.broker)

    with_gateways(scenario)


def test_consumer_that_returns_elsewhere_goes_on() -> None:
    """Acknowledged messages do not come again, and the rest does."""

    async def scenario(clients: Clients) -> None:
        broker = clients.broker
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.consumer(first, MANY, "a", durable=False)
        await clients.producer(second, "till", SHARED)
        for _ in range(3):
            await clients.send(second, "c1")
        await broker.until(lambda: len(clients.numbers("c0")) == 3)
        await first.ask("ack", consumer_id=0, message_id=[message_id(clients.came["c0"][0].position)])
        broker.world.crash(GATEWAYS[0])
        again = await clients.join("c2", GATEWAYS[1])
        await clients.consumer(again, MANY, "a", durable=False)
        await broker.until(lambda: sorted(clients.numbers("c2")) == [1, 2], 60_000)
        await broker.quiet(2 * SOON_MS)
        assert await there(broker)
        await again.ask("close_consumer", consumer_id=0)
        assert not await there(broker)

    with_gateways(scenario)


def test_stays_while_one_partition_is_in_use() -> None:
    async def scenario(clients: Clients) -> None:
        broker = clients.broker
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        for number, wire in enumerate((first, second)):
            await clients.consumer(wire, MANY, f"m{number}", durable=False, topic=f"{TOPIC}-partition-{number}")
        broker.world.crash(GATEWAYS[0])
        before = owners(broker)
        await broker.quiet(2 * SOON_MS)
        assert await there(broker)
        assert owners(broker) == before
        await second.ask("close_consumer", consumer_id=0)
        assert not await there(broker)

    with_gateways(scenario, partitions=2)


def test_a_durable_one_stays_durable() -> None:
    async def scenario(clients: Clients) -> None:
        broker = clients.broker
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.consumer(first, MANY, "a")
        with pytest.raises(Refusal, match="durable"):
            await clients.consumer(second, MANY, "b", durable=False)
        await first.ask("close_consumer", consumer_id=0)
        with pytest.raises(Refusal, match="stays so"):
            await clients.consumer(second, MANY, "b", durable=False)
        assert await there(broker)

    with_gateways(scenario)


def test_one_that_nobody_runs_is_found() -> None:
    """After the end of a whole cluster nobody asks for it again."""

    async def scenario(clients: Clients) -> None:
        broker = clients.broker
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.consumer(wire, MANY, "a", durable=False)
        for name in (GATEWAYS[0], "controller", *owners(broker)):
            broker.world.crash(name)
        await broker.world.start("controller", lambda ports: Controller(ports, bookies=["bookie-0"]), fixed=True)
        await broker.quiet(SOON_MS)
        assert await there(broker)
        await gone(broker, LOOK_MS + SOON_MS)

    with_gateways(scenario)

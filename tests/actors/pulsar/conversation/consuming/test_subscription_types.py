"""Subscription settings that a SUBSCRIBE changes: the type, and what goes with it, and nothing else."""

from __future__ import annotations

import pytest

from sluice.actors.consumer.config import ConsumerCallbacks, ConsumerConfig
from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.dispatcher import Dispatcher
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.pulsar.codec.protocol import ServerError
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.scenarios.key_shared.broker import CONTROLLER
from tests.sim.worlds.wire import Refusal, message_id

EXCLUSIVE, MANY, FAILOVER, KEYED = range(4)
STICKY = {"mode": 1, "hash_ranges": [{"start": 0, "end": 65535}]}


async def in_force(clients: Clients) -> SubscriptionSettings:
    """Return the settings that the subscription's owner works with."""
    broker = clients.broker
    directory = Directory(broker.ports, CONTROLLER)
    process = broker.world.at(await directory.dispatcher("orders", 0, "pulsar"))
    assert process is not None
    assert isinstance(process.actor, Dispatcher)
    return process.actor.parts.context.state.settings


@pytest.mark.parametrize("second", GATEWAYS)
@pytest.mark.parametrize(("before", "after"), [(MANY, EXCLUSIVE), (KEYED, MANY), (FAILOVER, KEYED)])
def test_a_type_changes_when_nobody_is_connected(before: int, after: int, second: str) -> None:
    """A client with another type is refused before that, also at a gateway that knows the subscription."""
    names = ("exclusive", "shared", "failover", "key_shared")

    async def scenario(clients: Clients) -> None:
        first = await clients.join("c0", GATEWAYS[0])
        await clients.consumer(first, before, "a")
        other = await clients.join("c1", second)
        with pytest.raises(Refusal) as refused:
            await clients.consumer(other, after, "b")
        assert refused.value.code == ServerError.CONSUMER_BUSY
        assert (await in_force(clients)).type == names[before]
        await first.ask("close_consumer", consumer_id=0)
        await clients.consumer(other, after, "b")
        assert (await in_force(clients)).type == names[after]

    with_gateways(scenario)


def test_ranges_give_way_to_a_division_by_the_broker() -> None:
    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        for more in ({"key_shared": STICKY}, {}, {"key_shared": {"allow_out_of_order": True}}, {"key_shared": STICKY}):
            await clients.consumer(wire, KEYED, "a", **more)
            await wire.ask("close_consumer", consumer_id=0)

    with_gateways(scenario)


@pytest.mark.parametrize("stays", [False, True])
def test_other_settings_are_those_of_the_operator(stays: bool) -> None:
    """A client of Pulsar cannot say them. It joins a consumer that can, or comes when that has left."""

    async def scenario(clients: Clients) -> None:
        broker = clients.broker
        settings = SubscriptionSettings(nack_order="key", selector="auto_split", initial_position="earliest")
        own = PartitionConsumer(
            broker.ports,
            broker.directory,
            ConsumerConfig(
                topic="orders",
                partition=0,
                subscription="pulsar",
                name="own",
                incarnation="own-1",
                settings=settings,
                queue_size=0,
            ),
            ConsumerCallbacks(on_received=lambda _: None, on_event=lambda *_: None),
        )
        await own.open()
        if not stays:
            await own.close()
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.consumer(wire, KEYED, "a")
        assert await in_force(clients) == settings
        if stays:
            await own.close()

    with_gateways(scenario)


def test_a_subscription_made_with_a_producer_keeps_its_type() -> None:
    """A producer of dead letters comes again while an exclusive consumer reads them."""

    async def scenario(clients: Clients) -> None:
        reader = await clients.join("c0", GATEWAYS[0])
        await clients.consumer(reader, EXCLUSIVE, "a")
        writer = await clients.join("c1", GATEWAYS[1])
        answer = await clients.producer(writer, "dead", SHARED, initial_subscription="pulsar")
        assert answer.producer_ready
        assert (await in_force(clients)).type == "exclusive"

    with_gateways(scenario)


@pytest.mark.parametrize("after", [EXCLUSIVE, MANY, FAILOVER, KEYED])
def test_the_rest_of_a_batch_comes_under_another_type(after: int) -> None:
    """An exclusive client has acknowledged one message of it, which the subscription remembers."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "till", SHARED)
        await clients.consumer(wire, EXCLUSIVE, "a")
        await clients.send_batch(wire, "c0", 4)
        await clients.broker.until(lambda: len(clients.numbers("c0")) == 4)
        await wire.ask("ack", consumer_id=0, message_id=[message_id(clients.ids["c0"][0], [0, 2, 3])])
        await wire.ask("close_consumer", consumer_id=0)
        await clients.consumer(wire, after, "b")
        await clients.broker.until(lambda: clients.numbers("c0")[4:] == [0, 2, 3])

    with_gateways(scenario)

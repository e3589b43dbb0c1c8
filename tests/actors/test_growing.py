"""More partitions for a topic: nobody is told of them before every subscription has what comes on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgpack
import msgspec
import pytest

from sluice.actors.ledger.record import record_key, unpack_record
from sluice.actors.messages import (
    AddPartitions,
    CreateTopic,
    Done,
    ListSubscriptions,
    ListTopics,
    Located,
    LocateSubscription,
    LocateTopic,
    RemoveSubscription,
    RemoveTopic,
    SubscriptionList,
    SubscriptionSettings,
    TopicSettings,
)
from sluice.actors.ports import Ports
from sluice.actors.runtime.host import Actor
from sluice.storage.errors import Corrupt, Invalid, NotFound, Unavailable
from tests.actors.controller.test_controller import Stage, play
from tests.actors.dispatcher.late_topic import delay_ends
from tests.scenarios.key_shared.broker import CONTROLLER, SUBSCRIPTION, TOPIC, Broker
from tests.sim.world import World

FAILOVER = SubscriptionSettings(type="failover", initial_position="earliest")


async def count(stage: Stage, topic: str = "t") -> int:
    """Return the number of partitions that clients are told."""
    located: Located = await stage.ask(LocateTopic(topic=topic, partition=0))
    return msgspec.json.decode(located.settings, type=TopicSettings).partitions


async def subscribed(stage: Stage, partitions: int) -> None:
    """A topic with a subscription, whose record the dispatcher of the first partition has written."""
    await stage.create(partitions=partitions)
    await stage.ask(LocateSubscription(topic="t", subscription="s", settings=FAILOVER))
    record = msgpack.packb({"settings": msgspec.json.encode(FAILOVER), "epoch": 1, "owner": "broker/d.1"})
    await stage.client.meta.create("subscription/t/0/s", 1, record)


def test_a_topic_gets_more_and_never_fewer() -> None:
    async def scenario(stage: Stage) -> None:
        before = await stage.create(partitions=2)
        await stage.ask(AddPartitions(topic="t", partitions=5))
        after = await stage.locate()
        assert (len(after), after[:2]) == (5, before)
        assert (await stage.ask(ListTopics())).topics["t"].partitions == 5
        await stage.ask(AddPartitions(topic="t", partitions=5))
        with pytest.raises(Invalid, match="5 partitions, which cannot become 4"):
            await stage.ask(AddPartitions(topic="t", partitions=4))
        with pytest.raises(Invalid, match="partitions = 100000"):
            await stage.ask(AddPartitions(topic="t", partitions=100_000))
        with pytest.raises(NotFound):
            await stage.ask(AddPartitions(topic="none", partitions=2))
        await stage.create("plain")
        with pytest.raises(Invalid, match="not a partitioned topic"):
            await stage.ask(AddPartitions(topic="plain", partitions=2))
        assert await count(stage) == 5

    play(scenario)


def test_a_partitioned_topic_of_one_gets_more() -> None:
    async def scenario(stage: Stage) -> None:
        one = TopicSettings(partitioned=True)
        await stage.ask(CreateTopic(topic="t", settings=one))
        await stage.ask(AddPartitions(topic="t", partitions=1))
        assert (await stage.ask(ListTopics())).topics["t"] == one
        await stage.ask(AddPartitions(topic="t", partitions=3))
        assert (await stage.ask(ListTopics())).topics["t"] == TopicSettings(partitions=3)

    play(scenario)


def test_subscriptions_are_there_before_anybody_is_told() -> None:
    """With the settings that they have, and what is new is not made meanwhile: it might miss a partition."""

    async def scenario(stage: Stage) -> None:
        await subscribed(stage, 2)
        stage.start_ms["t/3/s"] = 3_000
        stage.world.background(stage.ask(AddPartitions(topic="t", partitions=4)), "add")
        await stage.world.loop.pause(2_000)
        assert await count(stage) == 2
        assert stage.starts["t/3"] == 1
        found: Located = await stage.ask(LocateTopic(topic="t", partition=3))
        assert found.addresses[3], "the dispatcher of a partition has to find its owner"
        with pytest.raises(Unavailable, match="given more partitions"):
            await stage.ask(LocateSubscription(topic="t", subscription="new", settings=FAILOVER))
        assert len((await stage.ask(LocateSubscription(topic="t", subscription="s"))).addresses) == 2
        for request in (AddPartitions(topic="t", partitions=6), RemoveTopic(topic="t", force=True)):
            with pytest.raises(Unavailable, match="being"):
                await stage.ask(request)
        await stage.world.loop.pause(3_000)
        assert await count(stage) == 4
        assert [stage.starts[f"t/{partition}/s"] for partition in range(4)] == [1, 1, 1, 1]
        process = stage.world.process(stage.process((await stage.row("dispatcher/t/3/s"))["address"]))
        assert process.placed is not None
        assert process.placed[1]["subscription_settings"]["type"] == "failover"
        await stage.ask(LocateSubscription(topic="t", subscription="new", settings=FAILOVER))

    play(scenario)


def test_failed_growth_changes_nothing_and_can_be_asked_again() -> None:
    async def scenario(stage: Stage) -> None:
        await subscribed(stage, 2)
        stage.broken["t/2/s"] = Invalid("it cannot be")
        with pytest.raises(Invalid, match="it cannot be"):
            await stage.ask(AddPartitions(topic="t", partitions=3))
        assert await count(stage) == 2
        assert len(await stage.locate()) == 2
        stage.broken.clear()
        await stage.ask(AddPartitions(topic="t", partitions=3))
        assert await count(stage) == 3

    play(scenario)


def test_a_damaged_subscription_is_named() -> None:
    """The operator who grows its topic must know which it is: without it the topic stays as it is."""

    async def scenario(stage: Stage) -> None:
        await stage.create(partitions=2)
        for name, value in (("a", b"?"), ("b", msgpack.packb({"settings": {}, "epoch": 1, "owner": "broker/d.1"}))):
            await stage.client.meta.create(f"subscription/t/0/{name}", 1, value)
            with pytest.raises(Corrupt, match=f"subscription/t/0/{name}"):
                await stage.ask(AddPartitions(topic="t", partitions=3))
            await stage.client.meta.remove(f"subscription/t/0/{name}")
        assert await count(stage) == 2
        await stage.ask(AddPartitions(topic="t", partitions=3))
        assert await count(stage) == 3

    play(scenario)


async def grow_halfway(broker: Broker) -> None:
    """A topic of two partitions is to get two more, and its subscription cannot be on the last one."""
    make = broker.world.kinds["dispatcher"][0]

    def fails(ports: Ports, settings: dict[str, Any]) -> Actor:
        if settings["partition"] == 3:
            raise Invalid("it cannot be")
        return make(ports, settings)

    broker.world.kinds["dispatcher"] = (fails, *broker.world.kinds["dispatcher"][1:])
    with pytest.raises(Invalid, match="it cannot be"):
        await broker.ports.net.call(CONTROLLER, AddPartitions(topic=TOPIC, partitions=4), 60_000)


def play_broker(scenario: Callable[[Broker], Coroutine[Any, Any, None]]) -> None:
    """On a topic of two partitions with a subscription; what is left of them in the end is the scenario's matter."""

    async def main(world: World) -> None:
        broker = Broker(world, 2, FAILOVER)
        await broker.open()
        await scenario(broker)

    World(1).play(main)


def test_a_subscription_goes_from_where_a_growth_ended_halfway() -> None:
    """The growth was not asked for again: its records on partitions that the topic does not have go with the rest."""

    async def scenario(broker: Broker) -> None:
        await grow_halfway(broker)
        left = f"subscription/{TOPIC}/2/{SUBSCRIPTION}"
        assert left in await broker.ports.meta.keys("subscription/")
        gone = RemoveSubscription(topic=TOPIC, subscription=SUBSCRIPTION)
        assert isinstance(await broker.ports.net.call(CONTROLLER, gone, 60_000), Done)
        assert await broker.ports.meta.keys("subscription/") == []
        listed = await broker.ports.net.call(CONTROLLER, ListSubscriptions(topic=TOPIC), 10_000)
        assert isinstance(listed, SubscriptionList)
        assert listed.names == []
        found = await broker.ports.net.call(CONTROLLER, LocateTopic(topic=TOPIC, partition=0), 10_000)
        assert isinstance(found, Located)
        assert len(found.addresses) == 2, "nobody is told of partitions that the topic does not have"
        assert isinstance(await broker.ports.net.call(CONTROLLER, RemoveTopic(topic=TOPIC), 60_000), Done)

    play_broker(scenario)


def test_a_subscription_that_goes_meanwhile_comes_nowhere_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its owners has asked for the end of the topic, and writes its record when the others have gone."""

    async def scenario(broker: Broker) -> None:
        delay_ends(monkeypatch, 3)
        growing = asyncio.ensure_future(broker.directory.ask_controller(AddPartitions(topic=TOPIC, partitions=4)))
        await broker.quiet(2_000)
        await broker.directory.ask_controller(RemoveSubscription(topic=TOPIC, subscription=SUBSCRIPTION))
        await growing
        await broker.quiet(10_000)
        assert await broker.ports.meta.keys("subscription/") == []

    play_broker(scenario)


def test_a_topic_does_not_grow_while_a_subscription_goes() -> None:
    async def scenario(stage: Stage) -> None:
        await subscribed(stage, 2)
        stage.slow_ms = 3_000
        stage.world.background(stage.ask(RemoveSubscription(topic="t", subscription="s")), "unsubscribe")
        await stage.world.loop.pause(1_000)
        with pytest.raises(Unavailable, match="is being deleted"):
            await stage.ask(AddPartitions(topic="t", partitions=4))
        await stage.world.loop.pause(6_000)
        await stage.ask(AddPartitions(topic="t", partitions=4))

    play(scenario)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_topic_goes_from_where_its_growth_ended_halfway(forgets: bool) -> None:
    """The next topic of its name has these partitions, and nothing of what was there. forgets: the controller ends."""

    async def scenario(broker: Broker) -> None:
        await grow_halfway(broker)
        if forgets:
            await broker.world.restart("controller")
        made = TopicSettings(partitions=4, ensemble=1, write_quorum=1, ack_quorum=1, roll_entries=7)
        for request in (RemoveTopic(topic=TOPIC, force=True), CreateTopic(topic=TOPIC, settings=made)):
            assert isinstance(await broker.ports.net.call(CONTROLLER, request, 60_000), Done)
        assert [await served(broker, partition) for partition in range(4)] == [None] * 4
        found = await broker.ports.net.call(CONTROLLER, LocateTopic(topic=TOPIC), 60_000)
        assert isinstance(found, Located)
        assert [await served(broker, partition) for partition in range(4)] == [made] * 4

    async def served(broker: Broker, partition: int) -> TopicSettings | None:
        """With which settings a partition has an owner."""
        newest = await broker.ports.meta.read(record_key(TOPIC, partition))
        record = None if newest is None else unpack_record(newest.value)
        return None if record is None or record.deleted else record.settings

    play_broker(scenario)

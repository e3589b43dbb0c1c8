"""Unused owners are closed, and start again for a client that needs them, with everything that they had."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from sluice.actors.controller.controller import Controller
from sluice.actors.controller.idle_owners import AT_ONCE, LOOK_MS
from sluice.actors.dispatcher.delivery.reader import READ_WAIT_HERE
from sluice.actors.ledger.record import record_key, unpack_record
from sluice.actors.messages import (
    Closed,
    CloseIdle,
    CreateTopic,
    ListTopics,
    RemoveSubscription,
    RemoveTopic,
    TopicSettings,
)
from sluice.actors.ports import Unknown
from tests.scenarios.key_shared.broker import CONTROLLER, SUBSCRIPTION, TOPIC, Broker, play

CLOSE_MS = 5_000
SOON_MS = 20_000 + READ_WAIT_HERE
"""Within this an owner that is idle is closed: its time, a ping before and after it, a look; and before all that, at a
topic, the last read of its subscription.
"""
HOUR_MS = 3_600_000
ONE_BOOKIE = TopicSettings(ensemble=1, write_quorum=1, ack_quorum=1)
closing = partial(play, close_idle_after_ms=CLOSE_MS)


def running(broker: Broker) -> list[str]:
    """The kinds of the owners that run."""
    return sorted(row[0] for row in broker.world.placed() if row[0] != "bookie")


async def closed(broker: Broker) -> None:
    """Wait until everything is."""
    await broker.until(lambda: running(broker) == [], SOON_MS)


def test_owners_close_only_when_no_client_uses_them() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish("a")
        await broker.quiet(HOUR_MS)
        assert running(broker) == ["dispatcher", "topic"]
        assert [event.kind for event in client.events] == ["assigned"]
        await client.close()
        await closed(broker)
        await broker.quiet(HOUR_MS)
        assert running(broker) == []

    closing(scenario)


def test_the_next_consumer_finds_everything_as_it_was() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        await broker.publish("a", "b", "a")
        await broker.until(lambda: len(client.got) == 3)
        client.ack(client.got[0])
        await client.parts[0].wait_confirmed()
        await client.close()
        await closed(broker)
        await broker.publish("c")
        later = await broker.join("later")
        await broker.until(lambda: len(later.got) == 3)
        assert later.came() == ["b", "a", "c"]
        await later.parts[0].wait_confirmed()
        assert (await broker.stats())["msgBacklog"] == 0

    closing(scenario)


@pytest.mark.parametrize("tracker", ["bucket", "memory"])
def test_delayed_messages_of_a_closed_topic_come_in_time(tracker: str) -> None:
    async def scenario(broker: Broker) -> None:
        due = broker.ports.clock.now() + 60_000
        await broker.publish("a", "b", delay=[60_000, 0])
        await closed(broker)
        client = await broker.join("c")
        await broker.until(lambda: len(client.got) == 2, 100_000)
        assert client.came() == ["b", "a"]
        assert due <= broker.ports.clock.now() <= due + 1_000

    closing(scenario, delayed_tracker=tracker)


def test_a_due_message_wakes_its_subscription() -> None:
    """A client that attaches then need not wait until the index is read again."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        due = broker.ports.clock.now() + 100_000
        await broker.publish("a", delay=100_000)
        await broker.until(lambda: not client.got, 1_000)
        await broker.quiet(1_000)
        await client.close()
        await closed(broker)
        await broker.until(lambda: running(broker) != [], 110_000)
        assert due <= broker.ports.clock.now() <= due + LOOK_MS + 1_000
        await closed(broker)
        await broker.quiet(HOUR_MS)
        assert running(broker) == [], "what is due and has no consumer wakes nobody again"
        later = await broker.join("later")
        await broker.until(lambda: later.came() == ["a"])

    closing(scenario)


@pytest.mark.parametrize("what", ["growing", "unsubscribing"])
def test_a_wake_waits_until_its_topic_has_changed(what: str) -> None:
    """The topic gets more partitions, or another subscription of it is deleted."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish("a", delay=100_000)
        await broker.quiet(1_000)
        await client.close()
        await closed(broker)
        controller = broker.world.process("controller").actor
        assert isinstance(controller, Controller)
        if what == "growing":
            controller._growing[TOPIC] = ONE_BOOKIE
        else:
            controller._unsubscribing[TOPIC, "another"] = None
        await broker.quiet(110_000)
        assert running(broker) == []
        controller._growing.clear()
        controller._unsubscribing.clear()
        await broker.until(lambda: "dispatcher" in running(broker), 10_000)

    closing(scenario)


def test_a_new_controller_learns_from_the_manifests_what_is_due() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        due = broker.ports.clock.now() + 2 * SOON_MS
        for _ in range(4):  # a bucket is sealed where a ledger ends
            await broker.publish(*[f"k{number}" for number in range(5)], delay=2 * SOON_MS)
        await broker.quiet(3_000)
        await client.close()
        await closed(broker)
        await broker.world.restart("controller")
        await broker.quiet(10_000)
        assert running(broker) == [], "a restart loads nothing"
        await broker.until(lambda: "dispatcher" in running(broker), 2 * SOON_MS)
        assert due <= broker.ports.clock.now() <= due + LOOK_MS + 1_000

    closing(scenario, topic={"roll_entries": 5}, delayed_delivery_min_index_count_per_bucket=5)


def test_a_deleted_subscription_is_not_woken() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish("a", delay=100_000)
        await broker.quiet(1_000)
        await client.close()
        await closed(broker)
        request = RemoveSubscription(topic=TOPIC, subscription=SUBSCRIPTION, force=True)
        assert not isinstance(await broker.ports.net.call(CONTROLLER, request, 10_000), Unknown)
        await broker.quiet(200_000)
        assert "dispatcher" not in running(broker)
        assert await broker.ports.meta.keys("subscription/") == []

    closing(scenario)


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_topic_that_is_made_again_is_woken_as_it_is_now(partitions: int) -> None:
    """The one before it had something to do at a time, and is gone by then."""
    made = msgspec.structs.replace(ONE_BOOKIE, roll_entries=7)

    async def replaced(broker: Broker, settings: TopicSettings) -> None:
        for request in (RemoveTopic(topic=TOPIC, force=True), CreateTopic(topic=TOPIC, settings=settings)):
            assert not isinstance(await broker.ports.net.call(CONTROLLER, request, 10_000), Unknown)

    async def served(broker: Broker) -> list[TopicSettings]:
        """With which settings partitions have an owner, or had one."""
        found = [await broker.ports.meta.read(record_key(TOPIC, partition)) for partition in range(partitions)]
        records = [unpack_record(one.value) for one in found if one is not None]
        return [record.settings for record in records if not record.deleted]

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish("a", "b", "c", "d")
        await broker.until(lambda: len(client.got) == 4)
        for part in client.parts:
            await part.wait_confirmed()
        await broker.quiet(2_000)
        await client.close()
        await closed(broker)
        await replaced(broker, made)
        for _ in range(60):
            await broker.quiet(1_000)
            assert await served(broker) in ([], [made])
        broker.directory.invalidate(TOPIC)
        await broker.directory.topic(TOPIC, 0)
        assert await served(broker) == [made]
        await replaced(broker, broker.topic)

    closing(scenario, partitions=partitions, topic={"retention_ms": 30_000})


def test_an_owner_used_meanwhile_is_not_closed() -> None:
    """The owner was idle when it was pinged; a message a second keeps the topic, although every ping finds it idle."""

    async def scenario(broker: Broker) -> None:
        await broker.quiet(SOON_MS)
        await broker.publish("a")
        (topic,) = [row[1] for row in broker.world.placed() if row[0] == "topic"]
        for _ in range(30):
            await broker.publish("a")
            await broker.quiet(1_000)
        assert [row[1] for row in broker.world.placed() if row[0] == "topic"] == [topic]

    closing(scenario)


@pytest.mark.parametrize("kind", ["topic", "dispatcher"])
def test_an_owner_that_was_used_since_its_ping_refuses_to_close(kind: str) -> None:
    """The controller saw it idle and asks it to end, and a message was faster."""

    async def scenario(broker: Broker) -> None:
        await broker.publish("a")
        client = await broker.join("c") if kind == "dispatcher" else None
        await broker.quiet(SOON_MS)
        await (client.close() if client else broker.publish("a"))
        (address,) = [row[1] for row in broker.world.placed() if row[0] == kind]
        net = broker.world.client("network").net
        reply = await net.call(address, CloseIdle(idle_ms=CLOSE_MS), 4_000)
        assert reply == Closed(closed=False)
        await broker.quiet(SOON_MS)
        reply = await net.call(address, CloseIdle(idle_ms=CLOSE_MS), 4_000)
        assert isinstance(reply, Closed)
        assert reply.closed
        later = await broker.join("later")
        await broker.publish("a")
        await broker.until(lambda: bool(later.got))

    play(scenario)


def test_many_topics_are_closed_and_stay_in_the_catalogue() -> None:
    async def scenario(broker: Broker) -> None:
        names = [f"t{number}" for number in range(2 * AT_ONCE)]
        for name in names:
            await broker.ports.net.call(CONTROLLER, CreateTopic(topic=name, settings=ONE_BOOKIE), 10_000)
            await broker.directory.topic(name, 0)
        await broker.until(lambda: running(broker) == [], 10 * SOON_MS)
        listed: Any = await broker.ports.net.call(CONTROLLER, ListTopics(), 10_000)
        assert sorted(listed.topics) == sorted([TOPIC, *names])

    closing(scenario)

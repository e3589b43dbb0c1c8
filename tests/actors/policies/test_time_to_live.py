"""Time to live as it is said of topics and namespaces while they are used."""

from __future__ import annotations

from actors.policies.policy_records import of_namespace, of_topic
from actors.policies.retention import Lifetimes
from actors.policies.time_to_live import EXPIRE_MS, Expiry
from tests.scenarios.key_shared.broker import TOPIC, Broker, play

SPACE = of_namespace("public/default")


async def looking(broker: Broker) -> Lifetimes:
    """A gateway looks now and then."""
    broker.ports.spawn(Expiry(broker.ports, broker.directory).run(), "expiry")
    return Lifetimes(broker.ports.meta)


async def backlog(broker: Broker) -> int:
    return sum([(await broker.stats(partition))["msgBacklog"] for partition in range(broker.partitions)])


def test_what_is_older_counts_as_done() -> None:
    async def scenario(broker: Broker) -> None:
        said = await looking(broker)
        await broker.publish("a", "b", "c", "d")
        await broker.quiet(EXPIRE_MS)
        await said.change(SPACE, ttl_ms=2 * EXPIRE_MS)
        await broker.publish("e", "f")
        assert await backlog(broker) == 6
        await broker.quiet(2 * EXPIRE_MS)
        assert await backlog(broker) == 2
        client = await broker.join("late")
        await broker.until(lambda: len(client.got) == 2)
        assert sorted(client.came()) == ["e", "f"]

    play(scenario, partitions=2)


def test_the_topics_own_goes_first() -> None:
    async def scenario(broker: Broker) -> None:
        said = await looking(broker)
        await said.change(SPACE, ttl_ms=1)
        await said.change(of_topic(TOPIC), ttl_ms=0)
        await broker.publish("a", "b")
        await broker.quiet(2 * EXPIRE_MS)
        assert await backlog(broker) == 2, "0 is that nothing expires"
        await said.forget(SPACE)
        await said.change(of_topic(TOPIC), ttl_ms=None)
        await broker.quiet(2 * EXPIRE_MS)
        assert await backlog(broker) == 2
        await said.change(SPACE, ttl_ms=1)
        await broker.quiet(2 * EXPIRE_MS)
        assert await backlog(broker) == 0

    play(scenario)


def test_a_store_that_is_away_is_asked_again() -> None:
    async def scenario(broker: Broker) -> None:
        said = await looking(broker)
        await said.change(SPACE, ttl_ms=1)
        await broker.publish("a")
        broker.world.meta.trouble.faults.fail_before = 1.0
        await broker.quiet(EXPIRE_MS)
        broker.world.meta.trouble.faults.fail_before = 0.0
        await broker.quiet(2 * EXPIRE_MS)
        assert await backlog(broker) == 0

    play(scenario)

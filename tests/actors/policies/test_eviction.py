"""Backlog quotas by size whose policy is that the oldest messages count as done: the owners of subscriptions carry them
out, and no gateway runs.
"""

from __future__ import annotations

from sluice.actors.lookup.topic_client import TopicClient
from sluice.actors.messages import FindExcess, MeasureBacklog, ReadEnds
from sluice.actors.policies.backlog_quotas import EVICTION, Quota, Quotas
from sluice.actors.policies.expiry import LEFT
from sluice.actors.policies.policy_records import AGES, LOOK_MS, of_namespace, of_topic
from sluice.actors.pulsar.conversation.gateway.backlogs import Backlogs
from tests.scenarios.key_shared.broker import SUBSCRIPTION, TOPIC, Broker, play

MANY = 40
OTHER = "shipping"
SPACE = of_namespace("public/default")


async def filled(broker: Broker, subscriptions: tuple[str, ...] = (SUBSCRIPTION,)) -> int:
    """Messages that wait for these subscriptions; about how many bytes that are, on the first partition."""
    for name in subscriptions:
        for partition in range(broker.partitions):
            await broker.address(partition, name)
    for number in range(MANY):
        await broker.publish(str(number))
    await broker.quiet(2_000)
    return await waiting(broker)


async def waiting(broker: Broker, partition: int = 0) -> int:
    owner = TopicClient(broker.ports, broker.directory, TOPIC, partition)
    return (await owner.ask(MeasureBacklog())).bytes


async def backlog(broker: Broker, subscription: str = SUBSCRIPTION, partition: int = 0) -> int:
    found: int = (await broker.stats(partition, subscription))["msgBacklog"]
    return found


def test_the_oldest_go_until_there_is_less() -> None:
    async def scenario(broker: Broker) -> None:
        limit = await filled(broker) // 2
        sizes = Quotas(broker.ports.meta)
        await sizes.set(SPACE, Quota(limit, EVICTION))
        await broker.quiet(LOOK_MS)
        left = await backlog(broker)
        assert 0.8 * LEFT * MANY / 2 <= left <= LEFT * MANY / 2
        await broker.quiet(2_000)
        assert await waiting(broker) <= LEFT * limit
        await broker.quiet(2 * LOOK_MS)
        assert await backlog(broker) == left, "there is little enough"
        await Backlogs(broker.ports, broker.directory, sizes, Quotas(broker.ports.meta, AGES), {}).check(TOPIC, 0)
        client = await broker.join("late")
        await broker.until(lambda: len(client.got) == left)
        assert client.came() == [str(number) for number in range(MANY - left, MANY)]

    play(scenario)


def test_second_look_after_a_move_evicts_nothing_more() -> None:
    """Also before the owner of the topic has heard of it, which it does now and then."""

    async def scenario(broker: Broker) -> None:
        await Quotas(broker.ports.meta).set(SPACE, Quota(await filled(broker) // 2, EVICTION))
        while (left := await backlog(broker)) == MANY:
            await broker.quiet(10)
        await broker.publish("one more")
        await broker.quiet(2 * LOOK_MS)
        assert await backlog(broker) == left + 1, "that is less than the quota"

    play(scenario)


def test_excess_is_measured_from_the_mark_of_who_asks() -> None:
    """The topic was told of none that is so far."""

    async def scenario(broker: Broker) -> None:
        limit = await filled(broker) // 2
        owner = TopicClient(broker.ports, broker.directory, TOPIC, 0)
        found = [
            (await owner.ask(FindExcess(mark_delete=mark, limit=limit, keep=limit))).position
            for mark in (-1, (await owner.ask(ReadEnds())).last)
        ]
        assert [position is None for position in found] == [False, True]
        assert await waiting(broker) > limit

    play(scenario)


def test_producers_are_not_kept_out() -> None:
    async def scenario(broker: Broker) -> None:
        await filled(broker)
        sizes = Quotas(broker.ports.meta)
        await sizes.set(SPACE, Quota(1, EVICTION))
        await Backlogs(broker.ports, broker.directory, sizes, Quotas(broker.ports.meta, AGES), {}).check(TOPIC, 0)
        assert await backlog(broker) == MANY

    play(scenario)


def test_subscription_below_the_limit_keeps_its_backlog() -> None:
    """Also what lies before the place to which the others are moved."""

    async def scenario(broker: Broker) -> None:
        everything = await filled(broker, (SUBSCRIPTION, OTHER))
        await broker.admin("skip", messages=4)
        await broker.quiet(2_000)
        await Quotas(broker.ports.meta).set(of_topic(TOPIC), Quota(everything * 19 // 20, EVICTION))
        await broker.quiet(LOOK_MS)
        assert await backlog(broker) == MANY - 4
        assert await backlog(broker, OTHER) < MANY - 4

    play(scenario)


def test_each_partition_by_itself() -> None:
    async def scenario(broker: Broker) -> None:
        await filled(broker)
        sizes = [await waiting(broker, partition) for partition in range(2)]
        before = [await backlog(broker, partition=partition) for partition in range(2)]
        less, more = sorted(range(2), key=lambda partition: sizes[partition])
        assert sizes[less] < sizes[more]
        await Quotas(broker.ports.meta).set(SPACE, Quota(sizes[more], EVICTION))
        await broker.quiet(LOOK_MS)
        assert await backlog(broker, partition=less) == before[less]
        assert 0 < await backlog(broker, partition=more) < before[more]

    play(scenario, partitions=2)

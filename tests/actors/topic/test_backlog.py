"""How much waits behind the slowest subscription, as the owner of the partition measures it."""

from __future__ import annotations

from sluice.actors.messages import FindExcess, MeasureBacklog, Progress, TopicSettings
from sluice.actors.ports import Ports, Unknown
from sluice.storage.format.position import position
from tests.actors.topic.cluster import TIMEOUT, Cluster, TestProducer
from tests.sim.world import World


async def measured(client: Ports, cluster: Cluster) -> int:
    reply = await client.net.call(cluster.current, MeasureBacklog(), TIMEOUT)
    assert not isinstance(reply, Unknown)
    return reply.bytes


async def comes_to(client: Ports, cluster: Cluster, subscription: str, at: int, number: int) -> None:
    await client.net.call(cluster.current, Progress(subscription=subscription, mark_delete=at, number=number), TIMEOUT)


async def three_ledgers(world: World) -> tuple[Cluster, Ports, TestProducer]:
    """A topic with thirty messages in ledgers of ten; who may ask it, and whose messages they are."""
    cluster = Cluster(world, settings=TopicSettings(roll_entries=10))
    client = world.client("client")
    producer = await TestProducer.opened(client, await cluster.start())
    for _ in range(3):
        await producer.publish(10)
    return cluster, client, producer


def test_backlog_is_old_or_not() -> None:
    async def scenario(world: World) -> None:
        cluster = Cluster(world, settings=TopicSettings(roll_entries=10))
        client = world.client("client")
        producer = await TestProducer.opened(client, await cluster.start())

        async def old(before: int) -> bool:
            reply = await client.net.call(cluster.current, MeasureBacklog(before=before), TIMEOUT)
            assert not isinstance(reply, Unknown)
            return reply.old

        for count, now in ((5, 1_000), (5, 9_000), (10, 9_000)):
            await producer.publish(count, now)
        middle, late = 5_000, 9_001
        assert not await old(late), "nobody waits for anything"
        await comes_to(client, cluster, "s", -1, 1)
        assert [await old(before) for before in (0, 1_000, middle, late)] == [False, False, True, True]
        first, _, second = (place.ledger for _, place in producer.places)
        for number, entry in enumerate((4, 9)):
            await comes_to(client, cluster, "s", position(first, entry), 2 + number)
            assert [await old(before) for before in (middle, late)] == [False, True]
        await comes_to(client, cluster, "s", position(second, 9), 4)
        assert not await old(late)

    World(33).play(scenario)


def test_messages_passed_by_the_slowest_do_not_wait() -> None:
    """Over several ledgers, and a change of the owner."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await three_ledgers(world)
        assert await measured(client, cluster) == 0, "nobody waits for anything"
        await comes_to(client, cluster, "slow", -1, 1)
        await comes_to(client, cluster, "fast", position(producer.places[-1][1].ledger, 9), 1)
        everything = await measured(client, cluster)
        assert everything > 0
        last = producer.places[-1][1]
        await comes_to(client, cluster, "slow", position(last.ledger, last.first_entry + 4), 2)
        part = await measured(client, cluster)
        assert everything // 9 < part < everything // 4, "half of a third"
        await cluster.replace_owner()
        again = await measured(client, cluster)
        assert everything // 9 < again <= everything, "an owner begins with the marks that are in the record"
        await comes_to(client, cluster, "slow", position(last.ledger, last.first_entry + 9), 3)
        assert await measured(client, cluster) == 0

    World(31).play(scenario)


def test_from_where_on_there_is_little_enough() -> None:
    """Over several ledgers: what is asked to be kept is kept as far as it goes, and no more."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await three_ledgers(world)

        async def excess(mark: int, limit: int, keep: int) -> int | None:
            question = FindExcess(mark_delete=mark, limit=limit, keep=keep)
            reply = await client.net.call(cluster.current, question, TIMEOUT)
            assert not isinstance(reply, Unknown)
            return reply.position

        ledgers = [place.ledger for _, place in producer.places]
        first, last = ledgers[0], ledgers[-1]
        there = [position(ledger, entry) for ledger in ledgers for entry in range(10)]
        await comes_to(client, cluster, "slow", -1, 1)
        everything = await measured(client, cluster)
        assert await excess(position(last, 9), 0, 0) is None, "nothing waits behind the last"
        assert await excess(-1, everything, 0) == await excess(-1, 0, 0) == position(last, 10)
        assert await excess(-1, everything + 1, 0) is None
        assert await excess(position(first, 0), everything, 0) is None
        assert await excess(-1, 0, everything) == position(first, 0)
        for part in range(1, 30):
            keep = everything * part // 30
            at = await excess(-1, 0, keep)
            assert at is not None
            await comes_to(client, cluster, "slow", at - 1, 1 + part * 2)
            assert await measured(client, cluster) <= keep
            one_more = max(message for message in there if message < at)
            await comes_to(client, cluster, "slow", one_more - 1, 2 + part * 2)
            assert await measured(client, cluster) >= keep

    World(34).play(scenario)

"""How much waits behind the slowest subscription, as the owner of the partition measures it."""

from __future__ import annotations

from actors.messages import MeasureBacklog, Progress, TopicSettings
from actors.ports import Ports, Unknown
from storage.position import position
from tests.actors.topic.cluster import TIMEOUT, Cluster, TestProducer
from tests.sim.world import World


async def measured(client: Ports, cluster: Cluster) -> int:
    reply = await client.net.call(cluster.current, MeasureBacklog(), TIMEOUT)
    assert not isinstance(reply, Unknown)
    return reply.bytes


async def comes_to(client: Ports, cluster: Cluster, subscription: str, at: int, number: int) -> None:
    await client.net.call(cluster.current, Progress(subscription=subscription, mark_delete=at, number=number), TIMEOUT)


def test_what_the_slowest_has_passed_does_not_wait() -> None:
    """Over several ledgers, and a change of the owner."""

    async def scenario(world: World) -> None:
        cluster = Cluster(world, settings=TopicSettings(roll_entries=10))
        client = world.client("client")
        producer = TestProducer(client, await cluster.start())
        await producer.open()
        for _ in range(3):
            await producer.publish(10)
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

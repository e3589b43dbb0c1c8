"""How long messages are kept: whose word holds, and what an owner does by it."""

from __future__ import annotations

import pytest

from sluice.actors.messages import Progress, ReadEnds, TopicSettings
from sluice.actors.ownership.fenced_record import OwnershipProof
from sluice.actors.ownership.idle_waker import IdleWaker
from sluice.actors.policies.policy_records import LIFETIMES, LOOK_MS, of_namespace, of_topic
from sluice.actors.policies.retention import Lifetime, Lifetimes, Retention, retention_of, thresholds_of, ttl_of
from sluice.actors.ports import Ports, Unknown
from sluice.storage.errors import Corrupt, Invalid
from sluice.storage.format.position import ledger_of, position
from tests.actors.topic.cluster import TIMEOUT, Cluster, TestProducer
from tests.sim.world import World

SPACE, HOUR = of_namespace("public/default"), 3_600_000
MADE, PLAIN = TopicSettings(retention_ms=HOUR, ttl_ms=HOUR), TopicSettings()


def test_whose_word_goes_first() -> None:
    async def scenario(world: World) -> None:
        meta = world.client("tool").meta
        said = Lifetimes(meta)
        own, shared = Retention(-1, -1), Retention(1, 1)
        assert await retention_of(meta, "t", PLAIN) == Retention(0, 0)
        await said.change(SPACE, retention=shared, ttl_ms=5)
        assert await retention_of(meta, "t", PLAIN) == shared
        assert await retention_of(meta, "sales..eu..t", PLAIN) == Retention(0, 0)
        assert await retention_of(meta, "t", MADE) == Retention(HOUR, 0)
        assert [await ttl_of(meta, "t", made) for made in (PLAIN, MADE)] == [5, HOUR]
        await said.change(of_topic("t"), retention=own)
        assert await retention_of(meta, "t", MADE) == own
        assert await ttl_of(meta, "t", PLAIN) == 5, "nothing was said of that"
        await said.change(of_topic("t"), retention=None)
        assert await retention_of(meta, "t", PLAIN) == shared

    World(1).play(scenario)


def test_invalid_retention_is_refused() -> None:
    for values in ({"ms": -2, "bytes": -1}, {"ms": 1 << 60, "bytes": -1}, {"ms": 1, "bytes": 1 << 60}):
        with pytest.raises(Invalid):
            Retention(**values)
    with pytest.raises(Invalid):
        Lifetime(ttl_ms=-1)


def test_a_record_that_cannot_be_read_is_told() -> None:
    async def scenario(world: World) -> None:
        meta = world.client("tool").meta
        await meta.create(f"{LIFETIMES}{SPACE}", 1, b"?")
        with pytest.raises(Corrupt):
            await Lifetimes(meta).read(SPACE)
        with pytest.raises(Corrupt):
            await retention_of(meta, "t", PLAIN)
        own = Retention(-1, -1)
        await Lifetimes(meta).change(of_topic("t"), retention=own, ttl_ms=7)
        assert await retention_of(meta, "t", PLAIN) == own, "the other record has nothing to say"
        assert await ttl_of(meta, "t", PLAIN) == 7

    World(1).play(scenario)


async def first_ledger(cluster: Cluster, world: World) -> int:
    """Return the first ledger of the topic."""
    reply = await world.client("client").net.call(cluster.current, ReadEnds(), TIMEOUT)
    assert not isinstance(reply, Unknown)
    return ledger_of(reply.first)


async def kept(world: World) -> tuple[Cluster, Ports, Lifetimes, int]:
    """Return a topic that keeps everything, a client, the lifetime records, and the topic's last ledger."""
    cluster = Cluster(world, settings=TopicSettings(roll_entries=10))
    client = world.client("client")
    said = Lifetimes(client.meta)
    await said.change(of_topic("t"), retention=Retention(-1, -1))
    producer = await TestProducer.opened(client, await cluster.start())
    for _ in range(4):
        await producer.publish(10)
    return cluster, client, said, producer.places[-1][1].ledger


def test_an_owner_keeps_what_was_seen_as_long_as_is_said() -> None:
    async def scenario(world: World) -> None:
        cluster, client, said, last = await kept(world)
        done = Progress(subscription="s", mark_delete=position(last, 9), number=1)
        await client.net.call(cluster.current, done, TIMEOUT)
        begins = await first_ledger(cluster, world)
        assert begins < last
        await world.loop.pause(2 * LOOK_MS)
        assert await first_ledger(cluster, world) == begins
        await said.remove(of_topic("t"))
        await world.loop.pause(2 * LOOK_MS)
        assert await first_ledger(cluster, world) > begins

    World(7).play(scenario)


@pytest.mark.parametrize("phase", [0, 20_000, 40_000])
def test_changed_retention_holds_within_a_minute(phase: int) -> None:
    """Also if the owner was woken, looked at what it had read before, and rests again. It is not the only one of its
    process, so others look for a notice.
    """

    async def scenario(world: World) -> None:
        cluster, client, said, ledger = await kept(world)

        async def tell(last: int) -> None:
            done = Progress(subscription="s", mark_delete=position(ledger, last), number=last)
            await client.net.call(cluster.current, done, TIMEOUT)

        await tell(8)
        ports = world.process(cluster.current.partition("/")[0]).ports

        def look() -> None:
            ports.spawn(ports.process.of(OwnershipProof).prove(ports), "look")

        with ports.process.of(IdleWaker).rest(ports, look, told=True):
            await world.loop.pause(200_000 + phase)
            begins = await first_ledger(cluster, world)
            await said.remove(of_topic("t"))
            await world.loop.pause(40_000)
            await tell(9)
            await world.loop.pause(LOOK_MS - 40_000 + 1_000)
            assert await first_ledger(cluster, world) > begins

    World(7).play(scenario)


def test_nothing_is_deleted_while_it_is_not_known() -> None:
    async def scenario(world: World) -> None:
        cluster = Cluster(world, settings=TopicSettings(roll_entries=10))
        client = world.client("client")
        await client.meta.create(f"{LIFETIMES}{of_topic('t')}", 1, b"?")
        producer = await TestProducer.opened(client, await cluster.start())
        for _ in range(4):
            await producer.publish(10)
        done = Progress(subscription="s", mark_delete=position(producer.places[-1][1].ledger, 9), number=1)
        await client.net.call(cluster.current, done, TIMEOUT)
        begins = await first_ledger(cluster, world)
        await world.loop.pause(2 * LOOK_MS)
        assert await first_ledger(cluster, world) == begins

    World(7).play(scenario)


def test_thresholds_of_a_topic_go_before_those_of_its_namespace() -> None:
    async def scenario(world: World) -> None:
        meta = world.client("tool").meta
        said = Lifetimes(meta)
        made = TopicSettings(offload_threshold_bytes=7)
        await said.change(SPACE, offload_threshold_bytes=5, offload_deletion_lag_ms=0, compaction_threshold_bytes=3)
        held = await thresholds_of(meta, "t", made)
        assert (held.offload_threshold_bytes, held.offload_deletion_lag_ms, held.compaction_threshold_bytes) == (
            7,
            0,
            3,
        )
        assert (await thresholds_of(meta, "t", PLAIN)).offload_threshold_bytes == 5
        await said.change(of_topic("t"), compaction_threshold_bytes=0, offload_threshold_bytes=9)
        held = await thresholds_of(meta, "t", made)
        assert (held.offload_threshold_bytes, held.compaction_threshold_bytes) == (9, 0)
        with pytest.raises(Invalid):
            await said.change(SPACE, offload_threshold_seconds=-2)

    World(1).play(scenario)


def test_an_owner_offloads_as_its_namespace_says() -> None:
    async def scenario(world: World) -> None:
        cluster = Cluster(world, settings=TopicSettings(roll_entries=3))
        client = world.client("client")
        await Lifetimes(client.meta).change(SPACE, offload_threshold_bytes=0, offload_deletion_lag_ms=0)
        producer = await TestProducer.opened(client, await cluster.start())
        for _ in range(3):
            await producer.publish(3)
        await client.clock.sleep(10_000)
        ledgers = cluster.topic()._log.record.ledgers
        assert all(ledger.offloaded is not None for ledger in ledgers[:2])
        assert not ledgers[0].fragments

    World(1).play(scenario)

"""Every bookie is lost for good, one after another, under load; each time the copies are restored first. Nothing goes.

With two copies of each run this can only work if re-replication restores *every* copy before it says that none
remains: those of closed ledgers, those of the open one's earlier fragments, and those that an ended writer owed.
"""

from __future__ import annotations

import random

import pytest

from sluice.actors.ledger.record import record_key, unpack_record
from sluice.actors.messages import Alive, Ping, Replicate, TopicSettings
from sluice.actors.policies.policy_records import LIFETIMES, of_namespace, of_topic
from sluice.actors.ports import Ports, Unknown
from sluice.actors.topic.background.maintenance import REST_MS
from sluice.storage.errors import Fenced, Unavailable
from tests.actors.topic.cluster import Cluster, read_all
from tests.actors.topic.test_failover import History, judge, produce
from tests.sim.world import World


async def restore(client: Ports, cluster: Cluster, lost: list[str]) -> None:
    """Ask for the copies of lost bookies until none remains to be made."""
    for _ in range(400):
        try:
            reply = await client.net.call(cluster.current, Replicate(lost=lost), 5000)
            if not isinstance(reply, Unknown) and reply.remaining == 0:
                return
        except (Unavailable, Fenced):
            pass
        await client.clock.sleep(250)
    raise AssertionError("the number of fragments without all their copies does not return to zero")


@pytest.mark.parametrize("seed", range(6))
def test_l8_all_bookies_are_replaced_and_nothing_is_lost(seed: int) -> None:
    settings = [
        TopicSettings(ensemble=2, write_quorum=2, ack_quorum=2, roll_entries=60),
        TopicSettings(ensemble=3, write_quorum=2, ack_quorum=2),
        TopicSettings(ensemble=3, write_quorum=3, ack_quorum=2, roll_entries=100),
    ][seed % 3]

    async def play(world: World) -> None:
        rng = random.Random(f"replacement/{seed}")
        cluster = Cluster(world, bookies=4, settings=settings)
        await cluster.start()
        history = History()
        for number in range(2):
            ports = world.client(f"producer{number}")
            ports.spawn(produce(cluster, ports, f"p{number}", history, random.Random(rng.random())), "produce")
        client = world.client("client")
        lost: list[str] = []
        for generation in range(4):
            await world.loop.pause(rng.randrange(200, 1500))
            world.crash(f"b{generation}")
            lost.append(f"b{generation}")
            await cluster.start_bookie(f"b{generation + 4}")
            if rng.random() < 0.5:
                world.crash(f"owner{cluster.owners}")
                await cluster.replace_owner()
            await restore(client, cluster, lost)
        history.over = True
        await world.loop.pause(3000)
        to = await cluster.replace_owner()
        found = await read_all(client, to)
        version = await client.meta.read(record_key("t", 0))
        assert version is not None
        record = unpack_record(version.value)
        assert not set(lost) & {name for ledger in record.ledgers for name in ledger.bookies()}
        judge(history, found, record)
        assert len(history.confirmed) > 50

    World(1000 + seed).play(play)


@pytest.mark.parametrize("name", [of_namespace("public/default"), of_topic("t")])
def test_a_damaged_lifetime_keeps_no_topic_from_its_copies(name: str) -> None:
    """An operator is told that it is not known which ledgers may be deleted; copies are made all the same."""

    async def play(world: World) -> None:
        cluster = Cluster(
            world, bookies=3, settings=TopicSettings(ensemble=2, write_quorum=2, ack_quorum=2, roll_entries=20)
        )
        await cluster.start()
        client, history = world.client("client"), History()
        client.spawn(produce(cluster, client, "p", history, random.Random(1)), "produce")
        await world.loop.pause(2_000)
        await client.meta.create(LIFETIMES + name, 1, b"?")
        to = await cluster.replace_owner()
        world.crash("b0")
        await cluster.start_bookie("b3")
        await restore(client, cluster, ["b0"])
        history.over = True
        await world.loop.pause(3_000)
        alive = await client.net.call(to, Ping(), 1_000)
        assert isinstance(alive, Alive)
        assert f"the lifetime of {name}" in alive.problem
        await client.meta.remove(LIFETIMES + name)
        await world.loop.pause(2 * REST_MS)
        alive = await client.net.call(to, Ping(), 1_000)
        assert isinstance(alive, Alive)
        assert alive.problem == ""

    World(1).play(play)

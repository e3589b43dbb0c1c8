"""A partition that takes no more messages: what was on its way counts, and the end that was told stays the end."""

from __future__ import annotations

import pytest

from sluice.actors.messages import Ends, OpenProducer, ProducerOpened, ReadEnds, ReadIndex, Terminate
from sluice.actors.ports import Address, Ports, Unknown
from sluice.storage.errors import Fenced, Terminated, Unavailable
from sluice.storage.format.position import position
from tests.actors.topic.cluster import TIMEOUT, Cluster, TestProducer, insist, make_test_run, read_all
from tests.sim.world import World


async def started(world: World) -> tuple[Cluster, Ports, TestProducer]:
    cluster = Cluster(world)
    to = await cluster.start()
    client = world.client("client")
    producer = await TestProducer.opened(client, to)
    return cluster, client, producer


async def terminated(client: Ports, cluster: Cluster) -> Ends:
    """Terminate the partition and return its ends; asks again until there is an answer."""
    while True:
        try:
            reply = await client.net.call(cluster.current, Terminate(), TIMEOUT)
            if not isinstance(reply, Unknown):
                return reply
        except (Unavailable, Fenced):
            pass
        await client.clock.sleep(50)


async def resumed(client: Ports, owner: Address) -> ProducerOpened:
    """The producer that was open before comes back."""
    again = OpenProducer(producer="p", incarnation="1", resumes=True)
    reply = await client.net.call(owner, again, TIMEOUT)
    assert not isinstance(reply, Unknown)
    return reply


def test_nothing_is_stored_any_more_under_any_owner() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        await producer.publish(3)
        end = (await terminated(client, cluster)).last
        for owner in ("first", "second"):
            with pytest.raises(Terminated, match="takes no more messages"):
                await producer.publish(1)
            with pytest.raises(Terminated, match="takes no more messages"):
                await TestProducer(client, cluster.current, "other").open_once()
            assert (await terminated(client, cluster)).last == end, "a repetition is told the same"
            assert [value for _, _, value in await read_all(client, cluster.current)] == ["p-0", "p-1", "p-2"]
            if owner == "first":
                producer.to = await cluster.replace_owner()
                producer.session = (await resumed(client, producer.to)).session

    World(21).play(scenario)


def test_publish_during_termination_learns_its_outcome() -> None:
    """Also after a change of owner: a repetition of what is stored is confirmed and not refused."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        place = await producer.publish(2)
        await terminated(client, cluster)
        producer.to = await cluster.replace_owner()
        opened = await resumed(client, producer.to)
        assert opened.last_sequence == 1
        producer.session = opened.session
        told = await producer.send(make_test_run(["p-0", "p-1"]), 0)
        assert (told.ledger, told.first_entry, told.duplicate) == (place.ledger, place.first_entry, True)

    World(22).play(scenario)


@pytest.mark.parametrize("seed", range(8))
def test_the_end_is_behind_all_that_is_ever_confirmed(seed: int) -> None:
    """Producers go on while it is asked, an owner dies in between, and everything is judged by the one that is left."""

    async def scenario(world: World) -> None:
        cluster, client, _ = await started(world)
        confirmed: list[int] = []
        refused: list[str] = []

        async def produce(name: str) -> None:
            producer = await TestProducer.opened(client, cluster.current, name)
            try:
                while True:
                    told = await producer.publish(1 + world.rng.randrange(4))
                    confirmed.append(position(told.ledger, told.first_entry) + told.count - 1)
            except Terminated:
                refused.append(name)
            except Fenced:  # the owner is gone, and with it what this one could learn
                refused.append(name)

        for name in ("a", "b", "c"):
            client.spawn(produce(name), name)
        await world.loop.pause(20 + 37 * seed)
        if seed % 2:
            world.crash(f"owner{cluster.owners}")
            await cluster.replace_owner()
        end = await terminated(client, cluster)
        for name in ("d", "e"):
            with pytest.raises(Terminated):
                await TestProducer(client, cluster.current, name).open_once()
        await cluster.replace_owner()
        last = await insist(client, cluster.current, end.last + 1)
        assert not last.runs, "something is stored behind the end"
        assert last.ends
        assert max(confirmed, default=-1) <= end.last
        ends = await client.net.call(cluster.current, ReadEnds(), TIMEOUT)
        assert not isinstance(ends, Unknown)
        assert ends.last == end.last

    World(100 + seed).play(scenario)


def test_waiting_reader_is_told_the_end_at_once() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        await producer.publish(2)
        before = await insist(client, cluster.current, -1)
        assert len(before.runs) == 1
        assert not before.ends
        began, waited = client.clock.monotonic(), 10_000

        async def terminate() -> None:
            await terminated(client, cluster)

        world.background(terminate(), "terminate")
        reply = await client.net.call(cluster.current, ReadIndex(start=before.resume, limit=9, wait=waited), TIMEOUT)
        assert not isinstance(reply, Unknown)
        assert reply.ends
        assert client.clock.monotonic() - began < waited // 2
        early = await insist(client, cluster.current, -1, limit=1)
        assert early.runs
        assert early.ends, "these were all that there are"

    World(23).play(scenario)


@pytest.mark.parametrize("known", [False, True, None])
def test_reader_without_the_end_is_told_at_once(known: bool | None) -> None:
    """None: an earlier version, which would ask again at once."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        await producer.publish(2)
        start = (await terminated(client, cluster)).last + 1
        await cluster.replace_owner()
        began, waited = client.clock.monotonic(), 10_000
        request = ReadIndex(start=start, limit=9, wait=waited, ends_known=known)
        reply = await client.net.call(cluster.current, request, 2 * waited)
        assert not isinstance(reply, Unknown)
        assert (reply.runs, reply.ends) == ([], True)
        assert (client.clock.monotonic() - began >= waited) == (known is not False)

    World(25).play(scenario)


def test_an_empty_topic_ends_as_well() -> None:
    async def scenario(world: World) -> None:
        cluster, client, _ = await started(world)
        assert (await terminated(client, cluster)).last == -1
        assert (await insist(client, cluster.current, -1)).ends

    World(24).play(scenario)

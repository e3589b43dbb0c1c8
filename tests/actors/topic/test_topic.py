"""The topic over real bookies in the simulator: publishing, reading, taking over."""

from __future__ import annotations

import pytest

from sluice.actors.ledger.record import LedgerState, record_key, unpack_record
from sluice.actors.messages import Closed, CloseIdle, Done, Ends, Progress, ReadEnds, Replicate, TopicSettings
from sluice.actors.ownership.ids import BLOCK, LEDGER_IDS, LedgerIds
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.topic.background.maintenance import MOST_REST_MS, UNUSED_MS
from sluice.actors.topic.partition.entry_cache import RUN_BYTES
from sluice.actors.topic.partition.managed_ledger import POSTPONE_ROLL_MS
from sluice.storage.errors import Fenced
from tests.actors.topic.cluster import Cluster, TestProducer, insist, read_all
from tests.sim.world import World


def test_published_messages_are_read_back_in_order() -> None:
    async def scenario(world: World) -> None:
        cluster = Cluster(world)
        to = await cluster.start()
        client = world.client("client")
        producer = TestProducer(client, to)
        assert (await producer.open()).last_sequence == -1
        for _ in range(5):
            await producer.publish(3)
        found = await read_all(client, to)
        assert [value for _, _, value in found] == [f"p-{n}" for n in range(15)]
        assert [entry for _, entry, _ in found] == list(range(15))
        ends = await client.net.call(to, ReadEnds(), 1000)
        assert (ends.first, ends.last, ends.next) == (1 << 32, 1 << 32 | 14, 1 << 32 | 15)  # type: ignore[union-attr]

    World(1).play(scenario)


def test_a_new_owner_finds_everything_and_the_old_one_is_fenced() -> None:
    async def scenario(world: World) -> None:
        cluster = Cluster(world)
        old = await cluster.start()
        client = world.client("client")
        producer = await TestProducer.opened(client, old)
        for _ in range(5):
            await producer.publish(3)
        new = await cluster.start_owner()
        taken = TestProducer(client, new, incarnation="2")
        assert (await taken.open()).last_sequence == 14
        with pytest.raises(Fenced):
            await producer.publish(1)
        await taken.publish(2)
        found = await read_all(client, new)
        assert [value for _, _, value in found] == [f"p-{n}" for n in range(17)]

    World(2).play(scenario)


def test_an_open_ledger_goes_on_when_no_id_can_be_had() -> None:
    """The record of ids is damaged: publishing and upkeep go on with the ledger that there is."""

    async def scenario(world: World) -> None:
        cluster = Cluster(world, settings=TopicSettings(roll_entries=2))
        to = await cluster.start()
        client = world.client("client")
        producer = await TestProducer.opened(client, to)
        await producer.publish(1)
        await LedgerIds().allocate(client, None)
        world.meta.damaged[LEDGER_IDS] = len(world.meta.records[LEDGER_IDS])
        for _ in range(3 * BLOCK):
            await producer.publish(2)
            await world.loop.pause(2 * POSTPONE_ROLL_MS)
        assert len(await read_all(client, to)) == 6 * BLOCK + 1
        told = Progress(subscription="s", mark_delete=(4 << 32) - 1)
        assert isinstance(await client.net.call(to, told, 1000), Done)
        await world.loop.pause(60_000)
        ends = await client.net.call(to, ReadEnds(), 1000)
        assert isinstance(ends, Ends)
        assert ends.first == 4 << 32, "upkeep goes on"

    World(5).play(scenario)


@pytest.mark.parametrize("by", ["replaced", "failed"])
def test_an_owner_that_ends_holds_no_runs_in_its_process(by: str) -> None:
    """The process goes on, perhaps for weeks, and nothing would collect what the owner held."""

    async def scenario(world: World) -> None:
        cluster = Cluster(world)
        old = await cluster.start()
        client = world.client("client")
        producer = await TestProducer.opened(client, old)
        for _ in range(5):
            await producer.publish(3)
        await world.loop.pause(100)
        assert cluster.resources.room.bytes > 5 * RUN_BYTES
        if by == "replaced":
            await TestProducer(client, await cluster.start_owner(), incarnation="2").open()
            with pytest.raises(Fenced):
                await producer.publish(1)
        else:
            hosted = world.process("owner1").hosted
            assert hosted is not None
            hosted.end("failed")
        assert cluster.resources.room.bytes == 0

    World(2).play(scenario)


@pytest.mark.parametrize("waits", [True, False])
def test_unawaited_runs_leave_memory(waits: bool) -> None:
    async def scenario(world: World) -> None:
        cluster = Cluster(world)
        to = await cluster.start()
        client = world.client("client")
        producer = await TestProducer.opened(client, to)
        await producer.publish(3)
        await producer.publish(3)
        end = await client.net.call(to, ReadEnds(), 1000)
        assert isinstance(end, Ends)
        told = Progress(subscription="s", mark_delete=end.last - waits)
        assert isinstance(await client.net.call(to, told, 1000), Done)
        for _ in range(4):
            await world.loop.pause(UNUSED_MS // 2)
            assert len(await read_all(client, to)) == 6
        held = cluster.resources.room.bytes
        assert held > 2 * RUN_BYTES
        await world.loop.pause(2 * (UNUSED_MS + MOST_REST_MS))
        assert cluster.resources.room.bytes == (held if waits else 0)
        assert len(await read_all(client, to)) == 6
        assert cluster.resources.room.bytes >= held

    World(4).play(scenario)


def test_a_reader_waits_for_the_next_publish() -> None:
    async def scenario(world: World) -> None:
        cluster = Cluster(world, settings=TopicSettings(ensemble=3, write_quorum=3, ack_quorum=2))
        to = await cluster.start()
        client = world.client("client")
        producer = await TestProducer.opened(client, to)

        async def later() -> None:
            await client.clock.sleep(400)
            await producer.publish(2)

        client.spawn(later(), "later")
        before = client.clock.monotonic()
        reply = await insist(client, to, -1, wait=5000)
        assert [run.count for run in reply.runs] == [2]
        assert 400 <= client.clock.monotonic() - before < 2000

    World(3).play(scenario)


@pytest.mark.parametrize("lacks", [False, True], ids=["all copies", "one is being made"])
def test_an_owner_that_closes_ends_a_ledger_that_has_its_copies(lacks: bool) -> None:
    """The successor has nothing to recover; a ledger that lacks a copy stays open, and the successor makes that
    copy.
    """

    async def scenario(world: World) -> None:
        cluster = Cluster(world, bookies=2, settings=TopicSettings(ensemble=2, write_quorum=2, ack_quorum=1))
        old = await cluster.start()
        client = world.client("client")
        producer = await TestProducer.opened(client, old)
        if lacks:
            world.pause("b1")
        await producer.publish(3)
        await world.loop.pause(1_000)
        assert await client.net.call(old, CloseIdle(idle_ms=0), 1000) == Closed(closed=True)
        assert await last_ledger(client) == ((LedgerState.OPEN, -1) if lacks else (LedgerState.CLOSED, 2))
        if lacks:
            world.resume("b1")
        new = await cluster.start_owner()
        taken = TestProducer(client, new, incarnation="2")
        assert (await taken.open()).last_sequence == 2
        await taken.publish(2)
        assert [value for _, _, value in await read_all(client, new)] == [f"p-{n}" for n in range(5)]
        while await remaining(client, new):
            await world.loop.pause(250)
        assert await client.net.call(new, CloseIdle(idle_ms=0), 1000) == Closed(closed=True)
        world.crash("b0")
        newer = await cluster.start_owner()
        assert len(await read_all(client, newer)) == 5, "the other bookie has all of it"

    World(6).play(scenario)


async def last_ledger(client: Ports) -> tuple[LedgerState, int]:
    """Return the state and the last entry of the last ledger in the record."""
    newest = await client.meta.read(record_key("t", 0))
    assert newest is not None
    ledger = unpack_record(newest.value).ledgers[-1]
    return ledger.state, ledger.last_entry


async def remaining(client: Ports, owner: Address) -> int:
    """How many ledgers were not found to have all copies yet."""
    reply = await client.net.call(owner, Replicate(lost=[]), 5000)
    assert not isinstance(reply, Unknown)
    return reply.remaining


@pytest.mark.parametrize("leap_ms", [3_600_000, -3_600_000])
def test_a_ledger_is_as_old_as_the_time_that_has_passed(leap_ms: int) -> None:
    """However wrong the clock is that says when it was opened: it is closed as soon, and as late."""

    async def scenario(world: World) -> None:
        cluster = Cluster(world, settings=TopicSettings(roll_ms=10 * MOST_REST_MS))
        to = await cluster.start()
        client = world.client("client")
        producer = await TestProducer.opened(client, to)

        async def ledgers() -> list[int]:
            reply = await client.net.call(to, ReadEnds(), 1000)
            assert isinstance(reply, Ends)
            return [ledger for ledger, _ in reply.ledgers]

        await producer.publish(1)
        world.skews["owner1"] = leap_ms
        await client.clock.sleep(8 * MOST_REST_MS)
        assert await ledgers() == [1]
        await client.clock.sleep(4 * MOST_REST_MS)
        assert len(await ledgers()) == 2

    World(1).play(scenario)

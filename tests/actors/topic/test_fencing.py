"""S15: what a replaced owner does after its successor opened takes no effect, whatever was under way."""

from __future__ import annotations

import asyncio

import pytest

from sluice.actors.ledger.record import record_key, unpack_record
from sluice.actors.messages import Done, Progress, Published, ReadEnds, TopicSettings
from sluice.actors.ports import Ports, Unknown
from sluice.actors.topic.partition import managed_ledger as log
from sluice.storage.errors import Fenced, SluiceError
from sluice.storage.format.position import position
from tests.actors.topic.cluster import Cluster, TestProducer, make_test_run, read_all
from tests.sim.world import World


async def attempt(producer: TestProducer, value: str, first: int, told: list[Published | str]) -> None:
    """One publish, and what became of it."""
    request = producer.request(make_test_run([value], first=first), first)
    try:
        reply = await producer.ports.net.call(producer.to, request, 60_000)
        told.append("unknown" if isinstance(reply, Unknown) else reply)
    except SluiceError as error:
        told.append(type(error).__name__)


async def to_the_old_owner(client: Ports, old: str) -> Published | str:
    """A new producer that believes in the old owner: what becomes of its publish."""
    producer = TestProducer(client, old, name="z")
    try:
        if await producer.open_once() is None:
            return "unknown"
    except Fenced:
        return "Fenced"
    told: list[Published | str] = []
    await attempt(producer, "late", 0, told)
    return told[0]


@pytest.mark.parametrize("seed", range(8))
def test_s15_a_frozen_owner_confirms_nothing_behind_the_new_one(seed: int) -> None:
    async def scenario(world: World) -> None:
        cluster = Cluster(world, settings=TopicSettings(ensemble=3, write_quorum=3, ack_quorum=2))
        old = await cluster.start()
        client = world.client("client")
        producer = await TestProducer.opened(client, old)
        await producer.send(make_test_run(["0"]), 0)
        told: list[Published | str] = []
        for number in range(1, 9):
            client.spawn(attempt(producer, str(number), number, told), "attempt")
        await client.clock.sleep(seed)  # the later, the more of them are on their way
        world.pause("owner1")
        new = await TestProducer.opened(client, await cluster.replace_owner(), name="q")
        first_of_new = await new.send(make_test_run(["new"], producer="q"), 0)
        world.resume("owner1")
        while len(told) < 8:
            await client.clock.sleep(100)
        found = await read_all(client, cluster.current)
        places = {value: position(ledger, entry) for ledger, entry, value in found}
        for reply in told:
            if isinstance(reply, Published):
                assert position(reply.ledger, reply.first_entry) < position(first_of_new.ledger, 0)
        assert places["0"] < places["new"]
        assert [value for _, _, value in found] == [str(n) for n in range(len(found) - 1)] + ["new"]
        late = await to_the_old_owner(client, old)
        assert not isinstance(late, Published)
        assert len(await read_all(client, cluster.current)) == len(found)

    World(400 + seed).play(scenario)


def test_an_owner_waiting_for_bookies_notices_its_replacement() -> None:
    """The successor may settle and delete its ledger; then no bookie ever answers."""

    async def scenario(world: World) -> None:
        cluster = Cluster(world)
        producer = await TestProducer.opened(world.client("client"), await cluster.start())
        await producer.publish(2)
        world.crash("owner1")
        world.partition(["owner2"], [f"b{number}" for number in range(3)])
        waiting = await cluster.start_owner()
        await TestProducer.opened(world.client("other"), await cluster.start_owner(), name="q")

        async def refused() -> None:
            while await to_the_old_owner(world.client("late"), waiting) != "Fenced":
                await world.loop.pause(100)

        await world.within(30_000, refused(), "the old owner does not notice")

    World(440).play(scenario)


def test_s15_a_replaced_owner_changes_nothing_in_the_record() -> None:
    async def scenario(world: World) -> None:
        cluster = Cluster(world, settings=TopicSettings(roll_entries=4))
        old = await cluster.start()
        client = world.client("client")
        producer = await TestProducer.opened(client, old)
        await client.net.call(old, Progress(subscription="s", mark_delete=-1), 1000)
        for _ in range(6):
            await producer.publish(2)
        world.pause("owner1")
        new = await cluster.replace_owner()
        before = await settled_record(client, new)
        answers: list[str] = []
        world.resume("owner1")
        # The old owner is told that everything may be trimmed, and that there is one more subscription.
        for request in (
            Progress(subscription="s", mark_delete=position(900, 0)),
            Progress(subscription="t", mark_delete=3),
        ):
            answers.append(await outcome(client, old, request))
        assert answers[1] in ("Fenced", "unknown")
        await client.clock.sleep(10_000)
        after = await settled_record(client, new)
        assert after == before
        assert len(await read_all(client, new)) == 12

    World(420).play(scenario)


async def outcome(client: Ports, to: str, request: Progress) -> str:
    """`done`, `unknown`, or the name of the refusal."""
    try:
        return "unknown" if isinstance(await client.net.call(to, request, 5000), Unknown) else "done"
    except SluiceError as error:
        return type(error).__name__


async def settled_record(client: Ports, owner: str) -> object:
    """The record once its owner serves."""
    assert not isinstance(await client.net.call(owner, ReadEnds(), 20_000), Unknown)
    version = await client.meta.read(record_key("t", 0))
    assert version is not None
    return unpack_record(version.value)


def test_a_new_owner_reads_only_what_follows_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SNAPSHOT_RUNS", 10)

    async def scenario(world: World) -> None:
        cluster = Cluster(world)
        producer = await TestProducer.opened(client := world.client("client"), await cluster.start())
        for _ in range(40):
            await producer.publish(1)
        await client.clock.sleep(2000)
        for _ in range(3):
            await producer.publish(1)
        world.crash("owner1")
        world.network.calls.clear()
        again = TestProducer(client, await cluster.replace_owner(), incarnation="2")
        assert (await again.open()).last_sequence == 42
        # The few heads behind the snapshot, and recovery's questions about the last runs.
        assert 0 < world.network.calls["ReadHeads"] <= 3
        assert 0 < world.network.calls["ReadRun"] <= 9
        resent = await again.send(make_test_run(["p-35"], first=35), 35)
        assert (resent.first_entry, resent.duplicate) == (35, True)

    World(421).play(scenario)


def test_a_subscription_that_goes_while_it_comes_is_gone() -> None:
    async def scenario(world: World) -> None:
        cluster = Cluster(world)
        to, client = await cluster.start(), world.client("client")
        world.meta.trouble.faults.delay_ms = 300, 300
        comes = asyncio.create_task(client.net.call(to, Progress(subscription="s", mark_delete=-1, number=1), 5_000))
        await world.loop.pause(100)
        goes = Progress(subscription="s", mark_delete=-1, number=2, gone=True)
        assert await client.net.call(to, goes, 5_000) == await comes == Done()
        value = world.meta.records[record_key("t", 0)][-1]
        assert unpack_record(value).subscriptions == {}, "else the next owner would keep everything for it"

    World(430).play(scenario)

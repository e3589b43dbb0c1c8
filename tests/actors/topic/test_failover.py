"""Owners replaced, frozen and crashed, bookies lost and restarted, messages lost, late and repeated: the promises hold.

Every run draws its troubles from a seed. Afterwards everything heals, and the log is judged as a whole: what was
confirmed is there at the place that was told, once, in the producer's order; nothing from nowhere; what readers saw
on the way is what is there in the end; the chain in the record is sound.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from sluice.actors.ledger.record import LedgerState, PartitionRecord, record_key, unpack_record
from sluice.actors.messages import TopicSettings
from sluice.actors.ports import Ports, Unknown
from sluice.storage.errors import Conflict, Fenced, NotFound, Overloaded, Unavailable
from tests.actors.topic.cluster import Cluster, TestProducer, insist_once, make_test_run, read_all, values_of
from tests.sim.world import World

SEEDS = 12


@dataclass
class History:
    """The answers that producers got and the values that readers saw. attempted: every value; confirmed: value ->
    (ledger, entry).
    """

    attempted: dict[str, None] = field(default_factory=dict)
    confirmed: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: dict[tuple[int, int], str] = field(default_factory=dict)
    unplaced: int = 0
    over: bool = False


def ended(history: History) -> bool:
    """Whether the run is over for producers and readers."""
    return history.over


async def produce(cluster: Cluster, ports: Ports, name: str, history: History, rng: random.Random) -> None:
    """Publish runs in order through the topic's current owner, re-sending until each is confirmed."""
    producer = TestProducer(ports, "", name)
    first = 0
    while not ended(history):
        count = rng.randrange(1, 6)
        values = [f"{name}-{n}" for n in range(first, first + count)]
        history.attempted.update(dict.fromkeys(values))
        run = make_test_run(values, producer=name, first=first)
        while True:
            await ports.clock.sleep(rng.randrange(50))
            try:
                if not producer.session:
                    producer.to = cluster.current
                    if await producer.open_once() is None:
                        continue
                reply = await ports.net.call(producer.to, producer.request(run, first), 3000)
                if not isinstance(reply, Unknown):
                    break
                producer.session = 0
            except (Fenced, Conflict, NotFound):
                producer.session = 0
            except (Unavailable, Overloaded):
                pass
            if ended(history):
                return
        assert reply.count == count
        for row, value in enumerate(values):
            if reply.ledger:
                history.confirmed[value] = (reply.ledger, reply.first_entry + row)
            else:
                history.unplaced += 1
                history.confirmed[value] = (0, 0)
        first += count
        await ports.clock.sleep(rng.randrange(30))


async def follow(cluster: Cluster, ports: Ports, history: History) -> None:
    """Read along, and note what is where."""
    start = -1
    while not ended(history):
        reply = await insist_once(ports, cluster.current, start, 50)
        if reply is None:
            await ports.clock.sleep(50)
            continue
        for run in reply.runs:
            if run.blob is None:
                continue
            data = run.blob.data or await ports.net.fetch(run.blob)
            if data is None:
                continue
            for row, value in enumerate(values_of(data, run.delayed, run.shape, run.count)):
                assert history.seen.setdefault((run.ledger, run.first_entry + row), value) == value
        start = reply.resume


async def trouble(cluster: Cluster, rng: random.Random, rounds: int) -> None:
    """One thing after another goes wrong, and most of it is mended a little later."""
    world = cluster.world
    for _ in range(rounds):
        await world.loop.pause(rng.randrange(50, 600))
        bookie = f"b{rng.randrange(cluster.bookies)}"
        kind = rng.randrange(6)
        if kind == 0:
            world.pause(f"owner{cluster.owners}")
            await cluster.replace_owner()
            await world.loop.pause(rng.randrange(2000))
            for number in range(1, cluster.owners):
                world.resume(f"owner{number}")
        elif kind == 1:
            world.crash(f"owner{cluster.owners}")
            await cluster.replace_owner()
        elif kind == 2:
            await cluster.replace_owner()
        elif kind == 3 and world.is_up(bookie):
            world.crash(bookie)
            await world.loop.pause(rng.randrange(3000))
            await cluster.restart_bookie(bookie)
        elif kind == 4 and world.is_up(bookie):
            world.pause(bookie)
            await world.loop.pause(rng.randrange(6000))
            world.resume(bookie)
        else:
            heal = world.partition([f"owner{cluster.owners}"], [bookie], both=rng.random() < 0.5, felt=False)
            await world.loop.pause(rng.randrange(5000))
            heal()


def judge(history: History, found: list[tuple[int, int, str]], record: PartitionRecord) -> None:
    """The whole log against what was told."""
    places = {value: (ledger, entry) for ledger, entry, value in found}
    assert len(places) == len(found), "a value is in the log twice"
    assert [(ledger, entry) for ledger, entry, _ in found] == sorted((ledger, entry) for ledger, entry, _ in found)
    for value, place in history.confirmed.items():
        assert value in places, f"{value} was confirmed and is lost"
        assert place[0] == 0 or places[value] == place, f"{value} was confirmed at {place}, is at {places[value]}"
    assert not [value for value in places if value not in history.attempted]
    for place, value in history.seen.items():
        assert places.get(value) == place, f"a reader saw {value} at {place}, it is at {places.get(value)}"
    last: dict[str, int] = {}
    for _, _, value in found:
        name, _, number = value.partition("-")
        assert int(number) == last.get(name, -1) + 1, f"{value} follows {name}-{last.get(name, -1)}"
        last[name] = int(number)
    check_chain(record)


def check_chain(record: PartitionRecord) -> None:
    """S14: one open ledger at most and at the end, ids ascend, no empty closed one, fragments ascend."""
    assert all(ledger.state is LedgerState.CLOSED for ledger in record.ledgers[:-1])
    ids = [ledger.id for ledger in record.ledgers]
    assert ids == sorted(set(ids))
    for ledger in record.ledgers:
        assert ledger.state is not LedgerState.CLOSED or ledger.last_entry >= 0
        runs = [fragment.first_run for fragment in ledger.fragments]
        assert runs[0] == 0
        assert runs == sorted(set(runs))
        assert all(len(set(fragment.bookies)) == ledger.ensemble for fragment in ledger.fragments)


async def progress(world: World, history: History) -> None:
    """Everything is well again: each producer must get something confirmed within half a minute."""

    def count() -> list[int]:
        return [sum(value.startswith(name) for value in history.confirmed) for name in ("p0", "p1")]

    before = count()
    for _ in range(60):
        await world.loop.pause(500)
        if all(now > then for now, then in zip(count(), before, strict=True)):
            return
    raise AssertionError("nothing is confirmed any more although everything is well")


async def scenario(world: World, settings: TopicSettings, bookies: int) -> tuple[History, Cluster]:
    rng = random.Random(f"failover/{world.seed}")
    cluster = Cluster(world, bookies=bookies, settings=settings)
    await cluster.start()
    history = History()
    world.network.faults.loss = rng.choice((0.0, 0.02))
    world.network.faults.late = rng.choice((0.0, 0.02))
    world.network.faults.repeat = rng.choice((0.0, 0.05))
    world.meta.trouble.faults.fail_after = rng.choice((0.0, 0.1))
    world.meta.trouble.faults.late = rng.choice((0.0, 0.1))
    world.disk_faults.slow_chance = rng.choice((0.0, 0.05))
    for number in range(2):
        ports = world.client(f"producer{number}")
        ports.spawn(produce(cluster, ports, f"p{number}", history, random.Random(rng.random())), "produce")
    reader = world.client("reader")
    reader.spawn(follow(cluster, reader, history), "follow")
    await trouble(cluster, rng, rounds=8)
    world.network.heal()
    world.meta.trouble.faults = type(world.meta.trouble.faults)()
    world.disk_faults.slow_chance = 0.0
    await progress(world, history)
    history.over = True
    await world.loop.pause(3_000)
    to = await cluster.replace_owner()
    client = world.client("judge")
    found = await read_all(client, to)
    version = await client.meta.read(record_key("t", 0))
    assert version is not None
    judge(history, found, unpack_record(version.value))
    return history, cluster


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_confirmed_is_lost_or_moved(seed: int) -> None:
    shapes = [
        (TopicSettings(ensemble=2, write_quorum=2, ack_quorum=2), 3),
        (TopicSettings(ensemble=3, write_quorum=3, ack_quorum=2), 4),
        (TopicSettings(ensemble=4, write_quorum=2, ack_quorum=2, roll_entries=40), 5),
        (TopicSettings(ensemble=3, write_quorum=2, ack_quorum=1, roll_ms=1500), 3),
    ]
    settings, bookies = shapes[seed % len(shapes)]

    async def play(world: World) -> None:
        await scenario(world, settings, bookies)

    World(seed).play(play)

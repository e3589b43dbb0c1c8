"""Results of messages: stored once for each message, for any senders and repetitions, over changes of the owner."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sluice.actors.messages import Published, PublishResults, TopicSettings
from sluice.actors.ports import Ports, Unknown
from sluice.actors.ports.wire import Blob
from sluice.actors.topic.partition import results as results_module
from sluice.actors.topic.partition.results import MAX_POSITIONS_BYTES, Results, packed, unpacked
from sluice.storage.errors import Conflict, Corrupt, Fenced, Invalid, Overloaded, Unavailable
from sluice.storage.format.position import position
from tests.actors.topic.cluster import TIMEOUT, Cluster, make_test_run, read_all
from tests.sim.world import World

DEDUPLICATED = TopicSettings(deduplication_enabled=True)


def request(rows: list[tuple[int, str]], *, source: str = "in/s/0", finished: int = -1) -> PublishResults:
    """rows: the entry of the message in ledger 1, and the value."""
    run = make_test_run([value for _, value in rows])
    return PublishResults(
        source=source,
        positions=np.array([position(1, entry) for entry, _ in rows], np.int64),
        finished=finished,
        count=run.count,
        delayed=run.delayed,
        shape=run.shape,
        crc=run.crc,
        payload=Blob(run.payload),
    )


async def publish(ports: Ports, cluster: Cluster, rows: list[tuple[int, str]], finished: int = -1) -> Published:
    """Publish to the current owner until it answers."""
    while True:
        try:
            reply = await ports.net.call(cluster.current, request(rows, finished=finished), TIMEOUT)
            if not isinstance(reply, Unknown):
                return reply
        except (Unavailable, Overloaded, Fenced):
            pass
        await ports.clock.sleep(50)


async def values(ports: Ports, cluster: Cluster) -> list[str]:
    return [value for _, _, value in await read_all(ports, cluster.current)]


def test_results_of_a_message_are_stored_once() -> None:
    """Out of order, from several writers, some of them again: the first run of a message counts, as a whole."""

    async def scenario(world: World) -> None:
        cluster = Cluster(world, settings=DEDUPLICATED)
        await cluster.start()
        one, other = world.client("one"), world.client("other")
        assert not (await publish(one, cluster, [(7, "7a"), (7, "7b"), (3, "3")])).duplicate
        assert (await publish(other, cluster, [(7, "x"), (3, "x")])).duplicate
        await publish(other, cluster, [(3, "x"), (4, "4"), (7, "x"), (5, "5")])
        await publish(one, cluster, [(4, "x"), (6, "6")])
        assert await values(one, cluster) == ["7a", "7b", "3", "4", "5", "6"]

    World(1).play(scenario)


def test_a_new_owner_knows_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the heads of the runs, and from the record when that has them."""
    monkeypatch.setattr("sluice.actors.topic.partition.managed_ledger.SNAPSHOT_RUNS", 5)

    async def scenario(world: World) -> None:
        cluster = Cluster(world, settings=DEDUPLICATED)
        await cluster.start()
        ports, sent = world.client("one"), []
        for entry in range(0, 24, 2):
            await publish(ports, cluster, [(entry, str(entry))])
            sent.append(str(entry))
            if entry % 6 == 0:
                await ports.clock.sleep(1_500)  # the record is written meanwhile
                await cluster.replace_owner()
            for known in range(0, entry + 1, 2):
                assert (await publish(ports, cluster, [(known, "x")])).duplicate
        assert await values(ports, cluster) == sent

    World(2).play(scenario)


def test_writers_that_repeat_and_overlap_store_each_message_once() -> None:
    """Many at once, with a network that loses and repeats, and owners that change."""

    async def scenario(world: World) -> None:
        cluster = Cluster(world, settings=DEDUPLICATED)
        await cluster.start()
        rng, done = random.Random(3), []

        async def write(ports: Ports) -> None:
            for _ in range(15):
                entries = sorted(rng.sample(range(40), 4))
                await publish(ports, cluster, [(entry, str(entry)) for entry in entries])
            done.append(ports)

        for number in range(4):
            ports = world.client(f"writer-{number}")
            ports.spawn(write(ports), "write")
        while len(done) < 4:
            await world.loop.pause(400)
            await cluster.replace_owner()
        found = await values(ports, cluster)
        assert sorted(found) == sorted(set(found))
        assert len(found) > 30

    World(3).play(scenario)


def test_finished_results_are_forgotten_and_refused() -> None:
    async def scenario(world: World) -> None:
        cluster = Cluster(world, settings=DEDUPLICATED)
        await cluster.start()
        ports = world.client("one")
        for entry in range(10):
            await publish(ports, cluster, [(entry, str(entry))])
        await publish(ports, cluster, [(20, "20")], finished=position(1, 8))
        for again in (False, True):
            if again:
                await cluster.replace_owner()
            assert (await publish(ports, cluster, [(9, "x"), (20, "x")])).duplicate
            with pytest.raises(Conflict, match="1:8"):
                await publish(ports, cluster, [(8, "x"), (21, "x")], finished=position(1, 8))
        assert await values(ports, cluster) == [*map(str, range(10)), "20"]

    World(4).play(scenario)


def test_a_topic_that_does_not_deduplicate_refuses_results() -> None:
    async def scenario(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        with pytest.raises(Invalid, match="deduplication_enabled=True"):
            await publish(world.client("one"), cluster, [(1, "1")])

    World(5).play(scenario)


def test_positions_that_do_not_fit_a_header_are_refused() -> None:
    """A run of one message always fits."""
    near = np.arange(5_000, dtype=np.int64) + position(9, 70_000)
    assert (unpacked(packed(near)) == near).all()
    assert len(packed(near)) < 100
    far = np.arange(1_000, dtype=np.int64) * 70_000 + position(9, 0)
    with pytest.raises(Invalid, match="scattered"):
        packed(far)
    assert len(packed(far[-1:])) < MAX_POSITIONS_BYTES // 20
    with pytest.raises(Corrupt):
        unpacked(b"nothing")


def test_remembered_results_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of sources, and by the bytes that a source takes which does not finish."""
    monkeypatch.setattr(results_module, "MAX_SOURCES", 2)
    monkeypatch.setattr(results_module, "MAX_CURSOR_BYTES", 2_000)
    every = Results()
    source = every.find("a/s/0", -1, 0)
    every.find("b/s/0", -1, 0)
    with pytest.raises(Overloaded, match="2 sources"):
        every.find("c/s/0", -1, 0)
    source.cursor.acknowledge(np.arange(2_000, dtype=np.int64) * 3 + position(1, 0))
    every.snapshot(0)
    with pytest.raises(Overloaded, match="most of them of a/s/0"):
        every.find("b/s/0", -1, 0)
    every.find("a/s/0", position(1, 5_990), 0)
    every.find("b/s/0", -1, 0)


def test_a_source_that_was_silent_for_long_is_forgotten() -> None:
    every = Results()
    every.find("a/s/0", -1, 0)
    every.find("b/s/0", -1, results_module.FORGET_MS)
    saved = every.snapshot(results_module.FORGET_MS + 1)
    assert list(saved) == ["b/s/0"]
    again = Results()
    again.restore(saved, 40 * results_module.FORGET_MS)  # the clock of the next owner is ahead
    assert [row["source"] for row in again.rows()] == ["b/s/0"]
    assert list(again.snapshot(40 * results_module.FORGET_MS + 1)) == ["b/s/0"]

"""Publishing: once, in order, refused when it must be, and the same after a change of owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from sluice.actors.ledger.bookies import REFRESH_MS
from sluice.actors.messages import Publish, Published, PublishMany, TopicSettings
from sluice.actors.messages.limits import SEQUENCES
from sluice.actors.ports import Ports, Unknown
from sluice.actors.ports.wire import Blob
from sluice.actors.topic.partition import managed_ledger as log
from sluice.storage.errors import Conflict, Corrupt, Fenced, Invalid, Overloaded
from sluice.storage.format.checked_payload import payload_crc
from sluice.storage.format.frame import NEWEST, Run
from sluice.storage.format.position import position
from tests.actors.topic.cluster import Cluster, TestProducer, insist, make_test_run, read_all
from tests.sim.world import World


async def started(world: World, settings: TopicSettings | None = None) -> tuple[Cluster, Ports, TestProducer]:
    cluster = Cluster(world, settings=settings or TopicSettings())
    to = await cluster.start()
    client = world.client("client")
    producer = await TestProducer.opened(client, to)
    return cluster, client, producer


async def values(client: Ports, cluster: Cluster) -> list[str]:
    return [value for _, _, value in await read_all(client, cluster.current)]


def test_s19_a_resend_returns_the_same_place_and_stores_nothing() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        for _ in range(6):
            await producer.publish(3)
        for incarnation in ("2", "3"):
            again = TestProducer(client, await cluster.replace_owner(), incarnation=incarnation)
            assert (await again.open()).last_sequence == 17
            for first, place in producer.places:
                run = make_test_run([f"p-{n}" for n in range(first, first + 3)], first=first)
                reply = await again.send(run, first)
                assert (reply.ledger, reply.first_entry, reply.duplicate) == (place.ledger, place.first_entry, True)
        assert await values(client, cluster) == [f"p-{n}" for n in range(18)]

    World(11).play(scenario)


def test_repetitions_of_a_publish_under_way_store_it_once() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        run = make_test_run(["a", "b"])
        replies: list[Published] = []

        async def send() -> None:
            replies.append(await producer.send(run, 0))

        for _ in range(5):
            client.spawn(send(), "send")
        while len(replies) < 5:
            await client.clock.sleep(10)
        assert {(reply.ledger, reply.first_entry) for reply in replies} == {(1, 0)}
        assert await values(client, cluster) == ["a", "b"]

    World(12).play(scenario)


def test_s7_overtaking_runs_are_stored_in_sequence_order() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        done: list[int] = []

        async def send(first: int) -> None:
            await producer.send(make_test_run([str(first), str(first + 1)], first=first), first)
            done.append(first)

        for first in (6, 2, 4, 0, 8):
            client.spawn(send(first), "send")
            await client.clock.sleep(5)
        while len(done) < 5:
            await client.clock.sleep(10)
        assert await values(client, cluster) == [str(n) for n in range(10)]

    World(13).play(scenario)


def test_a_run_stored_in_part_has_only_its_tail_stored() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        await producer.send(make_test_run(["0", "1", "2"], due=99), 0)
        reply = await producer.send(make_test_run(["1", "2", "3", "4"], first=1, due=99), 1)
        assert (reply.count, reply.duplicate) == (4, True)
        assert await values(client, cluster) == ["0", "1", "2", "3", "4"]
        runs = (await insist(client, cluster.current, -1)).runs
        assert [(run.first_entry, run.count, run.delayed) for run in runs] == [(0, 3, True), (3, 2, True)]

    World(14).play(scenario)


def test_a_gap_is_a_conflict_unless_it_is_said_to_be_final() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        await producer.send(make_test_run(["0"]), 0)
        gap = producer.request(make_test_run(["5"], first=5), 5)
        with pytest.raises(Conflict):
            await client.net.call(cluster.current, gap, 20_000)
        final = msgspec.structs.replace(gap, follows=0)
        assert not isinstance(await client.net.call(cluster.current, final, 20_000), Unknown)
        assert await values(client, cluster) == ["0", "5"]

    World(15).play(scenario)


@pytest.mark.parametrize("first", [-1, SEQUENCES - 1, 1 << 63, (1 << 64) - 1])
def test_sequences_that_no_column_holds_are_refused(first: int) -> None:
    """The two messages go into the history later: it has a column of sequences, and the record has the highest one."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        two = make_test_run(["a", "b"])
        with pytest.raises(Invalid, match="sequences"):
            await client.net.call(cluster.current, producer.request(two, first), 20_000)
        last = msgspec.structs.replace(producer.request(two, SEQUENCES - 2), follows=-1)
        assert isinstance(await client.net.call(cluster.current, last, 20_000), Published)
        assert await values(client, cluster) == ["a", "b"]

    World(17).play(scenario)


def test_a_newer_twin_fences_the_older_one() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        await producer.publish(1)
        twin = TestProducer(client, cluster.current, incarnation="2")
        assert (await twin.open()).last_sequence == 0
        with pytest.raises(Fenced):
            await producer.publish(1)
        with pytest.raises(Fenced):
            await producer.open()
        await twin.publish(1)

    World(16).play(scenario)


def test_bad_publishes_are_refused_and_consume_no_sequence() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, TopicSettings(max_delay_ms=10_000))
        now = client.clock.now()
        with pytest.raises(Invalid, match="delayed by more"):
            await producer.send(make_test_run(["x"], due=now + 60_000), 0)
        run = make_test_run(["x"])
        for broken in (0, 70_000):
            bad = msgspec.structs.replace(producer.request(run, 0), count=broken)
            with pytest.raises(Invalid):
                await client.net.call(cluster.current, bad, 1000)
        short = Publish(
            producer="p", session=producer.session, first_sequence=0, count=50, delayed=True, shape=0, crc=0,
            payload=Blob(b"1234"),
        )  # fmt: skip
        with pytest.raises(Invalid, match="index columns"):
            await client.net.call(cluster.current, short, 1000)
        await producer.send(make_test_run(["fine"], due=now + 5_000), 0)
        assert await values(client, cluster) == ["fine"]

    World(17).play(scenario)


def test_a_wrong_encoding_is_refused_before_it_has_a_place() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        good = producer.request(make_test_run(["x"]), 0)
        request = msgspec.structs.replace(good, crc=good.crc ^ 1)
        with pytest.raises(Corrupt):
            await client.net.call(cluster.current, request, 1000)
        request = msgspec.structs.replace(good, shape=1)  # a column that is not there
        with pytest.raises(Invalid, match="nobody could read"):
            await client.net.call(cluster.current, request, 1000)
        await producer.send(make_test_run(["fine"]), 0)
        assert await values(client, cluster) == ["fine"]

    World(20).play(scenario)


def test_too_much_under_way_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "HELD_BYTES", 100)

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        await producer.send(make_test_run(["0"]), 0)
        for name in ("b0", "b1", "b2"):
            world.pause(name)

        async def first() -> None:
            await producer.send(make_test_run(["1"], first=1), 1)

        client.spawn(first(), "first")
        await client.clock.sleep(50)
        with pytest.raises(Overloaded):
            await client.net.call(cluster.current, producer.request(make_test_run(["2"], first=2), 2), 1000)
        for name in ("b0", "b1", "b2"):
            world.resume(name)
        await producer.send(make_test_run(["2"], first=2), 2)
        assert await values(client, cluster) == ["0", "1", "2"]

    World(18).play(scenario)


def test_s11_readers_are_shown_nothing_that_is_not_confirmed() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        await producer.publish(2)
        holders = cluster.topic()._log.record.ledgers[-1].fragments[-1].bookies
        cluster.hidden = sorted(cluster.addresses)
        world.pause(holders[0])

        async def stuck() -> None:
            await producer.publish(2)

        client.spawn(stuck(), "stuck")
        await client.clock.sleep(1000)
        reply = await insist(client, cluster.current, -1)
        assert [(run.first_entry, run.count) for run in reply.runs] == [(0, 2)]
        assert reply.last_confirmed == position(1, 1)
        world.resume(holders[0])
        cluster.hidden = []
        while len(producer.places) < 2:
            await client.clock.sleep(50)
        assert len(await values(client, cluster)) == 4

    World(19).play(scenario)


def test_a_later_run_that_nobody_could_read_is_refused() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        await producer.publish(2)
        good = make_test_run(["a", "b", "c"], first=2)
        payload = bytearray(good.payload)
        at = payload.rfind(np.arange(4, dtype=np.int32).tobytes())
        payload[at + 4 : at + 8] = np.int32(1 << 30).tobytes()
        bad = Run(good.count, good.delayed, good.shape, memoryview(bytes(payload)), payload_crc(bytes(payload)))
        with pytest.raises(Invalid, match="nobody could read"):
            await producer.send(bad, 2)
        with pytest.raises(Corrupt, match="checksum"):
            await producer.send(Run(good.count, good.delayed, good.shape, bad.payload, good.crc), 2)
        await producer.send(good, 2)
        assert await values(client, cluster) == ["p-0", "p-1", "a", "b", "c"]

    World(28).play(scenario)


def test_a_repetition_of_what_is_stored_is_never_invalid() -> None:
    """The run was valid when it was stored: later changes do not matter to a publish that has a place."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, TopicSettings(max_delay_ms=10_000))
        run = make_test_run(["x"], due=client.clock.now() + 5_000)
        place = await producer.send(run, 0)
        topic = cluster.topic()
        topic.settings = TopicSettings(max_delay_ms=1_000)
        again = await producer.send(run, 0)
        assert (again.ledger, again.first_entry, again.duplicate) == (place.ledger, place.first_entry, True)
        with pytest.raises(Invalid, match="delayed by more"):
            await producer.send(run, 1)

    World(29).play(scenario)


def joint(client: Ports, producers: Sequence[TestProducer], counts: Sequence[int]) -> tuple[PublishMany, list[str]]:
    """Make a run of the next messages of several producers; returns the request and the values."""
    values = [
        f"{one.name}-{one.next + row}" for one, count in zip(producers, counts, strict=True) for row in range(count)
    ]
    run = make_test_run(values)
    request = PublishMany(
        producers=tuple(one.name for one in producers),
        sessions=tuple(one.session for one in producers),
        first_sequences=tuple(one.next for one in producers),
        counts=tuple(counts),
        follows=tuple(one.next - 1 for one in producers),
        delayed=run.delayed,
        shape=run.shape,
        crc=run.crc,
        payload=Blob(run.payload),
    )
    return request, values


async def three(world: World) -> tuple[Cluster, Ports, list[TestProducer]]:
    cluster, client, producer = await started(world)
    others = [TestProducer(client, cluster.current, name) for name in ("q", "r")]
    for other in others:
        await other.open()
    return cluster, client, [producer, *others]


def test_joint_run_is_known_of_each_producer_after_a_takeover() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producers = await three(world)
        request, joint_values = joint(client, producers, [2, 1, 3])
        reply = await client.net.call(cluster.current, request, 5_000)
        assert not isinstance(reply, Unknown)
        assert (reply.first_entry, reply.count) == (0, 6)
        owner = await cluster.replace_owner()
        for producer, count, entry in zip(producers, (2, 1, 3), (0, 2, 3), strict=True):
            again = TestProducer(client, owner, producer.name, incarnation="2")
            assert (await again.open()).last_sequence == count - 1
            run = make_test_run([f"{producer.name}-{row}" for row in range(count)])
            place = await again.send(run, 0)
            assert (place.ledger, place.first_entry, place.duplicate) == (reply.ledger, entry, True)
        assert await values(client, cluster) == joint_values

    World(21).play(scenario)


def test_part_of_a_joint_run_that_comes_again_has_its_place() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producers = await three(world)
        request, _ = joint(client, producers, [2, 1, 3])
        reply = await client.net.call(cluster.current, request, 5_000)
        assert not isinstance(reply, Unknown)
        for producer, count, entry in zip(producers, (2, 1, 3), (0, 2, 3), strict=True):
            place = await producer.send(make_test_run([f"{producer.name}-{row}" for row in range(count)]), 0)
            assert (place.ledger, place.first_entry, place.duplicate) == (reply.ledger, entry, True)

    World(24).play(scenario)


def test_joint_run_with_a_stored_part_is_refused_whole() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producers = await three(world)
        request, _ = joint(client, producers, [2, 2, 2])
        await producers[1].publish(1)
        with pytest.raises(Conflict, match="'q'"):
            await client.net.call(cluster.current, request, 5_000)
        assert await values(client, cluster) == ["q-0"]

    World(22).play(scenario)


def test_joint_run_is_refused_while_an_older_process_is_there() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producers = await three(world)
        cluster.frames = 1
        owner = await cluster.replace_owner()
        for producer in producers:
            producer.to, producer.incarnation = owner, "2"
            await producer.open()
        request, _ = joint(client, producers, [1, 1, 1])
        with pytest.raises(Conflict, match="older process"):
            await client.net.call(owner, request, 5_000)
        cluster.frames = NEWEST
        await client.clock.sleep(REFRESH_MS)
        assert not isinstance(await client.net.call(owner, request, 5_000), Unknown)

    World(23).play(scenario)


@pytest.mark.parametrize(
    "wrong",
    [
        {"producers": ["p", "q", "q"]},
        {"counts": [3, 3, 0]},
        {"sessions": [1]},
        {"first_sequences": [0, -1, 0]},
        {"producers": ["p", "q", "r" * 4_000]},
    ],
)
def test_joint_run_whose_segments_fit_no_frame_is_invalid(wrong: dict[str, Any]) -> None:
    async def scenario(world: World) -> None:
        cluster, client, producers = await three(world)
        request, _ = joint(client, producers, [2, 2, 2])
        with pytest.raises(Invalid):
            await client.net.call(cluster.current, msgspec.structs.replace(request, **wrong), 5_000)
        assert await values(client, cluster) == []

    World(24).play(scenario)

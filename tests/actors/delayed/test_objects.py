"""Bucket objects in the store: created once, read by segments, deleted for good (BS-1, BS-2, BS-4 to BS-6)."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from sluice.actors.delayed.objects import BucketObjects, Key
from sluice.storage.delayed.bucket import BucketBuilder, SealedBucket
from sluice.storage.delayed.entries import Entries
from sluice.storage.delayed.live import Bucket, record_of
from sluice.storage.delayed.queue import SortedRun
from sluice.storage.errors import Conflict, NotFound
from sluice.storage.format.position import position
from tests.actors.delayed.broker import PARTITION, SUBSCRIPTION, TOPIC
from tests.actors.delayed.scenario import Scenario, numbers
from tests.actors.delayed.world import Life, World
from tests.sim.loop import simulated

KEY: Key = (7, 3)


def some_entries() -> Entries:
    times = np.array([10, 20, 1010, 1020, 1030], np.int64)
    return Entries(times, position(4, 0) + np.arange(times.size), np.arange(times.size, dtype=np.uint32))


def two_segments(objects: BucketObjects, key: Key = KEY) -> SealedBucket:
    builder = BucketBuilder(objects.owner, *key, step_ms=1000, max_entries=-1)
    builder.append(some_entries())
    sealed = builder.finish()
    assert sealed is not None
    assert sealed.header.table.count.tolist() == [2, 3]
    return sealed


def opened(life: Life) -> BucketObjects:
    return BucketObjects(life.ports, TOPIC, PARTITION, SUBSCRIPTION)


@simulated
async def test_bs_1_an_object_is_created_once_under_its_own_name() -> None:
    world = World()
    objects = opened(Life(world))
    await objects.put(KEY, two_segments(objects))
    await objects.put((7, 4), two_segments(objects, (7, 4)))
    assert [objects.parse(name) for name in await objects.names()] == [KEY, (7, 4)]
    before = dict(world.objects)
    with pytest.raises(Conflict, match="there is a bucket"):
        await objects.put(KEY, two_segments(objects))
    assert world.objects == before


@simulated
async def test_bs_2_no_more_is_read_than_there_are_segments() -> None:
    objects = opened(Life(World()))
    sealed = two_segments(objects)
    await objects.put(KEY, sealed)
    bucket = Bucket.restored(record_of(KEY, sealed.header), sealed.header.table, 0)
    stop = bucket.plan_load(until=1 << 40, max_entries=1000)
    assert stop == 2
    read = await objects.segments(KEY, sealed.header.data_start, sealed.header.table, 0, stop)
    assert read.positions.tolist() == some_entries().positions.tolist()
    bucket.run, bucket.next_segment = SortedRun(read), stop
    assert bucket.horizon() > (1 << 40, 0), "nothing is left to be asked for"


@simulated
async def test_bs_4_a_deleted_object_is_not_there() -> None:
    world = World()
    objects = opened(Life(world))
    sealed = two_segments(objects)
    await objects.put(KEY, sealed)
    await objects.delete(objects.name(KEY))
    assert await objects.names() == []
    with pytest.raises(NotFound, match="no object"):
        await objects.header(KEY, sealed.header.data_start)
    with pytest.raises(NotFound, match="no object"):
        await objects.segments(KEY, sealed.header.data_start, sealed.header.table, 0, 1)
    await objects.delete(objects.name(KEY))


@simulated
async def test_bs_5_the_manifest_knows_the_length_of_each_object() -> None:
    scenario = Scenario()
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 11)
    named = broker.tracker._bucket_set.named
    lengths = {broker.tracker._objects.name(key): record.size for key, record in named.items()}
    assert lengths == {name: len(data) for name, data in scenario.world.objects.items()}
    assert len(lengths) == 2
    assert min(lengths.values()) > 0
    size = broker.tracker.stats()["pulsar_delayed_message_index_bucket_snapshot_size_bytes"]
    assert size == sum(lengths.values())
    await scenario.finish(broker)


@simulated
async def test_bs_6_readers_at_the_same_time_get_the_same() -> None:
    objects = opened(Life(World()))
    sealed = two_segments(objects)
    await objects.put(KEY, sealed)
    table, start = sealed.header.table, sealed.header.data_start
    wanted = [(0, 1), (1, 2), (0, 2)] * 4
    reads = await asyncio.gather(*(objects.segments(KEY, start, table, *segments) for segments in wanted))
    ends = [0, 2, 5]
    for (first, stop), read in zip(wanted, reads, strict=True):
        assert read.positions.tolist() == some_entries().positions[ends[first] : ends[stop]].tolist()


@simulated
async def test_bs_6_a_segment_on_its_way_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(cap=5)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 6)
    await scenario.finish(broker)
    again = await scenario.begin()
    objects = again.tracker._objects
    segments, asked, answer = objects.segments_once, list[Key](), asyncio.Event()

    async def slowly(key: Key, *rest: Any) -> Entries:
        asked.append(key)
        await answer.wait()
        return await segments(key, *rest)

    monkeypatch.setattr(objects, "segments_once", slowly)
    scenario.world.now = 50
    for _ in range(20):
        assert again.take() == []
        await scenario.world.settle()
    assert asked == [(1, 1)]
    answer.set()
    await scenario.world.settle()
    assert numbers(again.take()) == [1, 2, 3, 4, 5]
    await scenario.finish(again)

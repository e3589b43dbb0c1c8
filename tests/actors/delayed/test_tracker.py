"""The choice of the tracker, and the in-memory one (FB-1, IM-1 to IM-5, BD-1)."""

import numpy as np
import pytest

from sluice.actors.delayed.buckets import BucketTracker
from sluice.actors.delayed.memory import InMemoryTracker
from sluice.actors.delayed.open_tracker import make_tracker
from sluice.actors.delayed.tracker import DelayedTracker, IndexOnDemand
from sluice.actors.messages import SubscriptionSettings
from sluice.storage.delayed.manifest import Manifest, decode_manifest, encode_manifest
from sluice.storage.errors import Fenced, Invalid
from sluice.storage.format.position import position
from tests.actors.delayed.broker import KEY, PARTITION, SUBSCRIPTION, TOPIC
from tests.actors.delayed.world import Fault, Life, World
from tests.sim.loop import simulated


async def make(life: Life, epoch: int = 1, **settings: object) -> DelayedTracker:
    return await make_tracker(
        life.ports,
        topic=TOPIC,
        partition=PARTITION,
        subscription=SUBSCRIPTION,
        settings=SubscriptionSettings(**settings),  # type: ignore[arg-type]
        changed=lambda: None,
        owner_epoch=epoch,
    )


def add(tracker: DelayedTracker, dues: list[int], now: int = 0, first: int = 0) -> list[bool]:
    places = position(1, first) + np.arange(len(dues), dtype=np.int64)
    mask: list[bool] = tracker.add(places, places.astype(np.uint32), np.array(dues, np.int64), now).tolist()
    return mask


@simulated
async def test_the_settings_choose() -> None:
    world = World()
    life = Life(world)
    assert isinstance(await make(life), IndexOnDemand)
    assert isinstance(await make(life, delayed_tracker="memory"), InMemoryTracker)
    with pytest.raises(Invalid, match="bucket or memory"):
        await make(life, delayed_tracker="heap")
    world.records[KEY] = [encode_manifest(Manifest(1))]
    assert isinstance(await make(life), BucketTracker)
    await life.end()


@simulated
async def test_bd_1_switched_off_means_at_once() -> None:
    tracker = await make(Life(World()), delayed_delivery_enabled=False)
    assert add(tracker, [10, 20]) == [False, False]
    assert tracker.count() == 0


@simulated
async def test_fb_1_an_unreadable_manifest_means_memory() -> None:
    world = World()

    def script(n: int, what: str, name: str) -> Fault:
        return "lost_before" if what == "read" else "ok"

    life = Life(world, script)
    made: list[DelayedTracker] = []

    async def begin() -> None:
        made.append(await make(life))

    life.spawn(begin(), "begin")
    await world.advance(10_000)
    tracker = made[0]
    assert "scripted" in tracker.stats()["fallback"]
    assert add(tracker, [20_000]) == [True]
    assert tracker.pop_due(5, 19_999)[0].size == 0
    assert tracker.pop_due(5, 20_000)[0].size == 1
    assert world.objects == {}
    await life.end()


@simulated
async def test_a_damaged_manifest_is_replaced_and_its_buckets_deleted() -> None:
    world = World()
    world.records[KEY] = [b"rubbish"]
    world.objects[f"delayed/{TOPIC}/{PARTITION}/{SUBSCRIPTION}/000000000001-0000000001.bucket"] = b"x"
    life = Life(world)
    tracker = await make(life, epoch=2)
    assert tracker.stats()["fallback"] is None
    await world.settle()
    assert world.objects == {}
    assert decode_manifest(world.records[KEY][-1], KEY) == Manifest(2)
    await life.end()


@simulated
async def test_a_newer_owner_is_not_worked_around() -> None:
    world = World()
    newer, older = Life(world), Life(world)
    world.records[KEY] = [encode_manifest(Manifest(1))]
    await make(newer, epoch=2)
    with pytest.raises(Fenced):
        await make(older, epoch=1)
    await newer.end()
    await older.end()


def test_im_1_fixed_delays_pause_reading() -> None:
    tracker = InMemoryTracker(tick_ms=0, lookahead=100)
    add(tracker, [i * 10 for i in range(1, 100)])
    assert not tracker.pause_reads(0)
    add(tracker, [1000], first=99)
    assert tracker.pause_reads(0)
    assert not tracker.pause_reads(10), "the first is due"
    assert tracker.pop_due(1000, 1000)[0].size == 100
    assert not tracker.pause_reads(0)
    add(tracker, [2000 + i for i in range(100)], first=200)
    assert tracker.pause_reads(0), "an emptied tracker starts anew"


def test_im_2_a_smaller_delay_ends_the_pause() -> None:
    tracker = InMemoryTracker(lookahead=10)
    add(tracker, [1000 + i for i in range(20)])
    assert tracker.pause_reads(0)
    add(tracker, [500], first=20)
    assert not tracker.pause_reads(0)


def test_im_3_an_immediate_message_ends_the_pause() -> None:
    tracker = InMemoryTracker(lookahead=10)
    add(tracker, [1000 + i for i in range(20)])
    add(tracker, [-1], first=20)
    assert not tracker.pause_reads(0)


@simulated
async def test_im_4_close_with_messages_inside() -> None:
    tracker = InMemoryTracker()
    add(tracker, [10])
    await tracker.close()
    assert add(tracker, [20], first=1) == [True]
    assert tracker.pop_due(5, 30)[0].size == 2


def test_im_5_twice_counts_once() -> None:
    tracker = InMemoryTracker()
    assert add(tracker, [10]) == [True]
    assert add(tracker, [10]) == [True]
    assert tracker.count() == 1
    assert tracker.pop_due(5, 10)[0].size == 1


@simulated
async def test_memory_tracker_trims_clears_and_browses() -> None:
    tracker = InMemoryTracker()
    add(tracker, [10, 20, 30, 40])
    assert tracker.next_due(0) == 10
    assert tracker.next_messages(2) == [(10, position(1, 0)), (20, position(1, 1))]
    assert sum(count for _, _, count in tracker.histogram(3)) == 4
    tracker.trim(position(1, 1))
    assert tracker.count() == 2
    assert tracker.untrack(np.array([position(1, 3)])) == 1
    assert tracker.pop_due(9, 100)[0].tolist() == [position(1, 2)]
    add(tracker, [50], first=9)
    await tracker.clear()
    assert (tracker.count(), tracker.next_due(0), tracker.loaded()) == (0, None, 0)


def test_bd_6_a_message_without_a_delay_ends_the_pause() -> None:
    tracker = InMemoryTracker(lookahead=10)
    tracker.undelayed()
    add(tracker, [1000 + i for i in range(20)])
    assert tracker.pause_reads(0), "an empty tracker begins with the mode"
    tracker.undelayed()
    assert not tracker.pause_reads(0)

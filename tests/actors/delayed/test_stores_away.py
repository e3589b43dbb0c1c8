"""Stores that are slow, away or refuse: what can be delivered is, memory is bounded, and afterwards nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from sluice.actors.delayed.buckets import BucketTracker
from sluice.actors.delayed.maintenance import COLLECT_FIRST_MS, RETRY_MS
from sluice.actors.delayed.objects import Key
from sluice.actors.delayed.open_tracker import make_tracker
from sluice.actors.delayed.sealer import PARKED_MS
from sluice.actors.delayed.tracker import DelayedTracker
from sluice.actors.messages import SubscriptionSettings
from sluice.storage.delayed.entries import Entries
from sluice.storage.delayed.manifest import Manifest, encode_manifest
from sluice.storage.errors import Unavailable
from sluice.storage.format.position import position
from tests.actors.delayed.broker import KEY, PARTITION, PREFIX, SUBSCRIPTION, TOPIC, Broker
from tests.actors.delayed.scenario import Scenario, buckets, message, numbers
from tests.actors.delayed.world import Fault, Life
from tests.sim.loop import simulated

LONG = 60_000


class Store:
    """Says which calls are refused at present."""

    def __init__(self) -> None:
        self.away: Callable[[str, str], bool] = lambda what, name: False

    def __call__(self, n: int, what: str, name: str) -> Fault:
        return "lost_before" if self.away(what, name) else "ok"

    def refuse(self, *whats: str) -> None:
        """Refuse calls of these kinds; none: serve again."""
        self.away = lambda what, name: what in whats


async def fallen_back(scenario: Scenario, store: Store) -> Broker:
    """An owner whose manifest cannot be opened, as the dispatcher would have it."""
    scenario.epoch += 1
    broker = Broker(scenario.world, scenario.log, scenario.settings, scenario.epoch, store)
    try:
        await in_time(broker, broker.tracker.start())
    except Unavailable as error:
        broker.tracker.start_later(error)
    return broker


async def in_time(broker: Broker, work: Coroutine[Any, Any, None]) -> None:
    """Let time pass until a piece of work is done; raises what it was refused with."""
    failed: list[Unavailable] = []

    async def begin() -> None:
        try:
            await work
        except Unavailable as error:
            failed.append(error)

    task = broker.life.spawn(begin(), "work")
    while not task.done():
        await broker.world.advance(100)
    if failed:
        raise failed[0]


@pytest.mark.parametrize("unreadable", [8, 20])
@simulated
async def test_unreadable_objects_take_no_place_from_readable_ones(unreadable: int) -> None:
    bad: dict[str, None] = {}

    def script(n: int, what: str, name: str) -> Fault:
        return "lost_before" if what == "get" and name in bad else "ok"

    scenario = Scenario(min_count=2, max_buckets=-1, scale=1000)
    broker = await scenario.begin(script)
    last = 2 * unreadable + 12
    await scenario.publish(broker, 1, last + 2)
    names = sorted(scenario.world.objects)
    bad.update(dict.fromkeys(names[:unreadable]))
    scenario.world.now = (last + 1) * 1000
    await broker.run_until(scenario.world.now + 200)
    assert [i for i in numbers(broker.delivered) if i <= last] == list(range(2 * unreadable + 1, last + 1))
    bad.clear()
    await broker.run_until(scenario.world.now + LONG)
    assert sorted(numbers(broker.delivered)) == list(range(1, last + 3))
    await scenario.finish(broker)


@pytest.mark.parametrize("silent", [1, 20])
@simulated
async def test_a_store_that_says_nothing_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch, silent: int) -> None:
    """An answer may take minutes: until every attempt at every connection has run out of time."""
    scenario = Scenario(min_count=2, max_buckets=-1, scale=1000)
    broker = await scenario.begin()
    last = 2 * silent + 12
    await scenario.publish(broker, 1, last + 2)
    objects = broker.tracker._objects
    names, segments, answer = sorted(scenario.world.objects)[:silent], objects.segments_once, asyncio.Event()

    async def silently(key: Key, *rest: Any) -> Entries:
        if objects.name(key) in names:
            await answer.wait()
        return await segments(key, *rest)

    monkeypatch.setattr(objects, "segments_once", silently)
    scenario.world.now = (last + 1) * 1000
    await broker.run_until(scenario.world.now + LONG)
    assert [i for i in numbers(broker.delivered) if i <= last] == list(range(2 * silent + 1, last + 1))
    stats = broker.tracker.stats()
    assert stats["stalled"] == silent
    assert "has not answered" in stats["last_error"]
    answer.set()
    await broker.run_until(scenario.world.now + LONG)
    assert sorted(numbers(broker.delivered)) == list(range(1, last + 3))
    assert broker.tracker.stats()["stalled"] == 0
    await scenario.finish(broker)


@pytest.mark.parametrize(("refusals", "silent"), [(1, 4), (0, 1)])
@simulated
async def test_requests_that_hang_hold_up_no_retry(monkeypatch: pytest.MonkeyPatch, refusals: int, silent: int) -> None:
    """Not that of another bucket, which the store refused as well, and not the next one of the same bucket."""
    scenario = Scenario(min_count=2, max_buckets=-1, scale=1000)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 14)
    objects = broker.tracker._objects
    names, segments, never = sorted(scenario.world.objects), objects.segments_once, asyncio.Event()
    asked: dict[str, int] = {}

    async def silently(key: Key, *rest: Any) -> Entries:
        name = objects.name(key)
        asked[name] = asked.get(name, 0) + 1
        if asked[name] <= refusals:
            raise Unavailable("it is refused")
        if name in names[:silent] and asked[name] == refusals + 1:
            await never.wait()
        return await segments(key, *rest)

    monkeypatch.setattr(objects, "segments_once", silently)
    scenario.world.now = 13_000
    await broker.run_until(scenario.world.now + LONG)
    assert sorted(numbers(broker.delivered)) == list(range(1, 15))
    assert broker.tracker.stats()["stalled"] == 0
    never.set()
    await broker.run_until(scenario.world.now + LONG)
    assert sorted(numbers(broker.delivered)) == list(range(1, 15))
    await scenario.finish(broker)


@pytest.mark.parametrize("what", ["read", "create"])
@simulated
async def test_bd_33_a_fall_back_to_memory_returns_to_buckets(what: str) -> None:
    scenario, store = Scenario(scale=10_000), Store()
    first = await scenario.begin()
    await scenario.publish(first, 1, 12)
    await scenario.finish(first)
    store.refuse(what)
    broker = await fallen_back(scenario, store)
    broker.read()
    assert (broker.tracker.count(), broker.tracker.stats()["buckets"]) == (12, 0)
    assert broker.tracker.stats()["fallback"]
    await broker.run_until(21_000)
    store.refuse()
    await broker.run_until(25_000)
    stats = broker.tracker.stats()
    assert (stats["fallback"], stats["buckets"], stats["alarm"]) == (None, 2, "")
    await scenario.publish(broker, 13, 24)
    assert broker.tracker.stats()["buckets"] == 4
    await broker.run_until(260_000, acknowledge=True)
    assert numbers(broker.delivered) == list(range(1, 25))
    await scenario.finish(broker)


@pytest.mark.parametrize("recovered", [False, True])
@simulated
async def test_deleting_after_a_fall_back_leaves_nothing(recovered: bool) -> None:
    scenario, store = Scenario(scale=10_000), Store()
    first = await scenario.begin()
    await scenario.publish(first, 1, 12)
    await scenario.finish(first)
    store.refuse("read")
    broker = await fallen_back(scenario, store)
    broker.read()
    if recovered:
        store.refuse()
        await scenario.world.advance(5_000)
    else:
        with pytest.raises(Unavailable):
            await in_time(broker, broker.tracker.delete())
        store.refuse()
    await in_time(broker, broker.tracker.delete())
    await broker.tracker.delete()
    assert (scenario.world.objects, scenario.world.records) == ({}, {})
    await scenario.world.advance(LONG)
    assert (scenario.world.objects, scenario.world.records) == ({}, {})
    await broker.end()


async def earlier_buckets_that_stay(
    settings: SubscriptionSettings,
) -> tuple[Scenario, Store, Life, DelayedTracker]:
    """Start a subscription that had buckets with settings that use none, while the store refuses deletes."""
    scenario, store = Scenario(), Store()
    first = await scenario.begin()
    await scenario.publish(first, 1, 12)
    await scenario.finish(first)
    store.refuse("delete")
    life = Life(scenario.world, store)
    tracker = await make_tracker(
        life.ports,
        topic=TOPIC,
        partition=PARTITION,
        subscription=SUBSCRIPTION,
        settings=settings,
        changed=lambda: None,
        owner_epoch=2,
    )
    return scenario, store, life, tracker


@pytest.mark.parametrize("changed", [{"delayed_tracker": "memory"}, {"type": "failover"}])
@simulated
async def test_deleting_a_subscription_deletes_its_earlier_buckets(changed: dict[str, str]) -> None:
    settings = SubscriptionSettings(**changed)  # type: ignore[arg-type]
    scenario, store, life, tracker = await earlier_buckets_that_stay(settings)
    assert not isinstance(tracker, BucketTracker)
    await scenario.world.advance(10_000)
    assert scenario.world.objects
    store.refuse()
    deleted = life.spawn(tracker.delete(), "delete")
    await scenario.world.advance(5_000)
    assert deleted.done()
    assert (scenario.world.objects, scenario.world.records) == ({}, {})
    await life.end()


@simulated
async def test_earlier_buckets_that_stay_are_tried_now_and_then() -> None:
    """Each attempt went on by itself, beside the later ones, for as long as the process lived."""
    scenario, store, life, _ = await earlier_buckets_that_stay(SubscriptionSettings(delayed_tracker="memory"))
    await scenario.world.advance(LONG)
    before = len(life.calls)
    await scenario.world.advance(LONG)
    a_minute = len(life.calls) - before
    await scenario.world.advance(20 * LONG)
    assert len(life.calls) - before - a_minute <= 21 * a_minute
    store.refuse()
    await scenario.world.advance(2 * LONG)
    assert (scenario.world.objects, scenario.world.records) == ({}, {})
    assert all(task.done() for task in life.tasks), "nothing looks for leftovers any more"
    life.check()
    await life.end()


@simulated
async def test_a_damaged_manifest_stops_neither_delivery_nor_deleting() -> None:
    scenario = Scenario(scale=1_000)
    first = await scenario.begin()
    await scenario.publish(first, 1, 12)
    await scenario.finish(first)
    for versions in scenario.world.records.values():
        versions.append(b"rubbish")
    broker = await scenario.begin()
    broker.read()
    await broker.run_until(5_000)
    assert numbers(broker.delivered) == [1, 2, 3, 4, 5]
    # The store damages it again under the owner, who puts a good version behind it.
    scenario.world.records[KEY].append(b"rubbish")
    broker.tracker._maintenance.collect_later()
    await scenario.world.advance(RETRY_MS)
    assert broker.tracker.failed is None
    scenario.world.records[KEY].append(b"rubbish")
    await broker.tracker.delete()
    assert (scenario.world.objects, scenario.world.records) == ({}, {})
    await broker.end()


@simulated
async def test_entries_waiting_for_a_failing_store_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.actors.delayed.buckets.WAITING_MOST", 15)
    scenario, store = Scenario(scale=100_000), Store()
    broker = await scenario.begin(store)
    store.refuse("put")
    for i in range(1, 14):
        await scenario.publish(broker, i, i)
        await scenario.world.advance(2_500)
    assert broker.tracker._bucket_set.unwritten() == 0
    assert broker.tracker.room() == 15 - 10
    assert "10 delayed messages are in memory only" in broker.tracker.stats()["alarm"]
    for i in range(14, 19):
        await scenario.publish(broker, i, i)
        await scenario.world.advance(2_500)
    assert broker.tracker.room() == 0
    assert "reading is paused" in broker.tracker.stats()["alarm"]
    assert "put" in broker.tracker.stats()["alarm"]
    store.refuse()
    signals = broker.signals
    await scenario.world.advance(2 * PARKED_MS)
    assert broker.tracker.room() > 0
    assert broker.signals > signals, "whoever reads was told"
    assert broker.tracker.stats()["alarm"] == ""
    told = [name for name, _ in broker.life.events if name.startswith("delayed_reading")]
    assert told == ["delayed_reading_paused", "delayed_reading_goes_on"]
    await scenario.finish(broker)


@simulated
async def test_reading_without_a_manifest_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.actors.delayed.buckets.WAITING_MOST", 10)
    scenario, store = Scenario(scale=100_000), Store()
    store.refuse("read")
    broker = await fallen_back(scenario, store)
    await scenario.publish(broker, 1, 10)
    assert broker.tracker.room() == 0
    store.refuse()
    await scenario.world.advance(5_000)
    assert broker.tracker.room() == 10
    assert broker.tracker.stats()["buckets"] == 1
    await broker.end()


@simulated
async def test_a_bucket_out_of_reach_is_collected_after_its_range() -> None:
    scenario, store = Scenario(scale=1_000), Store()
    first = await scenario.begin()
    await scenario.publish(first, 1, 12)
    await scenario.finish(first)
    bad = sorted(scenario.world.objects)[0]
    store.away = lambda what, name: what == "get" and name == bad
    scenario.epoch += 1
    broker = Broker(scenario.world, scenario.log, scenario.settings, scenario.epoch, store)
    await broker.start()
    assert broker.tracker.stats()["recovery"]["unreachable"] == 1
    broker.read()
    await broker.run_until(LONG, acknowledge=True)
    assert numbers(broker.delivered) == list(range(1, 13))
    assert scenario.world.objects == {}
    await broker.end()


@simulated
async def test_a_clear_that_the_store_refuses_is_made_good_later() -> None:
    scenario, store = Scenario(scale=100_000), Store()
    broker = await scenario.begin(store)
    await scenario.publish(broker, 1, 12)
    store.refuse("create")
    with pytest.raises(Unavailable):
        await in_time(broker, broker.tracker.clear())
    assert broker.tracker.count() == 0
    assert len(scenario.world.objects) == 2
    store.refuse()
    await scenario.world.advance(2 * RETRY_MS)
    assert (scenario.world.objects, broker.tracker.stored()) == ({}, [])
    await scenario.finish(broker)


@pytest.mark.parametrize("epoch", [1, 9])
@simulated
async def test_a_late_put_of_a_dead_owner_is_found_while_it_is_quiet(epoch: int) -> None:
    scenario = Scenario()
    scenario.epoch = 2
    scenario.world.records[KEY] = [encode_manifest(Manifest(1))]
    broker = await scenario.begin()
    await scenario.world.advance(1_000)
    scenario.world.objects[f"{PREFIX}{epoch:012d}-0000000007.bucket"] = b"late, or of an earlier life of the name"
    await scenario.world.advance(COLLECT_FIRST_MS)
    assert scenario.world.objects == {}
    await scenario.finish(broker)


@simulated
async def test_an_object_of_an_earlier_life_is_never_taken_for_ours() -> None:
    taken: list[str] = []

    def script(n: int, what: str, name: str) -> Fault:
        if what == "put" and not taken:
            taken.append(name)
            scenario.world.objects[name] = b"another bucket"
            return "lost_before"
        return "ok"

    scenario = Scenario(scale=100_000)
    broker = await scenario.begin(script)
    await scenario.publish(broker, 1, 6)
    await scenario.world.advance(2_500)
    assert (len(taken), broker.tracker.stats()["in_memory_mode"], broker.tracker.stored()) == (1, 1, [])
    await scenario.world.advance(2 * PARKED_MS)
    assert broker.tracker.stats()["in_memory_mode"] == 0
    assert taken[0] not in scenario.world.objects
    await scenario.finish(broker)


@simulated
async def test_expired_messages_leave_the_mutable_bucket() -> None:
    scenario = Scenario(min_count=100, scale=100_000)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 20)
    broker.tracker.trim(message(20))
    assert (broker.tracker.loaded(), broker.tracker.next_due(scenario.world.now)) == (0, None)
    await scenario.publish(broker, 21, 40)
    broker.tracker.untrack(np.array([message(i) for i in range(21, 36)], np.int64))
    assert broker.tracker.loaded() == 5
    await scenario.finish(broker)


@simulated
async def test_a_slow_recovery_stores_nothing_twice() -> None:
    scenario, store = Scenario(scale=100_000), Store()
    first = await scenario.begin()
    await scenario.publish(first, 1, 18)
    await scenario.finish(first)
    before = sorted(scenario.world.objects)
    store.refuse("get")
    scenario.epoch += 1
    broker = Broker(scenario.world, scenario.log, scenario.settings, scenario.epoch, store)
    await broker.tracker.start()
    broker.read()
    await scenario.publish(broker, 19, 30)
    await scenario.world.advance(1_000)
    assert broker.tracker.stats()["recovery"]["running"]
    store.refuse()
    await scenario.world.advance(10_000)
    assert not broker.tracker.stats()["recovery"]["running"]
    counts = [record.count for record in broker.tracker._bucket_set.named.values()]
    assert (sum(counts) + broker.tracker.loaded(), broker.tracker.count()) == (30, 30)
    assert set(before) <= set(scenario.world.objects)
    await broker.run_until(3_100_000)
    assert numbers(broker.delivered) == list(range(1, 31))
    await scenario.finish(broker)


@simulated
async def test_the_limit_of_buckets_is_kept_for_large_buckets_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.actors.delayed.merger.MAX_MERGED", 12)
    scenario = Scenario(max_buckets=3, scale=100_000)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 80)
    await scenario.world.advance(1_000)
    assert broker.tracker.stats()["buckets"] == 3
    assert broker.tracker.stats()["merges_waiting"] == 0
    await scenario.finish(broker)


def test_the_stand_in_of_a_shared_index_is_bounded() -> None:
    from sluice.actors.delayed.shared import SharedIndex
    from sluice.actors.delayed.tracking import WAITING_MOST

    index = SharedIndex()
    view = index.view("one", lambda: None)
    assert view.room() == WAITING_MOST
    places = position(1, 0) + np.arange(10, dtype=np.int64)
    view.add(places, places.astype(np.uint32), places * 0 + 1000, 0)
    assert view.room() == WAITING_MOST - 10


@simulated
async def test_a_bucket_whose_last_message_came_first_is_retired_whole() -> None:
    scenario, store = Scenario(scale=100_000), Store()
    broker = await scenario.begin(store)
    store.refuse("put")
    await scenario.publish(broker, 1, 4)
    scenario.log.due[message(5)] = scenario.world.now + 10
    broker.read()
    await scenario.publish(broker, 6, 6)
    await scenario.world.advance(3_000)
    assert broker.take() == [message(5)]
    store.refuse()
    await scenario.world.advance(2 * PARKED_MS)
    assert [record.end for record in broker.tracker._bucket_set.named.values()] == [message(4)]
    broker.acknowledge([message(i) for i in range(1, 5)])
    await broker.run_until(6 * scenario.scale)
    assert broker.delivered == [message(5), message(6)]
    assert broker.tracker.stats()["lost_buckets"] == 0
    assert buckets(broker) == 0
    await scenario.finish(broker)

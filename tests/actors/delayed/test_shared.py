"""One index for all subscriptions of a partition: each gets everything once, also if some come, leave or are late."""

from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.actors.delayed.buckets import BucketTracker
from sluice.actors.delayed.manifest import manifest_key
from sluice.actors.delayed.memory import InMemoryTracker
from sluice.actors.delayed.owner import IndexOwner
from sluice.actors.delayed.shared import NAME, SharedIndex, SharedView
from sluice.actors.delayed.tracker import DelayedTracker
from sluice.actors.messages import SubscriptionSettings
from sluice.storage.format.position import position
from tests.actors.delayed.broker import Log, bucket_settings
from tests.actors.delayed.world import Life, World
from tests.sim.loop import simulated


class Subscription:
    """A dispatcher's side: reads the log, delivers, acknowledges."""

    def __init__(self, name: str, world: World, log: Log) -> None:
        self.name = name
        self.world = world
        self.log = log
        self.acknowledged: dict[int, int] = {}
        self.delivered: list[int] = []
        self.view: SharedView
        self.read_to = -1

    def attach(self, index: SharedIndex) -> None:
        self.view = index.view(self.name, lambda: None)
        self.delivered = []
        self.view.untrack(np.array(sorted(self.acknowledged), np.int64))
        self.read_to = -1
        self.trim()

    def trim(self) -> None:
        self.view.trim(self.mark_delete())

    def mark_delete(self) -> int:
        last = -1
        for place in sorted(self.log.due):
            if place not in self.acknowledged:
                return last
            last = place
        return last

    def feed(self, places: list[int]) -> None:
        wanted = [p for p in places if p not in self.acknowledged and p not in self.delivered]
        if wanted:
            column = np.array(wanted, np.int64)
            due = np.array([self.log.due[place] for place in wanted], np.int64)
            waits = self.view.add(column, (column & 0xFFFF).astype(np.uint32), due, self.world.now)
            self.deliver(column[~waits].tolist())

    def step(self) -> None:
        """Read what is new, read lost ranges again, take what is due."""
        new = [place for place in sorted(self.log.due) if place > self.read_to]
        self.read_to = max([self.read_to, *new])
        self.feed(new)
        positions, hashes = self.view.pop_due(1000, self.world.now)
        assert ((positions & 0xFFFF) == hashes).all()
        self.deliver(positions.tolist())
        for start, end in self.view.take_rescans():
            self.feed([place for place in sorted(self.log.due) if start <= place <= end])

    def deliver(self, places: list[int]) -> None:
        for place in places:
            assert self.log.due[place] <= self.world.now
            assert place not in self.delivered
            assert place not in self.acknowledged
            self.delivered.append(place)

    def acknowledge(self) -> None:
        self.acknowledged.update(dict.fromkeys(self.delivered, 1))
        self.trim()

    def waiting(self) -> list[int]:
        gone = {*self.acknowledged, *self.delivered}
        return [place for place in sorted(self.log.due) if place not in gone]

    def check(self) -> None:
        waiting = self.waiting()
        assert self.view.count() == len(waiting)
        places = np.array(sorted(self.log.due), np.int64)
        assert self.view.contains(places).tolist() == [place in waiting for place in places.tolist()]
        if places.size:
            end = int(places[-1]) + 1
            start = int(places[0])
            free = [p for p in range(start, min(end, start + 50)) if p not in waiting]
            expected = free[0] if free else None
            if expected is not None:
                assert self.view.next_untracked(start, end) == expected


async def own(life: Life, index: SharedIndex, epoch: int, rule: SubscriptionSettings) -> IndexOwner:
    """A topic's owner opens the index, as set up by a subscription that wants it."""
    owner = IndexOwner(life.ports, index, "orders", 0)
    index.settings = rule
    index.want(None)
    owner.enable(epoch, lambda: -1)
    await life.world.settle()
    return owner


def attached(index: SharedIndex, world: World, log: Log, *names: str) -> list[Subscription]:
    subscriptions = [Subscription(name, world, log) for name in names]
    for subscription in subscriptions:
        subscription.attach(index)
    return subscriptions


@simulated
async def test_every_subscription_gets_every_message_from_one_index() -> None:
    world, log, index = World(), Log(), SharedIndex()
    log.publish(1, [10, 20, 30])
    one, two = attached(index, world, log, "one", "two")
    one.step()
    two.step()
    assert len(index.tracker.index) == 3
    world.now = 20
    one.step()
    assert one.delivered == [position(1, 0), position(1, 1)]
    assert two.delivered == []
    assert two.view.count() == 3
    assert two.view.next_due(world.now) is not None
    two.step()
    assert two.delivered == one.delivered


@simulated
async def test_a_late_subscription_at_earliest_gets_everything() -> None:
    world, log, index = World(), Log(), SharedIndex()
    log.publish(1, [10, 20, 30])
    (one,) = attached(index, world, log, "one")
    one.step()
    world.now = 20
    one.step()
    (late,) = attached(index, world, log, "late")
    late.step()
    assert late.delivered == one.delivered == [position(1, 0), position(1, 1)]
    world.now = 30
    late.step()
    one.step()
    assert late.delivered == one.delivered
    assert len(late.delivered) == 3


@simulated
async def test_clear_concerns_one_subscription_alone() -> None:
    world, log, index = World(), Log(), SharedIndex()
    log.publish(1, [10, 20])
    one, two = attached(index, world, log, "one", "two")
    one.step()
    two.step()
    await one.view.clear()
    assert one.view.count() == 0
    two.check()
    world.now = 50
    one.step()
    two.step()
    assert (one.delivered, len(two.delivered)) == ([], 2)


@simulated
async def test_an_inbox_that_nobody_empties_is_left_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.actors.delayed.shared.INBOX_MOST", 5)
    world, log, index = World(), Log(), SharedIndex()
    log.publish(1, [10 + i for i in range(12)])
    busy, lazy = attached(index, world, log, "busy", "lazy")
    busy.step()
    lazy.step()
    for now in (12, 14, 17, 30):
        world.now = now
        busy.step()
    assert lazy.view.memory_bytes() < 1000
    lazy.step()
    assert sorted(lazy.delivered) == sorted(log.due)
    await lazy.view.close()
    assert list(index.views) == ["busy"]


@simulated
async def test_the_index_survives_a_restart_in_bucket_objects() -> None:
    world, log = World(), Log()
    for ledger in range(1, 8):
        log.publish(ledger, [1000 * entry + ledger for entry in range(1, 5)])
    rule = bucket_settings(min_count=5, cap=3, max_buckets=2)
    subscriptions: list[Subscription] = []
    for epoch in (1, 2):
        life = Life(world)
        index = SharedIndex()
        owned = await own(life, index, epoch, rule)
        await index.opened()
        subscriptions = subscriptions or [Subscription(name, world, log) for name in ("one", "two")]
        for subscription in subscriptions:
            subscription.attach(index)
            subscription.step()
            subscription.check()
        await world.advance(1500)
        for _ in range(3):
            for subscription in subscriptions:
                subscription.step()
                await world.settle()
        subscriptions[0].acknowledge()
        assert len(subscriptions[0].acknowledged) > 0
        assert (owned.stats() or {})["pulsar_subscription_delayed"] == len(index.tracker.index)
        await life.end()
        life.check()
    assert any("_shared" in name for name in world.objects)
    life = Life(world)
    index = SharedIndex()
    await own(life, index, 3, rule)
    await index.opened()
    for subscription in subscriptions:
        subscription.attach(index)
    await world.advance(10_000)
    for _ in range(5):
        for subscription in subscriptions:
            subscription.step()
            subscription.acknowledge()
            await world.settle()
    for subscription in subscriptions:
        assert sorted(subscription.acknowledged) == sorted(log.due)
    index.trim(max(log.due))
    await world.advance(60_000)
    assert world.objects == {}
    await life.end()
    life.check()


@simulated
async def test_a_new_owner_goes_on_with_what_only_memory_held() -> None:
    world, log, index = World(), Log(), SharedIndex()
    for ledger in range(1, 5):
        log.publish(ledger, [1000 + 10 * ledger + entry for entry in range(4)])
    rule = bucket_settings(min_count=5, cap=3)
    one, two = attached(index, world, log, "one", "two")
    one.step()
    assert isinstance(index.tracker, InMemoryTracker)
    first = Life(world)
    await own(first, index, 1, rule)
    assert isinstance(index.tracker, BucketTracker)
    assert one.view.count() == 16
    two.step()
    log.publish(9, [1005, 9000])
    two.step()
    world.now = 1015
    two.step()
    await first.end()
    second = Life(world)
    await own(second, index, 2, rule)
    await index.opened()
    one.check()
    await world.advance(10_000)
    for _ in range(4):
        for subscription in (one, two):
            subscription.step()
            await world.settle()
    assert sorted(one.delivered) == sorted(two.delivered) == sorted(log.due)
    assert not index.adopt(InMemoryTracker(), 1, world.now), "an older owner comes late"
    await second.end()
    second.check()


@simulated
async def test_message_due_between_owners_is_given_to_the_reader() -> None:
    """The reader of the log is past the message and counts on the index, so the new owner must not skip it as due."""
    world, log, index = World(), Log(), SharedIndex()
    for ledger in range(1, 5):
        log.publish(ledger, [1000 + 10 * ledger + entry for entry in range(4)])
    rule = bucket_settings(min_count=5, cap=3)
    (one,) = attached(index, world, log, "one")
    first = Life(world)
    await own(first, index, 1, rule)
    one.step()
    await world.settle()
    assert index.tracker.stored(), "buckets were written"
    await first.end()
    await world.advance(1_500)
    second = Life(world)
    await own(second, index, 2, rule)
    await index.opened()
    for _ in range(4):
        one.step()
        await world.settle()
    assert sorted(one.delivered) == sorted(log.due)
    await second.end()
    second.check()


@simulated
async def test_damaged_manifest_makes_readers_read_the_log_again() -> None:
    world, log, index = World(), Log(), SharedIndex()
    for ledger in range(1, 5):
        log.publish(ledger, [1000 + 10 * ledger + entry for entry in range(4)])
    lives = [Life(world), Life(world)]
    rule = bucket_settings(min_count=4, max_buckets=-1)
    await own(lives[0], index, 1, rule)
    subscriptions = attached(index, world, log, "one", "two")
    for subscription in subscriptions:
        subscription.step()
    await world.settle()
    assert index.tracker.stored()
    world.records[manifest_key("orders", 0, NAME)].append(b"rubbish")
    owner = await own(lives[1], index, 2, rule)
    await world.advance(2000)
    for _ in range(3):
        for subscription in subscriptions:
            subscription.step()
            await world.settle()
    for subscription in subscriptions:
        assert sorted(subscription.delivered) == sorted(log.due)
    world.records[manifest_key("orders", 0, NAME)].append(b"rubbish")
    await owner.delete(2)
    assert (world.objects, world.records) == ({}, {})
    for life in lives:
        await life.end()


@simulated
async def test_lost_index_range_is_reported_to_the_log_reader() -> None:
    """No other message may ever fall due, and a reader that waits for one learns nothing (delays, seed 7340075)."""
    world, log, index = World(), Log(), SharedIndex()
    for ledger in (1, 2):
        log.publish(ledger, [1000 + entry for entry in range(4)])
    rule = bucket_settings(min_count=4, max_buckets=-1)
    (one,) = attached(index, world, log, "one")
    first = Life(world)
    await own(first, index, 1, rule)
    one.step()
    await world.settle()
    await first.end()
    stored = index.tracker.stored()
    assert stored
    second = Life(world, lambda n, what, name: "lost_before" if what == "get" else "ok")
    await own(second, index, 2, rule)
    await world.advance(5_000)
    assert one.view.take_rescans() == stored
    await second.end()


@simulated
async def test_a_topic_with_a_damaged_unopened_index_can_be_deleted() -> None:
    world = World()
    world.records[manifest_key("orders", 0, NAME)] = [b"rubbish"]
    world.objects[f"delayed/orders/0/{NAME}/000000000001-0000000001.bucket"] = b"x"
    life = Life(world)
    await IndexOwner(life.ports, SharedIndex(), "orders", 0).delete(2)
    assert (world.objects, world.records) == ({}, {})
    await life.end()


@simulated
async def test_an_owner_trims_what_every_subscription_has_passed() -> None:
    world, log, index, life = World(), Log(), SharedIndex(), Life(World())
    life.world = world
    for ledger in range(1, 5):
        log.publish(ledger, [1000 * ledger + entry for entry in range(6)])
    one, two = attached(index, world, log, "one", "two")
    marks = {"one": -1, "two": -1, "away": -1}
    index.settings = bucket_settings(min_count=5)
    owner = IndexOwner(life.ports, index, "orders", 0)
    owner.enable(1, lambda: min(marks.values()))
    await world.settle()
    one.step()
    two.step()
    await world.advance(30_000)
    for subscription in (one, two):
        subscription.step()
        subscription.acknowledge()
    marks |= {"one": one.mark_delete(), "two": two.mark_delete()}
    log.publish(9, [90_000] * 6)
    one.step()
    await world.advance(2_000)
    assert len(index.tracker.index) == 6
    marks["away"] = one.mark_delete()
    two.view.trim(position(9, 0))  # it skipped one
    await world.advance(2_000)
    assert len(index.tracker.index) == 6, "one has not passed it"
    world.now = 100_000
    one.step()
    one.acknowledge()
    two.step()
    two.acknowledge()
    marks |= dict.fromkeys(marks, max(log.due))
    await world.advance(10_000)
    assert (len(index.tracker.index), world.objects) == (0, {})
    await owner.delete(1)
    assert world.records == {}
    await life.end()
    life.check()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(st.integers(0, 60), min_size=1, max_size=6)),
        st.tuples(st.just("pass"), st.integers(1, 30)),
        st.tuples(st.sampled_from(["step", "ack", "leave"]), st.integers(0, 2)),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from([2, 1000]))
@simulated
async def test_views_are_dicts_of_due_times(steps: list[tuple[str, object]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.actors.delayed.shared.INBOX_MOST", most)
        world, log, index = World(), Log(), SharedIndex()
        subscriptions = attached(index, world, log, "a", "b", "c")
        for what, argument in steps:
            if what == "publish":
                log.publish(1, [world.now + due for due in cast(list[int], argument)])
            elif what == "pass":
                world.now += cast(int, argument)
            else:
                subscription = subscriptions[cast(int, argument)]
                if what == "leave":
                    subscription.attach(index)
                subscription.step()
                if what == "ack":
                    subscription.acknowledge()
                subscription.check()
        world.now += 100
        for subscription in subscriptions:
            subscription.step()
            subscription.acknowledge()
            assert sorted(subscription.acknowledged) == sorted(log.due)
            subscription.check()


def test_a_view_is_a_tracker() -> None:
    view: DelayedTracker = SharedIndex().view("one", lambda: None)
    assert view.stats()["tracker"] == "shared"
    assert (view.failed, view.pause_reads(0), view.count()) == (None, False, 0)
    assert (view.histogram(), view.next_messages(3)) == ([], [])


@pytest.mark.parametrize("first", ["early", "strict"])
def test_the_tick_of_one_makes_nothing_early_for_another(first: str) -> None:
    """The tick is private in either order of the views."""
    index, place = SharedIndex(), np.array([position(1, 1)], np.int64)
    ticks = {"early": 1_000, "strict": 0}
    views = {}
    for name in sorted(ticks, key=lambda name: name != first):
        rule = SubscriptionSettings(delayed_delivery_tick_time_millis=ticks[name])
        views[name] = index.view(name, lambda: None, rule)
    for view in views.values():
        assert view.add(place, place.astype(np.uint32), np.array([5_000]), 0).all()
    for view in views.values():
        assert view.pop_due(10, 4_999)[0].size == 0
    assert not views["early"].add(place, place.astype(np.uint32), np.array([5_000]), 4_000).any()
    assert views["strict"].add(place, place.astype(np.uint32), np.array([5_000]), 4_000).all()
    assert [views[name].pop_due(10, 5_000)[0].size for name in ("early", "strict")] == [0, 1]

"""The index that comes with the first delayed message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.actors.delayed import tracker as tracker_module
from sluice.actors.delayed.buckets import BucketTracker
from sluice.actors.delayed.manifest import ManifestStore
from sluice.actors.delayed.tracker import DelayedTracker, IndexOnDemand, OwnIndex
from sluice.actors.messages import SubscriptionSettings
from sluice.storage.delayed.manifest import Manifest
from sluice.storage.errors import Fenced
from sluice.storage.format.position import position
from tests.actors.delayed.broker import KEY, PARTITION, SUBSCRIPTION, TOPIC, bucket_settings
from tests.actors.delayed.world import Life, World
from tests.sim.loop import simulated

TICK = 10
PLACES = position(1, 0) + np.arange(8, dtype=np.int64)


def own(life: Life, rule: SubscriptionSettings | None = None, epoch: int = 2) -> OwnIndex:
    return OwnIndex(
        ports=life.ports,
        topic=TOPIC,
        partition=PARTITION,
        subscription=SUBSCRIPTION,
        settings=rule or SubscriptionSettings(delayed_delivery_tick_time_millis=TICK),
        changed=lambda: None,
        epoch=epoch,
        look_ahead_ms=0,
    )


def add(tracker: DelayedTracker, dues: list[int], now: int = 0, ledger: int = 1) -> list[bool]:
    places = position(ledger, 0) + np.arange(len(dues), dtype=np.int64)
    waits: list[bool] = tracker.add(places, places.astype(np.uint32), np.array(dues, np.int64), now).tolist()
    return waits


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[BucketTracker]:
    """The indexes that were made."""
    found: list[BucketTracker] = []

    class Noted(BucketTracker):
        def __init__(self, *args: Any, **fields: Any) -> None:
            super().__init__(*args, **fields)
            found.append(self)

    monkeypatch.setattr(tracker_module, "BucketTracker", Noted)
    return found


@simulated
async def test_the_first_delayed_message_makes_the_index(made: list[BucketTracker]) -> None:
    life = Life(World())
    tracker = IndexOnDemand(own(life))
    await tracker.start()
    await tracker.recovered()
    assert add(tracker, [0, TICK, -5]) == [False] * 3
    assert (tracker.untrack(PLACES), tracker.pop_due(5, 100)[0].tolist(), tracker.next_due(5)) == (0, [], None)
    tracker.trim(int(PLACES[1]))
    await tracker.clear()
    assert made == []
    assert add(tracker, [0, TICK + 1]) == [False, True]
    assert len(made) == 1
    assert tracker.pop_due(5, 1)[0].tolist() == [PLACES[1]]
    assert life.calls == []
    await life.end()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(-20, 60), min_size=1, max_size=8)),
        st.tuples(st.just("untrack"), st.lists(st.integers(0, 7), max_size=3, unique=True)),
        st.tuples(st.sampled_from(["take", "trim", "pass"]), st.integers(0, 20)),
        st.tuples(st.just("clear"), st.none()),
    ),
    max_size=12,
)


def look(tracker: DelayedTracker, now: int) -> list[object]:
    """All that a tracker says."""
    first, last = int(PLACES[0]), int(PLACES[-1])
    return [
        tracker.contains(PLACES).tolist(),
        [tracker.next_untracked(start, end) for start in (-1, first, last) for end in (first, last + 1)],
        [tracker.next_due(now), tracker.count(), tracker.memory_bytes(), tracker.stats()],
        [tracker.room(), tracker.alarm(), tracker.pause_reads(now), tracker.failed],
        [tracker.histogram(), tracker.next_messages(3), tracker.take_rescans()],
    ]


@settings(max_examples=100, deadline=None)
@given(STEPS)
@simulated
async def test_late_index_answers_like_one_from_the_start(steps: list[tuple[str, Any]]) -> None:
    now, life, other = 0, Life(World()), Life(World())
    late, early = IndexOnDemand(own(life)), own(other).create()
    for what, value in steps:
        answers: list[object] = []
        now += value if what == "pass" else 0
        for tracker in (late, early):
            if what == "add":
                answers.append(add(tracker, [now + each for each in value], now))
            elif what == "untrack":
                answers.append(tracker.untrack(PLACES[value]))
            elif what == "take":
                answers.append([column.tolist() for column in tracker.pop_due(value, now)])
            elif what == "trim":
                tracker.trim(int(PLACES[0]) + value - 10)
            elif what == "clear":
                await tracker.clear()
            answers.append(look(tracker, now))
        half = len(answers) // 2
        assert answers[:half] == answers[half:]
    await life.end()
    await other.end()


@simulated
async def test_its_buckets_are_stored_and_found_by_the_next_owner() -> None:
    world, rule = World(), bucket_settings(min_count=4)
    life, later = Life(world), Life(world)
    tracker = IndexOnDemand(own(life, rule, 1))
    add(tracker, [1_000] * 6)
    add(tracker, [2_000], ledger=2)
    await world.settle()
    assert len(world.objects) == 1
    await tracker.close()
    following = own(later, rule).make()
    await following.start()
    await following.recovered()
    assert following.contains(PLACES).tolist() == [True] * 6 + [False] * 2
    await life.end()
    await later.end()
    life.check()


@simulated
async def test_delete_removes_buckets_of_an_older_owner() -> None:
    world, rule = World(), bucket_settings(min_count=4)
    life, older = Life(world), Life(world)
    tracker, before = IndexOnDemand(own(life, rule)), own(older, rule, 1).create()
    add(before, [1_000] * 6)
    add(before, [2_000], ledger=2)
    await world.settle()
    assert world.objects
    await tracker.delete()
    assert (world.objects, world.records) == ({}, {})
    await tracker.delete()
    await life.end()
    await older.end()


@simulated
async def test_a_newer_owner_fences_the_index_that_comes_late() -> None:
    world, rule = World(), bucket_settings(min_count=4)
    life, newer = Life(world), Life(world)
    tracker = IndexOnDemand(own(life, rule, 1))
    store = ManifestStore(newer.ports, KEY, 2)
    await store.open()
    await store.commit(Manifest(2))
    add(tracker, [1_000] * 6)
    add(tracker, [2_000], ledger=2)
    await world.settle()
    assert isinstance(tracker.failed, Fenced)
    assert world.objects == {}
    await life.end()
    await newer.end()


@simulated
async def test_an_index_that_comes_behind_the_end_writes_nothing() -> None:
    world = World()
    life = Life(world)
    tracker = IndexOnDemand(own(life, bucket_settings(min_count=2)))
    await tracker.close()
    assert add(tracker, [1_000] * 6) == [True] * 6
    add(tracker, [2_000], ledger=2)
    await world.advance(60_000)
    assert (life.calls, world.objects, len(life.tasks)) == ([], {}, 0)
    await life.end()

"""The dispatcher looks at the tracker at the next due time, not before, and seldom (AD-2, AD-5, BD-4)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sluice.actors.delayed.open_tracker import make_tracker
from sluice.actors.delayed.tracker import DelayedTracker
from sluice.actors.dispatcher.delivery.context import Wakeups
from sluice.actors.dispatcher.delivery.due import DUE_GROUP_MS, DueMessages
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.runtime.wall_clock import LOOK_MS
from sluice.storage.format.position import Positions, position
from tests.actors.delayed.broker import PARTITION, SUBSCRIPTION, TOPIC
from tests.actors.delayed.world import Life, World
from tests.sim.loop import simulated

both = pytest.mark.parametrize("tracker", ["memory", "bucket"])


class Owner:
    """The objects around the release.

    looks: ms, the times at which the dispatcher looked at the tracker.
    given: (ms, entries), the releases.
    """

    def __init__(self) -> None:
        self.world = World()
        self.life = Life(self.world)
        self.ports = self.life.ports
        self.looks: list[int] = []
        self.given: list[tuple[int, list[int]]] = []
        self.failures: list[str] = []
        self.wakeups = Wakeups()
        self.holds_keys, self.read_up_to = False, 0

    async def open(self, tracker: str) -> None:
        self.tracker: DelayedTracker = await make_tracker(
            self.ports,
            topic=TOPIC,
            partition=PARTITION,
            subscription=SUBSCRIPTION,
            settings=SubscriptionSettings(delayed_tracker=tracker),
            changed=self.wakeups.due.set,
            owner_epoch=1,
        )
        await self.tracker.recovered()
        await self.world.settle()
        self.wakeups.due.clear()
        context: Any = SimpleNamespace(
            ports=self.ports,
            tracker=self.tracker,
            core=self,
            cursor=self,
            sessions=SimpleNamespace(any=lambda: True),
            wakeups=self.wakeups,
            ownership=SimpleNamespace(end=self.failures.append, ended=lambda: bool(self.failures)),
        )
        reader: Any = SimpleNamespace(look_for_lost=lambda: None, position=self.read_up_to)
        due = DueMessages(context, reader)
        due.start()
        await self.world.settle()

    async def add(self, entry: int, due: int) -> None:
        """Read a delayed message."""
        place = np.array([position(1, entry)], np.int64)
        assert self.tracker.add(place, place.astype(np.uint32), np.array([due]), self.world.now).all()
        self.wakeups.due.set()
        await self.world.settle()

    # -- core, cursor --

    def due_room(self) -> int:
        self.looks.append(self.world.now)
        return 1000

    def due(self, positions: Positions, hashes: Positions, *, now: int) -> None:
        self.given.append((now, (positions & 0xFFFF).tolist()))

    def is_acknowledged(self, positions: Positions) -> np.ndarray:
        return np.zeros(positions.size, np.bool_)


@both
@simulated
async def test_unread_due_message_keeps_its_place_in_its_key(tracker: str) -> None:
    """A new owner's index knows the message before the owner has read the earlier messages of its key."""
    owner = Owner()
    owner.holds_keys, owner.read_up_to = True, position(1, 2)
    await owner.open(tracker)
    for entry in (1, 2):
        await owner.add(entry, 1000)
    await owner.world.advance(1000)
    assert owner.given == [(1000, [1])]
    assert owner.tracker.count() == 0, "the other one comes when it is read"
    await owner.life.end()


@both
@simulated
async def test_ad_2_the_timer_stands_at_the_next_due_time(tracker: str) -> None:
    owner = Owner()
    await owner.open(tracker)
    await owner.add(2, 2000)
    await owner.add(1, 1000)
    assert owner.looks == [0, 0, 0]
    await owner.world.advance(999)
    assert (owner.given, len(owner.looks)) == ([], 3), "an earlier message moved the timer, and nothing else rang"
    owner.wakeups.read.clear()
    await owner.world.advance(1)
    assert owner.given == [(1000, [1])]
    await owner.world.advance(1000)
    assert owner.given == [(1000, [1]), (2000, [2])], "the next time was set after the first was taken"
    assert owner.wakeups.read.is_set(), "there is room again, so more is read"
    pause = DUE_GROUP_MS
    await owner.world.advance(pause)
    await owner.add(3, 3000)
    await owner.tracker.clear()
    await owner.world.advance(10_000)
    assert owner.looks == [0, 0, 0, 1000, 1000 + pause, 2000, 2000 + pause, 2000 + pause, 3000]
    assert len(owner.given) == 2, "what the time stood for is gone, so nothing happens when it comes"
    await owner.life.end()


@both
@pytest.mark.parametrize("gap", [1, DUE_GROUP_MS - 1, DUE_GROUP_MS, 15 * DUE_GROUP_MS])
@simulated
async def test_ad_5_a_group_costs_one_look_and_beyond_it_time_is_exact(tracker: str, gap: int) -> None:
    owner = Owner()
    await owner.open(tracker)
    await owner.add(1, 1000)
    await owner.add(2, 1000 + gap)
    await owner.world.advance(2000)
    assert owner.given == [(1000, [1]), (1000 + max(gap, DUE_GROUP_MS), [2])]
    await owner.life.end()


@both
@simulated
async def test_the_timer_follows_a_look_that_finds_only_skipped(tracker: str) -> None:
    owner = Owner()
    await owner.open(tracker)
    await owner.add(1, 1000)
    await owner.add(2, 1500)
    owner.tracker.untrack(np.array([position(1, 1)], np.int64))
    await owner.world.advance(2000)
    assert owner.given == [(1500, [2])]
    await owner.life.end()


@both
@pytest.mark.parametrize("leap", [-60_000, -3_600_000])
@simulated
async def test_a_clock_that_was_behind_for_a_while_keeps_nothing(tracker: str, leap: int) -> None:
    """The due time follows the clock, which may be wrong. Once the clock is right, nothing waits for the wrong time."""
    owner = Owner()
    await owner.open(tracker)
    owner.world.leap(leap)
    await owner.add(1, 1000)
    await owner.world.advance(3000)
    assert owner.given == [], "by the clock it is not due yet"
    owner.world.leap(0)
    await owner.world.advance(LOOK_MS)
    assert [entries for _, entries in owner.given] == [[1]]
    await owner.life.end()


@both
@simulated
async def test_a_clock_that_leaps_forward_lets_out_what_is_due_by_it(tracker: str) -> None:
    """The release is early by the leap at most, and does not come before the next look at the clock."""
    owner = Owner()
    await owner.open(tracker)
    await owner.add(1, 30_000)
    await owner.add(2, 90_000)
    owner.world.leap(60_000)
    await owner.world.advance(LOOK_MS)
    assert [entries for _, entries in owner.given] == [[1]]
    owner.world.leap(0)
    await owner.world.advance(79_999)
    assert len(owner.given) == 1
    await owner.world.advance(1)
    assert owner.given[1:] == [(90_000, [2])]
    await owner.life.end()

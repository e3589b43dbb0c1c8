"""Many at once on one tracker (TS-1, BD-8): nobody fails, and the count is what was tracked less what was taken.

A tracker lives on one event loop and is never called by two threads; what can come between two of its steps are other
tasks. So the crowd are tasks, and its chances are the awaits of seals, loads, merges and deletes that run among them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import numpy as np
import pytest

from sluice.actors.delayed.buckets import BucketTracker
from sluice.storage.format.position import position
from tests.actors.delayed.scenario import Scenario
from tests.sim.loop import simulated

TASKS, ROUNDS, SPREAD_MS = 24, 40, 4_000


class Crowd:
    """Tasks that add, ask and take, each at moments of its own."""

    def __init__(self, scenario: Scenario, tracker: BucketTracker, seed: int) -> None:
        self.world, self.tracker = scenario.world, tracker
        self.rng = random.Random(seed)
        self.due: dict[int, int] = {}
        self.taken: list[int] = []

    async def play(self) -> None:
        works = [self.add, self.ask, self.take]
        tasks = [asyncio.ensure_future(self.repeat(works[number % 3], number)) for number in range(TASKS)]
        while not all(task.done() for task in tasks):
            await self.world.advance(5)
        await asyncio.gather(*tasks)

    async def repeat(self, work: Callable[[int], None], number: int) -> None:
        for turn in range(ROUNDS):
            work(turn * TASKS + number)
            await self.world.loop.pause(self.rng.choice((0, 1, 7, 40)))

    def add(self, ledger: int) -> None:
        """A read of one ledger, and at times the same read again."""
        places = position(ledger + 1, 0) + np.arange(self.rng.randint(1, 9), dtype=np.int64)
        due = np.array([self.world.now + self.rng.randint(-5, SPREAD_MS) for _ in places], np.int64)
        for _ in range(self.rng.randint(1, 2)):
            waits = self.tracker.add(places, places.astype(np.uint32), due, self.world.now)
            assert waits.tolist() == (due > self.world.now).tolist()
        self.due.update(zip(places[waits].tolist(), due[waits].tolist(), strict=True))
        assert self.tracker.contains(places).tolist() == waits.tolist()

    def ask(self, _: int) -> None:
        assert self.tracker.count() == len(self.due) - len(self.taken)
        assert self.tracker.stats()["pulsar_subscription_delayed"] == self.tracker.count()
        self.tracker.histogram()
        next_due = self.tracker.next_due(0)
        assert next_due is None or next_due >= 0

    def take(self, _: int) -> None:
        positions, _hashes = self.tracker.pop_due(self.rng.randint(1, 30), self.world.now)
        for place in positions.tolist():
            assert self.due[place] <= self.world.now
        self.taken += positions.tolist()


@pytest.mark.parametrize("seed", range(3))
@simulated
async def test_ts_1_a_crowd_on_one_tracker(seed: int) -> None:
    scenario = Scenario(min_count=20, cap=4, max_buckets=4, look_ahead_ms=200)
    broker = await scenario.begin()
    crowd = Crowd(scenario, broker.tracker, seed)
    await crowd.play()
    operations = broker.tracker.stats()["pulsar_delayed_message_index_bucket_op_count"]
    assert min(operations[kind]["succeed"] for kind in ("create", "load", "merge", "delete")) > 0
    assert 0 < len(crowd.taken) < len(crowd.due)
    assert broker.tracker.count() == len(crowd.due) - len(crowd.taken)
    broker.recount()
    while len(crowd.taken) < len(crowd.due):
        await scenario.world.advance(100)
        assert scenario.world.now < 100 * SPREAD_MS
        crowd.take(0)
    assert sorted(crowd.taken) == sorted(crowd.due)
    await scenario.finish(broker)


@simulated
async def test_bd_8_adding_and_clearing_at_once() -> None:
    scenario = Scenario(min_count=20, cap=4, max_buckets=4)
    broker = await scenario.begin()
    crowd = Crowd(scenario, broker.tracker, 1)

    async def clear() -> None:
        for _ in range(ROUNDS):
            await broker.tracker.clear()
            await scenario.world.loop.pause(crowd.rng.choice((0, 3, 20)))

    tasks = [asyncio.ensure_future(crowd.repeat(crowd.add, number)) for number in range(8)]
    tasks += [asyncio.ensure_future(clear()) for _ in range(8)]
    while not all(task.done() for task in tasks):
        await scenario.world.advance(5)
    await asyncio.gather(*tasks)
    await broker.tracker.clear()
    await scenario.world.advance(40_000)
    assert (broker.tracker.count(), broker.tracker.loaded(), scenario.world.objects) == (0, 0, {})
    assert [what for what, _ in broker.life.calls].count("put") > 5
    assert len(crowd.due) > 500
    await scenario.finish(broker)

"""A shared index that a newer owner elsewhere has taken: everything is read into memory after a while."""

from __future__ import annotations

from sluice.actors.delayed.manifest import ManifestStore, manifest_key
from sluice.actors.delayed.memory import InMemoryTracker
from sluice.actors.delayed.shared import NAME, PATIENCE_MS, SharedIndex
from tests.actors.delayed.broker import Log, bucket_settings
from tests.actors.delayed.test_shared import Subscription, attached, own
from tests.actors.delayed.world import Life, World
from tests.sim.loop import simulated


async def taken_elsewhere(world: World, index: SharedIndex) -> Subscription:
    """A subscription whose index a newer owner has taken, which is known since a bucket was written in vain."""
    log, life, elsewhere = Log(), Life(world), Life(world)
    for ledger in range(1, 5):
        log.publish(ledger, [20_000 + 100 * ledger + entry for entry in range(6)])
    (one,) = attached(index, world, log, "one")
    await own(life, index, 1, bucket_settings(min_count=5, cap=2))
    one.step()
    await world.settle()
    assert index.tracker.stored(), "buckets were written"
    await ManifestStore(elsewhere.ports, manifest_key("orders", 0, NAME), 2).open()
    log.publish(5, [21_000])
    log.publish(6, [22_000])
    for ledger in (7, 8):
        log.publish(ledger, [23_000 + entry for entry in range(6)])
    one.step()
    await world.advance(100)
    assert index.tracker.failed is not None
    return one


@simulated
async def test_everything_is_read_into_memory_after_a_while() -> None:
    world, index = World(), SharedIndex()
    one = await taken_elsewhere(world, index)
    assert one.view.failed is None
    one.step()
    assert one.view.next_due(world.now) == world.now + PATIENCE_MS
    await world.advance(PATIENCE_MS)
    one.step()
    assert isinstance(index.tracker, InMemoryTracker)
    one.check()
    await world.advance(60_000)
    one.step()
    assert sorted(one.delivered) == sorted(one.log.due)


@simulated
async def test_a_clock_that_went_back_is_waited_for_no_longer() -> None:
    world, index = World(), SharedIndex()
    one = await taken_elsewhere(world, index)
    leapt = world.now + 3_600_000
    assert one.view.next_due(leapt) == leapt + PATIENCE_MS
    assert one.view.next_due(world.now) == world.now + PATIENCE_MS
    await world.advance(PATIENCE_MS)
    one.step()
    assert isinstance(index.tracker, InMemoryTracker)

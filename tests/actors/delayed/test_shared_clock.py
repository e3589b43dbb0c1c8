"""A shared index on a machine whose clock is set back."""

from __future__ import annotations

from sluice.actors.delayed.shared import SharedIndex
from sluice.storage.format.position import position
from tests.actors.delayed.broker import Log
from tests.actors.delayed.test_shared import attached
from tests.actors.delayed.world import World
from tests.sim.loop import simulated


@simulated
async def test_due_message_stays_due_when_the_clock_goes_back() -> None:
    world, log, index = World(), Log(), SharedIndex()
    log.publish(1, [10, 20, 30])
    (one,) = attached(index, world, log, "one")
    one.step()
    taken, _ = one.view.pop_due(1, 3_600_000)
    assert taken.tolist() == [position(1, 0)]
    next_due = one.view.next_due(world.now)
    assert next_due is not None
    assert next_due <= world.now
    taken, _ = one.view.pop_due(10, world.now)
    assert taken.tolist() == [position(1, 1), position(1, 2)]
    assert one.view.next_due(world.now) is None

"""Timers that ring together: never late, up to a tick early, none twice and none that was cancelled."""

from __future__ import annotations

import gc
import weakref
from functools import partial

from sluice.actors.ports import Ports
from sluice.actors.runtime.shared_timers import AT_ONCE, TICK_MS, SharedTimer, SharedTimers
from tests.sim.world import World


class Wait:
    """A waiter that has the timer that calls it."""

    def __init__(self, ports: Ports, shared: SharedTimers) -> None:
        self.timer = shared.timer(ports.clock, 2_000, self.ring)

    def ring(self) -> None:
        """The time has come."""


def test_they_ring_up_to_a_tick_early_and_never_late() -> None:
    async def scenario(world: World) -> None:
        ports, shared, rang = world.client("c"), SharedTimers(), dict[int, int]()
        began = ports.clock.monotonic()

        def ring(after: int) -> None:
            assert after not in rang
            rang[after] = ports.clock.monotonic() - began

        asked = list(range(1_000, 4_000, 7))
        for after in asked:
            shared.timer(ports.clock, after, partial(ring, after))
        await world.loop.pause(10_000)
        assert list(rang) == asked
        assert all(after - TICK_MS < at <= after for after, at in rang.items())
        assert len(dict.fromkeys(rang.values())) <= 3_000 // TICK_MS + 1

    World(0).play(scenario)


def test_one_that_was_cancelled_does_not_ring() -> None:
    async def scenario(world: World) -> None:
        ports, shared, rang = world.client("c"), SharedTimers(), list[int]()
        timers = list[SharedTimer]()

        def first() -> None:
            rang.append(0)
            timers[1].cancel()

        timers += [
            shared.timer(ports.clock, 2_000, first),
            shared.timer(ports.clock, 2_000, lambda: rang.append(1)),
            shared.timer(ports.clock, 2_000, lambda: rang.append(2)),
            shared.timer(ports.clock, 2_000, lambda: rang.append(3)),
        ]
        timers[3].cancel()
        await world.loop.pause(5_000)
        assert rang == [0, 2]
        for timer in timers:
            timer.cancel()

    World(0).play(scenario)


def test_timers_that_are_over_go_without_the_collector() -> None:
    async def scenario(world: World) -> None:
        ports, shared, gone = world.client("c"), SharedTimers(), list[weakref.ref[Wait]]()
        gc.disable()
        try:
            for cancels in (True, False):
                wait = Wait(ports, shared)
                gone.append(weakref.ref(wait))
                if cancels:
                    wait.timer.cancel()
                del wait
            await world.loop.pause(5_000)
            assert [one() for one in gone] == [None, None]
        finally:
            gc.enable()

    World(0).play(scenario)


def test_many_leave_turns_to_others() -> None:
    async def scenario(world: World) -> None:
        ports, shared, order = world.client("c"), SharedTimers(), list[str]()

        def first() -> None:
            order.append("first")
            ports.clock.timer(0, lambda: order.append("other"))

        shared.timer(ports.clock, 2_000, first)
        for _ in range(2 * AT_ONCE):
            shared.timer(ports.clock, 2_000, lambda: order.append("timer"))
        await world.loop.pause(5_000)
        assert len(order) == 2 * AT_ONCE + 2
        assert order.index("other") <= AT_ONCE + 1

    World(0).play(scenario)

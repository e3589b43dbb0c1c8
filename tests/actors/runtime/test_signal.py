"""A wait ends when it is set or its time is over, which may turn out to be later."""

from __future__ import annotations

import asyncio

import pytest

from sluice.actors.runtime.shared_timers import TICK_MS
from sluice.actors.runtime.signal import Signal
from tests.sim.world import World


def test_extended_wait_is_not_woken_meanwhile() -> None:
    async def scenario(world: World) -> None:
        ports, asked, more = world.client("c"), list[int](), [30, 20, 0]
        began = ports.clock.monotonic()

        def longer() -> int:
            asked.append(ports.clock.monotonic() - began)
            return more.pop(0)

        assert not await Signal().wait(ports, 10, longer)
        assert asked == [10, 40, 60]

    World(0).play(scenario)


def test_a_longer_wait_ends_with_what_is_waited_for() -> None:
    async def scenario(world: World) -> None:
        ports, signal, asked = world.client("c"), Signal(), list[int]()

        def later() -> int:
            asked.append(ports.clock.monotonic())
            return 1_000

        waiting = asyncio.ensure_future(signal.wait(ports, 10, later))
        await world.loop.pause(50)
        signal.set()
        assert await waiting
        await world.loop.pause(5_000)
        assert len(asked) == 1

    World(0).play(scenario)


def test_long_wait_is_asked_early_and_woken_in_time() -> None:
    async def scenario(world: World) -> None:
        ports, asked, lasts = world.client("c"), list[int](), 9_000
        began = ports.clock.monotonic()

        def longer() -> int:
            asked.append(ports.clock.monotonic() - began)
            return max(lasts - asked[-1], 0)

        assert not await Signal().wait(ports, 5_000, longer)
        assert 5_000 - TICK_MS < asked[0] <= 5_000
        assert ports.clock.monotonic() - began == asked[-1] == 9_000
        assert len(asked) <= 3

    World(0).play(scenario)


def test_wait_with_nothing_to_add_is_not_woken_early() -> None:
    async def scenario(world: World) -> None:
        ports = world.client("c")
        began = ports.clock.monotonic()
        assert not await Signal().wait(ports, 5_100, lambda: 0)
        assert ports.clock.monotonic() - began == 5_100

    World(0).play(scenario)


def test_error_in_longer_fails_the_wait() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(ZeroDivisionError):
            await Signal().wait(world.client("c"), 10, lambda: 1 // 0)

    World(0).play(scenario)


def test_waiter_that_gave_up_is_not_remembered_for_long() -> None:
    """Neither those who were cancelled nor those whose time was over."""

    async def scenario(world: World) -> None:
        ports, signal = world.client("c"), Signal()
        for milliseconds in (None, 10_000, 10):
            for _ in range(20):
                waiting = asyncio.ensure_future(signal.wait(ports, milliseconds))
                await world.loop.pause(20)
                waiting.cancel()
        last = [asyncio.ensure_future(signal.wait(ports)) for _ in range(3)]
        await world.loop.pause(20)
        assert signal._waiters is not None
        assert len(signal._waiters) == 3
        signal.set()
        assert await asyncio.gather(*last, signal.wait(ports), signal.wait(ports, 10)) == [True] * 5

    World(0).play(scenario)


def test_approximate_wait_wakes_at_most_one_tick_early() -> None:
    async def scenario(world: World) -> None:
        ports, took = world.client("c"), list[int]()

        async def wait(after: int) -> None:
            await ports.clock.sleep(after)
            began = ports.clock.monotonic()
            assert not await Signal().wait(ports, 5_000, about=True)
            took.append(ports.clock.monotonic() - began)

        await asyncio.gather(*(wait(after) for after in range(0, TICK_MS, 10)))
        assert all(5_000 - TICK_MS < each <= 5_000 for each in took)
        assert len(dict.fromkeys(took)) > 1, "they were woken together, and had not begun together"

    World(0).play(scenario)

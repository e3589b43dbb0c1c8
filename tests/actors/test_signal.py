"""A wait ends when it is set or its time is over, which may turn out to be later."""

from __future__ import annotations

import asyncio

import pytest

from actors.signal import Signal
from tests.sim.world import World


def test_who_is_told_to_wait_longer_is_not_woken_meanwhile() -> None:
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


def test_who_cannot_say_how_much_longer_fails_the_wait() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(ZeroDivisionError):
            await Signal().wait(world.client("c"), 10, lambda: 1 // 0)

    World(0).play(scenario)

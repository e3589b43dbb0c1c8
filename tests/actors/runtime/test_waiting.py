"""A wait ends when it is set or its time is over, which may turn out to be later.

One outcome that several tasks wait for.

Timers that ring together: never late, up to a tick early, none twice and none that was cancelled.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from functools import partial

import pytest

from sluice.actors.ports import Ports
from sluice.actors.runtime.waiting import (
    AT_ONCE,
    TICK_MS,
    SharedFuture,
    SharedTimer,
    SharedTimers,
    Signal,
    SingleFlight,
)
from sluice.storage.errors import Fenced, Unavailable
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


async def _of(outcome: SharedFuture[int]) -> int:
    return await outcome


async def test_everybody_who_waits_gets_the_result_now_or_later() -> None:
    outcome: SharedFuture[int] = SharedFuture()
    waiting = [asyncio.create_task(_of(outcome)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not outcome.done()
    outcome.set_result(7)
    assert [await one for one in waiting] == [7, 7, 7]
    assert outcome.done()
    assert await outcome == 7


async def test_cancelled_waiter_ends_nothing_for_the_others() -> None:
    outcome: SharedFuture[int] = SharedFuture()
    gives_up, waits = asyncio.create_task(_of(outcome)), asyncio.create_task(_of(outcome))
    await asyncio.sleep(0)
    gives_up.cancel()
    await asyncio.sleep(0)
    assert not outcome.done()
    outcome.set_result(1)
    assert await waits == 1
    with pytest.raises(asyncio.CancelledError):
        await gives_up


async def test_an_error_is_raised_wherever_it_is_awaited() -> None:
    outcome: SharedFuture[int] = SharedFuture()
    waiting = asyncio.create_task(_of(outcome))
    await asyncio.sleep(0)
    outcome.set_exception(Fenced("gone"))
    for one in (waiting, outcome):
        with pytest.raises(Fenced, match="gone"):
            await one


async def test_the_first_outcome_stands() -> None:
    outcome: SharedFuture[int] = SharedFuture()
    outcome.set_result(1)
    outcome.set_result(2)
    outcome.set_exception(Fenced("late"))
    assert await outcome == 1
    failed: SharedFuture[int] = SharedFuture()
    failed.set_exception(Fenced("first"))
    failed.set_result(1)
    with pytest.raises(Fenced, match="first"):
        await failed


async def test_follower_is_called_at_once_and_once() -> None:
    outcome, seen = SharedFuture[int](), list[str]()
    outcome.then(lambda: seen.append("then"))
    assert seen == []
    outcome.set_result(1)
    assert seen == ["then"]
    outcome.then(lambda: seen.append("later"))
    assert seen == ["then", "later"]


def test_simultaneous_callers_share_a_question() -> None:
    """A hundred who ask while one is under way get the answer of the next one, also if that one fails."""

    async def main(world: World) -> None:
        ports = world.client("gateway")
        asked: list[int] = []

        async def ask(subject: str) -> int:
            number = len(asked)
            asked.append(number)
            await ports.clock.sleep(10)
            if number == 1:
                raise Unavailable("away")
            return number

        question = SingleFlight(ports, ask, "question")
        first = asyncio.ensure_future(question("t"))
        await ports.clock.sleep(5)
        later = [asyncio.ensure_future(question("t")) for _ in range(100)]
        later[0].cancel()
        assert await first == 0
        for one in later[1:]:
            with pytest.raises(Unavailable):
                await one
        assert asked == [0, 1]
        assert await question("t") == 2

    World(0).play(main)


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

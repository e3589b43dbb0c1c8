"""One outcome that several tasks wait for."""

from __future__ import annotations

import asyncio

import pytest

from sluice.actors.runtime.shared_future import SharedFuture, SingleFlight
from sluice.storage.errors import Fenced, Unavailable
from tests.sim.world import World


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

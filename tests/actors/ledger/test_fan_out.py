"""Several pieces of work at once: outcomes in order of arrival, refusals are outcomes, defects are raised."""

from __future__ import annotations

import asyncio
import gc
import warnings
from functools import partial

import pytest

from sluice.actors.ledger.fan_out import FanOut, together
from sluice.storage.errors import NotFound, Unavailable
from tests.actors.ledger.fakes import Lab
from tests.sim.loop import current_loop, simulated


async def later(milliseconds: int, result: int) -> int:
    await current_loop().pause(milliseconds)
    return result


async def refuse() -> int:
    raise NotFound("no")


async def break_down() -> int:
    raise ZeroDivisionError


@simulated
async def test_outcomes_come_as_they_arrive() -> None:
    fan: FanOut[str, int] = FanOut(Lab().ports, "test")
    fan.start("slow", later, 20, 1)
    fan.start("quick", later, 2, 2)
    fan.start("refused", refuse)
    outcomes = []
    while fan.busy:
        outcomes.append(await fan.next())
    assert [key for key, _ in outcomes] == ["refused", "quick", "slow"]
    assert isinstance(outcomes[0][1], NotFound)
    assert [result for _, result in outcomes[1:]] == [2, 1]


@simulated
async def test_a_defect_is_raised() -> None:
    fan: FanOut[str, int] = FanOut(Lab().ports, "test")
    fan.start("broken", break_down)
    with pytest.raises(ZeroDivisionError):
        await fan.next()


@simulated
async def test_together_keeps_the_order_and_raises_the_first_refusal() -> None:
    ports = Lab().ports
    works = [partial(later, 5, 1), partial(later, 1, 2), partial(later, 3, 3)]
    assert await together(ports, "test", works) == [1, 2, 3]
    assert await together(ports, "test", []) == []
    with pytest.raises(NotFound):
        await together(ports, "test", [partial(later, 500, 1), partial(refuse)])


@simulated
async def test_cancelled_work_is_not_waited_for() -> None:
    lab = Lab()
    fan: FanOut[str, int] = FanOut(lab.ports, "test")
    fan.start("endless", later, 10**9, 1)
    await asyncio.sleep(0)
    fan.cancel()
    await asyncio.gather(*lab.tasks, return_exceptions=True)
    assert all(task.cancelled() for task in lab.tasks)


@pytest.mark.parametrize("actor_ends", [False, True])
@simulated
async def test_work_that_never_began_leaves_nothing(actor_ends: bool) -> None:
    """An actor that ends cancels its tasks, and no part of it asks the fan any more."""
    lab = Lab()
    with warnings.catch_warnings(record=True) as warned:
        fan: FanOut[str, int] = FanOut(lab.ports, "test")
        fan.start("never", later, 1, 1)
        if not actor_ends:
            fan.cancel()
        for task in lab.tasks:
            task.cancel()
        await asyncio.gather(*lab.tasks, return_exceptions=True)
        del fan
        gc.collect()
    assert warned == []


@simulated
async def test_unavailable_is_an_outcome_too() -> None:
    async def away() -> int:
        raise Unavailable("away")

    fan: FanOut[str, int] = FanOut(Lab().ports, "test")
    fan.start("away", away)
    assert isinstance((await fan.next())[1], Unavailable)

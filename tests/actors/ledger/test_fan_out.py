"""Several pieces of work at once: outcomes in order of arrival, refusals are outcomes, defects are raised."""

from __future__ import annotations

import asyncio
import inspect

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
    fan.start("slow", later(20, 1))
    fan.start("quick", later(2, 2))
    fan.start("refused", refuse())
    outcomes = []
    while fan.busy:
        outcomes.append(await fan.next())
    assert [key for key, _ in outcomes] == ["refused", "quick", "slow"]
    assert isinstance(outcomes[0][1], NotFound)
    assert [result for _, result in outcomes[1:]] == [2, 1]


@simulated
async def test_a_defect_is_raised() -> None:
    fan: FanOut[str, int] = FanOut(Lab().ports, "test")
    fan.start("broken", break_down())
    with pytest.raises(ZeroDivisionError):
        await fan.next()


@simulated
async def test_together_keeps_the_order_and_raises_the_first_refusal() -> None:
    ports = Lab().ports
    assert await together(ports, "test", [later(5, 1), later(1, 2), later(3, 3)]) == [1, 2, 3]
    assert await together(ports, "test", []) == []
    with pytest.raises(NotFound):
        await together(ports, "test", [later(500, 1), refuse()])


@simulated
async def test_cancelled_work_is_not_waited_for() -> None:
    lab = Lab()
    fan: FanOut[str, int] = FanOut(lab.ports, "test")
    fan.start("endless", later(10**9, 1))
    await asyncio.sleep(0)
    fan.cancel()
    await asyncio.gather(*lab.tasks, return_exceptions=True)
    assert all(task.cancelled() for task in lab.tasks)


@pytest.mark.filterwarnings("error")
@simulated
async def test_work_that_never_began_is_let_go_without_a_complaint() -> None:
    lab = Lab()
    fan: FanOut[str, int] = FanOut(lab.ports, "test")
    work = later(1, 1)
    fan.start("never", work)
    fan.cancel()
    await asyncio.gather(*lab.tasks, return_exceptions=True)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


@simulated
async def test_unavailable_is_an_outcome_too() -> None:
    async def away() -> int:
        raise Unavailable("away")

    fan: FanOut[str, int] = FanOut(Lab().ports, "test")
    fan.start("away", away())
    assert isinstance((await fan.next())[1], Unavailable)

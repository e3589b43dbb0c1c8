"""A wait that another task ends leaves its own task as it was."""

from __future__ import annotations

import asyncio

import pytest

from sluice.actors.runtime.waiting import CancellableWait


async def test_a_wait_that_is_ended_has_no_result() -> None:
    """The awaited work is cancelled, and the next wait is not affected."""
    interruption, never = CancellableWait(), asyncio.get_running_loop().create_future()

    async def waits() -> list[int | None]:
        return [await interruption.run(never), await interruption.run(asyncio.sleep(0, 7))]

    waiting = asyncio.create_task(waits())
    await asyncio.sleep(0)
    interruption.end()
    interruption.end()
    assert await waiting == [None, 7]
    assert never.cancelled()


async def test_a_result_that_came_at_the_same_moment_is_void() -> None:
    interruption, soon = CancellableWait(), asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(interruption.run(soon))
    await asyncio.sleep(0)
    soon.set_result(1)
    interruption.end()
    assert await waiting is None


async def test_nothing_is_ended_before_or_behind_a_wait() -> None:
    interruption = CancellableWait()
    interruption.end()
    assert await interruption.run(asyncio.sleep(0, 1)) == 1
    interruption.end()
    assert await interruption.run(asyncio.sleep(0, 2)) == 2


async def test_a_task_that_is_cancelled_ends() -> None:
    """Also where its wait is ended in the same moment."""
    interruption = CancellableWait()
    waiting = asyncio.create_task(interruption.run(asyncio.get_running_loop().create_future()))
    await asyncio.sleep(0)
    waiting.cancel()
    interruption.end()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_error_of_the_work_is_raised() -> None:
    async def fails() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await CancellableWait().run(fails())

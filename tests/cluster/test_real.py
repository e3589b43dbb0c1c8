"""Background tasks and timers on real event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from cluster.loop import LoopThread
from cluster.real import RealClock, Tasks

WAIT_S = 20


def begin_task(on: LoopThread, call: Callable[[], object]) -> None:
    """A background task of an actor."""

    async def work() -> None:
        call()

    on.soon(lambda: Tasks("actor")(work(), "work"))


def begin_timer(on: LoopThread, call: Callable[[], object]) -> None:
    """A timer of an actor."""
    on.soon(lambda: RealClock().timer(1, call))


@pytest.mark.parametrize("begin", [begin_task, begin_timer])
def test_two_loops_work_at_the_same_time(begin: Callable[[LoopThread, Callable[[], object]], None]) -> None:
    """Those of two clusters in one process: what one of them does is under way when the other's begins."""
    first, other = LoopThread("first"), LoopThread("other")
    entered, ended, waited = threading.Event(), threading.Event(), list[bool]()

    def hold() -> None:
        entered.set()
        waited.append(ended.wait(WAIT_S))

    try:
        begin(first, hold)
        assert entered.wait(WAIT_S)
        begin(other, ended.set)
        assert ended.wait(WAIT_S)
        assert first.ask(lambda: waited) == [True]
    finally:
        ended.set()
        first.stop()
        other.stop()


async def test_what_an_ended_actor_spawns_does_not_begin() -> None:
    begun: list[str] = []

    async def work(name: str) -> None:
        begun.append(name)

    tasks = Tasks("actor")
    await tasks(work("before"), "work")
    tasks.cancel_all()
    with pytest.raises(asyncio.CancelledError):
        await tasks(work("after"), "work")
    assert begun == ["before"]

"""Background tasks and timers on real event loops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from sluice.actors.consumer.session import Lease
from sluice.actors.ports import Ports
from sluice.cluster.base.loop import LoopThread
from sluice.cluster.base.real import RealClock, Tasks

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
    """The loops of two clusters in one process: work of one is under way when work of the other begins."""
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


async def test_a_task_of_an_ended_actor_does_not_begin() -> None:
    begun: list[str] = []

    async def work(name: str) -> None:
        begun.append(name)

    tasks = Tasks("actor")
    await tasks(work("before"), "work")
    tasks.cancel_all()
    with pytest.raises(asyncio.CancelledError):
        await tasks(work("after"), "work")
    assert begun == ["before"]


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has a clock of its own for that")
def test_a_machine_that_was_suspended_has_leases_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that stood still its consumers were within their lease, although others have got their messages."""
    suspended = 0

    def read(clock: int) -> int:
        return (60_000 + (suspended if clock == time.CLOCK_BOOTTIME else 0)) * 1_000_000

    monkeypatch.setattr("sluice.cluster.base.real.time.clock_gettime_ns", read)
    monkeypatch.setattr("sluice.cluster.base.real.time.monotonic_ns", lambda: read(time.CLOCK_MONOTONIC))
    lease = Lease(cast(Ports, SimpleNamespace(clock=RealClock())))
    lease.start(RealClock().monotonic(), 30_000)
    assert not lease.over()
    suspended = 3_600_000
    assert lease.over()

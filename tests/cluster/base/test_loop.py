"""The event loop in a thread of its own, when it ends while other threads have something to ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sluice.cluster.base.loop import LoopThread
from sluice.storage.errors import Fenced, Invalid
from tests.cluster.helpers import PATIENCE_S

LATE_S = 20.0


async def for_ever() -> None:
    await asyncio.Event().wait()


class Asking:
    """A thread that asks, and hears that the client is closed. It is not waited for where it waits for ever."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask, self._told = ask, threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with pytest.raises(Fenced, match="the client is closed"):
            self._ask()
        self._told.set()

    def is_told(self) -> bool:
        return self._told.wait(LATE_S)


def test_a_waiting_caller_learns_that_the_loop_ends() -> None:
    loop, begun = LoopThread("ends"), threading.Event()

    async def work() -> None:
        begun.set()
        await for_ever()

    waits = Asking(lambda: loop.run(work()))
    assert begun.wait(PATIENCE_S)
    loop.stop()
    assert waits.is_told()


def test_a_question_to_an_ending_loop_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop has ended its tasks, and goes on for a moment."""
    loop = LoopThread("ends")
    begun, tried = threading.Event(), threading.Event()
    late: list[Asking] = []
    hand_over = asyncio.run_coroutine_threadsafe

    def noted(*arguments: Any) -> Any:
        future = hand_over(*arguments)
        if late:
            tried.set()
        return future

    def ask() -> None:
        try:
            loop.run(for_ever())
        finally:
            tried.set()

    async def work() -> None:
        begun.set()
        try:
            await for_ever()
        finally:
            late.append(Asking(ask))
            tried.wait(PATIENCE_S)

    waits = Asking(lambda: loop.run(work()))
    assert begun.wait(PATIENCE_S)
    monkeypatch.setattr("sluice.cluster.base.loop.asyncio.run_coroutine_threadsafe", noted)
    loop.stop()
    assert waits.is_told()
    assert late[0].is_told()


def test_a_task_begun_while_the_loop_ends_is_ended_as_well() -> None:
    """A consumer that is cancelled says what it has done, in a task that did not exist before."""
    loop, begun = LoopThread("ends"), threading.Event()
    tasks: list[asyncio.Task[None]] = []

    def begin() -> None:
        tasks.append(loop.loop.create_task(for_ever()))

    async def work() -> None:
        begun.set()
        try:
            await for_ever()
        finally:
            loop.loop.call_soon(begin)
            begin()

    working = asyncio.run_coroutine_threadsafe(work(), loop.loop)
    assert begun.wait(PATIENCE_S)
    loop.stop()
    assert working.cancelled()
    assert [task.cancelled() for task in tasks] == [True, True]


def test_a_callback_that_would_wait_for_its_loop_is_refused() -> None:
    """A question that is asked in a callback stopped the client for ever."""
    loop, told = LoopThread("callback"), threading.Event()

    def callback() -> None:
        with pytest.raises(Invalid, match="in a thread of your own"):
            loop.run(for_ever())
        told.set()

    loop.soon(callback)
    assert told.wait(LATE_S)
    loop.stop()

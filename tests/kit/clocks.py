"""Clocks whose time does not pass by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cluster.real import RealClock
from tests.timers import call_later


class HandSetClock(RealClock):
    """Real pauses; the wall clock is set by hand."""

    def __init__(self, wall: int = 0) -> None:
        self.wall = wall

    def now(self) -> int:
        """The hand-set time."""
        return self.wall


class EventClock:
    """Time that moves only when told."""

    def __init__(self) -> None:
        self.time = 1_000_000
        self._sleepers: list[tuple[int, asyncio.Event]] = []

    def now(self) -> int:
        return self.time

    def monotonic(self) -> int:
        return self.time

    async def sleep(self, milliseconds: int) -> None:
        if milliseconds <= 0:
            await asyncio.sleep(0)
            return
        event = asyncio.Event()
        self._sleepers.append((self.time + milliseconds, event))
        await event.wait()

    def timer(self, milliseconds: int, call: Callable[[], object]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(call_later(self, milliseconds, call))

    def advance(self, milliseconds: int) -> None:
        self.time += milliseconds
        for due, event in self._sleepers:
            if due <= self.time:
                event.set()
        self._sleepers = [(due, event) for due, event in self._sleepers if due > self.time]


class QuickClock:
    """Time passes only by sleeping, and sleeping takes no time."""

    def __init__(self) -> None:
        self.at = 1_000_000

    def now(self) -> int:
        """Milliseconds."""
        return self.at

    def monotonic(self) -> int:
        """Milliseconds."""
        return self.at

    async def sleep(self, milliseconds: int) -> None:
        """Let everybody else run once."""
        self.at += milliseconds
        await asyncio.sleep(0)

    def timer(self, milliseconds: int, call: Callable[[], object]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(call_later(self, milliseconds, call))

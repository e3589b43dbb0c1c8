"""Waiting for a condition, at most so long, through the ports.

asyncio's own timeouts read the loop's clock behind the actor's back; a Signal takes its time from ports.clock, so a
wait behaves the same in every world.
"""

from __future__ import annotations

import asyncio
from functools import partial

from actors.ports import Ports


class Signal:
    """Something changed. `set` wakes all tasks that wait now; it stays set until a `clear`."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[asyncio.Future[bool]] = []

    def is_set(self) -> bool:
        """Whether a wait would return at once."""
        return self._set

    def set(self) -> None:
        """Wake all waiters, and let later waits pass until cleared."""
        self._set = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(True)

    def clear(self) -> None:
        """Let later waits block again."""
        self._set = False

    async def wait(self, ports: Ports, milliseconds: int | None = None) -> bool:
        """Wait until it is set (True) or for a time in ms (False); None waits without end."""
        if self._set:
            return True
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        timer = None if milliseconds is None else ports.clock.timer(milliseconds, partial(_ring, waiter))
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)


def _ring(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)

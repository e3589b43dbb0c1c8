"""Waiting that another task may end, in the task that waits: a task of its own for each wait would cost more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar, cast

T = TypeVar("T")


class CancellableWait:
    """An interruptible wait; one at a time."""

    __slots__ = ("_ended", "_waits")

    def __init__(self) -> None:
        self._waits: asyncio.Task[None] | None = None
        self._ended = False

    def end(self) -> None:
        """End the wait that is under way, if there is one."""
        if self._waits is not None and not self._ended:
            self._ended = True
            self._waits.cancel()

    async def of(self, work: Awaitable[T]) -> T | None:
        """Return the result of some work, or raise its error; None if `end` ended it. A cancellation of the task itself
        ends the task.
        """
        self._waits = task = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            return await work
        except asyncio.CancelledError:
            if self._ended and task.uncancel() == 0:
                return None
            raise
        finally:
            self._waits, self._ended = None, False

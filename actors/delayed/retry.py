"""Four attempts with growing pauses (BD-10): the one way in which the delayed index bears a store that is away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from actors.ports import Ports
from storage.errors import Unavailable

T = TypeVar("T")

BACK_OFF_MS = (100, 400, 1600)
"""Pauses between the four attempts."""


async def attempt(ports: Ports, call: Callable[[], Awaitable[T]], failed: Callable[[], None] = lambda: None) -> T:
    """Call until it answers, at most four times. Raises the last Unavailable; other errors pass at once.

    failed: called after each attempt but the last that was Unavailable.
    """
    for pause in BACK_OFF_MS:
        try:
            return await call()
        except Unavailable:
            failed()
            await ports.clock.sleep(pause)
    return await call()

"""Four attempts with growing pauses (BD-10): how what lies in the object store waits for a store that is away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from sluice.actors.ports import Ports
from sluice.storage.errors import Invalid, Overloaded, Unavailable

T = TypeVar("T")

REFUSALS = (Unavailable, Overloaded, Invalid)
"""The errors of a store that cannot serve: away, busy, or set up wrongly (credentials, permissions). None of them says
anything about the objects themselves, so the work is put off, and what is in memory goes on."""
BACK_OFF_MS = (100, 400, 1600)
"""Pauses between the four attempts."""


async def attempt(ports: Ports, call: Callable[[], Awaitable[T]]) -> T:
    """Call until it answers, at most four times. Raises the last refusal; other errors pass at once."""
    for pause in BACK_OFF_MS:
        try:
            return await call()
        except (Unavailable, Overloaded):
            await ports.clock.sleep(pause)
    return await call()

"""A timer for clocks of tests whose time passes by sleeping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Sleeping(Protocol):
    """A clock that can sleep."""

    async def sleep(self, milliseconds: int) -> None:
        """Wait."""


async def call_later(clock: Sleeping, milliseconds: int, call: Callable[[], object]) -> None:
    """Call a function after so long by that clock."""
    await clock.sleep(milliseconds)
    call()

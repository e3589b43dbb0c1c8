"""Users who give up waiting: in some runs calls of the client are cancelled after a while, at whatever they are then.

What such a call had begun must not be lost with it: an acknowledgement is confirmed later, what was given back comes
again, and an abandoned consumer leaves its keys to the others.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.sim.world import World

T = TypeVar("T")

SHARE = 0.3
"""Of the runs."""
LOSS = 0.08
"""How likely a message between processes is lost there at least: a call whose request arrives may well be given up."""
LIMITS_MS = (1, 5, 30, 200, 1_000, 5_000)
ENDLESS = 0.3
"""How likely a call is waited for all the same."""


def is_short(world: World) -> bool:
    """Whether users give up in this run."""
    return random.Random(f"patience/{world.seed}").random() < SHARE


def lose_more(world: World) -> None:
    """Make the network of such a run lose enough."""
    if is_short(world):
        world.network.faults.loss = max(world.network.faults.loss, LOSS)


class Patience:
    """The patience of one client, by its name. Its draws are its own, so other clients act as they would without it."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._rng = random.Random(f"patience/{name}/{world.seed}")
        self._short = is_short(world)

    def limit(self) -> int:
        """Return for how many milliseconds the next call is waited for; 0: without end."""
        if not self._short or self._rng.random() < ENDLESS:
            return 0
        return self._rng.choice(LIMITS_MS)

    async def wait(self, work: Coroutine[Any, Any, T], *, calm: bool = False) -> T:
        """Return the work's result; TimeoutError if the work was given up and cancelled. calm: no work is given up."""
        limit = self.limit()
        if calm or not limit:
            return await work
        try:
            async with asyncio.timeout(limit / 1000):
                return await work
        except TimeoutError:
            self._world.count("calls given up")
            raise

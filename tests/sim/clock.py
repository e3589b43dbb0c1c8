"""Time and randomness of simulated machines and processes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from sluice.actors.ports import Timer
from tests.sim.loop import SimLoop

EPOCH_MS = 1_700_000_000_000
"""Wall-clock time at the start of each run."""


class SimClock:
    """The clock of one machine. Implements actors.ports.Clock. skews: by how much each machine's clock is wrong."""

    def __init__(self, loop: SimLoop, seed: int, machine: str, skews: Mapping[str, int]) -> None:
        self._loop = loop
        self._machine = machine
        self._skews = skews
        self._base = random.Random(f"clock/{seed}/{machine}").randrange(1, 10**9)

    def now(self) -> int:
        """Wall clock with this machine's skew."""
        return EPOCH_MS + self._loop.now + self._skews.get(self._machine, 0)

    def monotonic(self) -> int:
        """Never jumps; each machine counts from its own start."""
        return self._base + self._loop.now

    async def sleep(self, milliseconds: int) -> None:
        """Wait on virtual time."""
        await self._loop.pause(milliseconds)

    def timer(self, milliseconds: int, call: Callable[[], object]) -> Timer:
        """Run a function after so much virtual time; whom it wakes goes on when its process does."""
        return self._loop.after(milliseconds, call)


class SimRng:
    """Seeded randomness of one process. Implements actors.ports.Rng."""

    def __init__(self, seed: str) -> None:
        rng = random.Random(seed)
        self.random = rng.random
        self._randrange = rng.randrange

    def randrange(self, stop: int) -> int:
        """0 <= n < stop."""
        return self._randrange(stop)

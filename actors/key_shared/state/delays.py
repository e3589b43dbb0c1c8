"""When messages that were given back with a delay may go out again."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from sluice.storage.format.position import Positions

_WOKEN_AT_ONCE = 1_000
"""Messages that are looked at together when the first of them may go out."""


class Delays:
    """Positions by the time (ms) at which to look at them. Some may be done by then, or wait for longer."""

    def __init__(self) -> None:
        self._groups: list[tuple[int, int, Positions]] = []
        self._added = 0

    def add(self, positions: Positions, until: npt.NDArray[np.int64]) -> None:
        """Look at positions at these times, int64, one each."""
        order = np.argsort(until, kind="stable")
        for start in range(0, len(positions), _WOKEN_AT_ONCE):
            some = order[start : start + _WOKEN_AT_ONCE]
            self._added += 1
            heapq.heappush(self._groups, (int(until[some[0]]), self._added, np.sort(positions[some])))

    @property
    def next(self) -> int | None:
        """When to look again; None: there is nothing to look at."""
        return self._groups[0][0] if self._groups else None

    def shift(self, by: int) -> None:
        """Move all times by `by` ms."""
        self._groups = [(max(at + by, 1), number, positions) for at, number, positions in self._groups]
        heapq.heapify(self._groups)

    def pop_due(self, now: int) -> Positions | None:
        """Return positions to look at now, ascending, or None."""
        return heapq.heappop(self._groups)[2] if self._groups and self._groups[0][0] <= now else None

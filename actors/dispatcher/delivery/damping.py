"""Damping: consumers that come and go get their hashes later and later (GR-8). No I/O.

A place is given up when its consumer does not come back within the grace; then the hashes of all others move. A name
whose places are given up again and again waits for its next place: the first time not at all, then one grace, then
twice as long each time, `MOST` graces at the most. After `CALM` graces with a place, or away, a name begins from zero
again. Within the grace nothing moves, so a consumer that comes back in time is not damped.

Counts go from owner to owner, times do not: a new owner counts them from its beginning. Times are monotonic
milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MOST = 16
"""The longest wait for a place, in graces."""
CALM = 32
"""The graces with a place, or away, after which the earlier losses of a name are forgotten."""
REMEMBERED = 1_000
"""The number of names that are remembered; the one that lost its place longest ago is forgotten first."""
MOST_GIVEN = 10_000
"""The number of names whose last place is remembered: those that leave for good do not say so."""


@dataclass(slots=True)
class _Flaps:
    count: int
    at: int
    """When it lost its place last."""


class Damping:
    """A count for each name of how often it has lost its place."""

    def __init__(self, grace_ms: int) -> None:
        self._grace = grace_ms
        self._flaps: dict[str, _Flaps] = {}
        self._given: dict[str, int] = {}

    def restore(self, rows: Iterable[Sequence[Any]], now: int) -> None:
        """Begin with the rows of the record."""
        self._flaps = {str(name): _Flaps(int(count), now) for name, count in rows}

    def rows(self) -> list[list[Any]]:
        """Return names and counts, for the record."""
        return [[name, flaps.count] for name, flaps in self._flaps.items()]

    def given(self, name: str, now: int) -> None:
        """Note that a name has a place from now on."""
        self._given.pop(name, None)
        self._given[name] = now
        if len(self._given) > MOST_GIVEN:
            del self._given[next(iter(self._given))]

    def given_up(self, name: str, now: int) -> None:
        """Count the loss of a name's place."""
        calm = now - self._given.pop(name, now) >= CALM * self._grace
        before = self._flaps.pop(name, None)
        self._flaps[name] = _Flaps(1 if calm or before is None else before.count + 1, now)
        while len(self._flaps) > REMEMBERED:
            del self._flaps[next(iter(self._flaps))]

    def delay(self, name: str, now: int) -> int:
        """Return how long a name waits for a place, in ms."""
        flaps = self._flaps.get(name)
        if flaps is None or flaps.count < 2:
            return 0
        if now - flaps.at >= CALM * self._grace:
            del self._flaps[name]
            return 0
        wait = min(1 << min(flaps.count - 2, MOST.bit_length()), MOST)
        return wait * self._grace

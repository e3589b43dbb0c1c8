"""Clocks whose time does not pass by itself."""

from __future__ import annotations

from sluice.cluster.base.real import RealClock


class HandSetClock(RealClock):
    """A clock with real pauses whose wall time is set by hand."""

    def __init__(self, wall: int = 0) -> None:
        self.wall = wall

    def now(self) -> int:
        """Return the hand-set time."""
        return self.wall


class HandMovedClock(RealClock):
    """A clock with real pauses whose other time passes by hand."""

    def __init__(self) -> None:
        self.passed = 0

    def monotonic(self) -> int:
        """Return the time that has passed, in ms."""
        return self.passed

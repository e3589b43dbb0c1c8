"""Counts how often an actor ended for the same reason: another start does not help, and an operator must know.

Only reasons that the actor's own host tells are counted: a process that was killed, or a machine that is gone, says
nothing of what the actor would do next time. Reasons are compared without their numbers, since epochs and positions
differ from one end to the next.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SAME_ENDS = 3
"""The number of ends for one reason that is an alarm ..."""
WITHIN_MS = 600_000
"""... as long as each came within ten minutes of the one before, and the last one is no older."""
MOST_REASONS = 8
"""The reasons kept of one actor; the one that was seen longest ago makes room for a new one."""
SHOWN = 300
_NUMBER = re.compile(r"[0-9]+")


@dataclass(slots=True)
class _Ends:
    """How often an actor ended for one reason, when it did last (monotonic ms), and what was said then."""

    count: int
    last: int
    text: str


class CrashLoopDetector:
    """The ends of one actor, by their reasons."""

    def __init__(self) -> None:
        self._by_reason: dict[str, _Ends] = {}

    def add(self, reason: str, now: int) -> None:
        """Count one end for a reason. now: monotonic ms."""
        kind = _NUMBER.sub("#", reason)
        known = self._by_reason.pop(kind, None)
        before = 0 if known is None or now - known.last >= WITHIN_MS else known.count
        self._by_reason[kind] = _Ends(before + 1, now, reason[:SHOWN])
        while len(self._by_reason) > MOST_REASONS:
            del self._by_reason[next(iter(self._by_reason))]

    def alarm(self, now: int) -> str:
        """The alarm for an operator, in one line; empty if no reason came often enough."""
        recent = [ends for ends in self._by_reason.values() if now - ends.last < WITHIN_MS and ends.count >= SAME_ENDS]
        return "; ".join(f"it has ended {ends.count} times for the same reason: {ends.text}" for ends in recent)

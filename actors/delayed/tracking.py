"""Answers that a subscription's tracker gives from its core alone: which positions wait, and how many."""

from __future__ import annotations

from sluice.storage.delayed.core import DelayedCore, tracked
from sluice.storage.delayed.entries import Entries, Mask
from sluice.storage.delayed.index import PositionIndex
from sluice.storage.format.position import Positions

WAITING_MOST = 1_000_000
"""So many entries of a subscription may wait in memory for a store, 20 MB, before reading pauses."""
NO_LIMIT = 1 << 62


class CoreTracker:
    """The half of a DelayedTracker (`actors.delayed.tracker`) that needs only the index."""

    rebuilt = False
    """Whether a damaged manifest was replaced, so that what earlier trackers stored is not known to this one."""

    recovering = False
    """See DelayedTracker."""

    def __init__(self, tick_ms: int) -> None:
        self._core = DelayedCore(tick_ms)

    @property
    def index(self) -> PositionIndex:
        """Which positions are tracked; not to be changed."""
        return self._core.index

    def contains(self, positions: Positions) -> Mask:
        """Which of the positions are tracked, shape (n,)."""
        return self._core.index.contains(positions)

    def next_untracked(self, start: int, end: int) -> int:
        """The first position >= start that is not tracked; `end` if there is none before it."""
        return self._core.index.next_absent(start, end)

    def untrack(self, positions: Positions) -> int:
        """Forget messages that were acknowledged, skipped or expired without being taken; returns how many."""
        return self._core.untrack(positions)

    def count(self) -> int:
        return len(self._core.index)

    def alarm(self) -> str:
        """The alarm that operators see; empty if all is well."""
        return ""

    def undelayed(self) -> None:
        """A message without a delay was read; of no interest to a tracker that never pauses reading."""

    def unsaved(self) -> Entries:
        """Entries that only memory holds, in the order (deliver_at, position): they would be lost with this object."""
        return tracked(self._core.parts(), self._core.index)

    def stored(self) -> list[tuple[int, int]]:
        """Position ranges (both ends inclusive) of what the manifest holds."""
        return []

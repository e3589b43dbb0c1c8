"""What every tracker of a subscription's own answers from its core alone: which positions wait, and how many."""

from __future__ import annotations

import numpy as np

from storage.delayed.core import DelayedCore, tracked
from storage.delayed.entries import Entries, Mask
from storage.delayed.index import PositionIndex
from storage.position import Positions


class CoreTracker:
    """The half of a DelayedTracker that needs no more than the index. See `actors.delayed.tracker.DelayedTracker`."""

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
        return int(np.count_nonzero(self._core.index.discard(positions)))

    def count(self) -> int:
        """Messages that are tracked."""
        return len(self._core.index)

    def unsaved(self) -> Entries:
        """What only memory holds, in the order (deliver_at, position): all that would be lost with this object."""
        return tracked(self._core.parts(), self._core.index)

    def stored(self) -> list[tuple[int, int]]:
        """Position ranges (both ends inclusive) of what the manifest holds."""
        return []

"""Which neighbouring buckets to merge (BD-21).

A window is `width` neighbours. Each of them has a segment that is not loaded, and none is being merged. The window with
the fewest messages is chosen; among equals the one whose next segment starts first. If there is none, narrower
windows are tried, down to two. A window larger than `max_entries` is chosen only if no other fits, and then the
smallest pair: a merge holds its new object in memory, so few allowed buckets for many messages means large ones.
Any limit from one bucket on works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MERGE_WIDTH = 4
NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Candidate:
    """One bucket: whether it may be merged, its messages, and the first due time (ms) of its next segment."""

    mergeable: bool
    count: int
    next_time: int


def choose_window(candidates: Sequence[Candidate], max_entries: int) -> slice | None:
    """The window of neighbours to merge, or None. candidates are ordered by their ledger range."""
    widest = min(MERGE_WIDTH, len(candidates))
    for width, most in [*((width, max_entries) for width in range(widest, 1, -1)), (2, NO_LIMIT)]:
        best: tuple[int, int, int] | None = None
        for start in range(len(candidates) - width + 1):
            window = candidates[start : start + width]
            total = sum(one.count for one in window)
            if total <= most and all(one.mergeable for one in window):
                rank = (total, min(one.next_time for one in window), start)
                best = rank if best is None else min(best, rank)
        if best is not None:
            return slice(best[2], best[2] + width)
    return None

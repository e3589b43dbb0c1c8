"""The heaviest of many items in bounded memory: a Misra-Gries summary that takes columns.

The summary keeps a fixed number of counters. What is added is summed by item and joined with them; if there are too
many then, the largest weight that has no place is taken off all of them, and what comes to nothing goes. So a counter
is at most `error` too low and never too high, and `error` is at most the total weight divided by the number of
counters: whatever is heavier than that is kept (J. Misra and D. Gries 1982; that summaries may be joined like this is
shown in P. Agarwal and others, Mergeable Summaries, 2012). Libraries of such sketches take one item at a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Items = npt.NDArray[np.uint32]
Weights = npt.NDArray[np.int64]
NO_ITEMS: Items = np.empty(0, np.uint32)
NO_WEIGHTS: Weights = np.empty(0, np.int64)


class HeavyHitters:
    """size: how many counters. total, error: see the module, in units of weight."""

    def __init__(self, size: int = 512) -> None:
        self._size = size
        self._items: Items = NO_ITEMS
        self._weights: Weights = NO_WEIGHTS
        self.total = 0
        self.error = 0

    def add(self, items: Items, weights: Weights) -> None:
        """Distinct items ascending, uint32 (n,), with a weight of 1 or more each."""
        self.total += int(weights.sum())
        places = np.searchsorted(items, self._items)
        known = places < len(items)
        known[known] = items[places[known]] == self._items[known]
        weights = weights.copy()
        weights[places[known]] += self._weights[known]
        items = np.concatenate([items, self._items[~known]])
        weights = np.concatenate([weights, self._weights[~known]])
        if len(items) > self._size:
            cut = int(np.partition(weights, len(weights) - self._size - 1)[len(weights) - self._size - 1])
            weights -= cut
            kept = weights > 0
            items, weights = items[kept], weights[kept]
            self.error += cut
        self._items, self._weights = items, weights

    def halve(self) -> None:
        """Halve all weights, so that keys that are heavy now stand out."""
        self._weights //= 2
        self.total //= 2
        self.error = (self.error + 1) // 2

    def top(self, count: int) -> list[tuple[int, int]]:
        """The heaviest (item, weight), heaviest first."""
        order = np.lexsort((self._items, -self._weights))[:count]
        return list(zip(self._items[order].tolist(), self._weights[order].tolist(), strict=True))

    def nbytes(self) -> int:
        return int(self._items.nbytes + self._weights.nbytes)

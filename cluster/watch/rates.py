"""Rates of counters that several owners keep, each for as long as it lasts.

An owner that does not answer for a while tells afterwards all that it counted meanwhile, and one that is new begins at
zero. So the rise of each owner's counters is taken over the time since it answered last, and not that of their sums,
which had fallen by all that a silent owner ever counted, and risen by it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class OwnerRates:
    """The rise of counters in a second, summed over owners. counters: the names that are shown, and those they have."""

    def __init__(self, counters: Mapping[str, str]) -> None:
        self._counters = counters
        self._seen: dict[int, tuple[int, int, dict[str, int]]] = {}

    def update(self, at: int, owners: Iterable[Mapping[str, Any] | None]) -> dict[str, float]:
        """Return the rates since each owner's last answer. at: ms. owners: their statistics, None of one that is
        silent.
        """
        rates = dict.fromkeys(self._counters, 0.0)
        for number, stats in enumerate(owners):
            if stats is None:
                continue
            epoch, counts = int(stats["epoch"]), {name: int(stats.get(key, 0)) for name, key in self._counters.items()}
            before_at, before_epoch, before = self._seen.get(number, (at, epoch, counts))
            self._seen[number] = (at, epoch, counts)
            if at <= before_at:
                continue
            if epoch != before_epoch:
                before = dict.fromkeys(counts, 0)
            for name, count in counts.items():
                rates[name] += max(count - before[name], 0) * 1000 / (at - before_at)
        return {name: round(rate, 1) for name, rate in rates.items()}

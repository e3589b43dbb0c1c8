"""The memory of messages that were given back: their redelivery counts, and when they may go out again.

A message in the window has its count there. Counts and delays of the others, as an earlier owner or a consumer reported
them, are carried here. When such a message is read, its row takes over its count and delay, and nothing is carried for
it (`nacks.recall`). `Delays` says when to look at which messages again.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.state.window import Mask
from sluice.storage.format import redeliveries
from sluice.storage.format.position import Positions
from sluice.storage.format.redeliveries import NOTHING, Redeliveries

MOST = 50_000
"""Rows of a snapshot; half a megabyte at the worst, which is written with every group of acknowledgements."""


class CarriedRedeliveries:
    """The carried rows, ascending by position. Only the methods change them."""

    def __init__(self) -> None:
        self._rows = NOTHING
        self.not_durable = 0
        """The number of messages that found no room in the last snapshot."""

    def __len__(self) -> int:
        return len(self._rows.positions)

    @property
    def rows(self) -> Redeliveries:
        """All of them."""
        return self._rows

    def begin_with(self, rows: Redeliveries) -> None:
        """Begin with the counts that an earlier owner left."""
        self._rows = rows

    def add(self, rows: Redeliveries) -> None:
        """Add rows; two rows of one position are merged."""
        self._rows = redeliveries.merged(self._rows, rows)

    def bound(self) -> None:
        """Keep at most `MOST` rows."""
        self._rows = longest(self._rows)

    def snapshot(self, others: Redeliveries | None = None) -> Redeliveries:
        """Return as many rows as a record takes, of the carried ones and of `others`, which are in the window."""
        rows = self._rows if others is None else redeliveries.merged(others, self._rows)
        kept = longest(rows)
        self.not_durable = len(rows.positions) - len(kept.positions)
        return kept

    def pop(self, positions: Positions) -> Redeliveries:
        """Remove the rows of these positions (ascending), and return them."""
        known = self._here(positions)
        found, self._rows = self._rows.pick(known), self._rows.pick(~known)
        return found

    def delays(self) -> bool:
        """Return whether any message waits for a time."""
        return bool((self._rows.until > 0).any())

    def shift(self, by: int) -> None:
        """Move all times of delays by `by` ms."""
        until = self._rows.until
        self._rows = self._rows._replace(until=np.where(until > 0, np.maximum(until + by, 1), 0))

    def discard(self, positions: Positions) -> None:
        """Forget messages (ascending) that are done."""
        if len(self):
            self._rows = self._rows.pick(~self._here(positions))

    def forget_up_to(self, position: int) -> None:
        """Forget all messages up to `position`: they are done."""
        if len(self) and self._rows.positions[0] <= position:
            self._rows = self._rows.pick(self._rows.positions > position)

    def clear(self) -> None:
        """Forget all messages: they are done."""
        self._rows = NOTHING

    def _here(self, positions: Positions) -> Mask:
        here: Mask = np.isin(self._rows.positions, positions)
        return here


def longest(rows: Redeliveries) -> Redeliveries:
    """Return as many rows as are kept, those that wait the longest first."""
    if len(rows.positions) <= MOST:
        return rows
    return rows.pick(np.sort(np.argsort(-rows.until, kind="stable")[:MOST]))


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

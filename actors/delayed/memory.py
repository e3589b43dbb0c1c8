"""The in-memory tracker: for small topics, and for an index that cannot be recovered (BD-33).

Everything is in the mutable bucket, sorted piece by piece as it falls due. After a restart all of it is found again by
reading the log.

Fixed-delay detection (BD-6): while messages come with times that never fall back by more than a tick, none at once, the
first `lookahead` of them show that reading on brings only later ones, so all reads may pause until the first is due.
Messages without a delay count as well: the reader tells of them (`undelayed`), and one is enough to end it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from sluice.actors.delayed.tracking import NO_LIMIT, CoreTracker
from sluice.storage.delayed.browse import Slot, histogram
from sluice.storage.delayed.core import tracked
from sluice.storage.delayed.entries import END, Mask, Times
from sluice.storage.errors import SluiceError
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions

FIXED_DELAY_LOOKAHEAD = 50_000


class InMemoryTracker(CoreTracker):
    """Delayed messages of one subscription on one partition, in memory alone. Times are milliseconds.

    fallback: the bucket index failed, for the stats. lookahead: for the fixed-delay detection, 0 = off;
    Pulsar's if it is not given. most: it stands in for buckets, and may hold so many entries before reading pauses.
    """

    failed: SluiceError | None = None

    def __init__(
        self, *, tick_ms: int = 0, lookahead: int | None = None, fallback: str | None = None, most: int = NO_LIMIT
    ) -> None:
        super().__init__(tick_ms)
        self._lookahead = FIXED_DELAY_LOOKAHEAD if lookahead is None else lookahead
        self._fallback = fallback
        self._most = most
        self.delete_other_index: Callable[[], Awaitable[None]] | None = None
        """Deletes what the subscription has in buckets from an earlier time."""
        self._fixed = True
        self._highest = -1

    async def start(self) -> None:
        """Nothing to recover: the log is read again from the mark-delete position."""

    async def recovered(self) -> None:
        """At once."""

    def add(self, positions: Positions, hashes: Hashes, deliver_at: Times, now: int) -> Mask:
        """Which of the messages are delayed, shape (n,); False: deliver now. Repeating changes nothing."""
        waits, new = self._core.admit(positions, hashes, deliver_at, now)
        self._detect(deliver_at, waits)
        self._core.keep(new)
        return waits

    def pop_due(self, limit: int, now: int) -> tuple[Positions, Hashes]:
        """Up to `limit` due messages in the order (deliver_at, position); they are untracked by this."""
        taken = self._core.pop_due(limit, now)
        if not self.count():
            self._reset()
        return taken

    def next_due(self, now: int) -> int | None:
        """When to look again, in ms; None if there is nothing."""
        first = self._core.bound()
        return None if first == END else first[0]

    def trim(self, mark_delete: int) -> None:
        """Everything at or below the mark-delete position is done."""
        self._core.forget_range(0, mark_delete + 1)
        if not self.count():
            self._core.clear()
            self._reset()

    async def clear(self) -> None:
        self._core.clear()
        self._reset()

    async def delete(self) -> None:
        """The subscription is gone. Raises Unavailable."""
        self._core.clear()
        if self.delete_other_index is not None:
            await self.delete_other_index()

    def take_rescans(self) -> list[tuple[int, int]]:
        """Nothing can be lost but with the whole tracker."""
        return []

    def room(self) -> int:
        """How many more messages may be read: any number, unless this tracker replaces buckets for a while."""
        return max(self._most - self.loaded(), 0)

    def pause_reads(self, now: int) -> bool:
        """Whether all reads should pause because only later messages can follow (BD-6)."""
        first = self.next_due(now)
        enough = 0 < self._lookahead <= self.count()
        return self._fixed and enough and first is not None and first > self._core.cutoff(now)

    def undelayed(self) -> None:
        """A message without a delay lies among the others, so more of them may follow (BD-6)."""
        self._fixed = self._fixed and not self.count()

    def memory_bytes(self) -> int:
        """About what the tracker occupies in memory."""
        return self._core.index.memory_bytes() + self._core.column_bytes()

    def loaded(self) -> int:
        return self._core.loaded()

    def stats(self) -> dict[str, Any]:
        """The metrics of PIP-195 that make sense without buckets."""
        return {
            "pulsar_delayed_message_index_bucket_total": 0,
            "pulsar_delayed_message_index_loaded": self.loaded(),
            "pulsar_delayed_message_index_bucket_snapshot_size_bytes": 0,
            "pulsar_delayed_message_index_size_bytes": self.memory_bytes(),
            "pulsar_subscription_delayed": self.count(),
            "tracker": "memory",
            "fallback": self._fallback,
        }

    def histogram(self, slots: int = 20) -> list[Slot]:
        """Due times as (first ms, last ms, messages) slots."""
        return histogram([tracked(self._core.parts(), self._core.index)], [], slots)

    def next_messages(self, n: int) -> list[tuple[int, int]]:
        """The next `n` messages as (deliver_at ms, position), in order."""
        entries = tracked(self._core.parts(), self._core.index).slice(0, n)
        return list(zip(entries.deliver_at.tolist(), entries.positions.tolist(), strict=True))

    async def close(self) -> None:
        """Nothing runs in the background."""

    def _detect(self, deliver_at: Times, waits: Mask) -> None:
        """Keep the fixed-delay mode only while no message is due at once or falls back by more than a tick."""
        if not self._fixed or not deliver_at.size:
            return
        highest = np.maximum.accumulate(np.concatenate(([self._highest], deliver_at)))
        self._fixed = bool(waits.all() and (deliver_at >= highest[:-1] - self._core.tick_ms).all())
        self._highest = int(highest[-1])

    def _reset(self) -> None:
        self._fixed, self._highest = True, -1

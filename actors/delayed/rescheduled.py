"""A subscription's delayed messages, including those with a new due time.

The index beneath (buckets, memory or the shared one) knows the due times of the log. A message that was rescheduled
leaves it and waits here, in memory, by the time that the table of changes names; the table is durable, so a new owner
has it from there and not from the log. Whatever the index beneath still says of such a message, because a bucket that
was written before holds it, or a recovery found it again, is passed over: each position in the table is this class's
own until it is done. So sealing, merging and recovering buckets need not know of any of this.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sluice.actors.delayed.tracker import DelayedTracker
from sluice.storage.delayed.browse import Slot, histogram
from sluice.storage.delayed.changes import DelayChanges
from sluice.storage.delayed.core import DelayedCore, tracked
from sluice.storage.delayed.entries import EMPTY, END, Entries, Mask, Times
from sluice.storage.errors import SluiceError
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions

BEFORE_ALL = -1
"""A time at which nothing is due yet."""
_NONE = DelayedCore()
"""What every subscription has of which nothing was rescheduled; nothing is put into it."""


class RescheduledTracker:
    """A DelayedTracker over another one. changes: the table, which others write; times are ms."""

    __slots__ = ("_changes", "_inner", "_moved")

    def __init__(self, inner: DelayedTracker, changes: DelayChanges) -> None:
        self._inner, self._changes = inner, changes
        self._moved = _NONE
        self._wait(changes.moved, BEFORE_ALL)

    # -- what is rescheduled ----------------------------------------------------------------------------------------

    def reschedule(self, entries: Entries, now: int) -> None:
        """Move entries into the table with their new times: they wait here, and only `pop_due` gives them out."""
        self._inner.untrack(entries.positions)
        if self._moved.untrack(entries.positions):
            self._moved.purge()  # else their columns of before would give them out at the time of before
        self._wait(Entries(np.maximum(entries.deliver_at, now + 1), entries.positions, entries.hashes), now)

    def rescheduled(self) -> int:
        """How many messages wait for a new due time."""
        return len(self._moved.index)

    def _wait(self, entries: Entries, now: int) -> None:
        if len(entries):
            self._admit(entries.positions, entries.hashes, entries.deliver_at, now)

    def _admit(self, positions: Positions, hashes: Hashes, deliver_at: Times, now: int) -> Mask:
        if self._moved is _NONE:
            self._moved = DelayedCore()
        waits, new = self._moved.admit(positions, hashes, deliver_at, now)
        self._moved.keep(new)
        return waits

    def _without_moved(self, taken: tuple[Positions, Hashes]) -> tuple[Positions, Hashes]:
        if not len(self._changes.moved) or not len(taken[0]):
            return taken
        others = ~self._changes.is_moved(taken[0])
        return taken[0][others], taken[1][others]

    # -- see DelayedTracker -----------------------------------------------------------------------------------------

    @property
    def failed(self) -> SluiceError | None:
        """Why the index beneath stopped."""
        return self._inner.failed

    @property
    def recovering(self) -> bool:
        return self._inner.recovering

    async def start(self) -> None:
        await self._inner.start()

    async def recovered(self) -> None:
        """Wait until the index beneath is restored, and take rescheduled messages out of it again."""
        await self._inner.recovered()
        self._inner.untrack(self._changes.moved.positions)

    def add(self, positions: Positions, hashes: Hashes, deliver_at: Times, now: int) -> Mask:
        """Which messages are delayed, by the times that count now."""
        mine = self._changes.is_moved(positions)
        if not mine.any():
            return self._inner.add(positions, hashes, deliver_at, now)
        waits = np.zeros(positions.size, np.bool_)
        if not mine.all():
            waits[~mine] = self._inner.add(positions[~mine], hashes[~mine], deliver_at[~mine], now)
        due = self._changes.due(positions[mine], deliver_at[mine])
        waits[mine] = self._admit(positions[mine], hashes[mine], due, now)
        return waits

    def pop_due(self, limit: int, now: int) -> tuple[Positions, Hashes]:
        """Up to `limit` due messages, which are untracked then. A call returns rescheduled ones, or else others."""
        first, other = self._moved.bound(), self._inner.next_due(now)
        if first != END and first[0] <= now and (other is None or first[0] <= other):
            taken = self._moved.pop_due(limit, now if other is None else min(now, other))
            if len(taken[0]):
                return taken
        while True:
            found = self._inner.pop_due(limit, now)
            taken = self._without_moved(found)
            if len(taken[0]):
                return taken
            if not len(found[0]):
                # What was due there is gone, or is still being loaded: nobody asks again before that, so this must go.
                return self._moved.pop_due(limit, now)

    def contains(self, positions: Positions) -> Mask:
        """Which positions wait, shape (n,)."""
        return (self._inner.contains(positions) & ~self._changes.is_moved(positions)) | self._moved.index.contains(
            positions
        )

    def next_untracked(self, start: int, end: int) -> int:
        """The first position >= start that is not tracked; `end` if there is none before it."""
        at = start
        while at < end:
            beyond = self._moved.index.next_absent(self._inner.next_untracked(at, end), end)
            if beyond == at:
                return at
            at = beyond
        return end

    def untrack(self, positions: Positions) -> int:
        """Forget messages without giving them out; returns how many."""
        return self._inner.untrack(positions) + self._moved.untrack(positions)

    def next_due(self, now: int) -> int | None:
        """When to look again, in ms."""
        first, other = self._moved.bound(), self._inner.next_due(now)
        if first == END:
            return other
        return first[0] if other is None else min(first[0], other)

    def trim(self, mark_delete: int) -> None:
        """Everything at or below this position is done."""
        self._inner.trim(mark_delete)
        if self._moved is not _NONE and len(self._moved.index):
            self._moved.forget_range(0, mark_delete + 1)
        if self._changes.moved is not EMPTY:
            self._changes.passed(mark_delete)

    async def clear(self) -> None:
        """Forget waiting messages. New due times stay, because a seek back reads those messages again."""
        self._moved = _NONE
        await self._inner.clear()

    async def delete(self) -> None:
        self._moved = _NONE
        await self._inner.delete()

    def take_rescans(self) -> list[tuple[int, int]]:
        """Ranges to be read from the log again."""
        return self._inner.take_rescans()

    def room(self) -> int:
        """How many more messages may be read now."""
        return self._inner.room()

    def alarm(self) -> str:
        """The alarm of the index, for operators."""
        return self._inner.alarm()

    def pause_reads(self, now: int) -> bool:
        """Whether all reads should pause."""
        return self._inner.pause_reads(now)

    def undelayed(self) -> None:
        """Messages without a delay were read."""
        self._inner.undelayed()

    def count(self) -> int:
        return self._inner.count() + (0 if self._moved is _NONE else len(self._moved.index))

    def memory_bytes(self) -> int:
        """About what both occupy in memory."""
        moved = self._moved.index.memory_bytes() + self._moved.column_bytes() if len(self._moved.index) else 0
        return self._inner.memory_bytes() + moved

    def stats(self) -> dict[str, Any]:
        """The statistics of the index beneath, with the rescheduled messages."""
        return {
            **self._inner.stats(),
            "pulsar_subscription_delayed": self.count(),
            "rescheduled": self.rescheduled(),
        }

    def histogram(self, slots: int = 20) -> list[Slot]:
        """Due times as (first ms, last ms, messages); rescheduled messages have slots of their own."""
        found = self._inner.histogram(slots)
        if not self.rescheduled():
            return found
        return sorted([*found, *histogram([tracked(self._moved.parts(), self._moved.index)], [], slots)])

    def next_messages(self, n: int) -> list[tuple[int, int]]:
        """The next messages in memory as (deliver_at ms, position)."""
        found = self._inner.next_messages(n)
        if not self.rescheduled():
            return found
        moved = tracked(self._moved.parts(), self._moved.index).slice(0, n)
        mine = list(zip(moved.deliver_at.tolist(), moved.positions.tolist(), strict=True))
        return sorted([*found, *mine])[:n]

    async def close(self) -> None:
        await self._inner.close()

"""A dispatcher's view of its delayed messages: the protocol of a tracker, and what stands in front of an index.

**No index yet.** Most subscriptions never delay a message. Where there is no manifest nothing was stored, because
possession is taken before the first object is written (`actors.delayed.manifest`), and as long as nothing was added
nothing waits: so every question has the answer of an empty index, and no store is asked. The bucket index of such a
subscription comes into being with the first delayed message. An owner that finds a manifest has it from the start.

**New due times.** The index beneath (buckets, memory or the shared one) knows the due times of the log. A message that
was rescheduled leaves it and waits in memory, by the time that the table of changes names; the table is durable, so a
new owner has it from there and not from the log. Whatever the index beneath still says of such a message, because a
bucket that was written before holds it, or a recovery found it again, is passed over: each position in the table is
`RescheduledTracker`'s own until it is done. So sealing, merging and recovering buckets need not know of any of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from sluice.actors.delayed.buckets import BucketTracker
from sluice.actors.delayed.manifest import ManifestStore, manifest_key
from sluice.actors.delayed.objects import BucketObjects
from sluice.actors.delayed.tracking import WAITING_MOST
from sluice.actors.messages import NO_POSITIONS, NO_ROWS, SubscriptionSettings
from sluice.actors.ports import Ports
from sluice.storage.delayed.browse import Slot, histogram
from sluice.storage.delayed.changes import DelayChanges
from sluice.storage.delayed.core import DelayedCore, tracked, which_wait
from sluice.storage.delayed.entries import EMPTY, END, Entries, Mask, Times
from sluice.storage.errors import SluiceError
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions


class DelayedTracker(Protocol):
    """The delayed messages of one subscription on one partition. Times are ms; `now` is the wall clock's."""

    @property
    def failed(self) -> SluiceError | None:
        """Why the tracker stopped (Fenced); None while it works."""

    @property
    def recovering(self) -> bool:
        """Whether something that was tracked before may not be tracked again yet."""

    async def start(self) -> None:
        """Take possession; recovery goes on in the background. Raises Fenced, Unavailable."""

    async def recovered(self) -> None:
        """Wait until everything that was tracked before the restart is tracked again, or given to a rescan.

        Reading before that is correct, but reads again what the buckets hold.
        """

    def add(self, positions: Positions, hashes: Hashes, deliver_at: Times, now: int) -> Mask:
        """Which messages are delayed, shape (n,); False: deliver now (BD-2, BD-11). Safe to repeat."""

    def pop_due(self, limit: int, now: int) -> tuple[Positions, Hashes]:
        """Up to `limit` due messages in the order (deliver_at, position), untracked by this (BD-18)."""

    def contains(self, positions: Positions) -> Mask:
        """Which positions are tracked, shape (n,)."""

    def next_untracked(self, start: int, end: int) -> int:
        """The first position >= start that is not tracked; `end` if there is none before it."""

    def untrack(self, positions: Positions) -> int:
        """Forget messages that were acknowledged, skipped or expired without being taken; returns how many."""

    def next_due(self, now: int) -> int | None:
        """When to look again, in ms; None if nothing waits, or if `changed` will be called.

        What is past means to take now; if that gives nothing, `changed` will be called.
        """

    def trim(self, mark_delete: int) -> None:
        """Everything at or below this position is done (BD-24). Cheap."""

    async def clear(self) -> None:
        """Forget everything: clear backlog, skip all, before a seek (BD-26, BD-28). Raises Unavailable."""

    async def delete(self) -> None:
        """The subscription is deleted: clear, and remove stored objects. Raises Unavailable."""

    def take_rescans(self) -> list[tuple[int, int]]:
        """Position ranges (both ends inclusive) that have to be read from the log again."""

    def room(self) -> int:
        """How many more messages may be read now; none while too many wait in memory for a store."""

    def alarm(self) -> str:
        """The alarm of the index, for operators; empty if all is well."""

    def pause_reads(self, now: int) -> bool:
        """Whether all reads should pause until the first message is due (BD-6)."""

    def undelayed(self) -> None:
        """Messages without a delay were read (BD-6 looks at every message)."""

    def count(self) -> int:
        """Messages that are tracked."""

    def memory_bytes(self) -> int:
        """About what the tracker occupies in memory."""

    def stats(self) -> dict[str, Any]:
        """Metrics by their names in PIP-195, and details."""

    def histogram(self, slots: int = 20) -> list[Slot]:
        """Due times as (first ms, last ms, messages), without loading anything."""

    def next_messages(self, n: int) -> list[tuple[int, int]]:
        """The next messages in memory as (deliver_at ms, position)."""

    async def close(self) -> None:
        """End background work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnIndex:
    """The arguments for the index of a subscription's own buckets. epoch: the owner's. changed, look_ahead_ms: see
    BucketTracker.
    """

    ports: Ports
    topic: str
    partition: int
    subscription: str
    settings: SubscriptionSettings
    changed: Callable[[], None]
    epoch: int
    look_ahead_ms: int

    @property
    def key(self) -> str:
        """The key of its manifest."""
        return manifest_key(self.topic, self.partition, self.subscription)

    def make(self) -> BucketTracker:
        """The index, not yet started."""
        return BucketTracker(
            self.ports,
            objects=BucketObjects(self.ports, self.topic, self.partition, self.subscription),
            manifest=ManifestStore(self.ports, self.key, self.epoch),
            settings=self.settings,
            changed=self.changed,
            look_ahead_ms=self.look_ahead_ms,
        )

    def create(self) -> BucketTracker:
        """The index where there is no manifest, at work."""
        index = self.make()
        index.start_empty()
        return index


class IndexOnDemand:
    """A DelayedTracker without an index, until there is something for it. There was no manifest when it was made."""

    __slots__ = ("_index", "_own")

    def __init__(self, own: OwnIndex) -> None:
        self._own = own
        self._index: BucketTracker | None = None

    @property
    def failed(self) -> SluiceError | None:
        """Why the index stopped."""
        return None if self._index is None else self._index.failed

    @property
    def recovering(self) -> bool:
        return self._index is not None and self._index.recovering

    async def start(self) -> None:
        """Nothing is to be taken possession of before the first object is written."""

    async def recovered(self) -> None:
        """At once: there was nothing."""

    def add(self, positions: Positions, hashes: Hashes, deliver_at: Times, now: int) -> Mask:
        """Which messages are delayed; see DelayedTracker."""
        if self._index is None:
            if not which_wait(deliver_at, now, self._own.settings.delayed_delivery_tick_time_millis).any():
                return np.zeros(positions.size, np.bool_)
            self._index = self._own.create()
        return self._index.add(positions, hashes, deliver_at, now)

    def pop_due(self, limit: int, now: int) -> tuple[Positions, Hashes]:
        """Up to `limit` due messages; see DelayedTracker."""
        return (NO_POSITIONS, NO_ROWS) if self._index is None else self._index.pop_due(limit, now)

    def contains(self, positions: Positions) -> Mask:
        """Which positions are tracked, shape (n,)."""
        return np.zeros(positions.size, np.bool_) if self._index is None else self._index.contains(positions)

    def next_untracked(self, start: int, end: int) -> int:
        """The first position >= start that is not tracked; `end` if there is none before it."""
        return min(start, end) if self._index is None else self._index.next_untracked(start, end)

    def untrack(self, positions: Positions) -> int:
        """Forget messages without giving them out; returns how many."""
        return 0 if self._index is None else self._index.untrack(positions)

    def next_due(self, now: int) -> int | None:
        """When to look again, in ms."""
        return None if self._index is None else self._index.next_due(now)

    def trim(self, mark_delete: int) -> None:
        """Everything at or below this position is done."""
        if self._index is not None:
            self._index.trim(mark_delete)

    async def clear(self) -> None:
        """Forget all messages. Raises Unavailable."""
        if self._index is not None:
            await self._index.clear()

    async def delete(self) -> None:
        """The subscription is deleted. The stores are asked, for an older owner may have left something meanwhile.
        Raises Fenced, Unavailable.
        """
        if self._index is None:
            self._index = self._own.make()
        await self._index.delete()

    def take_rescans(self) -> list[tuple[int, int]]:
        """Ranges to be read from the log again."""
        return [] if self._index is None else self._index.take_rescans()

    def room(self) -> int:
        """How many more messages may be read now."""
        return WAITING_MOST if self._index is None else self._index.room()

    def alarm(self) -> str:
        """The alarm of the index, for operators."""
        return "" if self._index is None else self._index.alarm()

    def pause_reads(self, now: int) -> bool:
        """Whether all reads should pause. Buckets never need that."""
        return False

    def undelayed(self) -> None:
        """Do nothing: the index never pauses reading."""

    def count(self) -> int:
        return 0 if self._index is None else self._index.count()

    def memory_bytes(self) -> int:
        """About what the index occupies in memory."""
        return 0 if self._index is None else self._index.memory_bytes()

    def stats(self) -> dict[str, Any]:
        """The statistics of the index; without one, those of one that has just begun."""
        index = replace(self._own, changed=_nobody).create() if self._index is None else self._index
        return index.stats()

    def histogram(self, slots: int = 20) -> list[Slot]:
        """Due times as (first ms, last ms, messages)."""
        return [] if self._index is None else self._index.histogram(slots)

    def next_messages(self, n: int) -> list[tuple[int, int]]:
        """The next messages in memory as (deliver_at ms, position)."""
        return [] if self._index is None else self._index.next_messages(n)

    async def close(self) -> None:
        """End background work, also that of an index that would come after this."""
        if self._index is None:
            self._index = self._own.make()
        await self._index.close()


def _nobody() -> None:
    """Do nothing: an index that is looked at once has no listener for its changes."""


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

"""One delayed index for all subscriptions of a partition (PIP-195, `delayed_delivery_shared_index_enabled`).

The index holds each delayed message once, whoever read it first. Every subscription has a view: a roaring bitmap of
what of the index is done for it, and an inbox of what has fallen due and it has not taken yet. Whoever asks first takes
what is due out of the index and puts it into the inbox of every view (the text of PIP-195), so a message leaves the
index once and reaches every subscription that is there.

A subscription that is not there, or comes later, loses nothing: it reads the log from its own mark-delete position, and
what has fallen due by then is delivered at once. An inbox that nobody empties is given up when it grows too long, and
its range is read from the log again. The bitmap of what is done is never stored: acknowledged messages are known to
the cursor, others have to be delivered again anyway.

The views live in the process of the index, and the index belongs to the partition's owner: `owner_epoch` is the epoch
of the partition, not of a subscription. Objects and manifest lie under the subscription name `_shared`, which no
subscription can have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from actors.delayed.buckets import LOOK_AHEAD_MS, BucketTracker
from actors.delayed.manifest import ManifestStore, manifest_key
from actors.delayed.memory import InMemoryTracker
from actors.messages import SubscriptionSettings
from actors.ports import Ports
from storage.delayed.browse import Slot
from storage.delayed.entries import Mask, Times
from storage.delayed.index import PositionIndex
from storage.errors import SluiceError
from storage.hashing import Hashes
from storage.position import Positions

INBOX_MOST = 1_000_000
"""Due messages that wait in one view before they are left to the log."""
PULL = 65_536


NAME = "_shared"


class SharedIndex:
    """The index of one partition. Make one with `make_shared_index`.

    make: makes the tracker that holds the index, which calls what it is given when something may be due.
    """

    def __init__(self, make: Callable[[Callable[[], None]], BucketTracker | InMemoryTracker], tick_ms: int = 0) -> None:
        self.tick_ms = tick_ms
        self.views: dict[str, SharedView] = {}
        self.tracker = make(self.changed)

    def changed(self) -> None:
        """Something may be due: tell every view."""
        for view in self.views.values():
            view.changed()

    def view(self, subscription: str, changed: Callable[[], None]) -> SharedView:
        """The view of a subscription; a new one if it comes back, for its dispatcher is a new one too."""
        view = self.views[subscription] = SharedView(self, subscription, changed)
        return view

    def distribute(self, now: int) -> None:
        """Move what is due, and what has to be read again, to all views."""
        for start, end in self.tracker.take_rescans():
            for view in self.views.values():
                view.reread(start, end)
        while True:
            positions, hashes = self.tracker.take(PULL, now)
            if not positions.size:
                return
            for view in self.views.values():
                view.receive(positions, hashes)

    def trim(self, lowest: int) -> None:
        """Everything at or below this position is done for every subscription, also those that are not there."""
        self.tracker.trim(lowest)


class SharedView:
    """A subscription's side of a shared index; a DelayedTracker."""

    def __init__(self, index: SharedIndex, subscription: str, changed: Callable[[], None]) -> None:
        self._index = index
        self._subscription = subscription
        self.changed = changed
        self._done = PositionIndex()
        self._inbox: deque[tuple[Positions, Hashes]] = deque()
        self._due = PositionIndex()
        """What waits in the inbox."""
        self._mark_delete = -1
        self._rescans: list[tuple[int, int]] = []
        self._seen = 0

    @property
    def failed(self) -> SluiceError | None:
        """Why the index stopped."""
        return self._index.tracker.failed

    async def start(self) -> None:
        """The index is started by its owner."""

    async def recovered(self) -> None:
        """Wait for the index."""
        await self._index.tracker.recovered()

    def add(self, positions: Positions, hashes: Hashes, deliver_at: Times, now: int) -> Mask:
        """Which of the messages are delayed for this subscription; see DelayedTracker."""
        self._seen = max(self._seen, now)
        waits = deliver_at > max(now + self._index.tick_ms, 0)
        later, due = positions[waits], positions[~waits]
        if due.size:
            # Delivered at once here; the others still have to get it from the index.
            self._due.discard(due)
            self._done.add(due[self._index.tracker.contains(due)])
        if later.size:
            self._done.discard(later)
            self._index.tracker.add(later, hashes[waits], deliver_at[waits], now)
        return waits

    def take(self, limit: int, now: int) -> tuple[Positions, Hashes]:
        """Up to `limit` due messages; see DelayedTracker."""
        self._seen = max(self._seen, now)
        self._index.distribute(now)
        parts: list[tuple[Positions, Hashes]] = []
        missing = limit
        while missing > 0 and self._inbox:
            positions, hashes = self._inbox.popleft()
            if positions.size > missing:
                self._inbox.appendleft((positions[missing:], hashes[missing:]))
                positions, hashes = positions[:missing], hashes[:missing]
            wanted = self._due.discard(positions)
            missing -= int(np.count_nonzero(wanted))
            parts.append((positions[wanted], hashes[wanted]))
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.uint32)
        return np.concatenate([p for p, _ in parts]), np.concatenate([h for _, h in parts])

    def receive(self, positions: Positions, hashes: Hashes) -> None:
        """Messages left the index because they are due."""
        wanted = ~self._done.discard(positions) & (positions > self._mark_delete)
        if not wanted.any():
            return
        if len(self._due) + int(np.count_nonzero(wanted)) > INBOX_MOST:
            self._overflow(positions[wanted])
            return
        self._due.add(positions[wanted])
        self._inbox.append((positions[wanted], hashes[wanted]))
        self.changed()

    def reread(self, start: int, end: int) -> None:
        """The index lost a range."""
        self._rescans.append((start, end))
        self.changed()

    def contains(self, positions: Positions) -> Mask:
        """Which of the positions wait for this subscription."""
        shared = self._index.tracker.contains(positions) & ~self._done.contains(positions)
        return (shared & (positions > self._mark_delete)) | self._due.contains(positions)

    def next_untracked(self, start: int, end: int) -> int:
        """The first position >= start that does not wait for this subscription; `end` if there is none."""
        at = start
        while at < end:
            beyond = self._index.tracker.next_untracked(at, end) if at > self._mark_delete else at
            beyond = min(beyond, self._done.next_present(at, end))
            beyond = max(beyond, self._due.next_absent(at, end))
            if beyond == at:
                return at
            at = beyond
        return end

    def untrack(self, positions: Positions) -> int:
        """Forget messages for this subscription; returns how many."""
        known = self.contains(positions)
        self._due.discard(positions)
        self._done.add(positions[self._index.tracker.contains(positions)])
        return int(np.count_nonzero(known))

    def next_due(self) -> int | None:
        """When to look again, in ms."""
        return self._seen if self._inbox else self._index.tracker.next_due()

    def trim(self, mark_delete: int) -> None:
        """Everything at or below is done for this subscription; the index is trimmed by its owner."""
        self._mark_delete = mark_delete
        self._done.discard_range(0, mark_delete + 1)
        self._due.discard_range(0, mark_delete + 1)

    async def clear(self) -> None:
        """Nothing of what is in the index is wanted here any more."""
        self._inbox.clear()
        self._due.clear()
        self._rescans.clear()
        self._mark_delete = -1
        self._done.replace(self._index.tracker.index)

    async def delete(self) -> None:
        """The subscription is gone; the index stays for the others."""
        self._index.views.pop(self._subscription, None)

    def take_rescans(self) -> list[tuple[int, int]]:
        """Ranges to be read from the log again."""
        rescans, self._rescans = self._rescans, []
        return rescans

    def behind(self) -> int:
        """See DelayedTracker."""
        return self._index.tracker.behind()

    def pause_reads(self, now: int) -> bool:
        """Another subscription may need what comes next."""
        return False

    def count(self) -> int:
        """Messages that wait for this subscription."""
        everything = self._index.tracker.index
        passed = everything.count_range(0, self._mark_delete + 1)
        return len(everything) - everything.common(self._done) - passed + len(self._due)

    def memory_bytes(self) -> int:
        """What this view needs beside the index."""
        columns = sum(positions.nbytes + hashes.nbytes for positions, hashes in self._inbox)
        return self._done.memory_bytes() + self._due.memory_bytes() + columns

    def loaded(self) -> int:
        """Index entries in memory, those of the shared index included."""
        return self._index.tracker.loaded() + len(self._due)

    def stats(self) -> dict[str, Any]:
        """The stats of the index, with this subscription's count (PIP-195: no more is exact per subscription)."""
        return {**self._index.tracker.stats(), "pulsar_subscription_delayed": self.count(), "shared": True}

    def histogram(self, slots: int = 20) -> list[Slot]:
        """Of the whole index."""
        return self._index.tracker.histogram(slots)

    def next_messages(self, n: int) -> list[tuple[int, int]]:
        """Of the whole index, as far as they wait for this subscription."""
        rows = self._index.tracker.next_messages(n)
        wanted = self.contains(np.array([place for _, place in rows], np.int64))
        return [row for row, here in zip(rows, wanted.tolist(), strict=True) if here]

    async def close(self) -> None:
        """The dispatcher is gone; what falls due meanwhile it will find in the log."""
        if self._index.views.get(self._subscription) is self:
            del self._index.views[self._subscription]

    def _overflow(self, positions: Positions) -> None:
        """Leave what is due to the log."""
        waiting = [positions, *(part for part, _ in self._inbox)]
        low, high = min(int(part.min()) for part in waiting), max(int(part.max()) for part in waiting)
        self._inbox.clear()
        self._due.clear()
        self.reread(low, high)


async def make_shared_index(
    ports: Ports,
    *,
    topic: str,
    partition: int,
    settings: SubscriptionSettings,
    owner_epoch: int,
    look_ahead_ms: int = LOOK_AHEAD_MS,
) -> SharedIndex:
    """A started index for all subscriptions of a partition, in bucket objects. Raises Fenced, Unavailable, Corrupt."""
    manifest = ManifestStore(ports, manifest_key(topic, partition, NAME), owner_epoch)

    def make(changed: Callable[[], None]) -> BucketTracker:
        return BucketTracker(
            ports,
            topic=topic,
            partition=partition,
            subscription=NAME,
            settings=settings,
            changed=changed,
            owner_epoch=owner_epoch,
            manifest=manifest,
            look_ahead_ms=look_ahead_ms,
        )

    index = SharedIndex(make, settings.delayed_delivery_tick_time_millis)
    await index.tracker.start()
    return index

"""One delayed index for all subscriptions of a partition (PIP-195, `delayed_delivery_shared_index_enabled`).

The index holds each delayed message once, whichever subscription read it first. Every subscription has a view: a
roaring bitmap of the messages that are done for it, and an inbox of due messages that it has not taken yet. The first
subscription that asks takes the due messages out of the index and puts them into the inbox of every view (the text of
PIP-195), so a message leaves the index once and reaches every subscription that is there.

A subscription that is not there, or comes later, loses nothing: it reads the log from its own mark-delete position, and
messages that are due by then are delivered at once. An inbox that nobody empties is given up when it grows too long,
and its range is read from the log again. The bitmap of done messages is never stored: the cursor knows acknowledged
messages, and others have to be delivered again anyway.

The index itself is strict: it gives out nothing before its time. A subscription with a tick has a message early only if
it reads it within its tick, so a tick of one never makes a message early for another.

**Where it lives.** A partition's topic and its dispatchers run in one process, so the views are plain objects and cost
no call (`docs/decisions/0005-the-shared-delayed-index-lives-beside-the-topic.md`). The index stays as long as the
process; what may change under it is the tracker, which the topic's owner opens under its epoch and hands in
(`actors.delayed.owner`). Until the first one is there, and if the partition goes to an owner elsewhere, a tracker in
memory takes its place. Before somebody wants the index there is neither, and that of most partitions is never wanted;
nor is there when the owner and the last view have left, since a later subscription reads the log.
At each change the entries that only memory held move along; the new owner finds the buckets in the manifest. A message
that a view had is done for it until its cursor has passed it, so nothing is given to it again.

Objects and manifest lie under the subscription name `_shared`, which no subscription can have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import numpy as np

from sluice.actors.delayed.buckets import BucketTracker
from sluice.actors.delayed.memory import InMemoryTracker
from sluice.actors.delayed.tracking import WAITING_MOST
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.ports import Address
from sluice.actors.runtime.waiting import SharedFuture
from sluice.storage.delayed.browse import Slot
from sluice.storage.delayed.core import which_wait
from sluice.storage.delayed.entries import Mask, Times
from sluice.storage.delayed.index import PositionIndex
from sluice.storage.errors import SluiceError
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions

INBOX_MOST = 1_000_000
"""Due messages that wait in one view before they are left to the log."""
PULL = 65_536
PATIENCE_MS = 5_000
"""So long a fenced index waits for the new owner's before everything is read into memory instead."""
NAME = "_shared"

Tracker = BucketTracker | InMemoryTracker
_DEFAULTS = SubscriptionSettings()


class SharedIndex:
    """The index of one partition in one process.

    wanted: whether a subscription asked for a view. settings: what the first one asked for, for the owner to open it.
    """

    __slots__ = ("_adopted", "_epoch", "_failed_at", "_opening", "_owner", "_tracker", "settings", "views", "wanted")

    def __init__(self) -> None:
        self.views: dict[Address, SharedView] = {}
        """By dispatcher: one that was overtaken, and has not ended yet, has its own beside the newer one's."""
        self.wanted = False
        self.settings = _DEFAULTS
        self._tracker: Tracker | None = None
        self._epoch = -1
        self._adopted = False
        """Whether an owner's index is here, or was and its readers are."""
        self._opening: SharedFuture[None] | None = None
        """Settled when the first owner's index is here; None while nobody waits for that."""
        self._owner: tuple[int, Callable[[], None]] | None = None
        """The epoch of the partition's owner, and whom it has told when the index is wanted."""
        self._failed_at: int | None = None

    @property
    def tracker(self) -> Tracker:
        """Return the tracker that keeps the index: the owner's, or one in memory."""
        if self._tracker is None:
            self._tracker = InMemoryTracker(lookahead=0, most=WAITING_MOST)
        return self._tracker

    def serve(self, epoch: int, wanted: Callable[[], None]) -> None:
        """The partition's owner of this epoch is told when the index is wanted, at once if it is; not if a newer one is
        here.
        """
        if self._owner is None or self._owner[0] <= epoch:
            self._owner = epoch, wanted
            if self.wanted:
                wanted()

    def abandon(self, epoch: int) -> None:
        """The partition's owner of this epoch has ended. Fine if it did not serve."""
        if self._owner is not None and self._owner[0] == epoch:
            self._owner = None
            self._forget_unused()

    def want(self, settings: SubscriptionSettings | None) -> None:
        """A subscription with these settings asks for a view."""
        if self.wanted:
            return
        if settings is not None:
            self.settings = msgspec.structs.replace(settings, delayed_delivery_tick_time_millis=0)
        self.wanted = True
        if self._owner is not None:
            self._owner[1]()

    def changed(self) -> None:
        """Notify every view that messages may be due."""
        for view in self.views.values():
            view.changed()

    def view(
        self, owner: Address, changed: Callable[[], None], settings: SubscriptionSettings | None = None
    ) -> SharedView:
        """The view of a dispatcher, until it leaves. No epoch is compared: a subscription that is made again begins
        with a low one, and a dispatcher that never took its record has none.
        """
        self.want(settings)
        tick = 0 if settings is None else settings.delayed_delivery_tick_time_millis
        view = self.views[owner] = SharedView(self, owner, changed, tick)
        return view

    def leave(self, owner: Address) -> None:
        """This dispatcher is gone; what falls due meanwhile, the next one finds in the log. Fine if it has no view."""
        if self.views.pop(owner, None) is not None:
            self._forget_unused()

    def adopt(self, tracker: Tracker, epoch: int, now: int) -> bool:
        """Go on with the tracker that the partition's owner of this epoch opened. False: a newer one is here."""
        if epoch < self._epoch:  # an owner whose index was deleted opens another one
            return False
        self._epoch, self._adopted = epoch, True
        self._switch(tracker, now, reread=tracker.rebuilt)
        if self._opening is not None:
            self._opening.set_result(None)
            self._opening = None
        return True

    async def opened(self) -> None:
        """Wait until an owner's index is here, and restored."""
        if not self._adopted:
            self._opening = self._opening or SharedFuture()
            await self._opening
        await self.tracker.recovered()

    def check_fenced(self, now: int) -> int | None:
        """Give a fenced index up when no new owner's came in time; returns when to look again, None if all is well."""
        if self.tracker.failed is None:
            self._failed_at = None
            return None
        if self._failed_at is None or now < self._failed_at:  # the clock may have been set back
            self._failed_at = now
        if now < self._failed_at + PATIENCE_MS:
            return self._failed_at + PATIENCE_MS
        self._switch(InMemoryTracker(lookahead=0, fallback=str(self.tracker.failed)), now, reread=True)
        return None

    def distribute(self, now: int, enough: Callable[[], bool]) -> None:
        """Move due messages, and those to read again, to all views, until one of them has enough."""
        self.check_fenced(now)
        self.share_rescans()
        while not enough():
            positions, hashes = self.tracker.pop_due(PULL, now)
            if not positions.size:
                return
            self._give(positions, hashes)

    def share_rescans(self) -> None:
        """Tell all views what the index lost. Who reads the log asks, because an index may lose all that it had."""
        for start, end in self.tracker.take_rescans():
            self._reread(start, end)

    def trim(self, lowest: int) -> None:
        """Everything at or below this position is done for every subscription, also those that are not there.

        A view may have gone back behind that meanwhile (seek); then only what it has passed goes.
        """
        self.tracker.trim(min([lowest, *(view.mark_delete for view in self.views.values())]))

    def _forget_unused(self) -> None:
        """Without an owner and readers nobody keeps the index in order, and nobody needs it."""
        if self._owner is None and not self.views:
            self._tracker, self._failed_at = None, None
            self._adopted = self.wanted = False

    def _switch(self, tracker: Tracker, now: int, *, reread: bool) -> None:
        """reread: the new tracker does not find what the old one stored."""
        old, self._tracker, self._failed_at = self.tracker, tracker, None
        for start, end in [*old.take_rescans(), *(old.stored() if reread else ())]:
            self._reread(start, end)
        entries = old.unsaved()
        waits = tracker.add(entries.positions, entries.hashes, entries.deliver_at, now)
        self._give(entries.positions[~waits], entries.hashes[~waits])
        self.changed()

    def _give(self, positions: Positions, hashes: Hashes) -> None:
        for view in self.views.values():
            view.receive(positions, hashes)

    def _reread(self, start: int, end: int) -> None:
        for view in self.views.values():
            view.reread(start, end)


class SharedIndexes:
    """The shared indexes of one process, by partition; given to its topics and dispatchers alike."""

    def __init__(self) -> None:
        self._indexes: dict[tuple[str, int], SharedIndex] = {}

    def get_or_create(self, topic: str, partition: int) -> SharedIndex:
        """The index of a partition, empty and in memory until the partition's owner hands in its own."""
        return self._indexes.setdefault((topic, partition), SharedIndex())


class SharedView:
    """A subscription's side of a shared index; a DelayedTracker. tick_ms: how much too early a message may come."""

    def __init__(self, index: SharedIndex, owner: Address, changed: Callable[[], None], tick_ms: int) -> None:
        self._index = index
        self._owner = owner
        self._tick_ms = tick_ms
        self.changed = changed
        self._done = PositionIndex()
        self._inbox: deque[tuple[Positions, Hashes]] = deque()
        self._due = PositionIndex()
        """What waits in the inbox."""
        self.mark_delete = -1
        self._rescans: list[tuple[int, int]] = []
        self.delete_other_index: Callable[[], Awaitable[None]] | None = None
        """Deletes what the subscription has in buckets of its own from an earlier time."""

    @property
    def failed(self) -> SluiceError | None:
        """Never: an index that was fenced is not the dispatcher's end, the partition's new owner brings another."""
        return None

    @property
    def recovering(self) -> bool:
        """Whether a new owner of the partition restores the index, while subscriptions go on."""
        return self._index.tracker.recovering

    async def start(self) -> None:
        """The index is started by its owner."""

    async def recovered(self) -> None:
        """Wait for the owner's index."""
        await self._index.opened()

    def add(self, positions: Positions, hashes: Hashes, deliver_at: Times, now: int) -> Mask:
        """Which of the messages are delayed for this subscription; see DelayedTracker."""
        waits = which_wait(deliver_at, now, self._tick_ms)
        later, due = positions[waits], positions[~waits]
        if due.size:
            # Delivered at once here; the others still have to get it from the index.
            self._due.discard(due)
            self._done.add(due)
        if later.size:
            self._done.discard(later)
            self._index.tracker.add(later, hashes[waits], deliver_at[waits], now)
        return waits

    def pop_due(self, limit: int, now: int) -> tuple[Positions, Hashes]:
        """Up to `limit` due messages; see DelayedTracker."""
        self._index.distribute(now, lambda: len(self._due) >= limit)
        parts: list[tuple[Positions, Hashes]] = []
        missing = limit
        while missing > 0 and self._inbox:
            positions, hashes = self._inbox.popleft()
            if positions.size > missing:
                self._inbox.appendleft((positions[missing:], hashes[missing:]))
                positions, hashes = positions[:missing], hashes[:missing]
            wanted = self._due.discard(positions)
            missing -= int(np.count_nonzero(wanted))
            self._done.add(positions[wanted])
            parts.append((positions[wanted], hashes[wanted]))
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.uint32)
        return np.concatenate([p for p, _ in parts]), np.concatenate([h for _, h in parts])

    def receive(self, positions: Positions, hashes: Hashes) -> None:
        """Messages left the index because they are due."""
        wanted = ~self._done.contains(positions) & (positions > self.mark_delete)
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
        return (shared & (positions > self.mark_delete)) | self._due.contains(positions)

    def next_untracked(self, start: int, end: int) -> int:
        """The first position >= start that does not wait for this subscription; `end` if there is none."""
        at = start
        while at < end:
            beyond = self._index.tracker.next_untracked(at, end) if at > self.mark_delete else at
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

    def next_due(self, now: int) -> int | None:
        """When to look again, in ms. What is in the inbox is due already, also if the clock has gone back since."""
        if self._inbox:
            return 0
        waits = self._index.check_fenced(now)
        return self._index.tracker.next_due(now) if waits is None else waits

    def trim(self, mark_delete: int) -> None:
        """Everything at or below is done for this subscription; the index is trimmed by its owner."""
        self.mark_delete = mark_delete
        self._done.discard_range(0, mark_delete + 1)
        self._due.discard_range(0, mark_delete + 1)

    async def clear(self) -> None:
        """Forget all messages of the index for this view."""
        self._inbox.clear()
        self._due.clear()
        self._rescans.clear()
        self.mark_delete = -1
        self._done.replace(self._index.tracker.index)

    async def delete(self) -> None:
        """The subscription is gone; the index stays for the others. Raises Unavailable."""
        self._index.leave(self._owner)
        if self.delete_other_index is not None:
            await self.delete_other_index()

    def take_rescans(self) -> list[tuple[int, int]]:
        """Ranges to be read from the log again."""
        self._index.share_rescans()
        rescans, self._rescans = self._rescans, []
        return rescans

    def room(self) -> int:
        return self._index.tracker.room()

    def alarm(self) -> str:
        """The alarm of the whole index."""
        return self._index.tracker.alarm()

    def pause_reads(self, now: int) -> bool:
        """Another subscription may need what comes next."""
        return False

    def undelayed(self) -> None:
        """Reading never pauses for a delay here."""

    def count(self) -> int:
        """Messages that wait for this subscription."""
        everything = self._index.tracker.index
        passed = everything.count_range(0, self.mark_delete + 1)
        held = everything.common(self._done) + everything.common(self._due)
        return len(everything) - held - passed + len(self._due)

    def memory_bytes(self) -> int:
        """The memory of this view beside the index."""
        columns = sum(positions.nbytes + hashes.nbytes for positions, hashes in self._inbox)
        return self._done.memory_bytes() + self._due.memory_bytes() + columns

    def loaded(self) -> int:
        """Index entries in memory for this subscription alone."""
        return len(self._due)

    def stats(self) -> dict[str, Any]:
        """This subscription's own statistics; those of the index are the topic's, and are repeated here for people."""
        return {
            "pulsar_delayed_message_index_loaded": self.loaded(),
            "pulsar_delayed_message_index_size_bytes": self.memory_bytes(),
            "pulsar_subscription_delayed": self.count(),
            "tracker": "shared",
            "sharedIndex": self._index.tracker.stats(),
        }

    def histogram(self, slots: int = 20) -> list[Slot]:
        """Return the due times of the whole index as (first ms, last ms, messages)."""
        return self._index.tracker.histogram(slots)

    def next_messages(self, n: int) -> list[tuple[int, int]]:
        """Return those of the next n messages of the whole index that wait for this subscription."""
        rows = self._index.tracker.next_messages(n)
        wanted = self.contains(np.array([place for _, place in rows], np.int64))
        return [row for row, here in zip(rows, wanted.tolist(), strict=True) if here]

    async def close(self) -> None:
        """The dispatcher is gone; what falls due meanwhile it will find in the log."""
        self._index.leave(self._owner)

    def _overflow(self, positions: Positions) -> None:
        """Leave due messages to the log."""
        waiting = [positions, *(part for part, _ in self._inbox)]
        low, high = min(int(part.min()) for part in waiting), max(int(part.max()) for part in waiting)
        self._inbox.clear()
        self._due.clear()
        self.reread(low, high)

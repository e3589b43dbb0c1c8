"""The bucket index of a subscription, which comes into being with the first delayed message.

Most subscriptions never have one. Where there is no manifest nothing was stored, because possession is taken before the
first object is written (`actors.delayed.manifest`), and as long as nothing was added nothing waits: so every question
has the answer of an empty index, and no store is asked. An owner that finds a manifest has its index from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sluice.actors.delayed.buckets import BucketTracker
from sluice.actors.delayed.manifest import ManifestStore, manifest_key
from sluice.actors.delayed.objects import BucketObjects
from sluice.actors.delayed.tracking import WAITING_MOST
from sluice.actors.messages import NO_POSITIONS, NO_ROWS, SubscriptionSettings
from sluice.actors.ports import Ports
from sluice.storage.delayed.browse import Slot
from sluice.storage.delayed.core import which_wait
from sluice.storage.delayed.entries import Mask, Times
from sluice.storage.errors import SluiceError
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions


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

"""A stand-in for the dispatcher: a log, a cursor, and the rules by which it uses a tracker.

The log and the acknowledged positions outlive a life; what was read, tracked or delivered without acknowledgement does
not. `Broker` reads the log from the mark-delete position, hands messages to the tracker, delivers what is due at once
and what the tracker gives out, and reads lost ranges again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from sluice.actors.delayed.buckets import BucketTracker
from sluice.actors.delayed.manifest import ManifestStore, manifest_key
from sluice.actors.delayed.objects import BucketObjects
from sluice.actors.messages import SubscriptionSettings
from sluice.storage.delayed.core import tracked
from sluice.storage.errors import Fenced
from sluice.storage.format.position import position
from tests.actors.delayed.world import Fault, Life, World

TOPIC, PARTITION, SUBSCRIPTION = "orders", 0, "billing"
PREFIX = f"delayed/{TOPIC}/{PARTITION}/{SUBSCRIPTION}/"
KEY = manifest_key(TOPIC, PARTITION, SUBSCRIPTION)


def bucket_settings(
    *, min_count: int = 5, cap: int = -1, max_buckets: int = 50, step_s: int = 1, tick: int = 0
) -> SubscriptionSettings:
    """Settings of a bucket tracker with small numbers."""
    return SubscriptionSettings(
        delayed_delivery_min_index_count_per_bucket=min_count,
        delayed_delivery_max_indexes_per_bucket_snapshot_segment=cap,
        delayed_delivery_max_num_buckets=max_buckets,
        delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=step_s,
        delayed_delivery_tick_time_millis=tick,
    )


class Log:
    """The durable state beside the index: messages in order of position, and the acknowledged ones."""

    def __init__(self) -> None:
        self.due: dict[int, int] = {}
        self.acknowledged: dict[int, int] = {}

    def publish(self, ledger: int, dues: list[int]) -> None:
        """Append messages to a ledger."""
        first = sum(place >> 32 == ledger for place in self.due)
        for entry, due in enumerate(dues):
            self.due[position(ledger, first + entry)] = due

    def mark_delete(self) -> int:
        """The last position before the first message that is not acknowledged; -1 for none."""
        last = -1
        for place in sorted(self.due):
            if place not in self.acknowledged:
                return last
            last = place
        return last


class Broker:
    """One life of a subscription's owner."""

    def __init__(
        self,
        world: World,
        log: Log,
        settings: SubscriptionSettings,
        epoch: int,
        script: Callable[[int, str, str], Fault] | None = None,
        look_ahead_ms: int = 0,
    ) -> None:
        self.world = world
        self.log = log
        self.life = Life(world, script)
        self.signals = 0
        self.delivered: list[int] = []
        self.epoch = epoch
        ports = self.life.ports
        self.tracker = BucketTracker(
            ports,
            objects=BucketObjects(ports, TOPIC, PARTITION, SUBSCRIPTION),
            manifest=ManifestStore(ports, KEY, epoch),
            settings=settings,
            changed=self._changed,
            look_ahead_ms=look_ahead_ms,
        )
        self._read = -1

    def _changed(self) -> None:
        self.signals += 1

    async def start(self) -> bool:
        """Take over and recover. False if the life ended on the way."""

        async def begin() -> None:
            await self.tracker.start()
            await self.tracker.recovered()
            self.tracker.untrack(np.array(sorted(self.log.acknowledged), np.int64))
            self._read = self.log.mark_delete()
            self.tracker.trim(self._read)

        begun = self.life.spawn(begin(), "start")
        await self.world.settle()
        while not begun.done() and not self.life.dead:
            await self.world.advance(50)
        return not self.life.dead

    def read(self) -> None:
        """Read the log from where this life has come, leaving out what is acknowledged or tracked."""
        places = [p for p in sorted(self.log.due) if p > self._read]
        self._read = max([self._read, *places])
        self._feed(places)

    def reread(self) -> None:
        """Read ranges whose index was lost."""
        for start, end in self.tracker.take_rescans():
            self._feed([p for p in sorted(self.log.due) if start <= p <= end])

    def _feed(self, places: list[int]) -> None:
        at_hand = [p for p in places if p not in self.log.acknowledged and p not in self.delivered]
        for ledger in sorted({p >> 32 for p in at_hand}):
            column = np.array([p for p in at_hand if p >> 32 == ledger], np.int64)
            due = np.array([self.log.due[int(p)] for p in column], np.int64)
            waits = self.tracker.add(column, (column & 0xFFFF).astype(np.uint32), due, self.world.now)
            self._deliver(column[~waits].tolist())

    def take(self, limit: int = 1000) -> list[int]:
        """Deliver what the tracker gives out."""
        positions, hashes = self.tracker.pop_due(limit, self.world.now)
        assert ((positions & 0xFFFF) == hashes).all()
        taken = cast(list[int], positions.tolist())
        self._deliver(taken)
        return taken

    def _deliver(self, places: list[int]) -> None:
        for place in places:
            assert self.log.due[place] <= self.world.now, "a message came early"
            assert place not in self.delivered, "a message came twice in one life"
            self.delivered.append(place)

    def acknowledge(self, places: list[int]) -> None:
        """Acknowledge, durably."""
        self.log.acknowledged.update(dict.fromkeys(places, 1))
        self.tracker.trim(self.log.mark_delete())

    async def pump(self) -> None:
        """Take and settle until nothing is due any more."""
        while not self.life.dead and self.tracker.failed is None:
            await self.world.settle()
            self.reread()
            if not self.take():
                await self.world.settle()
                if not self.take() and not self.tracker._bucket_set.rescans:
                    return

    async def run_until(self, end: int, *, acknowledge: bool = False) -> None:
        """Let time pass as a dispatcher does: wake at next_due, take, and acknowledge at once if asked."""
        while not self.life.dead:
            await self.pump()
            if acknowledge:
                self.acknowledge([p for p in self.delivered if p not in self.log.acknowledged])
            due = self.tracker.next_due(self.world.now)
            if self.world.now >= end:
                return
            # Without a due time the dispatcher sleeps until it is told; the pause stands for any time passing.
            pause = min(50 if due is None else max(due - self.world.now, 1), end - self.world.now)
            await self.world.advance(pause)

    def recount(self) -> None:
        """Every counter equals what a count of the parts gives."""
        tracker = self.tracker
        bucket_set, core = tracker._bucket_set, tracker._core
        assert tracker.count() == sum(len(bitmap) for _, bitmap in core.index.ledgers())
        stats = tracker.stats()
        assert stats["pulsar_delayed_message_index_bucket_total"] == len(bucket_set.buckets) + 1
        assert tracker.loaded() == sum(len(part) for part in bucket_set.memory())
        assert not [b for b in bucket_set.buckets if b.horizon() < (-1, 0)]
        held = len(tracked(bucket_set.memory(), core.index))
        unloaded = sum(int(b.table.count[b.next_segment :].sum()) for b in bucket_set.buckets if b.table is not None)
        assert tracker.count() <= held + unloaded

    def leftover(self) -> list[str]:
        """Objects that the manifest of this life does not name."""
        named = [self.tracker._objects.name(key) for key in self.tracker._bucket_set.named]
        return [name for name in self.world.objects if name not in named]

    async def end(self) -> None:
        """The process ends."""
        await self.life.end()
        errors = [error for error in self.life.errors if not isinstance(error, Fenced)]
        assert not errors, errors

"""The bucket tracker: delayed delivery beyond memory (PIP-195, rules BD-9 to BD-33 in their repaired form).

This class is the synchronous face that the dispatcher talks to. It holds what is in memory (`DelayedCore`) and the
buckets (`BucketSet`), and hands slow work to the sealer, loader, merger, collector and recovery, which run in the
background and call `changed` when there may be something new to take. The ledger stays the truth: whatever the
index loses is found again by reading the log from the mark-delete position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sluice.actors.delayed.bucket_set import BucketSet
from sluice.actors.delayed.loader import Loader
from sluice.actors.delayed.maintenance import BucketMaintenance
from sluice.actors.delayed.manifest import ManifestStore
from sluice.actors.delayed.objects import BucketObjects
from sluice.actors.delayed.sealer import BEHIND, Sealer
from sluice.actors.delayed.tracking import WAITING_MOST, CoreTracker
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.ports import Ports
from sluice.storage.delayed.browse import Slot, histogram
from sluice.storage.delayed.core import tracked
from sluice.storage.delayed.entries import END, Entries, Mask, Times
from sluice.storage.delayed.live import BucketState
from sluice.storage.errors import SluiceError
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions

LOOK_AHEAD_MS = 5_000
"""Segments that start so soon are loaded ahead."""


class BucketTracker(CoreTracker):
    """Delayed messages of one subscription on one partition, indexed by bucket objects.

    changed: called synchronously when something may have become due or loadable. failed is set when a newer owner
    fenced this one; nothing is given out any more then. under_readers: readers of the log were there before this
    tracker and count on what it restores, due or not. Times are milliseconds.
    """

    def __init__(
        self,
        ports: Ports,
        *,
        objects: BucketObjects,
        manifest: ManifestStore,
        settings: SubscriptionSettings,
        changed: Callable[[], None],
        look_ahead_ms: int = LOOK_AHEAD_MS,
        under_readers: bool = False,
    ) -> None:
        super().__init__(settings.delayed_delivery_tick_time_millis)
        self._objects = objects
        self._bucket_set = BucketSet(ports, self._core, self._objects, manifest, changed, look_ahead_ms)
        self._sealer = Sealer(
            self._bucket_set,
            settings.delayed_delivery_min_index_count_per_bucket,
            settings.delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds * 1000,
            settings.delayed_delivery_max_indexes_per_bucket_snapshot_segment,
            lambda leftover: self._maintenance.collect_later() if leftover else self._maintenance.kick(),
        )
        self._loader = Loader(
            self._bucket_set, lambda lost: self._maintenance.kick() if lost else self._maintenance.arm()
        )
        self._maintenance = BucketMaintenance(
            self._bucket_set,
            self._sealer,
            self._loader,
            settings.delayed_delivery_max_num_buckets,
            under_readers=under_readers,
        )
        self._deleted = False
        self._held_back = False

    async def start(self) -> None:
        """Take possession of the manifest; the headers are read in the background. Raises Fenced, Unavailable."""
        await self._maintenance.start()

    def start_empty(self) -> None:
        """Instead of `start`, where somebody has looked and there is no manifest."""
        self._maintenance.start_empty()

    def start_later(self, error: SluiceError) -> None:
        """The manifest could not be opened: everything is kept in memory until it can (BD-33)."""
        self._maintenance.start_later(error)

    @property
    def rebuilt(self) -> bool:  # type: ignore[override]
        """Whether a damaged manifest was replaced."""
        return self._bucket_set.manifest.rebuilt

    @property
    def recovering(self) -> bool:  # type: ignore[override]
        """Whether headers of buckets are still read."""
        return self._bucket_set.recovering

    async def recovered(self) -> None:
        """Wait until the index of all buckets is restored (or given to a rescan)."""
        await self._maintenance.recovered()

    @property
    def failed(self) -> SluiceError | None:
        """Why the tracker stopped; None while it works."""
        return self._bucket_set.failed

    def add(self, positions: Positions, hashes: Hashes, deliver_at: Times, now: int) -> Mask:
        """Which of the messages are delayed, shape (n,); False: deliver now. Repeating changes nothing (BD-11)."""
        waits, new = self._core.admit(positions, hashes, deliver_at, now)
        if self._bucket_set.recovering:
            self._core.keep(new)
        else:
            self._sealer.keep(new)
        self._maintenance.given_out(positions[~waits])
        return waits

    def pop_due(self, limit: int, now: int) -> tuple[Positions, Hashes]:
        """Up to `limit` due messages in the order (deliver_at, position); they are untracked by this.

        Fewer while a segment loads; `changed` tells when to ask again.
        """
        if self._bucket_set.failed is not None:
            return np.empty(0, np.int64), np.empty(0, np.uint32)
        horizon = self._bucket_set.horizon()
        taken = self._core.pop_due(limit, now, self._bucket_set.runs, horizon)
        self._maintenance.given_out(taken[0])
        if self._bucket_set.was_pulled() or horizon[0] <= self._core.cutoff(now):
            self._loader.pump(now)
            if self._bucket_set.any_exhausted():
                self._maintenance.kick()
            self._maintenance.arm()
        return taken

    def next_due(self, now: int) -> int | None:
        """When to look again, in ms; None if nothing waits, or only what cannot be loaded now."""
        first = min(self._core.bound(), self._bucket_set.horizon())
        if not self._core.has_ready():
            first = min([first, *(bucket.run.bound() for bucket in self._bucket_set.buckets)])
        return first[0] if first < END else None

    def trim(self, mark_delete: int) -> None:
        """Everything at or below the mark-delete position is done (BD-24)."""
        self._core.forget_range(0, mark_delete + 1)
        if self._bucket_set.retire_below(mark_delete):
            self._maintenance.kick()

    async def clear(self) -> None:
        """Forget everything, durably (BD-26). Raises Unavailable: memory is empty, the manifest will be."""
        self._core.clear()
        self._maintenance.cancel_recovery()
        self._bucket_set.remove_all()
        self._bucket_set.drops.update(dict.fromkeys(self._bucket_set.named))
        try:
            await self._maintenance.start()
            await self._maintenance.forget_names()
        finally:
            self._maintenance.collect_later()

    async def delete(self) -> None:
        """Clear, delete all objects and the manifest record: the subscription is gone. Raises Fenced, Unavailable.

        Nothing has to have been started or read before; once it has worked, asking again changes nothing.
        """
        if self.failed is not None:
            raise self.failed
        if not self._deleted:
            await self.clear()
            await self._maintenance.delete_everything()
            self._deleted = True

    def take_rescans(self) -> list[tuple[int, int]]:
        """Position ranges (both ends inclusive) whose index was lost: the log has to be read there again."""
        rescans, self._bucket_set.rescans = self._bucket_set.rescans, []
        return rescans

    def unsaved(self) -> Entries:
        """Entries that only memory holds, and no bucket, in the order (deliver_at, position)."""
        waiting = [bucket.run.rest() for bucket in self._bucket_set.buckets if bucket.state is not BucketState.LIVE]
        return tracked([*self._core.parts(), *waiting], self._core.index)

    def stored(self) -> list[tuple[int, int]]:
        """Position ranges (both ends inclusive) of the buckets that the manifest names."""
        return [(record.start, record.end) for record in self._bucket_set.named.values()]

    def room(self) -> int:
        """How many more messages may be read: none while too much waits in memory for the store."""
        if self._bucket_set.unwritten() > BEHIND:
            return 0
        left = max(WAITING_MOST - self._waiting(), 0)
        if (left == 0) != self._held_back:
            self._held_back = left == 0
            event = "delayed_reading_paused" if self._held_back else "delayed_reading_goes_on"
            self._bucket_set.ports.log(event, owner=self._objects.owner, waiting=self._waiting(), error=self._why())
        return left

    def _waiting(self) -> int:
        """Entries that are in memory only because they cannot be stored yet."""
        return self._bucket_set.waiting() + (len(self._core.mutable) if self._bucket_set.recovering else 0)

    def _why(self) -> str:
        return self._maintenance.fallback or self._bucket_set.last_error

    def alarm(self) -> str:
        """The alarm that operators see; empty if all is well."""
        if self._held_back:
            return f"reading is paused: {self._waiting()} delayed messages wait for the store: {self._why()}"
        if self._maintenance.fallback is not None or any(
            bucket.state is BucketState.PARKED for bucket in self._bucket_set.buckets
        ):
            return f"{self._waiting()} delayed messages are in memory only: {self._why()}"
        return ""

    def pause_reads(self, now: int) -> bool:
        """Whether all reads should pause (BD-6). Buckets never need that."""
        return False

    def memory_bytes(self) -> int:
        """About what the tracker occupies in memory."""
        buckets = sum(bucket.memory_bytes() for bucket in self._bucket_set.buckets)
        return self._core.index.memory_bytes() + self._core.column_bytes() + buckets

    def loaded(self) -> int:
        return self._core.loaded() + self._bucket_set.loaded()

    def stats(self) -> dict[str, Any]:
        """`bucketDelayedIndexStats`: the metrics of PIP-195 by name, the states of the buckets, and the recovery."""
        bucket_set, operations = self._bucket_set, self._objects.operations
        states = [bucket.state for bucket in bucket_set.buckets]
        return {
            "pulsar_delayed_message_index_bucket_total": len(states) + 1,
            "pulsar_delayed_message_index_loaded": self.loaded(),
            "pulsar_delayed_message_index_bucket_snapshot_size_bytes": sum(r.size for r in bucket_set.named.values()),
            "pulsar_delayed_message_index_bucket_op_count": operations.op_counts(),
            "pulsar_delayed_message_index_bucket_op_latency_ms": operations.op_latency(),
            "pulsar_delayed_message_index_size_bytes": self.memory_bytes(),
            "pulsar_subscription_delayed": self.count(),
            "tracker": "bucket",
            "fallback": self._maintenance.fallback,
            "alarm": self.alarm(),
            "waiting_for_store": self._waiting(),
            "buckets": len(states),
            "in_memory_mode": states.count(BucketState.PARKED),
            "being_written": states.count(BucketState.BUILDING),
            "stalled": sum(bucket.stalled for bucket in bucket_set.buckets),
            "lost_buckets": bucket_set.damaged,
            "pending_rescans": len(bucket_set.rescans),
            "last_error": bucket_set.last_error,
            "merges_waiting": self._maintenance.too_many(),
            "recovery": self._maintenance.recovery_progress(),
        }

    def histogram(self, slots: int = 20) -> list[Slot]:
        """Due times as (first ms, last ms, messages) slots, from headers and memory, without loading anything."""
        parts = [tracked(self._core.parts(), self._core.index)]
        tables = []
        for bucket in self._bucket_set.buckets:
            parts.append(bucket.run.rest())
            if bucket.table is not None:
                tables.append((bucket.table, bucket.next_segment))
        return histogram(parts, tables, slots)

    def next_messages(self, n: int) -> list[tuple[int, int]]:
        """The next `n` messages in memory as (deliver_at ms, position), in order."""
        entries = tracked(self._bucket_set.memory(), self._core.index)
        horizon = self._bucket_set.horizon()
        stop = min(n, int(np.searchsorted(entries.deliver_at, horizon[0], "left")))
        return list(zip(entries.deliver_at[:stop].tolist(), entries.positions[:stop].tolist(), strict=True))

    async def close(self) -> None:
        """End background work without writing: unsealed messages are found again in the log."""
        self._maintenance.close()

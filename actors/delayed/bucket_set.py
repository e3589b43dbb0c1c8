"""The buckets of one subscription: which exist, which the manifest names, and the one way to change that.

Every change of the manifest goes through `commit`, one at a time: compute the wanted names from the present ones,
write them as the next version, and only then change memory. A change that finds its bucket gone while it waited for
its turn gives up. Losing the write is final: the bucket_set fails, and with it the tracker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sluice.actors.delayed.manifest import ManifestStore
from sluice.actors.delayed.objects import BucketObjects, Key
from sluice.actors.ports import Ports
from sluice.actors.runtime.waiting import Signal
from sluice.storage.delayed.core import DelayedCore
from sluice.storage.delayed.entries import END, Bound, Entries, concat
from sluice.storage.delayed.live import Bucket, BucketState
from sluice.storage.delayed.manifest import BucketRecord, Manifest
from sluice.storage.delayed.queue import SortedRun
from sluice.storage.errors import Corrupt, Fenced, NotFound, SluiceError

Names = dict[Key, BucketRecord]


class BucketSet:
    """The state shared by sealing, loading, merging, recovery and collecting.

    changed: called when something may have become due or loadable. look_ahead_ms: segments that start so soon are
    loaded ahead.
    """

    def __init__(
        self,
        ports: Ports,
        core: DelayedCore,
        objects: BucketObjects,
        manifest: ManifestStore,
        changed: Callable[[], None],
        look_ahead_ms: int,
    ) -> None:
        self.ports = ports
        self.core = core
        self.objects = objects
        self.manifest = manifest
        self.look_ahead_ms = look_ahead_ms
        self.changed = changed
        self.buckets: list[Bucket] = []
        """Building, parked and live ones. Invariant: ordered by start and key, and none is GONE."""
        self.named: Names = {}
        """Invariant: the buckets in the newest version of the manifest whose outcome is known."""
        self.landed = Signal()
        self.inflight: dict[Key, None] = {}
        """Objects that may be written but are not named yet. Invariant: the collector deletes none of them."""
        self.drops: dict[Key, None] = {}
        """Named objects that are not needed any more."""
        self.lost: dict[Key, bool] = {}
        """Named objects that cannot be read, and whether they exist."""
        self.last_error = ""
        """The latest refusal of a store."""
        self.rescans: list[tuple[int, int]] = []
        self.mark_delete = -1
        """The position of the last trim; everything at or below it is done."""
        self.failed: SluiceError | None = None
        self.opened = False
        """Whether the manifest was read, and is in this owner's possession if there is one.

        Invariant: nothing is committed before.
        """
        self.recovering = True
        """Whether it is not known yet what the buckets hold: nothing may be sealed."""
        self.closed = False
        self.damaged = 0
        """Buckets that were missing or corrupt since the start: the alarm counter."""
        self._next_number = 1
        """Invariant: above the number of every object of this epoch."""
        self._lock = asyncio.Lock()
        self._horizon: Bound | None = None
        """Invariant: None, or the least horizon of all buckets that are not stalled."""
        self._pulled = False

    @property
    def stopped(self) -> bool:
        """Whether background work has to end."""
        return self.closed or self.failed is not None

    def new_key(self) -> Key:
        """A name that was never used, protected from the collector until `inflight` forgets it."""
        key = (self.manifest.epoch, self._next_number)
        self._next_number += 1
        self.inflight[key] = None
        return key

    def reserve(self, number: int) -> None:
        """Never use a number up to this one: an object of the same epoch has it."""
        self._next_number = max(self._next_number, number + 1)

    def release(self, key: Key) -> None:
        """An object is not being written any more."""
        self.inflight.pop(key, None)
        if not self.inflight:
            self.landed.set()

    async def wait_landed(self) -> None:
        """Until no object is being written."""
        while self.inflight:
            self.landed.clear()
            await self.landed.wait(self.ports)

    def is_past(self, key: Key) -> bool:
        """Whether an object of this name can no longer come to be named, if the manifest is this owner's.

        A newer owner takes the manifest before it writes an object. So an object of a newer epoch that was there while
        the manifest was ours belongs to an earlier life of the name.
        """
        epoch, number = key
        return epoch != self.manifest.epoch or (number < self._next_number and key not in self.inflight)

    def add(self, bucket: Bucket) -> None:
        """Put a bucket in its place."""
        self.buckets.append(bucket)
        self.buckets.sort(key=lambda one: (one.start, one.key))
        self.touch()

    def remove(self, bucket: Bucket) -> None:
        """Take a bucket out; tasks that still work on it will notice."""
        if bucket.state is not BucketState.GONE:
            bucket.state = BucketState.GONE
            self.buckets.remove(bucket)
            self.touch()

    def unwritten(self) -> int:
        """How many sealed buckets still wait to be written."""
        return sum(bucket.state is BucketState.BUILDING for bucket in self.buckets)

    def waiting(self) -> int:
        """How many entries of sealed buckets only memory holds."""
        return sum(len(bucket.run) for bucket in self.buckets if bucket.state is not BucketState.LIVE)

    def remove_all(self) -> None:
        for bucket in list(self.buckets):
            self.remove(bucket)
        self.rescans.clear()
        self.mark_delete = -1

    def retire(self, bucket: Bucket) -> None:
        """Take out a bucket that is not needed any more; the maintenance takes it out of the manifest."""
        self.remove(bucket)
        if bucket.key in self.named:
            self.drops[bucket.key] = None

    def retire_below(self, mark_delete: int) -> bool:
        """Retire what ends at or below a position; a whole bucket or nothing (BD-24). True if there was any.

        That goes also for what the manifest names and nobody could read.
        """
        if mark_delete == self.mark_delete:
            return False
        self.mark_delete = mark_delete
        passed = [bucket for bucket in self.buckets if bucket.highest() <= mark_delete]
        for bucket in passed:
            self.retire(bucket)
        named = [key for key, record in self.named.items() if record.end <= mark_delete and key not in self.drops]
        self.drops.update(dict.fromkeys(named))
        return bool(passed or named)

    def set_names(self, named: Names) -> None:
        """The buckets that the manifest names now."""
        self.named = named

    def any_exhausted(self) -> bool:
        """Whether a bucket has given out everything."""
        return any(bucket.exhausted() for bucket in self.buckets)

    def was_pulled(self) -> bool:
        """Whether entries left the buckets since the last time this was asked."""
        pulled, self._pulled = self._pulled, False
        return pulled

    def touch(self) -> None:
        """The horizon has to be looked up again."""
        self._horizon = None

    def horizon(self) -> Bound:
        """The least entry that is missing in memory and can be loaded; END if there is none."""
        if self._horizon is None:
            self._horizon = min((b.horizon() for b in self.buckets if not b.stalled), default=END)
        return self._horizon

    def runs(self) -> list[SortedRun]:
        """The entries of buckets that are in memory, to be pulled from."""
        self._pulled = True
        return [bucket.run for bucket in self.buckets if len(bucket.run)]

    def loaded(self) -> int:
        """How many entries of buckets are in memory."""
        return sum(len(bucket.run) for bucket in self.buckets)

    def live(self) -> list[Bucket]:
        """The buckets that the manifest names and that can be read, ordered by their start."""
        return [bucket for bucket in self.buckets if bucket.state is BucketState.LIVE]

    async def commit(self, change: Callable[[Names], Names | None]) -> bool:
        """Change what the manifest names. change gets a copy and returns the wanted names, None to give up.

        False: given up. Raises Unavailable (the change may or may not be there; commit again) or Fenced.
        """
        async with self._lock:
            if self.stopped or not self.opened:
                return False
            wanted = change(dict(self.named))
            if wanted is None:
                return False
            records = tuple(sorted(wanted.values(), key=lambda record: (record.start, record.key)))
            try:
                await self.manifest.commit(Manifest(self.manifest.epoch, records))
            except Fenced as error:
                self.fail(error)
                raise
            self.set_names(wanted)
            return True

    async def possess(self) -> None:
        """Take possession of the manifest if that was left; before the first object. Raises Unavailable, Fenced."""
        if self.manifest.begun:
            await self.commit(lambda names: names)

    async def forget_manifest(self) -> None:
        """Remove the record of the manifest, as the last deed. Raises Unavailable."""
        async with self._lock:
            await self.manifest.remove()
            self.closed = True

    def fail(self, error: SluiceError) -> None:
        """Stop for good: there is a newer owner."""
        if self.failed is None:
            self.failed = error
            self.ports.log("delayed_failed", owner=self.objects.owner, error=str(error))
            self.changed()

    def lose(self, bucket: Bucket, error: SluiceError) -> None:
        """A bucket cannot be read and never will: its range is read from the log again (never a loss, never a delete).

        What of the range is still in memory and waits stays tracked, not what was given out and has left its columns
        only in part; a position that another bucket holds too is tracked twice, and the index gives it out once.
        """
        if bucket.state is BucketState.GONE:
            return
        self.note_loss(bucket.key, error)
        run = bucket.run
        self.remove(bucket)
        self.core.add_loose(run)
        memory = concat([part for part in self.memory() if len(part)])
        inside = (memory.positions >= bucket.start) & (memory.positions <= bucket.end)
        waits = memory.positions[inside & self.core.index.contains(memory.positions)]
        self.core.index.discard_range(bucket.start, bucket.end + 1)
        self.core.index.add(waits)
        self.rescans.append((bucket.start, bucket.end))

    def note_loss(self, key: Key, error: SluiceError) -> None:
        """Raise the alarm, and have the maintenance mark the object as damaged, or forget it if it is missing."""
        self.damaged += 1
        self.lost[key] = isinstance(error, Corrupt)
        self.ports.log("delayed_bucket_lost", bucket=self.objects.name(key), error=str(error))

    def refused(self, what: str, name: str, error: SluiceError) -> None:
        """A store refused a piece of work, which is put off; the stats and the log show why."""
        self.last_error = f"{what} {name}: {error}"
        self.ports.log("delayed_store_refused", what=what, name=name, error=str(error))

    @staticmethod
    def is_final(error: SluiceError) -> bool:
        """Whether reading again cannot help."""
        return isinstance(error, NotFound | Corrupt)

    def memory(self) -> list[Entries]:
        """All entries in memory as views, in no order; some may no longer be tracked."""
        return [*self.core.parts(), *(bucket.run.rest() for bucket in self.buckets)]

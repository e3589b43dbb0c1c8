"""Keeps the buckets in order in the background: recovery, retiring, merging, collecting, and the one timer.

One maintenance pass runs at a time. It repeats as long as something was asked for while it ran, so a kick is never
lost. What fails because a store is away is tried again after a pause; nothing waits for a message to come by. That goes
also for the manifest itself: until it can be opened, everything is in memory, and nothing is written.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from sluice.actors.delayed.bucket_set import BucketSet, Names
from sluice.actors.delayed.collector import Collector
from sluice.actors.delayed.loader import Loader
from sluice.actors.delayed.merger import Merger
from sluice.actors.delayed.recovery import IndexRecovery
from sluice.actors.delayed.sealer import Sealer
from sluice.actors.ports import Task
from sluice.actors.runtime.store_attempts import REFUSALS
from sluice.actors.runtime.wall_clock import pause_until
from sluice.storage.delayed.entries import NEVER
from sluice.storage.delayed.manifest import Manifest
from sluice.storage.errors import Fenced, SluiceError, Unavailable
from sluice.storage.format.position import Positions

RETRY_MS = 5_000
"""Pause after a maintenance step that a store refused."""
OPEN_MS = 1_000
"""Pause before the manifest is asked for again."""
COLLECT_FIRST_MS, COLLECT_MOST_MS = 60_000, 3_600_000
"""Pauses between collections that nothing asked for; each is twice as long as the one before it."""


class BucketMaintenance:
    """Background work of one bucket tracker."""

    def __init__(
        self, bucket_set: BucketSet, sealer: Sealer, loader: Loader, max_buckets: int, *, under_readers: bool
    ) -> None:
        self._bucket_set = bucket_set
        self._sealer = sealer
        self._loader = loader
        self._merger = Merger(bucket_set, max_buckets, sealer.step_ms, sealer.max_entries)
        self._collector = Collector(bucket_set)
        self._recovery = IndexRecovery(bucket_set, self._recovered, under_readers=under_readers)
        self._opening = asyncio.Lock()
        self.fallback: str | None = None
        """Why everything is in memory for now; None if the manifest is open."""
        self._running = False
        self._again = False
        self._collect_pause = COLLECT_FIRST_MS
        self._collect_at: int | None = None
        self._retry_at: int | None = None
        self._timer: Task | None = None
        self._timer_at = NEVER

    async def start(self) -> None:
        """Take possession and begin recovery, if that has not happened. Raises Fenced, Unavailable."""
        async with self._opening:
            if not self._bucket_set.opened:
                self._begin(await self._bucket_set.manifest.open())

    def start_empty(self) -> None:
        """Instead of `start`, where somebody has looked and there is no manifest: nothing is read or recovered."""
        self._begin(self._bucket_set.manifest.create())

    def _begin(self, manifest: Manifest) -> None:
        self._bucket_set.opened, self.fallback = True, None
        if self._bucket_set.manifest.begun:
            # Nothing ought to be there: what an earlier life left behind is looked for behind the first object.
            self._collector.due = False
        self._recovery.start(manifest.buckets)

    def start_later(self, error: SluiceError) -> None:
        """Go on in memory, and take possession as soon as the store lets us."""
        self.fallback = str(error)
        self._bucket_set.ports.spawn(self._start_later(), "delayed index opens")

    async def _start_later(self) -> None:
        bucket_set = self._bucket_set
        while not bucket_set.stopped and not bucket_set.opened:
            await bucket_set.ports.clock.sleep(OPEN_MS)
            try:
                await self.start()
            except REFUSALS as error:
                bucket_set.refused("open", bucket_set.manifest.key, error)
            except Fenced as error:
                bucket_set.fail(error)

    async def recovered(self) -> None:
        await self._recovery.wait()

    def recovery_progress(self) -> dict[str, int | bool]:
        return self._recovery.progress()

    def too_many(self) -> int:
        """By how many buckets the limit is exceeded."""
        return self._merger.too_many()

    def cancel_recovery(self) -> None:
        self._recovery.cancel()

    def given_out(self, positions: Positions) -> None:
        """Messages leave the tracker; while headers are being read, none of them may bring such a message back."""
        if self._bucket_set.recovering and positions.size:
            self._recovery.given.add(positions)

    def collect_later(self) -> None:
        """There may be objects that nobody names."""
        self._collector.due = True
        self.kick()

    def kick(self) -> None:
        """Run a maintenance pass, or another one if one is running."""
        self._again = True
        if not self._running and not self._bucket_set.stopped and self._bucket_set.opened:
            self._running = True
            self._bucket_set.ports.spawn(self._maintain(), "delayed maintenance")

    def arm(self) -> None:
        """Set the timer to the next time at which something has to be looked at (L4: no message is needed)."""
        if self._bucket_set.stopped:
            return
        delay = self._delay()
        at = NEVER if delay is None else self._bucket_set.ports.clock.monotonic() + delay
        if at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._bucket_set.ports.spawn(
            self._sleep(max(at - self._bucket_set.ports.clock.monotonic(), 0)), "timer"
        )

    def close(self) -> None:
        """End the timer; running work ends at its next step."""
        self._bucket_set.closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def delete_everything(self) -> None:
        """Delete all objects and the record. Everything was cleared before. Raises Unavailable."""
        # A write that is under way must not land behind the last collection.
        await self._bucket_set.wait_landed()
        if not await self._collector.collect():
            raise Unavailable(f"the buckets of {self._bucket_set.objects.owner} could not all be deleted; try again")
        await self._bucket_set.forget_manifest()
        self.close()

    def _delay(self) -> int | None:
        """Milliseconds until something is to be done; None for nothing."""
        clock = self._bucket_set.ports.clock
        delays = [at - clock.monotonic() for at in self._retries() if at is not None]
        load = self._loader.next_time()
        if load < NEVER - (1 << 40):
            now = clock.now()
            if load > now:
                delays.append(pause_until(load, now))
        return min(delays, default=None)

    def _retries(self) -> tuple[int | None, ...]:
        return self._retry_at, self._collect_at, self._sealer.retry_at, self._loader.look_at()

    async def _sleep(self, milliseconds: int) -> None:
        await self._bucket_set.ports.clock.sleep(milliseconds)
        self._timer, self._timer_at = None, NEVER
        if self._bucket_set.stopped:
            return
        monotonic = self._bucket_set.ports.clock.monotonic()
        if self._sealer.retry_at is not None and self._sealer.retry_at <= monotonic:
            self._sealer.retry_parked()
        if self._retry_at is not None and self._retry_at <= monotonic:
            self._retry_at = None
            self.kick()
        if self._collect_at is not None and self._collect_at <= monotonic:
            self._collect_at = None
            self.collect_later()
        self._loader.pump(self._bucket_set.ports.clock.now())
        self.arm()

    def _recovered(self) -> None:
        if not self._bucket_set.stopped:
            self._sealer.seal_held()
            self._loader.pump(self._bucket_set.ports.clock.now())
            if not self._bucket_set.manifest.begun:
                self.kick()
            self.arm()
            self._bucket_set.changed()

    async def _maintain(self) -> None:
        try:
            while self._again and not self._bucket_set.stopped:
                self._again = False
                if not await self._pass():
                    self._retry_at = self._bucket_set.ports.clock.monotonic() + RETRY_MS
        except Fenced:
            return
        finally:
            self._running = False
        self._loader.pump(self._bucket_set.ports.clock.now())
        self.arm()

    async def _pass(self) -> bool:
        """Retire, merge, collect. False if a step has to be repeated later."""
        bucket_set = self._bucket_set
        for bucket in [one for one in bucket_set.buckets if one.exhausted()]:
            bucket_set.retire(bucket)
        if bucket_set.drops or bucket_set.lost or not bucket_set.manifest.settled:
            try:
                await self.forget_names()
            except REFUSALS as error:
                bucket_set.refused("commit", bucket_set.manifest.key, error)
                return False
        fine = True
        while not bucket_set.recovering and not bucket_set.stopped and (sources := self._merger.choose()):
            self._collector.due = True
            if not await self._merger.merge(sources):
                fine = False
                break
        if bucket_set.drops or bucket_set.lost:
            self._again = True
        if self._collector.due and not bucket_set.stopped:
            fine = await self._collector.collect() and fine
            self._collect_at = self._next_collection()
        elif self._collect_at is None:
            self._collect_at = self._next_collection()
        return fine

    def _next_collection(self) -> int:
        """When objects are looked for again that nobody names."""
        pause, self._collect_pause = self._collect_pause, min(2 * self._collect_pause, COLLECT_MOST_MS)
        return self._bucket_set.ports.clock.monotonic() + pause

    async def forget_names(self) -> None:
        """Remove unneeded and lost buckets from the manifest. Raises Unavailable: it is tried again later."""
        bucket_set = self._bucket_set
        drops, lost = list(bucket_set.drops), dict(bucket_set.lost)
        await bucket_set.commit(lambda names: _without(names, drops, lost))
        for key in drops:
            bucket_set.drops.pop(key, None)
        for key in lost:
            bucket_set.lost.pop(key, None)
        self._collector.due = True


def _without(names: Names, drops: list[tuple[int, int]], lost: dict[tuple[int, int], bool]) -> Names:
    """The wanted names: dropped and missing ones leave, corrupt ones stay, marked as damaged."""
    for key in drops:
        names.pop(key, None)
    for key, exists in lost.items():
        record = names.pop(key, None)
        if record is not None and exists:
            names[key] = replace(record, damaged=True)
    return names

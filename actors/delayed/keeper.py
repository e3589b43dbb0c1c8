"""Keeps the buckets in order in the background: recovery, retiring, merging, collecting, and the one timer.

One maintenance pass runs at a time. It repeats as long as something was asked for while it ran, so a kick is never
lost. What fails because a store is away is tried again after a pause; nothing waits for a message to come by.
"""

from __future__ import annotations

from dataclasses import replace

from actors.delayed.collector import Collector
from actors.delayed.loader import Loader
from actors.delayed.merger import Merger
from actors.delayed.recovery import Recovery
from actors.delayed.retry import REFUSALS
from actors.delayed.sealer import Sealer
from actors.delayed.shelf import Names, Shelf
from actors.ports import Task
from storage.delayed.entries import NEVER
from storage.errors import Fenced, Unavailable
from storage.position import Positions

RETRY_MS = 5_000
"""Pause after a maintenance step that a store refused."""


class Keeper:
    """Background work of one bucket tracker."""

    def __init__(self, shelf: Shelf, sealer: Sealer, loader: Loader, max_buckets: int, *, under_readers: bool) -> None:
        self._shelf = shelf
        self._sealer = sealer
        self._loader = loader
        self._merger = Merger(shelf, max_buckets, sealer.step_ms, sealer.max_entries)
        self._collector = Collector(shelf)
        self._recovery = Recovery(shelf, self._recovered, under_readers=under_readers)
        self._running = False
        self._again = False
        self._retry_at: int | None = None
        self._timer: Task | None = None
        self._timer_at = NEVER

    async def start(self) -> None:
        """Take possession and begin recovery. Raises Fenced, Unavailable, Corrupt."""
        manifest = await self._shelf.manifest.open()
        self._recovery.begin(manifest.buckets)

    async def recovered(self) -> None:
        """Wait for recovery."""
        await self._recovery.wait()

    def recovery_progress(self) -> dict[str, int | bool]:
        """For the stats."""
        return self._recovery.progress()

    def too_many(self) -> int:
        """By how many buckets the limit is exceeded."""
        return self._merger.too_many()

    def cancel_recovery(self) -> None:
        """Everything was cleared."""
        self._recovery.cancel()

    def given_out(self, positions: Positions) -> None:
        """Messages leave the tracker; while headers are being read, none of them may bring such a message back."""
        if self._recovery.running and positions.size:
            self._recovery.given.add(positions)

    def collect_later(self) -> None:
        """There may be objects that nobody names."""
        self._collector.due = True
        self.kick()

    def kick(self) -> None:
        """Run a maintenance pass, or another one if one is running."""
        self._again = True
        if not self._running and not self._shelf.stopped:
            self._running = True
            self._shelf.ports.spawn(self._maintain(), "delayed maintenance")

    def arm(self) -> None:
        """Set the timer to the next time at which something has to be looked at (L4: no message is needed)."""
        if self._shelf.stopped:
            return
        delay = self._delay()
        at = NEVER if delay is None else self._shelf.ports.clock.monotonic() + delay
        if at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._shelf.ports.spawn(self._sleep(max(at - self._shelf.ports.clock.monotonic(), 0)), "timer")

    def close(self) -> None:
        """End the timer; running work ends at its next step."""
        self._shelf.closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def delete_everything(self) -> None:
        """Delete all objects and the record. Everything was cleared before. Raises Unavailable."""
        # A write that is under way must not land behind the last collection.
        await self._shelf.wait_landed()
        if not await self._collector.collect():
            raise Unavailable(f"the buckets of {self._shelf.objects.owner} could not all be deleted; try again")
        await self._shelf.manifest.remove()
        self.close()

    def _delay(self) -> int | None:
        """Milliseconds until something is to be done; None for nothing."""
        clock = self._shelf.ports.clock
        delays = [at - clock.monotonic() for at in (self._retry_at, self._sealer.retry_at) if at is not None]
        load = self._loader.next_time()
        if load < NEVER - (1 << 40):
            now = clock.now()
            if load > now:
                delays.append(load - now)
        return min(delays, default=None)

    async def _sleep(self, milliseconds: int) -> None:
        await self._shelf.ports.clock.sleep(milliseconds)
        self._timer, self._timer_at = None, NEVER
        if self._shelf.stopped:
            return
        monotonic = self._shelf.ports.clock.monotonic()
        if self._sealer.retry_at is not None and self._sealer.retry_at <= monotonic:
            self._sealer.retry_parked()
        if self._retry_at is not None and self._retry_at <= monotonic:
            self._retry_at = None
            self.kick()
        self._loader.pump(self._shelf.ports.clock.now())
        self.arm()

    def _recovered(self) -> None:
        if not self._shelf.stopped:
            self._loader.pump(self._shelf.ports.clock.now())
            self.kick()
            self.arm()
            self._shelf.changed()

    async def _maintain(self) -> None:
        try:
            while self._again and not self._shelf.stopped:
                self._again = False
                if not await self._pass():
                    self._retry_at = self._shelf.ports.clock.monotonic() + RETRY_MS
        except Fenced:
            return
        finally:
            self._running = False
        self._loader.pump(self._shelf.ports.clock.now())
        self.arm()

    async def _pass(self) -> bool:
        """Retire, merge, collect. False if a step has to be repeated later."""
        shelf = self._shelf
        for bucket in [one for one in shelf.buckets if one.exhausted()]:
            shelf.retire(bucket)
        if shelf.drops or shelf.lost or not shelf.manifest.settled:
            drops, lost = list(shelf.drops), dict(shelf.lost)
            try:
                await shelf.commit(lambda names: _without(names, drops, lost))
            except REFUSALS as error:
                shelf.refused("commit", shelf.manifest.key, error)
                return False
            for key in drops:
                shelf.drops.pop(key, None)
            for key in lost:
                shelf.lost.pop(key, None)
            self._collector.due = True
        fine = True
        while not self._recovery.running and not shelf.stopped and (sources := self._merger.choose()):
            self._collector.due = True
            if not await self._merger.merge(sources):
                fine = False
                break
        if shelf.drops or shelf.lost:
            self._again = True
        if self._collector.due and not shelf.stopped:
            fine = await self._collector.collect() and fine
        return fine


def _without(names: Names, drops: list[tuple[int, int]], lost: dict[tuple[int, int], bool]) -> Names:
    """The wanted names: dropped and missing ones leave, corrupt ones stay, marked as damaged."""
    for key in drops:
        names.pop(key, None)
    for key, exists in lost.items():
        record = names.pop(key, None)
        if record is not None and exists:
            names[key] = replace(record, damaged=True)
    return names

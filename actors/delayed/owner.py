"""The topic owner's side of the shared delayed index: it opens the index under its epoch, and trims it.

The index is opened when a subscription wants it, or when an earlier owner left one; until then nothing waits for it and
nothing of it is here. While a store is away the one in memory serves. A manifest that cannot be read is replaced, and
what an earlier index of this process had stored is read from the log again. What the slowest subscription has passed
leaves the index, whether that subscription is there or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from sluice.actors.delayed.buckets import BucketTracker
from sluice.actors.delayed.manifest import ManifestStore, manifest_key, newest_manifest
from sluice.actors.delayed.objects import BucketObjects
from sluice.actors.delayed.shared import NAME, SharedIndex
from sluice.actors.ports import Ports
from sluice.actors.runtime.store_attempts import REFUSALS
from sluice.storage.errors import Fenced

UNWANTED_MS = 60_000
"""So long an index of an earlier owner waits for a subscription that says how it is set up."""
RETRY_MS = 1_000
TRIM_MS = 1_000


def _nothing() -> int:
    """Return the passed position before the owner has begun: -1."""
    return -1


class IndexOwner:
    """One owner of one partition. index: the index of this process, shared with the dispatchers."""

    def __init__(self, ports: Ports, index: SharedIndex, topic: str, partition: int) -> None:
        self._ports = ports
        self._index = index
        self._topic, self._partition = topic, partition
        self._epoch = -1
        self._passed: Callable[[], int] = _nothing
        self._at_work = False
        self._tracker: BucketTracker | None = None
        self._opening = asyncio.Lock()
        self._deleted = False

    @property
    def _key(self) -> str:
        return manifest_key(self._topic, self._partition, NAME)

    def enable(self, epoch: int, passed: Callable[[], int]) -> None:
        """Let the index be opened when it is wanted. passed: tells what every durable subscription has passed."""
        self._epoch, self._passed = epoch, passed
        self._index.serve(epoch, self._wanted)
        if epoch > 1 and not self._at_work:  # no earlier owner left anything to the first one
            self._ports.spawn(self._look_back(), "earlier delayed index")

    def release(self) -> None:
        """The partition has another owner, or none. Idempotent."""
        self._index.abandon(self._epoch)

    def _wanted(self) -> None:
        if not self._at_work:
            self._at_work = True
            self._ports.spawn(self._run(), "delayed index")

    async def _look_back(self) -> None:
        """Open what an earlier owner left, if no subscription has come that says how it is set up."""
        await self._ports.clock.sleep(UNWANTED_MS)
        if not self._at_work and await self._is_there():
            self._wanted()

    async def _run(self) -> None:
        """Open the index, then trim it; ends when a newer owner has it."""
        await self._open(self._epoch)
        trimmed = -1
        while self._tracker is not None and self._index.tracker is self._tracker and self._tracker.failed is None:
            lowest = self._passed()
            if lowest != trimmed or len(self._tracker.index):
                self._index.trim(lowest)
                trimmed = lowest
            await self._ports.clock.sleep(TRIM_MS)

    async def delete(self, epoch: int) -> None:
        """The partition is deleted: every object and the record go. Raises Unavailable; try again."""
        async with self._opening:
            if self._tracker is None and await newest_manifest(self._ports, self._key) is not None:
                self._tracker = self._make(epoch)
            if self._tracker is not None:
                await self._tracker.delete()
                self._tracker = None
            self._deleted = True

    def reopen(self) -> None:
        """Open another index, because the partition stays although its index was deleted."""
        self._deleted = self._at_work = False
        self.enable(self._epoch, self._passed)

    def stats(self) -> dict[str, Any] | None:
        """The metrics of PIP-195 of the whole index; None while nobody uses it."""
        return self._index.tracker.stats() if self._index.wanted else None

    async def _is_there(self) -> bool:
        while True:
            try:
                return await newest_manifest(self._ports, self._key) is not None
            except REFUSALS as error:
                self._ports.log("delayed_waits", key=self._key, error=str(error))
                await self._ports.clock.sleep(RETRY_MS)

    async def _open(self, epoch: int) -> None:
        while True:
            tracker = self._make(epoch)
            try:
                async with self._opening:
                    if self._deleted:
                        return
                    await tracker.start()
                    if self._index.adopt(tracker, epoch, self._ports.clock.now()):
                        self._tracker = tracker
                    return
            except REFUSALS as error:
                self._ports.log("delayed_waits", key=self._key, error=str(error))
            except Fenced:
                return
            await tracker.close()
            await self._ports.clock.sleep(RETRY_MS)

    def _make(self, epoch: int) -> BucketTracker:
        return BucketTracker(
            self._ports,
            objects=BucketObjects(self._ports, self._topic, self._partition, NAME),
            manifest=ManifestStore(self._ports, self._key, epoch),
            settings=self._index.settings,
            changed=self._index.changed,
            under_readers=True,
        )

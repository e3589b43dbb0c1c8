"""The topic owner's side of the shared delayed index: it opens the index under its epoch, and trims it.

The index is opened when a subscription wants it, or when an earlier owner left one. Until then, and while a store is
away, the one in memory serves. A manifest that cannot be read is replaced, and what an earlier index of this process
had stored is read from the log again. What the slowest subscription has passed leaves the index, whether that
subscription is there or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from actors.delayed.buckets import BucketTracker
from actors.delayed.manifest import ManifestStore, manifest_key
from actors.delayed.objects import BucketObjects
from actors.delayed.shared import NAME, SharedIndex
from actors.ports import Ports
from actors.store_attempts import REFUSALS
from storage.errors import Fenced

UNWANTED_MS = 60_000
"""So long an index of an earlier owner waits for a subscription that says how it is set up."""
RETRY_MS = 1_000
TRIM_MS = 1_000


class IndexOwner:
    """One owner of one partition. index: the index of this process, shared with the dispatchers."""

    def __init__(self, ports: Ports, index: SharedIndex, topic: str, partition: int) -> None:
        self._ports = ports
        self._index = index
        self._topic, self._partition = topic, partition
        self._key = manifest_key(topic, partition, NAME)
        self._tracker: BucketTracker | None = None
        self._opening = asyncio.Lock()
        self._deleted = False

    async def run(self, epoch: int, marks: Callable[[], Mapping[str, int]], end: Callable[[], int]) -> None:
        """Open the index when it is wanted, then trim it; ends when a newer owner has it.

        marks: how far each durable subscription is. end: the last confirmed position.
        """
        patience = UNWANTED_MS if epoch > 1 else None  # no earlier owner left anything to the first one
        if not await self._index.wanted.wait(self._ports, patience) and not await self._is_there():
            await self._index.wanted.wait(self._ports)
        await self._open(epoch)
        trimmed = -1
        while self._tracker is not None and self._index.tracker is self._tracker and self._tracker.failed is None:
            lowest = min(marks().values(), default=end())
            if lowest != trimmed or len(self._tracker.index):
                self._index.trim(lowest)
                trimmed = lowest
            await self._ports.clock.sleep(TRIM_MS)

    async def delete(self, epoch: int) -> None:
        """The partition is deleted: every object and the record go. Raises Unavailable; try again."""
        async with self._opening:
            if self._tracker is None and await self._ports.meta.read(self._key) is not None:
                self._tracker = self._make(epoch)
            if self._tracker is not None:
                await self._tracker.delete()
                self._tracker = None
            self._deleted = True

    def stats(self) -> dict[str, Any] | None:
        """The metrics of PIP-195 of the whole index; None while nobody uses it."""
        return self._index.tracker.stats() if self._index.wanted.is_set() else None

    async def _is_there(self) -> bool:
        while True:
            try:
                return await self._ports.meta.read(self._key) is not None
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

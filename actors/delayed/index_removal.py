"""Deletes the buckets of a subscription that now has another index, or that is deleted itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sluice.actors.delayed.buckets import BucketTracker
from sluice.actors.delayed.manifest import newest_manifest
from sluice.actors.ports import Ports
from sluice.actors.runtime.store_attempts import REFUSALS, attempt
from sluice.storage.errors import Fenced

RETRY_MS = 30_000
"""Pause before leftovers are looked at again."""


class IndexRemoval:
    """Buckets that a subscription does not use any more. make: makes a tracker of them, not started."""

    def __init__(self, ports: Ports, key: str, make: Callable[[], BucketTracker]) -> None:
        self._ports = ports
        self._key = key
        self._make = make
        self._lock = asyncio.Lock()
        self._gone = False

    async def delete(self) -> None:
        """Delete objects and manifest, if there are any. Raises Fenced, Unavailable; try again."""
        async with self._lock:
            there = None if self._gone else await attempt(self._ports, lambda: newest_manifest(self._ports, self._key))
            if there is not None:
                tracker = self._make()
                try:
                    await tracker.delete()
                finally:
                    await tracker.close()  # else what it could not delete it would try again, beside the next attempt's
            self._gone = True

    async def run(self) -> None:
        """Delete them as soon as the stores let us."""
        while True:
            try:
                await self.delete()
                return
            except Fenced:
                return
            except REFUSALS as error:
                self._ports.log("delayed_waits", key=self._key, error=str(error))
                await self._ports.clock.sleep(RETRY_MS)

"""Deletes objects that no manifest names.

An object is deleted only if the manifest, read after the list of names, is this owner's and does not name it, and it is
not being written by this owner. Names are never used again, so what was once free stays free. While the outcome of a
manifest version is open, nothing is deleted. An older owner that wakes up finds the newer epoch in the manifest and is
fenced. What it had still under way may land at any time, so the maintenance asks for another collection now and then.
"""

from __future__ import annotations

from sluice.actors.delayed.bucket_set import BucketSet
from sluice.actors.delayed.stats import DELETE
from sluice.actors.runtime.store_attempts import REFUSALS
from sluice.storage.errors import Corrupt, Fenced


class Collector:
    """Collects the objects of one subscription. due: whether there may be objects to delete."""

    def __init__(self, bucket_set: BucketSet) -> None:
        self._bucket_set = bucket_set
        self.due = True

    async def collect(self) -> bool:
        """Delete free objects. False: some could not be deleted now; ask again later."""
        # What is asked for while this runs is for the next time.
        self.due = False
        complete = await self._collect()
        self.due = self.due or not complete
        return complete

    async def _collect(self) -> bool:
        bucket_set, objects = self._bucket_set, self._bucket_set.objects
        if not bucket_set.manifest.settled:
            return False
        try:
            names = await objects.names()
            if not names and not bucket_set.named:
                return True  # nothing is there, and nothing ought to be
            named = [record.key for record in (await bucket_set.manifest.current()).buckets]
        except REFUSALS as error:
            bucket_set.refused("collect", objects.prefix, error)
            return False
        except Corrupt:
            return not await self._write_again()
        except Fenced as error:
            bucket_set.fail(error)
            return False
        complete = True
        for name in names:
            key = objects.parse(name)
            if key is None or key in named or key in bucket_set.named or not bucket_set.is_past(key):
                continue
            if bucket_set.stopped or not bucket_set.manifest.settled:
                return False
            try:
                await objects.timed(DELETE, lambda name=name: objects.delete(name))  # type: ignore[misc]
            except REFUSALS as error:
                bucket_set.refused("delete", name, error)
                complete = False
        return complete

    async def _write_again(self) -> bool:
        """Write a readable manifest behind a damaged one; free objects are looked for afterwards."""
        try:
            return await self._bucket_set.commit(lambda names: names)
        except REFUSALS as error:
            self._bucket_set.refused("commit", self._bucket_set.manifest.key, error)
        except Fenced:
            pass
        return True

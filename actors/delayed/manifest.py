"""The manifest record of one subscription, as its owner sees it.

Taking possession writes a version with the owner's epoch, so that every older owner loses its next create and stops.
Where there is no manifest yet nobody has written an object, because possession is taken before that: so an owner that
finds none leaves it until it is to write its first object (`BucketSet.possess`), and a subscription without many
delayed messages has none. An older owner that takes it meanwhile is overruled then. If its epoch is higher, from an
earlier life of the name, the newcomer is fenced, and begins again with an epoch above that.
An `Unavailable` create may have happened, or may still happen while its number is free. So every commit writes the
whole wanted state, never a change: if an outdated version of our own lands late, the next commit simply follows it.
While the outcome of a version is open, `settled` is False and nobody may delete an object.

A version that cannot be read is followed by a good one: at the start by one that names nothing, later by what is
wanted now. The log is the truth, and a dispatcher that starts reads it from the mark-delete position; only readers
that were there before have to learn of the change (`rebuilt`). An owner of an older epoch that did so is
overruled in the same way.

If the store itself finds the newest version damaged, its number is not known, so no version can follow it. Until it is
put back, the owner goes on as if the store were away: it keeps everything in memory, and the alarm says why.
"""

from __future__ import annotations

import asyncio

from sluice.actors.ports import Ports, Version
from sluice.actors.runtime.store_attempts import BACK_OFF_MS, attempt
from sluice.storage.delayed.manifest import Manifest, decode_manifest, encode_manifest
from sluice.storage.errors import Corrupt, Fenced, Overloaded, Unavailable


def manifest_key(topic: str, partition: int, subscription: str) -> str:
    """The key of the metadata record."""
    return f"delayed/{topic}/{partition}/{subscription}"


async def newest_manifest(ports: Ports, key: str) -> Version | None:
    """The newest version. Raises Unavailable, also for one that the store finds damaged."""
    try:
        return await ports.meta.read(key)
    except Corrupt as error:
        raise Unavailable(f"the delayed index {key} cannot be opened: {error}") from error


async def last_epoch(ports: Ports, key: str) -> int | None:
    """The epoch of the last writer of a manifest; 0 if it cannot be read, None without one. Raises Unavailable.

    A name that is used again goes on counting there: what an earlier subscription of the name left is then never newer.
    """
    try:
        newest = await attempt(ports, lambda: ports.meta.read(key))
        return None if newest is None else decode_manifest(newest.value, key).epoch
    except Corrupt:
        return 0


class ManifestStore:
    """Reads and writes the manifest for one owner epoch."""

    def __init__(self, ports: Ports, key: str, epoch: int) -> None:
        self.key = key
        self.epoch = epoch
        self.settled = True
        """Whether the newest version is known for certain."""
        self.rebuilt = False
        """Whether the manifest was damaged when it was opened, so that it names nothing of what was there."""
        self.begun = False
        """Whether there was none when it was opened, so that possession is still to be taken."""
        self._ports = ports
        self._number = 0
        """Invariant: the newest version that this owner has seen. The next commit writes the number after it."""
        self._lock = asyncio.Lock()

    def create(self) -> Manifest:
        """Instead of `open`, where somebody has looked and there was none."""
        self.begun = True
        return Manifest(self.epoch)

    async def open(self) -> Manifest:
        """Read the newest version and take possession of it. Raises Fenced, Unavailable; safe to repeat."""
        async with self._lock:
            newest = await attempt(self._ports, lambda: newest_manifest(self._ports, self.key))
            self.begun = newest is None
            try:
                manifest = self._adopt(newest)
            except Corrupt as error:
                manifest, self.rebuilt = self._overrule(newest, error), True
        if self.begun:
            return manifest
        return await self.commit(Manifest(self.epoch, manifest.buckets))

    async def commit(self, manifest: Manifest) -> Manifest:
        """Write the next version and return it. Raises Fenced if there is a newer owner, Unavailable after 4 attempts.

        After Unavailable the version may exist or may still appear; commit the wanted state again later.
        """
        manifest.check()
        value = encode_manifest(manifest)
        async with self._lock:
            for pause in (*BACK_OFF_MS, None):
                try:
                    if await self._create(value):
                        self.settled, self.begun = True, False
                        return manifest
                except (Unavailable, Overloaded):
                    self.settled = False
                    if pause is None:
                        raise
                    await self._ports.clock.sleep(pause)
            raise Unavailable(f"the manifest {self.key} keeps changing")

    async def current(self) -> Manifest:
        """The newest version in the store. Raises Fenced if there is a newer owner, Unavailable, or Corrupt: commit."""
        async with self._lock:
            manifest = self._adopt(await attempt(self._ports, lambda: self._ports.meta.read(self.key)))
            if manifest.epoch != self.epoch:
                raise Corrupt(f"the delayed index {self.key} was overwritten by epoch {manifest.epoch}")
            return manifest

    async def remove(self) -> None:
        """Forget the record, when the subscription is deleted. Raises Unavailable."""
        async with self._lock:
            await attempt(self._ports, lambda: self._ports.meta.remove(self.key))
            self._number = 0

    async def _create(self, value: bytes) -> bool:
        """One attempt: True if the wanted version is in place, False if an outdated one of our own was there."""
        number = self._number + 1
        try:
            if await self._ports.meta.create(self.key, number, value):
                self._number = number
                return True
        except (Unavailable, Overloaded):
            self.settled = False
        newest = await newest_manifest(self._ports, self.key)
        if newest is None and self._number:
            raise Fenced(f"the delayed index {self.key} was deleted")
        if newest is None or newest.number < number:
            # Not there yet. It may still come; the same number is tried again, so only one of the two can win.
            raise Unavailable(f"version {number} of the manifest {self.key} was not written")
        try:
            self._adopt(newest)
        except Corrupt as error:
            self._overrule(newest, error)
        return newest.value == value

    def _overrule(self, newest: Version | None, error: Corrupt) -> Manifest:
        """Go on behind a version that cannot be read."""
        self._ports.log("delayed_manifest_damaged", key=self.key, error=str(error))
        self._number = 0 if newest is None else newest.number
        return Manifest(self.epoch)

    def _adopt(self, newest: Version | None) -> Manifest:
        if newest is None:
            if self._number:
                raise Fenced(f"the delayed index {self.key} was deleted")
            return Manifest(self.epoch)
        manifest = decode_manifest(newest.value, self.key)
        if manifest.epoch > self.epoch:
            raise Fenced(f"the delayed index {self.key} belongs to epoch {manifest.epoch}, not {self.epoch} any more")
        self._number = newest.number
        return manifest

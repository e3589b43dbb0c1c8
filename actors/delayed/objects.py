"""Bucket objects in the object store: names, reads by range, and writes whose outcome is unknown.

The name of an object carries the owner's epoch and a number of that owner, and is never used again. If "the name is
taken" after an unclear attempt, what is there is compared: it is ours, or it was left by an earlier life of the name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import google_crc32c

from sluice.actors.delayed.stats import Operations
from sluice.actors.ports import Ports
from sluice.actors.runtime.store_attempts import attempt
from sluice.storage.delayed.bucket import BucketHeader, SealedBucket, SegmentTable, decode_header, decode_segments
from sluice.storage.delayed.entries import Entries
from sluice.storage.errors import Conflict, Corrupt, NotFound, Overloaded, Unavailable

T = TypeVar("T")
_VERIFY_BYTES = 8 * 1024 * 1024
_SUFFIX = ".bucket"

Key = tuple[int, int]
"""(epoch, number) of an object."""


class BucketObjects:
    """The bucket objects of one subscription on one partition."""

    def __init__(self, ports: Ports, topic: str, partition: int, subscription: str) -> None:
        self.owner = f"{topic}/{partition}/{subscription}"
        self.prefix = f"delayed/{self.owner}/"
        self.operations = Operations()
        self._ports = ports

    def name(self, key: Key) -> str:
        """The name of an object."""
        return f"{self.prefix}{key[0]:012d}-{key[1]:010d}{_SUFFIX}"

    def parse(self, name: str) -> Key | None:
        """(epoch, number) of a name; None for a name that is not ours to touch."""
        epoch, dash, number = name.removeprefix(self.prefix).removesuffix(_SUFFIX).partition("-")
        if not (epoch.isdigit() and dash and number.isdigit()) or self.name((int(epoch), int(number))) != name:
            return None
        return int(epoch), int(number)

    async def put(self, key: Key, sealed: SealedBucket) -> None:
        """Store an object. Raises Unavailable if it is not certain to be there, Conflict if the name was taken."""
        unclear = False

        async def once() -> None:
            nonlocal unclear
            try:
                created = await self._ports.objects.put(self.name(key), sealed.data)
            except (Unavailable, Overloaded):
                unclear = True
                raise
            if created:
                return
            try:
                if not unclear:
                    raise Conflict(f"there is a bucket {self.name(key)} already")
                await self.verify(key, sealed)
            except (Corrupt, NotFound) as error:
                raise Conflict(f"there was another bucket {self.name(key)}") from error

        await attempt(self._ports, once)

    async def verify(self, key: Key, sealed: SealedBucket) -> None:
        """Read an object back and compare. Raises Corrupt, NotFound or Unavailable."""
        name, crc = self.name(key), 0
        for start in range(0, len(sealed.data), _VERIFY_BYTES):
            crc = google_crc32c.extend(crc, await self._read(name, start, _VERIFY_BYTES))
        if crc != sealed.crc:
            raise Corrupt(f"bucket {name} does not read back as it was written")

    async def header(self, key: Key, length: int) -> BucketHeader:
        """The head of an object, whose length the manifest knows. Raises NotFound, Corrupt, Unavailable."""
        name = self.name(key)
        return decode_header(await self._read(name, 0, length), name, self.owner)

    async def segments(self, key: Key, data_start: int, table: SegmentTable, first: int, stop: int) -> Entries:
        """The entries of the segments first .. stop-1 in one range read. Raises NotFound, Corrupt, Unavailable."""
        return await attempt(self._ports, lambda: self.segments_once(key, data_start, table, first, stop))

    async def segments_once(self, key: Key, data_start: int, table: SegmentTable, first: int, stop: int) -> Entries:
        """The same with one attempt only, for a caller that has something better to do than to wait for the next."""
        start, length = table.byte_range(first, stop)
        data = await self._ports.objects.get(self.name(key), data_start + start, length)
        return decode_segments(data, table, first, stop, self.name(key))

    async def names(self) -> list[str]:
        """All names under the prefix. Raises Unavailable."""
        return await attempt(self._ports, lambda: self._ports.objects.names(self.prefix))

    async def delete(self, name: str) -> None:
        """Remove an object. Raises Unavailable."""
        await attempt(self._ports, lambda: self._ports.objects.delete(name))

    async def timed(self, kind: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do an operation and count it."""
        started, ok = self._ports.clock.monotonic(), False
        try:
            result = await work()
            ok = True
            return result
        finally:
            self.operations.record(kind, ok, self._ports.clock.monotonic() - started)

    async def _read(self, name: str, start: int, length: int) -> bytes:
        return await attempt(self._ports, lambda: self._ports.objects.get(name, start, length))

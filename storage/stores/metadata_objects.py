"""Versioned records on any object store: one object a version, created only if it is absent.

**Theory.** Version n of a record is the object `<key>/v<n>`, n with leading zeros so that listing sorts. The store's
put-if-absent decides races. Two things must be added to it:

*Trimming brings an old name back to life.* When versions 5 to 9 exist and 5 is trimmed, a writer that slept since
it read version 4 would find the name of version 5 free. So after the put the record is listed again. If the version
before is missing, the record was removed, and the put is undone. If the record has gone on so far that `number` may
have been trimmed meanwhile, nobody can tell whether the put was the first of its name: Unavailable, read again and
compare. Otherwise `number` was never free again, and the put was the first. A version below the newest is never read,
so a stray object does no harm, and the next trim takes it. The last 16 versions stay, so that only a writer that
sleeps through 16 others, between two of its own requests, is left in doubt.

*A torn newest.* A store that loses a part of an object when its machine dies leaves a name that is taken and content
that is not whole. Its writer was never told True. The number counts as taken, with the content of the version before
it: nothing is lost, and the next version can follow. A whole object whose checksum is wrong is no torn write but
damage to something that may have been confirmed: that is Corrupt, and never papered over.

Removal goes from the oldest to the newest, so that an interrupted removal never shows an old version as the newest.
A create costs a put and a list, and a list more when this process has not seen the version before.
"""

from __future__ import annotations

import contextlib
import re
import struct
import threading

import google_crc32c

from sluice.storage.errors import Corrupt, Invalid, NotFound, Unavailable
from sluice.storage.stores.limits import check_name, check_prefix, check_value
from sluice.storage.stores.metadata import Record, probe_versions
from sluice.storage.stores.objects import ObjectStore
from sluice.storage.stores.objects import probe as probe_objects

MAGIC = b"SLM1"
KEEP = 16
"""How many versions of a record always remain."""
TRIM_EVERY = 4
"""Old versions are deleted once in so many creations."""
MAX_NUMBER = 10**12 - 1
_HEAD = struct.Struct("<4sIQI")
_VERSION = re.compile(r"(.+)/v(\d{12})\Z")
_REMEMBERED = 100_000


class ObjectMetadata:
    """Records as numbered objects. Safe for threads and for any number of processes and machines."""

    def __init__(self, objects: ObjectStore, prefix: str = "metadata") -> None:
        """objects: where to; prefix: the names that belong to this store."""
        self._objects = objects
        self._prefix = check_name(prefix) + "/"
        self._seen: dict[str, int] = {}
        self._lock = threading.Lock()
        self.torn = 0
        """How often a torn newest version was passed over."""

    def read(self, key: str) -> Record | None:
        for _ in range(5):
            numbers = self._numbers(key)
            if not numbers:
                return None
            with contextlib.suppress(NotFound):  # trimmed or removed between the list and the get: list again
                record = self._newest_whole(key, numbers)
                self._remember(key, record.number)
                return record
        raise Unavailable(f"the record {key} changes faster than it can be read")

    def create(self, key: str, number: int, value: bytes) -> bool:
        check_value(number, value)
        if number > MAX_NUMBER:
            raise Invalid(f"versions are numbered up to {MAX_NUMBER}")
        if self._seen.get(check_name(key)) != number - 1:
            numbers = self._numbers(key)
            if number != (numbers[-1] if numbers else 0) + 1:
                return False
        value = bytes(value)
        packed = _HEAD.pack(MAGIC, google_crc32c.value(value), number, len(value)) + value
        if not self._objects.put(self._name(key, number), packed):
            self._forget(key)
            return False
        numbers = self._numbers(key)
        newest = numbers[-1] if numbers else 0
        if newest >= number + KEEP:
            self._forget(key)
            raise Unavailable(f"{key} went on from {number} to {newest} while version {number} was written")
        if newest < number or (newest == number > 1 and number - 1 not in numbers):
            self._forget(key)
            self._objects.delete(self._name(key, number))
            return False
        self._remember(key, number)
        if number % TRIM_EVERY == 0:
            self._trim(key, numbers)
        return True

    def keys(self, prefix: str) -> list[str]:
        found: dict[str, None] = {}
        for name in self._objects.names(self._prefix + check_prefix(prefix)):
            version = _VERSION.match(name)
            if version is not None and version[1].startswith(self._prefix + prefix):
                found[version[1][len(self._prefix) :]] = None
        return sorted(found)

    def remove(self, key: str, number: int | None = None) -> bool:
        """See storage.stores.metadata.Metadata. Repeat it after Unavailable: it may have been done in part.

        What is written while it removes follows a version that is there still, and then stays, or one that is not, and
        then is undone by its writer.
        """
        self._forget(key)
        numbers = self._numbers(key)
        if numbers and number not in (None, numbers[-1]):
            return False
        for old in numbers:
            self._objects.delete(self._name(key, old))
        return number is None or not self._numbers(key)

    def size(self) -> int:
        return self._objects.size(self._prefix)

    def probe(self) -> None:
        """See storage.stores.metadata.Metadata. Asks the object store itself: behind the lists here it would look
        fine."""
        probe_objects(self._objects, self._prefix + "probe")
        probe_versions(self)

    def close(self) -> None:
        """See storage.stores.metadata.Metadata."""

    def _newest_whole(self, key: str, numbers: list[int]) -> Record:
        """The newest version that is not torn, under the number of the newest. Raises Corrupt, NotFound."""
        for number in reversed(numbers):
            value = self._load(key, number)
            if value is not None:
                return Record(numbers[-1], value)
            self.torn += 1
        raise Corrupt(f"every version of the metadata record {key} is torn: {numbers}", version=numbers[-1])

    def _load(self, key: str, number: int) -> bytes | None:
        """The value of one version; None if its object was cut short."""
        data = self._objects.get(self._name(key, number))
        if len(data) < _HEAD.size or not any(data):
            return None
        magic, crc, stored, length = _HEAD.unpack_from(data)
        if len(data) < _HEAD.size + length and magic == MAGIC and stored == number:
            return None
        value = data[_HEAD.size :]
        if magic != MAGIC or stored != number or len(value) != length or google_crc32c.value(value) != crc:
            raise Corrupt(f"version {number} of the metadata record {key} fails its checksum", version=number)
        return value

    def _trim(self, key: str, numbers: list[int]) -> None:
        """Delete all but the newest KEEP versions; a failure is made good next time."""
        with contextlib.suppress(Unavailable):
            for number in numbers:
                if number <= numbers[-1] - KEEP:
                    self._objects.delete(self._name(key, number))

    def _numbers(self, key: str) -> list[int]:
        """The version numbers that exist, ascending."""
        stem = self._prefix + check_name(key)
        versions = [_VERSION.match(name) for name in self._objects.names(stem + "/v")]
        return [int(version[2]) for version in versions if version is not None and version[1] == stem]

    def _name(self, key: str, number: int) -> str:
        return f"{self._prefix}{key}/v{number:012d}"

    def _remember(self, key: str, number: int) -> None:
        with self._lock:
            if len(self._seen) >= _REMEMBERED:
                self._seen.clear()
            self._seen[key] = number

    def _forget(self, key: str) -> None:
        with self._lock:
            self._seen.pop(key, None)

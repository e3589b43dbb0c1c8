"""Versioned records: small facts that must have one owner.

**Theory.** A record is a series of immutable versions numbered 1, 2, 3, ... without gaps. The only write is "create
version n if it is absent and n-1 is the newest". A writer reads the newest version, decides, and creates the next; of
several writers that read the same version exactly one succeeds. Losing is therefore not an error of
the store but the message "there is a newer owner", and an owner that loses stops. No locks, no leases, no clocks.

Old versions are trimmed, so that a record that is rewritten a million times stays small. The newest and the one
before it always remain.

The stores: `MemoryMetadata` here, `storage.stores.metadata_sqlite` for the processes of one machine,
`storage.stores.metadata_objects` on any object store. All block, all are safe for threads; cluster.host.store_ports
gives them to actors. tests/conformance/metadata.py says what all of them must do.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sluice.storage.errors import Corrupt, Invalid, Unavailable
from sluice.storage.stores.limits import check_name, check_prefix, check_value

KEEP = 2
"""How many versions of a record always remain: the newest and the one before it."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Record:
    """The newest version of a record: its number (from 1) and its value."""

    number: int
    value: bytes


class Metadata(Protocol):
    """The protocol of metadata stores. Keys are names like those of objects: parts of [A-Za-z0-9._-] joined by "/"."""

    def read(self, key: str) -> Record | None:
        """The newest version, or None. Raises Unavailable, Corrupt."""

    def create(self, key: str, number: int, value: bytes) -> bool:
        """Create version `number` if it is absent and follows the newest; durable when True is returned.

        False: another writer was first, or the number does not follow; nothing was written. Raises Unavailable: the
        outcome is unknown, read again and compare.
        """

    def keys(self, prefix: str) -> list[str]:
        """Every live key that starts with the prefix, sorted. Raises Unavailable."""

    def remove(self, key: str, number: int | None = None) -> bool:
        """Forget the record with all its versions; fine if there is none. A new record may begin with number 1.

        number: only if that is the newest version; False if it is not, and then the newest one stays.
        """

    def size(self) -> int:
        """Bytes that all records take, about. Raises Unavailable."""

    def probe(self) -> None:
        """Refuse a store beneath that ignores the condition; at start-up. Raises Invalid, Unavailable."""

    def close(self) -> None:
        """Close files and connections. Idempotent."""


NewVersion = tuple[str, int, bytes]
"""A version to be created: key, number, value."""


@runtime_checkable
class GroupedMetadata(Protocol):
    """A store that reads or writes many versions at about the cost of one."""

    def create_many(self, versions: Sequence[NewVersion]) -> list[bool]:
        """`create` for each of them in turn, all durable when this returns; each has an outcome of its own.

        Raises Unavailable: the outcome of all of them is unknown.
        """

    def read_many(self, keys: Sequence[str]) -> list[Record | Corrupt | None]:
        """`read` for each of them; one that is damaged is no answer for the others. Raises Unavailable."""


class MemoryMetadata:
    """Records in memory, for tests and the simulator."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._lock = threading.Lock()

    def read(self, key: str) -> Record | None:
        with self._lock:
            return self._records.get(check_name(key))

    def create(self, key: str, number: int, value: bytes) -> bool:
        check_name(key)
        check_value(number, value)
        with self._lock:
            newest = self._records.get(key)
            if number != (1 if newest is None else newest.number + 1):
                return False
            self._records[key] = Record(number, bytes(value))
            return True

    def keys(self, prefix: str) -> list[str]:
        check_prefix(prefix)
        with self._lock:
            return sorted(key for key in self._records if key.startswith(prefix))

    def remove(self, key: str, number: int | None = None) -> bool:
        with self._lock:
            newest = self._records.get(check_name(key))
            if newest is not None and number not in (None, newest.number):
                return False
            self._records.pop(key, None)
            return True

    def size(self) -> int:
        with self._lock:
            return sum(len(record.value) for record in self._records.values())

    def probe(self) -> None:
        probe_versions(self)

    def close(self) -> None:
        """See Metadata."""


def probe_versions(metadata: Metadata) -> None:
    """Create a version twice and another with a gap, then remove the record. Every store's `probe` does at least this.

    Raises Invalid when the store allows either; Unavailable.
    """
    key = f"probe/{os.getpid()}-{next(_numbers)}-{os.urandom(8).hex()}"
    try:
        if not metadata.create(key, 1, b"first"):
            raise Invalid("the metadata store refuses to create a record that does not exist")
        taken = metadata.create(key, 1, b"second")
        gap = metadata.create(key, 3, b"third")
        if taken or gap or metadata.read(key) != Record(1, b"first"):
            raise Invalid(
                "the metadata store lets two writers create the same version. Two owners could both win. "
                "Use a store that honours put-if-absent (If-None-Match: *)."
            )
    finally:
        with contextlib.suppress(Unavailable):
            metadata.remove(key)

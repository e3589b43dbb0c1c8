"""The manifest: which bucket objects are the index of one subscription.

A metadata record of numbered versions; a version is complete in itself. Creating the next version is the only
commit point of sealing, merging, trimming and clearing, and losing it is the fencing signal. An object that no
current manifest names does not exist for anybody but the collector.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from itertools import pairwise

import google_crc32c
import msgpack

from sluice.storage.errors import Corrupt, InvariantViolation

VERSION = 1


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """The entry of one sealed bucket in the manifest.

    epoch, number: name of the object. start, end: lowest and highest position. count: entries. segments: their
    number. min_time, max_time: due times in ms. header_bytes: length of prefix and header. size: of the object.
    damaged: the object could not be read when it was needed; its range was given to a rescan, and the object stays
    for inspection until the range is trimmed.
    """

    epoch: int
    number: int
    start: int
    end: int
    count: int
    segments: int
    min_time: int
    max_time: int
    header_bytes: int
    size: int
    damaged: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """(epoch, number): unique among all objects of a subscription, for ever."""
        return self.epoch, self.number


@dataclass(frozen=True, slots=True)
class Manifest:
    """All live buckets, and the epoch of the owner that wrote this version."""

    epoch: int
    buckets: tuple[BucketRecord, ...] = ()
    """Invariant: ordered by start and key, and each has its key alone. The ranges of positions may overlap."""

    def check(self) -> None:
        """Raise InvariantViolation for a manifest from which no owner could restore the index."""
        for old, new in pairwise(self.buckets):
            if (old.start, old.key) >= (new.start, new.key):
                raise InvariantViolation(f"bucket {new.key} cannot follow {old.key} in the manifest")
        if len({record.key for record in self.buckets}) < len(self.buckets):
            raise InvariantViolation("two buckets of the manifest have one key")
        for one in self.buckets:
            if one.start > one.end or one.min_time > one.max_time or one.count < 1 or one.segments < 1:
                raise InvariantViolation(f"bucket {one.key} has {one.count} entries from {one.start} to {one.end}")


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of one version."""
    body: bytes = msgpack.packb([VERSION, manifest.epoch, [astuple(record) for record in manifest.buckets]])
    return int(google_crc32c.value(body)).to_bytes(4, "little") + body


def decode_manifest(data: bytes, name: str) -> Manifest:
    """Read a version back. Raises Corrupt naming the record."""
    if len(data) < 4 or int(google_crc32c.value(data[4:])) != int.from_bytes(data[:4], "little"):
        raise Corrupt(f"the checksum of the manifest {name} does not fit")
    try:
        version, epoch, rows = msgpack.unpackb(data[4:])
        if version != VERSION:
            raise Corrupt(f"the manifest {name} has format version {version}, this broker reads version {VERSION}")
        records = tuple(BucketRecord(*row) for row in rows)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Corrupt(f"the manifest {name} cannot be read: {error}") from error
    for record in records:
        if any(type(getattr(record, field.name)) not in (int, bool) for field in fields(BucketRecord)):
            raise Corrupt(f"the manifest {name} names a bucket in an unknown form")
    return Manifest(epoch, records)

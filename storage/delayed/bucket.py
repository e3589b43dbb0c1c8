"""A sealed bucket as one immutable object.

    offset  size
    0       4     magic "SLDB"
    4       2     version 1
    6       2     zero
    8       4     header length h
    12      4     CRC32C of bytes 0..11, 16..23 and the header
    16      8     length of the whole object
    24      h     header: msgpack list [owner, epoch, number, start, end, count, table, bitmaps]
    24+h    ..    segments, each as storage.delayed.segment encodes it

`owner` names topic, partition and subscription, so that an object in the wrong place is noticed. `table` holds the
segments' columns (min time, first position, max time, count, offset behind the header, length, CRC32C); `bitmaps`
holds for each segment its ledgers with a serialised roaring bitmap of the entries (BD-12). The header alone restores
the index; a segment is one range of bytes, several neighbouring ones are one range too. An object never changes.

Cutting (BD-12): entries are in the order (deliver_at, position); a segment ends when the next entry is due more than
`step - 1` ms after its first one, or when it holds the greatest number of entries. The step grows when the
due times reach so far that it would cut more than MAX_STEPS pieces: a header stays small whatever is put in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import google_crc32c
import msgpack
import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from sluice.storage.delayed.entries import EMPTY, Bound, Entries, Times, concat
from sluice.storage.delayed.index import bitmap_of
from sluice.storage.delayed.segment import decode_segment, encode_segment
from sluice.storage.errors import Corrupt, Invalid
from sluice.storage.format.frame import Buffer
from sluice.storage.format.position import split_by_ledger

MAGIC = b"SLDB"
VERSION = 1
PREFIX = struct.Struct("<4sHHIIQ")
MAX_STEPS = 4096
MAX_HEADER_BYTES = 256 * 1024 * 1024
_TABLE = (("<i8", 8), ("<i8", 8), ("<i8", 8), ("<u4", 4), ("<u8", 8), ("<u4", 4), ("<u4", 4))
_TABLE_ROW = sum(width for _, width in _TABLE)


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """The description of each segment, known without reading it; columns of shape (segments,).

    first_position: of the entry that stands first. offset counts from the first byte behind the header.
    """

    min_time: npt.NDArray[np.int64]
    first_position: npt.NDArray[np.int64]
    max_time: npt.NDArray[np.int64]
    count: npt.NDArray[np.uint32]
    offset: npt.NDArray[np.uint64]
    length: npt.NDArray[np.uint32]
    crc: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return int(self.count.size)

    def bound(self, segment: int) -> Bound:
        """The first entry of a segment; everything in it and behind it comes at or after this."""
        return int(self.min_time[segment]), int(self.first_position[segment])

    def byte_range(self, first: int, stop: int) -> tuple[int, int]:
        """(offset behind the header, length) of the neighbouring segments first .. stop-1."""
        start = int(self.offset[first])
        return start, int(self.offset[stop - 1]) + int(self.length[stop - 1]) - start

    def memory_bytes(self) -> int:
        return len(self) * _TABLE_ROW


@dataclass(frozen=True, slots=True)
class BucketHeader:
    """The decoded head of a bucket object.

    start, end: lowest and highest position in it. bitmaps: for each segment its (ledger, serialised bitmap) pairs.
    data_start: where in the object the segments begin. size: length of the whole object.
    """

    owner: str
    epoch: int
    number: int
    start: int
    end: int
    count: int
    table: SegmentTable
    bitmaps: list[list[tuple[int, bytes]]]
    data_start: int
    size: int


@dataclass(frozen=True, slots=True)
class SealedBucket:
    """A bucket ready to be stored: its header, the object's bytes, and their CRC32C to verify them when read back."""

    header: BucketHeader
    data: bytes
    crc: int


def cut_points(times: Times, step_ms: int, max_entries: int, *, last: bool) -> list[int]:
    """Return the exclusive ends of the segments in sorted due times. max_entries <= 0: no limit by number.

    last=False: more entries follow, so a segment that might still grow is left uncut.
    """
    ends: list[int] = []
    start, size = 0, int(times.size)
    while start < size:
        end = int(np.searchsorted(times, int(times[start]) + step_ms - 1, "right"))
        full = 0 < max_entries <= end - start
        if full:
            end = start + max_entries
        if end == size and not last and not full:
            break
        ends.append(end)
        start = end
    return ends


@dataclass(slots=True)
class BucketBuilder:
    """Builds one object from entries that come in order, part by part, so that a merge never holds all of them.

    owner: "topic/partition/subscription". step_ms, max_entries: the cutting rule. span: greatest minus least due
    time, as far as known.
    """

    owner: str
    epoch: int
    number: int
    step_ms: int
    max_entries: int
    span: int = 0
    _carry: Entries = field(default_factory=lambda: EMPTY)
    _segments: list[bytes] = field(default_factory=list)
    _rows: list[tuple[int, ...]] = field(default_factory=list)
    _bitmaps: list[list[tuple[int, bytes]]] = field(default_factory=list)
    _bytes: int = 0
    _low: int = -1
    _high: int = -1

    def __post_init__(self) -> None:
        if self.step_ms <= 0:
            raise Invalid(f"a segment's time step is {self.step_ms} ms, it must be positive")
        self.step_ms = max(self.step_ms, -(-self.span // MAX_STEPS))

    def append(self, entries: Entries) -> None:
        """Take entries that are due at or after everything before them, in order."""
        self._cut(concat([part for part in (self._carry, entries) if len(part)]), last=False)

    def finish(self) -> SealedBucket | None:
        """The whole object; None if nothing was appended."""
        self._cut(self._carry, last=True)
        if not self._rows:
            return None
        table = _table(self._rows)
        count = int(table.count.sum())
        packed = [getattr(table, name).tobytes() for name in SegmentTable.__dataclass_fields__]
        body = [self.owner, self.epoch, self.number, self._low, self._high, count, packed, self._bitmaps]
        head: bytes = msgpack.packb(body)
        data_start = PREFIX.size + len(head)
        size = data_start + self._bytes
        prefix = _prefix(head, size)
        data = b"".join([prefix, head, *self._segments])
        header = BucketHeader(
            self.owner,
            self.epoch,
            self.number,
            self._low,
            self._high,
            count,
            table,
            self._bitmaps,
            data_start,
            size,
        )
        self._segments = []
        return SealedBucket(header, data, int(google_crc32c.value(data)))

    def _cut(self, entries: Entries, *, last: bool) -> None:
        start = 0
        for end in cut_points(entries.deliver_at, self.step_ms, self.max_entries, last=last):
            self._segment(entries.slice(start, end))
            start = end
        self._carry = entries.slice(start, len(entries))

    def _segment(self, entries: Entries) -> None:
        data = encode_segment(entries)
        positions = np.sort(entries.positions)
        self._bitmaps.append([(ledger, _serialise(part)) for ledger, part in split_by_ledger(positions)])
        times, crc = entries.deliver_at, int(google_crc32c.value(data))
        first = int(entries.positions[0])
        self._rows.append((int(times[0]), first, int(times[-1]), len(entries), self._bytes, len(data), crc))
        self._segments.append(data)
        self._bytes += len(data)
        low, high = int(positions[0]), int(positions[-1])
        self._low = low if self._low < 0 else min(self._low, low)
        self._high = max(self._high, high)


def header_length(prefix: Buffer, name: str) -> int:
    """How many bytes prefix and header have, from the first 24 bytes. Raises Corrupt naming the object."""
    if len(prefix) < PREFIX.size:
        raise Corrupt(f"bucket {name} is cut off after {len(prefix)} bytes")
    magic, version, _, length, _, size = PREFIX.unpack_from(prefix)
    if magic != MAGIC:
        raise Corrupt(f"{name} is not a bucket object")
    if version != VERSION:
        raise Corrupt(f"bucket {name} has format version {version}, this broker reads version {VERSION}")
    if length > MAX_HEADER_BYTES or PREFIX.size + length > size:
        raise Corrupt(f"bucket {name} has impossible lengths in its first bytes")
    return PREFIX.size + int(length)


def decode_header(data: Buffer, name: str, owner: str) -> BucketHeader:
    """Check and decode the head of the object `name`. Raises Corrupt naming it, also if it belongs to another owner."""
    data_start = header_length(data, name)
    if len(data) < data_start:
        raise Corrupt(f"bucket {name} is cut off in its header")
    head = bytes(memoryview(data)[PREFIX.size : data_start])
    size = int(PREFIX.unpack_from(data)[5])
    if bytes(memoryview(data)[: PREFIX.size]) != _prefix(head, size):
        raise Corrupt(f"the checksum of the header of bucket {name} does not fit")
    try:
        found, epoch, number, start, end, count, packed, bitmaps = msgpack.unpackb(head)
        columns = [np.frombuffer(part, dtype) for part, (dtype, _) in zip(packed, _TABLE, strict=True)]
        table = SegmentTable(*columns)
        pairs = [[(int(ledger), bytes(part)) for ledger, part in segment] for segment in bitmaps]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Corrupt(f"the header of bucket {name} cannot be read: {error}") from error
    if found != owner:
        raise Corrupt(f"bucket {name} belongs to {found}, not to {owner}")
    header = BucketHeader(found, epoch, number, start, end, count, table, pairs, data_start, size)
    if len({column.size for column in columns} | {len(pairs)}) != 1 or int(table.count.sum()) != count:
        raise Corrupt(f"the segments in the header of bucket {name} do not add up")
    if len(table) == 0 or data_start + sum(table.byte_range(0, len(table))) != size:
        raise Corrupt(f"the byte ranges in the header of bucket {name} do not fit its size")
    return header


def restore_bitmaps(header: BucketHeader, first: int) -> Iterator[tuple[int, BitMap]]:
    """The union of the bitmaps of the segments from number `first` on, by ledger. Raises Corrupt."""
    by_ledger: dict[int, list[BitMap]] = {}
    for segment in header.bitmaps[first:]:
        for ledger, part in segment:
            try:
                by_ledger.setdefault(ledger, []).append(BitMap.deserialize(part))
            except (ValueError, LookupError) as error:
                raise Corrupt(f"a bitmap in bucket {header.epoch}-{header.number} cannot be read: {error}") from error
    for ledger, bitmaps in sorted(by_ledger.items()):
        yield ledger, bitmaps[0] if len(bitmaps) == 1 else BitMap.union(*bitmaps)


def decode_segments(data: Buffer, table: SegmentTable, first: int, stop: int, name: str) -> Entries:
    """The entries of the neighbouring segments first .. stop-1 from their byte range. Raises Corrupt naming all."""
    start, length = table.byte_range(first, stop)
    if len(data) != length:
        raise Corrupt(f"bucket {name} is cut off: {len(data)} of {length} bytes of segments {first} to {stop - 1}")
    view, parts = memoryview(data), []
    for segment in range(first, stop):
        at = int(table.offset[segment]) - start
        part = view[at : at + int(table.length[segment])]
        if google_crc32c.value(bytes(part)) != int(table.crc[segment]):
            raise Corrupt(f"the checksum of segment {segment} of bucket {name} does not fit")
        entries = decode_segment(part, f"segment {segment} of bucket {name}")
        if len(entries) != int(table.count[segment]):
            raise Corrupt(f"segment {segment} of bucket {name} holds {len(entries)} entries, not as its header says")
        parts.append(entries)
    return concat(parts)


def _prefix(head: bytes, size: int) -> bytes:
    without = PREFIX.pack(MAGIC, VERSION, 0, len(head), 0, size)
    crc = google_crc32c.extend(google_crc32c.value(without[:12] + without[16:]), head)
    return PREFIX.pack(MAGIC, VERSION, 0, len(head), crc, size)


def _table(rows: list[tuple[int, ...]]) -> SegmentTable:
    columns = zip(*rows, strict=True)
    return SegmentTable(*(np.array(column, dtype) for column, (dtype, _) in zip(columns, _TABLE, strict=True)))


def _serialise(entries: npt.NDArray[np.uint32]) -> bytes:
    bitmap = bitmap_of(entries)
    bitmap.run_optimize()
    data: bytes = bitmap.serialize()
    return data

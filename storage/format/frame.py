"""A frame: one run of consecutive entries, the same bytes at rest and on the wire.

    offset  size
    0       4     magic "SLC1"; "SLC2" if the run has segments
    4       4     header length h
    8       4     columns length c
    12      4     body length b
    16      4     CRC32C of bytes 0..15 and the header
    20      h     header: msgpack list, fields of `Header` in order
    20+h    c     index columns: deliver_at int64[n] when any row is delayed, then hashes uint32[n]
    20+h+c  b     body: Arrow record batch (storage.format.batch)

A run that several producers have published together has a *segment* for each of them. Its magic is another one, so that
an older process refuses the frame with a word and reads nothing wrong into it. All other frames keep their bytes.

The header carries the CRC32C of columns and body, computed by the producer, so the topic can assign positions and
rewrite the header without touching the payload, and damage anywhere between the producer's memory and the
consumer's is seen. Numbers are little-endian. Every length is checked against the bytes that are there, and
against the limits, before anything is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from operator import attrgetter
from typing import Any

import google_crc32c
import msgpack
import msgspec
import numpy as np
import numpy.typing as npt

from sluice.storage.errors import Corrupt, Invalid
from sluice.storage.format.batch import (
    MAX_INFLATED_BYTES,
    MAX_RUN_BYTES,
    MAX_RUN_MESSAGES,
    StoredBatch,
    body_parts,
    encode_body,
    shape_of,
)
from sluice.storage.format.checked_payload import checked, payload_crc
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.inflated import inflated_bytes

Buffer = bytes | bytearray | memoryview
"""Anything that holds bytes without interpreting them; pyarrow buffers and numpy arrays go through memoryview()."""

MAGIC, WITH_SEGMENTS = b"SLC1", b"SLC2"
NEWEST = KIND_WITH_SEGMENTS = 2
"""The newest kind of frame that this process reads: 1 without segments, 2 with them. A newer kind is written only when
every process of the cluster says that it reads it.
"""
PREFIX = struct.Struct("<4sIII")
PREFIX_BYTES = PREFIX.size + 4
MAX_HEADER_BYTES = 4096
MAX_SEGMENTS = 64
"""The most producers that one run may have."""
MAX_NAMES_BYTES = 3072
"""The most bytes of the names of the producers of one run with segments, so that the header keeps its limit."""
MAX_HEAD_BYTES = PREFIX_BYTES + MAX_HEADER_BYTES
"""Prefix and header: the part of a frame that its own checksum covers."""
MAX_FRAME_BYTES = MAX_HEAD_BYTES + 12 * MAX_RUN_MESSAGES + MAX_RUN_BYTES
_CRC = struct.Struct("<I")
_PACK = msgspec.msgpack.Encoder().encode
"""The same bytes as msgpack's own, which takes a quarter of a megabyte of memory for each head."""


@dataclass(frozen=True, slots=True)
class Run:
    """Messages that a producer hands over; they have no positions yet.

    payload is the frame's columns and body in one piece; crc covers it.
    """

    count: int
    delayed: bool
    shape: int
    payload: memoryview
    crc: int


Segment = tuple[str, int, int]
"""Consecutive messages of one producer in a run: its name, the sequence of the first of them, how many they are."""


@dataclass(frozen=True, slots=True)
class Header:
    """The position of a run and its writer. run is the ordinal of the append in its ledger, from 0.

    last_confirmed is the highest entry of this ledger that the writer knew confirmed when it sent this run (-1 for
    none), piggy-backed as in BookKeeper.

    positions: of a run of results, the messages that they were made of (actors.topic.partition.results); else empty,
    and then not written, so that the frames of all other runs are what they were before there were results.

    segments: of a run of several producers, in the order of its messages; then producer is "" and first_sequence 0.
    Else empty, and then not written. Invariant: neighbours are of different producers; their counts make up `count`.
    """

    ledger: int
    run: int
    first_entry: int
    count: int
    epoch: int
    last_confirmed: int
    producer: str
    first_sequence: int
    delayed: bool
    shape: int
    crc: int
    positions: bytes = b""
    segments: tuple[Segment, ...] = ()

    @property
    def parts(self) -> tuple[Segment, ...]:
        """The messages of each producer: the segments, or the whole run as one."""
        return self.segments or ((self.producer, self.first_sequence, self.count),)

    @property
    def last_entry(self) -> int:
        """The last entry of the run."""
        return self.first_entry + self.count - 1

    @property
    def columns_bytes(self) -> int:
        """How long the columns section must be."""
        return self.count * (12 if self.delayed else 4)


_VALUES = attrgetter(*(field.name for field in fields(Header)))
"""The header's values in order (dataclasses.astuple would copy each of them deeply)."""
_KINDS = {"str": str, "bool": bool, "int": int, "bytes": bytes}
_TYPES = tuple(_KINDS.get(str(field.type), tuple) for field in fields(Header))


@dataclass(frozen=True, slots=True)
class Frame:
    """A decoded frame. payload (columns, then body) is a view into the bytes it was decoded from, which leads to their
    CheckedPayload if they are many.
    """

    header: Header
    payload: memoryview

    @property
    def columns(self) -> memoryview:
        return self.payload[: self.header.columns_bytes]

    @property
    def body(self) -> memoryview:
        """The Arrow record batch alone."""
        return self.payload[self.header.columns_bytes :]

    @property
    def hashes(self) -> Hashes:
        """Masked hashes, uint32, shape (count,), a read-only view."""
        return index_columns(self.columns, self.header.count, self.header.delayed)[1]

    @property
    def deliver_at(self) -> npt.NDArray[np.int64] | None:
        """Due times in milliseconds, int64, shape (count,), 0 = at once; None when nothing is delayed."""
        return index_columns(self.columns, self.header.count, self.header.delayed)[0]


def index_columns(columns: Buffer, count: int, delayed: bool) -> tuple[npt.NDArray[np.int64] | None, Hashes]:
    """Split a columns section into (deliver_at or None, hashes), views without a copy. Raises Corrupt on size."""
    if len(columns) != count * (12 if delayed else 4):
        raise Corrupt(f"{len(columns)} bytes of index columns do not fit {count} messages")
    if not delayed:
        return None, np.frombuffer(columns, np.uint32)
    return np.frombuffer(columns, np.int64, count), np.frombuffer(columns, np.uint32, count, count * 8)


def make_run(batch: StoredBatch, compression: str | None = None) -> Run:
    """Encode a batch once, in the producer. Raises Invalid above 65,536 messages or 64 MiB."""
    body = memoryview(encode_body(batch.rows, compression)).cast("B")
    if compression is not None and (size := inflated_bytes(body)) > MAX_INFLATED_BYTES:
        raise Invalid(f"a run takes at most {MAX_INFLATED_BYTES} bytes without compression, this one {size}")
    payload = b"".join(_checked(batch, [body]))
    return _run(batch, memoryview(payload), payload_crc(payload))


def run_parts(batch: StoredBatch) -> list[Buffer]:
    """The payload of `make_run` without compression, in consecutive parts: nothing large is copied.

    `run_of` makes a run of the parts once they are written into one piece. Raises Invalid as make_run does.
    """
    return _checked(batch, [memoryview(part).cast("B") for part in body_parts(batch.rows)])


def run_of(batch: StoredBatch, payload: memoryview, parts: Sequence[Buffer]) -> Run:
    """The run of a batch whose parts were written into `payload`. The checksum is that of the parts."""
    crc = 0
    for part in parts:
        crc = google_crc32c.extend(crc, part if isinstance(part, bytes) else np.frombuffer(part, np.uint8))
    return _run(batch, payload, crc)


def _checked(batch: StoredBatch, body: list[Buffer]) -> list[Buffer]:
    """Index columns and body, if they are within the limits."""
    if not 0 < len(batch) <= MAX_RUN_MESSAGES:
        raise Invalid(f"a run holds 1 to {MAX_RUN_MESSAGES} messages, not {len(batch)}")
    delayed = [] if batch.deliver_at is None else [batch.deliver_at.tobytes()]
    parts = [*delayed, batch.hashes.tobytes(), *body]
    if (size := sum(map(len, parts))) > MAX_RUN_BYTES:
        raise Invalid(f"a run holds at most {MAX_RUN_BYTES} bytes, this one {size}; send smaller batches")
    return parts


def _run(batch: StoredBatch, payload: memoryview, crc: int) -> Run:
    return Run(len(batch), batch.deliver_at is not None, shape_of(batch.rows.schema), payload, crc)


def encode_head(header: Header, payload_bytes: int) -> bytes:
    """Prefix and header of a frame; the payload follows as it is."""
    values = _VALUES(header)
    written = len(values) if header.segments else -1 if header.positions else -2
    packed = _PACK(values[:written])
    if len(packed) > MAX_HEADER_BYTES:
        raise Invalid(f"the header needs {len(packed)} bytes, the limit is {MAX_HEADER_BYTES}")
    columns = header.columns_bytes
    magic = WITH_SEGMENTS if header.segments else MAGIC
    prefix = PREFIX.pack(magic, len(packed), columns, payload_bytes - columns)
    return prefix + _CRC.pack(google_crc32c.value(prefix + packed)) + packed


def head_size(prefix: Buffer) -> tuple[int, int, int]:
    """(header, columns, body) lengths from the first 20 bytes. Raises Corrupt if they cannot be a frame's."""
    if len(prefix) < PREFIX_BYTES:
        raise Corrupt("the frame is cut off in its first bytes")
    magic, header, columns, body = PREFIX.unpack_from(prefix)
    if magic[:3] != MAGIC[:3]:
        raise Corrupt("no frame starts here")
    if header > MAX_HEADER_BYTES or columns > 12 * MAX_RUN_MESSAGES or body > MAX_RUN_BYTES:
        raise Corrupt("the frame's lengths are beyond the limits")
    return header, columns, body


def decode_head(data: Buffer) -> Header:
    """Check and decode prefix and header from the start of `data`.

    Raises Corrupt on damage, Invalid for a kind of frame that is newer than this code.
    """
    size, columns, _ = head_size(data)
    if len(data) < PREFIX_BYTES + size:
        raise Corrupt("the frame is cut off in its header")
    view = memoryview(data)
    packed = view[PREFIX_BYTES : PREFIX_BYTES + size]
    expected = _CRC.unpack_from(data, PREFIX.size)[0]
    if google_crc32c.value(bytes(view[: PREFIX.size]) + bytes(packed)) != expected:
        raise Corrupt("the header's checksum does not fit")
    if (magic := bytes(view[:4])) not in (MAGIC, WITH_SEGMENTS):
        known = f"{MAGIC.decode()} and {WITH_SEGMENTS.decode()}"
        raise Invalid(f"a run has the format {magic!r}, this version reads {known}: start the version that wrote it")
    try:
        header = _header_of(msgpack.unpackb(packed))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Corrupt(f"the header cannot be read: {error}") from error
    _check_header(header, columns)
    if (data[:4] == WITH_SEGMENTS) != bool(header.segments):
        raise Corrupt("the header's segments do not fit the magic")
    return header


def decode_frame(data: Buffer, *, verify: bool = True) -> Frame:
    """Decode one whole frame that starts at the beginning of `data`; bytes behind it are ignored.

    verify=False skips the payload's checksum (never for bytes that come from a disk). Raises Corrupt.
    """
    header_bytes, columns_bytes, body_bytes = head_size(data)
    header = decode_head(data)
    start = PREFIX_BYTES + header_bytes
    end = start + columns_bytes + body_bytes
    if len(data) < end:
        raise Corrupt("the frame is cut off in its body")
    payload = memoryview(data)[start:end]
    verified = checked(payload, header.crc) if verify else payload
    if verified is None:
        raise Corrupt(f"the payload's checksum does not fit (ledger {header.ledger}, run {header.run})")
    return Frame(header, verified)


def _header_of(values: list[Any]) -> Header:
    """Make a header of decoded values. Raises TypeError, ValueError where they are no header's."""
    if len(values) > len(_TYPES):
        raise ValueError(f"it has {len(values)} fields")
    if len(values) == len(_TYPES):
        values[-1] = tuple([(name, first, count) for name, first, count in values[-1]])
    return Header(*values)


def _check_header(header: Header, columns_bytes: int) -> None:
    values = _VALUES(header)
    if tuple(map(type, values)) != _TYPES:
        wrong = next(index for index, value in enumerate(values) if type(value) is not _TYPES[index])
        raise Corrupt(f"the header's {fields(Header)[wrong].name} is {values[wrong]!r}")
    if not 0 < header.count <= MAX_RUN_MESSAGES or header.columns_bytes != columns_bytes:
        raise Corrupt("the header's count does not fit its columns")
    if header.segments:
        _check_segments(header)


def _check_segments(header: Header) -> None:
    if len(header.segments) > MAX_SEGMENTS or header.producer or header.first_sequence or header.positions:
        raise Corrupt("the header has segments beside what they stand for")
    for name, first, count in header.segments:
        if type(name) is not str or type(first) is not int or type(count) is not int or count <= 0 or not name:
            raise Corrupt(f"the header has a segment {name!r}, {first!r}, {count!r}")
    if sum([count for _, _, count in header.segments]) != header.count:
        raise Corrupt("the header's segments do not make up its run")
    if any(one[0] == other[0] for one, other in pairwise(header.segments)):
        raise Corrupt("the header has two neighbouring segments of one producer")

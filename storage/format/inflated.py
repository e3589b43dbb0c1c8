"""Finds out how large a compressed body becomes, before it is inflated.

A few kilobytes of zstd can stand for gigabytes. Arrow writes in front of each compressed buffer how long it is
without compression, and takes that much memory before it looks further. So these lengths are read first. The
message's metadata, a flatbuffer, says where the buffers lie. This module follows exactly the path to the list of
buffers in it, and checks every step against the bytes that are there.

    encapsulated message    0xFFFFFFFF, int32 length of the metadata, metadata, body
    metadata                table Message: field 1 kind of header, field 2 header
    header (RecordBatch)    field 2 vector of buffers (int64 offset, int64 length), field 3 compression, if any
    compressed buffer       int64 length without compression (-1: this one is stored as it is), bytes
"""

from __future__ import annotations

import struct
from functools import lru_cache

from sluice.storage.errors import Corrupt

RECORD_BATCH = 3
"""The kind of header that a body has."""
MAX_BUFFERS = 64
"""More than any shape of body has."""
MAX_KEPT = 4096
"""Metadata of up to so many bytes is remembered; that of a body is a few hundred."""

_START = struct.Struct("<Ii")
_I64 = struct.Struct("<q")
_PLACE = struct.Struct("<qq")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_U16 = struct.Struct("<H")


def inflated_bytes(body: memoryview) -> int:
    """Bytes that the buffers of an encapsulated record batch take once they are inflated. Raises Corrupt.

    0 for a body that is not compressed: such a one is never larger than the bytes that are there.
    """
    try:
        return _inflated(body)
    except struct.error:
        raise Corrupt("the body is cut off, or points beyond its end") from None


def _inflated(body: memoryview) -> int:
    mark, length = _START.unpack_from(body)
    if mark != 0xFFFFFFFF or not 8 <= length <= len(body) - _START.size:
        raise Corrupt("the body does not begin as an Arrow message")
    metadata, data = bytes(body[_START.size : _START.size + length]), body[_START.size + length :]
    places = _compressed(metadata) if length <= MAX_KEPT else _compressed.__wrapped__(metadata)
    return sum(_one(data, offset, size) for offset, size in places)


@lru_cache(maxsize=64)
def _compressed(metadata: bytes) -> tuple[tuple[int, int], ...]:
    """Offset and length of each buffer, none if they are not compressed. Bodies of equal shape and sizes, which small
    ones often are, have equal metadata. Raises struct.error, Corrupt.
    """
    message = _unsigned(metadata, 0)
    kind = _field(metadata, message, 1)
    header = _field(metadata, message, 2)
    if kind is None or header is None or metadata[kind : kind + 1] != bytes([RECORD_BATCH]):
        raise Corrupt("the body is an Arrow message of another kind")
    batch = header + _unsigned(metadata, header)
    if _field(metadata, batch, 3) is None:
        return ()
    buffers = _field(metadata, batch, 2)
    if buffers is None:
        return ()
    vector = buffers + _unsigned(metadata, buffers)
    count = _unsigned(metadata, vector)
    if count > MAX_BUFFERS:
        raise Corrupt(f"the body has {count} buffers, the most that one can have is {MAX_BUFFERS}")
    return tuple(_PLACE.unpack_from(metadata, vector + 4 + 16 * number) for number in range(count))


def _one(data: memoryview, offset: int, length: int) -> int:
    """Bytes of one buffer without compression."""
    if offset < 0 or length < 0 or offset + length > len(data):
        raise Corrupt("a buffer of the body lies beyond its end")
    if length == 0:
        return 0
    size = int(_I64.unpack_from(data, offset)[0])
    if size < -1:
        raise Corrupt(f"a buffer of the body says that it has {size} bytes")
    return length if size == -1 else size


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Return the offset of a field of a table; None if it is not set.

    Raises struct.error beyond the end, Corrupt before 0.
    """
    slots = table - int(_I32.unpack_from(metadata, table)[0])
    if slots < 0:
        raise Corrupt("the body's metadata points before its beginning")
    at = 4 + 2 * number
    if at >= _U16.unpack_from(metadata, slots)[0]:
        return None
    offset = int(_U16.unpack_from(metadata, slots + at)[0])
    return table + offset if offset else None


def _unsigned(metadata: bytes, at: int) -> int:
    return int(_U32.unpack_from(metadata, at)[0])

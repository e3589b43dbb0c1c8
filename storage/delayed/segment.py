"""One segment of a bucket: three compact columns.

    offset  size
    0       1     bytes of a due time (1, 2, 4 or 8)
    1       1     bytes of a position (1, 2, 4 or 8)
    2       2     zero
    4       4     number of entries n
    8       8     base of the due times
    16      8     base of the positions
    24      ..    due times minus base, positions minus base, hashes (uint32): n numbers each, little-endian

Subtracting the least value and keeping only the bytes that differ brings an entry from 20 to 10 to 12 bytes at the
speed of memory. The columns are not compressed further, so their length says how many entries there are, and nothing
is ever allocated on the word of a header. The checksum over a segment stands in the bucket's header.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from sluice.storage.delayed.entries import Entries
from sluice.storage.errors import Corrupt
from sluice.storage.format.frame import Buffer

HEAD = struct.Struct("<BBHIqq")
_WIDTHS = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}


def encode_segment(entries: Entries) -> bytes:
    """The bytes of at least one entry."""
    time_width, time_base, times = _narrow(entries.deliver_at)
    position_width, position_base, positions = _narrow(entries.positions)
    columns = b"".join([times, positions, entries.hashes.astype("<u4", copy=False).tobytes()])
    return HEAD.pack(time_width, position_width, 0, len(entries), time_base, position_base) + columns


def decode_segment(data: Buffer, name: str) -> Entries:
    """The entries of a segment whose checksum was verified. Raises Corrupt naming it if it is malformed."""
    if len(data) < HEAD.size:
        raise Corrupt(f"{name} is cut off after {len(data)} bytes")
    time_width, position_width, zero, count, time_base, position_base = HEAD.unpack_from(data)
    if time_width not in _WIDTHS or position_width not in _WIDTHS or zero:
        raise Corrupt(f"{name} has an unknown format")
    columns: Buffer = memoryview(data)[HEAD.size :]
    size = count * (time_width + position_width + 4)
    if len(columns) != size:
        raise Corrupt(f"{name} has {len(columns)} bytes of columns, not {size}")
    split = count * time_width
    times = np.frombuffer(columns, _WIDTHS[time_width], count).astype(np.int64) + time_base
    positions = np.frombuffer(columns, _WIDTHS[position_width], count, split).astype(np.int64) + position_base
    hashes = np.frombuffer(columns, "<u4", count, split + count * position_width).astype(np.uint32)
    return Entries(times, positions, hashes)


def _narrow(values: npt.NDArray[np.int64]) -> tuple[int, int, bytes]:
    """(bytes a value, base, bytes of all values minus base)."""
    base = int(values.min())
    spread = int(values.max()) - base
    width = next(width for width in _WIDTHS if spread < 1 << 8 * width)
    return width, base, (values - base).astype(_WIDTHS[width]).tobytes()

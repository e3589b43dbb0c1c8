"""Protobuf abreast: one field of many messages at a time, with numpy.

`Bytes` is what was read, padded so that eight bytes can be looked at from any place in it. A varint is read as one word
of eight bytes: its end is the first byte without the high bit, and the groups of seven bits are squeezed together in
three steps. Longer varints (more than 56 bits) are not read here; whoever finds one goes the slow way.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

UNSIGNED = (1 << 64) - 1
"""The largest number of 64 bits; as an id, Pulsar's word for none."""
MOST_FIELDS = 16
"""A message with more fields than that is odd."""
_PAD = 16
_INLINE = 12
"""Bytes that an Arrow view holds itself."""
_HIGH = np.uint64(0x8080808080808080)
_LOW = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONE = np.uint64(1)


class Bytes:
    """Bytes to be read at many places at once. Places lie within `data`; up to 16 bytes behind it read as zero."""

    def __init__(self, data: bytes) -> None:
        self.data = np.frombuffer(data + b"\0" * _PAD, np.uint8)
        self.size = len(data)
        self._words = np.lib.stride_tricks.as_strided(
            self.data[:8].view("<u8"), shape=(self.data.size - 8,), strides=(1,), writeable=False
        )
        self._big = np.lib.stride_tricks.as_strided(
            self.data[:4].view(">u4"), shape=(self.data.size - 8,), strides=(1,), writeable=False
        )

    def u32(self, at: Ints) -> Ints:
        """Numbers of four bytes, big-endian."""
        return self._big[at].astype(np.int64)

    def varints(self, at: Ints) -> tuple[Ints, Ints]:
        """(values, lengths); length 0 where it has more than eight bytes."""
        word = self._words[at]
        ends = ~word & _HIGH
        last = ends & (~ends + _ONE)
        mask = (last << _ONE) - _ONE
        mask[last == 0] = 0
        length = (np.bitwise_count(mask) >> 3).astype(np.int64)
        value = word & mask & _LOW
        for step, keep in ((1, 0x007F007F007F007F), (2, 0x00003FFF00003FFF), (4, 0x000000000FFFFFFF)):
            low = np.uint64(keep)
            high = np.uint64(keep << 8 * step)
            value = (value & low) | ((value & high) >> np.uint64(step))
        return value.astype(np.int64), length

    def slices(self, start: Ints, length: Ints, *, null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        """Slices as a binary column. null: which of them are null."""
        count = len(start)
        views = np.zeros((count, 4), np.int32)
        views[:, 0] = length
        windows = np.lib.stride_tricks.sliding_window_view(self.data, _INLINE)
        head = windows[start]
        short = length <= _INLINE
        head = np.where(np.arange(_INLINE) < length[:, None], head, 0).astype(np.uint8) if short.any() else head
        views[:, 1:] = np.ascontiguousarray(head).view(np.int32)
        long = np.flatnonzero(~short)
        views[long, 2] = 0
        views[long, 3] = start[long]
        valid = None
        if null is not None and null.any():
            valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
        buffers = [valid, pa.py_buffer(views), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary_view(), count, buffers).cast(pa.binary())


@dataclass(frozen=True, slots=True)
class Fields:
    """What was found of n messages, by tag: `value`, a number, or a slice's length; `at`, where a slice begins.

    A value of -1 says that the message has no such field. odd: messages that have to be read in another way, because
    they are malformed, or have a field that is not known here; what was found of these means nothing.
    """

    value: dict[int, Ints]
    at: dict[int, Ints]
    odd: npt.NDArray[np.bool_]


def read_fields(source: Bytes, at: Ints, stop: Ints, known: Collection[int]) -> Fields:
    """The fields of messages that begin and end at these places.

    known: tags, field and kind, as they are written: the second byte of one that has two stands 8 bits higher.
    """
    count = len(at)
    value = {tag: np.full(count, -1, np.int64) for tag in known}
    begins = {tag: np.zeros(count, np.int64) for tag in known if tag & 7 == 2}
    odd = (stop > source.size) | (at > stop)
    live = np.flatnonzero(~odd & (at < stop))
    place = at.copy()
    for _ in range(MOST_FIELDS):
        if not len(live):
            break
        here = place[live]
        tag = source.data[here].astype(np.int64)
        long = tag > 127
        tag += np.where(long, source.data[here + 1].astype(np.int64) << 8, 0)
        here += 1 + long
        number, length = source.varints(here)
        after = here + length
        behind = np.where(tag & 7 == 2, after + number, after)
        wrong = (length == 0) | (number < 0) | (number > 1 << 55) | (behind > stop[live])
        for one in np.unique(tag).tolist():
            chosen = tag == one
            rows = live[chosen]
            if one not in value:
                odd[rows] = True
                continue
            value[one][rows] = number[chosen]
            if one in begins:
                begins[one][rows] = after[chosen]
        odd[live[wrong]] = True
        place[live] = behind
        live = live[~odd[live] & (behind < stop[live])]
    odd[live] = True
    return Fields(value, begins, odd)


def encode_varints(values: Words | Ints, tag: bytes) -> pa.Array:
    """A field of each message: its tag and its value as a varint, a binary column."""
    count = len(values)
    bits = np.zeros(count, np.int64)
    left = values.astype(np.uint64)
    groups = []
    while True:
        groups.append((left & np.uint64(0x7F)).astype(np.uint8))
        left = left >> np.uint64(7)
        bits += 1
        if not left.any():
            break
    width = np.ones(count, np.int64)
    for place, group in enumerate(groups):
        width = np.where(group > 0, place + 1, width)
    matrix = np.zeros((count, len(tag) + len(groups)), np.uint8)
    matrix[:, : len(tag)] = np.frombuffer(tag, np.uint8)
    for place, group in enumerate(groups):
        matrix[:, len(tag) + place] = group | np.where(place + 1 < width, 0x80, 0).astype(np.uint8)
    lengths = width + len(tag)
    data = matrix[np.arange(matrix.shape[1]) < lengths[:, None]]
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths).astype(np.int32)])
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def encode_u32(values: Ints) -> pa.Array:
    """Numbers of four bytes, big-endian, as a binary column."""
    data = values.astype(">u4")
    kind = pa.binary(4)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(data)]).cast(pa.binary())


def encode_fields(count: int, fields: list[tuple[int, Ints | int | pa.Array | None]]) -> pa.Array:
    """Messages of these fields, as a binary column of n rows, n at least 1.

    Each field: its tag, and a number for all, a number for each (negative: it has none), or a slice for each that is
    not null; None: nobody has it.
    """
    parts: list[pa.Array | pa.Scalar] = []
    for tag, value in fields:
        written = bytes([tag & 0xFF, tag >> 8] if tag > 0xFF else [tag])
        if isinstance(value, int):
            parts.append(pa.scalar(encode_varints(np.array([value], np.uint64), written)[0].as_py(), pa.binary()))
        elif isinstance(value, np.ndarray):
            parts += _present(value, written)
        elif value is not None:
            parts += sliced(value, written)
    whole = [part for part in parts if isinstance(part, pa.Array)] or [pa.array([b""] * count, pa.binary())]
    assert all(len(part) == count for part in whole)
    if len(parts) == 1:
        return whole[0]
    if not any(isinstance(part, pa.Array) for part in parts):
        parts.append(whole[0])
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def lengths_of(column: pa.Array) -> Ints:
    """Bytes of each value of a binary column, int64; 0 where it is null."""
    lengths: Ints = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
    return lengths


def joined(column: pa.Array) -> bytes:
    """All values of a binary column that is no slice, one behind the other."""
    data = column.buffers()[2]
    return b"" if data is None else bytes(data.to_pybytes())


def sliced(column: pa.Array, tag: bytes) -> list[pa.Array]:
    """A field of bytes where it is not null: its tag and length, and itself."""
    if column.null_count == len(column):
        return []
    head = encode_varints(lengths_of(column), tag)
    if column.null_count:
        nothing = pa.scalar(b"", pa.binary())
        head, column = pc.if_else(column.is_valid(), head, nothing), pc.fill_null(column, nothing)
    return [head, column]


def _present(values: Ints, written: bytes) -> list[pa.Array]:
    """A field that only those have whose value is not negative."""
    there = values >= 0
    if not there.any():
        return []
    encoded = encode_varints(np.maximum(values, 0).astype(np.uint64), written)
    return [encoded if there.all() else pc.if_else(pa.array(there), encoded, pa.scalar(b"", pa.binary()))]

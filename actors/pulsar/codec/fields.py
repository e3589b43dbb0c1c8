"""Vectorized protobuf: reads and writes one field of many messages at a time, with numpy.

`Bytes` is what was read, padded so that eight bytes can be looked at from any place in it. A varint is read as one word
of eight bytes: its end is the first byte without the high bit, and the groups of seven bits are squeezed together in
three steps. Longer varints (more than 56 bits) are not read here; a message that has one is decoded the slow way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.actors.pulsar.codec.frames import PAD
from sluice.actors.pulsar.codec.varints import Cells, Flags, Ints, Words, field, side_by_side

UNSIGNED = (1 << 64) - 1
"""The largest number of 64 bits; as an id, Pulsar's word for none."""
MOST_FIELDS = 16
"""A message with more fields than that is odd."""
_INLINE = 12
"""Bytes that an Arrow view holds itself."""
_EVENLY = 4096
"""Slices that are all of one length up to that are copied row by row, without a view of each."""
_HIGH = np.uint64(0x8080808080808080)
_LOW = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONE, _FIRST = np.uint64(1), np.uint64(0x0101010101010101)
_NOTHING = pa.scalar(b"", pa.binary())


class Bytes:
    """Bytes to be read at many places at once. Places lie within `data`; up to PAD bytes behind it read as zero.

    padded: these zeros stand at the end of `data` already.
    """

    def __init__(self, data: bytes, *, padded: bool = False) -> None:
        self.data = np.frombuffer(data if padded else data + b"\0" * PAD, np.uint8)
        self.size = len(self.data) - PAD
        self._words = np.lib.stride_tricks.as_strided(
            self.data[:8].view("<u8"), shape=(self.data.size - 8,), strides=(1,), writeable=False
        )
        self._big = np.lib.stride_tricks.as_strided(
            self.data[:4].view(">u4"), shape=(self.data.size - 8,), strides=(1,), writeable=False
        )

    def u32(self, at: Ints) -> Ints:
        """Return numbers of four bytes, big-endian."""
        return self._big[at].astype(np.int64)

    def words(self, at: Ints) -> Words:
        """Eight bytes each, little-endian."""
        words: Words = self._words[at]
        return words

    def numbers(self, at: Ints, width: int) -> Ints:
        """Varints that have so many bytes each, up to 8."""
        if width == 1:
            return self.data[at].astype(np.int64)
        return _squeezed(self._words[at] & np.uint64((1 << 8 * width) - 1) & _LOW)

    def varints(self, at: Ints) -> tuple[Ints, Ints]:
        """(values, lengths); length 0 where it has more than eight bytes."""
        byte = self.data[at]
        if not (byte & 0x80).any():
            return byte.astype(np.int64), np.ones(len(at), np.int64)
        word = self._words[at]
        ends = ~word & _HIGH
        last = ends & (~ends + _ONE)
        mask = (last << _ONE) - _ONE
        mask[last == 0] = 0
        length = ((mask & _FIRST) * _FIRST >> np.uint64(56)).astype(np.int64)  # its bytes: their lowest bits, added up
        return _squeezed(word & mask & _LOW), length

    def slice(self, at: int, size: int) -> bytes:
        """Return the bytes of one slice."""
        return self.data[at : at + size].tobytes()

    def differ(self, at: Ints, size: Ints) -> Flags:
        """Return which slices differ from the one before them; the first one does. size: -1 for none."""
        differs: Flags = np.append(True, size[1:] != size[:-1])
        for width in np.unique(size).tolist():
            if width > 0:
                rows = np.flatnonzero(size == width)
                found = np.lib.stride_tricks.sliding_window_view(self.data, width)[at[rows]]
                differs[rows[1:]] |= (found[1:] != found[:-1]).any(axis=1)
        return differs

    def slices(self, start: Ints, length: Ints, *, null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        """Slices as a binary column. null: which of them are null."""
        count = len(start)
        null = null if null is not None and null.any() else None
        size = int(length[0]) if count else 0
        if null is None and 0 < size <= _EVENLY and bool((length == size).all()):
            windows = np.lib.stride_tricks.sliding_window_view(self.data, size)
            offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
            return pa.Array.from_buffers(
                pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(windows[start])]
            )
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
        if null is not None:
            valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
        buffers = [valid, pa.py_buffer(views), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary_view(), count, buffers).cast(pa.binary())


def _squeezed(word: Words) -> Ints:
    """Return numbers of seven bits a byte, without the bits that say whether more bytes follow."""
    for step, keep in ((1, 0x007F007F007F007F), (2, 0x00003FFF00003FFF), (4, 0x000000000FFFFFFF)):
        low = np.uint64(keep)
        high = np.uint64(keep << 8 * step)
        word = (word & low) | ((word & high) >> np.uint64(step))
    return word.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields found in n messages, by tag: `value`, a number, or a slice's length; `at`, where a slice begins.

    A value of -1 says that the message has no such field. odd: messages that have to be read in another way, because
    they are malformed, or have a field that is not known here; what was found of these means nothing.
    """

    value: dict[int, Ints]
    at: dict[int, Ints]
    odd: npt.NDArray[np.bool_]
    several: list[Slices]
    """The repeated field, each time that it occurs, as it came first, second and so on in its message."""


class Slices(NamedTuple):
    """Slices of some messages, m of them. rows: whose each is; at, size: where it lies; int64."""

    rows: Ints
    at: Ints
    size: Ints


def read_fields(source: Bytes, at: Ints, stop: Ints, known: Collection[int], repeated: int = -1) -> Fields:
    """Return the fields of messages that begin and end at these places.

    known: tags, field and kind, as they are written: the second byte of one that has two stands 8 bits higher.
    repeated: the tag of a field that a message may have several times.
    """
    count = len(at)
    several: list[Slices] = []
    value = {tag: np.full(count, -1, np.int64) for tag in known}
    begins = {tag: np.zeros(count, np.int64) for tag in known if tag & 7 == 2}
    odd = (stop > source.size) | (at > stop)
    live = np.flatnonzero(~odd & (at < stop))
    here, limit = at[live], stop[live]
    for _ in range(MOST_FIELDS):
        if not len(live):
            break
        tag = source.data[here].astype(np.int64)
        if (tag > 127).any():
            long = tag > 127
            tag += np.where(long, source.data[here + 1].astype(np.int64) << 8, 0)
            here = here + 1 + long
        else:
            here = here + 1
        number, length = source.varints(here)
        after = here + length
        behind = np.where(tag & 7 == 2, after + number, after)
        wrong = (length == 0) | (number < 0) | (number > 1 << 55) | (behind > limit)
        for one, chosen in _alike(tag):
            rows = live if chosen is None else live[chosen]
            if one == repeated:
                which = slice(None) if chosen is None else chosen
                several.append(Slices(rows, after[which], number[which]))
                continue
            if one not in value:
                wrong[slice(None) if chosen is None else chosen] = True
                continue
            value[one][rows] = number if chosen is None else number[chosen]
            if one in begins:
                begins[one][rows] = after if chosen is None else after[chosen]
        odd[live[wrong]] = True
        left = ~wrong & (behind < limit)
        if left.all():
            here = behind
        else:
            live, here, limit = live[left], behind[left], limit[left]
    odd[live] = True
    return Fields(value, begins, odd, several)


def _alike(tags: Ints) -> Iterator[tuple[int, npt.NDArray[np.bool_] | None]]:
    """Each tag that occurs, and who has it; None: all. There are few, so looking for each is faster than sorting."""
    first = int(tags[0])
    chosen = tags == first
    if chosen.all():
        yield first, None
        return
    left = np.ones(len(tags), bool)
    while True:
        yield first, chosen
        left &= ~chosen
        row = int(left.argmax())
        if not left[row]:
            return
        first = int(tags[row])
        chosen = tags == first


class Some(NamedTuple):
    """Numbers of 64 bits, and who has one."""

    values: Words
    there: Flags


Field = tuple[int, Ints | int | Some | Cells | pa.Array | None]
"""A tag, and a number for all, a number for each (negative: it has none), a nested message, or a slice for each that is
not null; None: nobody has it."""


def encode_fields(count: int, fields: list[Field]) -> tuple[list[pa.Array], Ints]:
    """Messages of these fields: binary columns of n rows, to be put side by side, and the bytes of each message."""
    columns: list[pa.Array] = []
    waiting: list[bytes | Cells] = []
    size = np.zeros(count, np.int64)
    for tag, value in fields:
        if isinstance(value, pa.Array):
            if value.null_count == count:
                continue
            lengths = lengths_of(value)
            waiting += field(
                tag, lengths, value.is_valid().to_numpy(zero_copy_only=False) if value.null_count else None
            )
            value = pc.fill_null(value, b"") if value.null_count else value
            numbers = side_by_side(count, waiting)
            columns += [numbers.column(), value]
            size += numbers.lengths() + lengths
            waiting = []
        else:
            waiting += field_of(tag, value)
    if waiting:
        numbers = side_by_side(count, waiting)
        columns.append(numbers.column())
        size += numbers.lengths()
    return columns, size


def encode_numbers(count: int, fields: list[Field]) -> Cells:
    """Messages of these fields, none of them a slice."""
    return side_by_side(count, [part for tag, value in fields for part in field_of(tag, value)])


def field_of(tag: int, value: Ints | int | Some | Cells | None) -> list[bytes | Cells]:
    """Return a field that is no slice."""
    if isinstance(value, Some):
        return field(tag, value.values, value.there) if value.there.any() else []
    if isinstance(value, np.ndarray):
        there = value >= 0
        return field(tag, np.maximum(value, 0), there) if there.any() else []
    return [] if value is None else field(tag, value)


def join(*columns: pa.Array) -> pa.Array:
    """Binary columns side by side, as one."""
    return pc.binary_join_element_wise(*columns, _NOTHING) if len(columns) > 1 else columns[0]


def lengths_of(column: pa.Array) -> Ints:
    """Return bytes of each value of a binary column, int64; 0 where it is null."""
    if column.null_count:
        lengths: Ints = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
        return lengths
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    return np.diff(offsets).astype(np.int64)


def joined(column: pa.Array) -> bytes:
    """Return all values of a binary column that is no slice, one behind the other."""
    data = column.buffers()[2]
    return b"" if data is None else bytes(data.to_pybytes())


class Views:
    """The values of a binary column, which are not copied. Invariant: the column has no nulls."""

    def __init__(self, column: pa.Array) -> None:
        _, offsets, data = column.buffers()
        self._ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].tolist()
        self._data = memoryview(b"" if data is None else data)

    def __getitem__(self, row: int) -> memoryview:
        return self._data[self._ends[row] : self._ends[row + 1]]

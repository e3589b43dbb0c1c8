"""Encodes small numbers of many messages at once: a matrix of bytes, in which each row leaves some out.

A varint has a cell for each byte that the largest of them needs; nested messages are matrices in a matrix. What a row
has not is left out in one step at the end. Slices of any length have no place here (actors.pulsar.codec.fields).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Cells:
    """Bytes of n rows of at most w. data: uint8 (n, w). there: bool (n, w), which of them a row has; None: all."""

    data: npt.NDArray[np.uint8]
    there: Flags | None

    def __len__(self) -> int:
        return len(self.data)

    def lengths(self) -> Ints:
        """Return bytes of each row, int64 (n,)."""
        if self.there is None:
            return np.full(len(self), self.data.shape[1], np.int64)
        lengths: Ints = np.count_nonzero(self.there, axis=1).astype(np.int64)
        return lengths

    def joined(self) -> bytes:
        """Return all rows, one behind the other."""
        return (self.data if self.there is None else self.data[self.there]).tobytes()

    def column(self) -> pa.Array:
        """Return a binary column of n rows."""
        count, width = self.data.shape
        if self.there is None:
            offsets = (
                np.arange(0, (count + 1) * width, width, dtype=np.int32) if width else np.zeros(count + 1, np.int32)
            )
        else:
            offsets = np.zeros(count + 1, np.int32)
            np.cumsum(self.lengths(), out=offsets[1:])
        values = self.data if self.there is None else self.data[self.there]
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(values)])


def varints(values: Words | Ints) -> Cells:
    """Each value as a varint. values: uint64 or int64 (n,), the latter not negative."""
    count = len(values)
    least, largest = (int(values.min()), int(values.max())) if count else (0, 0)
    width, narrowest = (max(-(-each.bit_length() // 7), 1) for each in (largest, least))
    left = values.astype(np.uint64)[:, None] >> _SHIFTS[:width]
    data = (left & np.uint64(0x7F)).astype(np.uint8)
    if width == narrowest:
        data[:, :-1] |= 0x80
        return Cells(data, None)
    there = left != 0
    there[:, 0] = True
    data[:, :-1] |= there[:, 1:].view(np.uint8) << 7
    return Cells(data, there)


_SHIFTS = np.arange(0, 70, 7, dtype=np.uint64)


def of_u32(values: Ints) -> Cells:
    """Return numbers of four bytes, big-endian."""
    return Cells(np.ascontiguousarray(values.astype(">u4")).view(np.uint8).reshape(-1, 4), None)


def field(tag: int, value: Ints | Words | int | Cells, there: Flags | None = None) -> list[bytes | Cells]:
    """A field of each row. value: a number for all, one for each, or a nested message. there: which rows have it.

    tag: as it is written; the second byte of one that has two stands 8 bits higher.
    """
    written = bytes([tag & 0xFF, tag >> 8] if tag > 0xFF else [tag])
    if isinstance(value, int):
        return [written + varint(value)]
    parts: list[bytes | Cells] = [written]
    if isinstance(value, Cells):
        length = varint(value.data.shape[1]) if value.there is None else varints(value.lengths())
        parts += [length, value]
    else:
        parts.append(varints(value))
    if there is None or there.all():
        return parts
    laid = side_by_side(len(value), parts)
    mine = np.broadcast_to(there[:, None], laid.data.shape)
    return [Cells(laid.data, mine if laid.there is None else laid.there & mine)]


@lru_cache(4096)
def number_of(encoded: bytes) -> int:
    """Decode a whole varint. Messages of the same time say the same numbers."""
    value = 0
    for place, byte in enumerate(encoded):
        value |= (byte & 0x7F) << 7 * place
    return value


def varint(value: int) -> bytes:
    groups = [value & 0x7F]
    while value := value >> 7:
        groups[-1] |= 0x80
        groups.append(value & 0x7F)
    return bytes(groups)


def side_by_side(count: int, parts: Sequence[bytes | Cells]) -> Cells:
    """Return one row of each part after the other; bytes are the same in all of them."""
    sizes = [len(part) if isinstance(part, bytes) else part.data.shape[1] for part in parts]
    data = np.empty((count, sum(sizes)), np.uint8)
    whole = all(isinstance(part, bytes) or part.there is None for part in parts)
    there = None if whole else np.ones(data.shape, bool)
    at = 0
    for part, size in zip(parts, sizes, strict=True):
        if isinstance(part, bytes):
            data[:, at : at + size] = np.frombuffer(part, np.uint8)
        else:
            data[:, at : at + size] = part.data
            if there is not None and part.there is not None:
                there[:, at : at + size] = part.there
        at += size
    return Cells(data, there)


def ranges(firsts: Ints, sizes: Ints) -> Ints:
    """first .. first+size-1 of each, one behind the other."""
    ends = np.cumsum(sizes)
    numbers: Ints = np.arange(int(sizes.sum())) + np.repeat(firsts - ends + sizes, sizes)
    return numbers

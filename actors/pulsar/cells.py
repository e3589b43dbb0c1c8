"""Small numbers of many messages, encoded abreast: a matrix of bytes, in which each row leaves some out.

A varint has a cell for each byte that the largest of them needs; nested messages are matrices in a matrix. What a row
has not is left out in one step at the end. Slices of any length have no place here (actors.pulsar.columns).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Cells:
    """Bytes of n rows of at most w. data: uint8 (n, w). there: bool (n, w), which of them a row has."""

    data: npt.NDArray[np.uint8]
    there: Flags

    def __len__(self) -> int:
        return len(self.data)

    def lengths(self) -> Ints:
        """Bytes of each row, int64 (n,)."""
        lengths: Ints = np.count_nonzero(self.there, axis=1).astype(np.int64)
        return lengths

    def joined(self) -> bytes:
        """All rows, one behind the other."""
        return self.data[self.there].tobytes()

    def column(self) -> pa.Array:
        """A binary column of n rows."""
        offsets = np.zeros(len(self) + 1, np.int32)
        np.cumsum(self.lengths(), out=offsets[1:])
        return pa.Array.from_buffers(
            pa.binary(), len(self), [None, pa.py_buffer(offsets), pa.py_buffer(self.data[self.there])]
        )


def varints(values: Words | Ints) -> Cells:
    """Each value as a varint. values: uint64 or int64 (n,), the latter not negative."""
    left = values.astype(np.uint64)
    largest = int(left.max()) if len(left) else 0
    width = max(-(-largest.bit_length() // 7), 1)
    data = np.empty((len(left), width), np.uint8)
    there = np.ones((len(left), width), bool)
    for place in range(width):
        data[:, place] = left | np.uint64(0x80)
        left = left >> np.uint64(7)
        if place + 1 < width:
            there[:, place + 1] = left != 0
            data[:, place] &= np.where(there[:, place + 1], 0xFF, 0x7F).astype(np.uint8)
        else:
            data[:, place] &= 0x7F
    return Cells(data, there)


def of_u32(values: Ints) -> Cells:
    """Numbers of four bytes, big-endian."""
    data = np.ascontiguousarray(values.astype(">u4")).view(np.uint8).reshape(-1, 4)
    return Cells(data, np.ones(data.shape, bool))


def field(tag: int, value: Ints | Words | int | Cells, there: Flags | None = None) -> list[bytes | Cells]:
    """A field of each row. value: a number for all, one for each, or a nested message. there: which rows have it.

    tag: as it is written; the second byte of one that has two stands 8 bits higher.
    """
    written = bytes([tag & 0xFF, tag >> 8] if tag > 0xFF else [tag])
    if isinstance(value, int):
        return [written + varints(np.array([value], np.uint64)).joined()]
    parts: list[bytes | Cells] = [written]
    parts += [varints(value.lengths()), value] if isinstance(value, Cells) else [varints(value)]
    if there is None or there.all():
        return parts
    laid = side_by_side(len(value), parts)
    return [Cells(laid.data, laid.there & there[:, None])]


def side_by_side(count: int, parts: Sequence[bytes | Cells]) -> Cells:
    """One row of each part after the other; bytes are the same in all of them."""
    sizes = [len(part) if isinstance(part, bytes) else part.data.shape[1] for part in parts]
    data = np.empty((count, sum(sizes)), np.uint8)
    there = np.ones((count, sum(sizes)), bool)
    at = 0
    for part, size in zip(parts, sizes, strict=True):
        if isinstance(part, bytes):
            data[:, at : at + size] = np.frombuffer(part, np.uint8)
        else:
            data[:, at : at + size] = part.data
            there[:, at : at + size] = part.there
        at += size
    return Cells(data, there)

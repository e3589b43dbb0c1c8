"""A payload whose checksum was verified in this process, and the CRC32C of parts of it without another pass.

CRC32C is linear: the checksum of two pieces, one behind the other, is that of the first, moved by the length of the
second, xor that of the second. So the checksums of two beginnings of a payload give that of the bytes between them.
The verification notes the checksum of a beginning every MARK_BYTES, and every other beginning is read on from there.

A view of the whole payload leads back to the verification (`CheckedPayload.shown_by`) as long as it stays in this
process. Bytes that were copied, or came from another process, were not verified here.
"""

from __future__ import annotations

from array import array
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

CHECKED_FROM = 64 * 1024
"""The least bytes of a payload whose verification is remembered."""
MARK_BYTES = 32 * 1024
COPIED_TO = 4 * 1024
"""The most bytes that are copied for their checksum."""
SUMMED_FROM = 16 * 1024
"""The least bytes of a value, on average, whose checksum is derived: to compute it from fewer takes no longer."""
Sums = npt.NDArray[np.uint32]
"""For each of n values the checksum of all that precedes it in its payload, and of all that ends with it; (n, 2)."""
NO_SUMS: Sums = np.empty((0, 2), np.uint32)
_POLYNOMIAL = 0x82F63B78
_TABLES: list[array[int]] = []
"""For each power of two, 4 times 256 checksums: each byte of one, moved by so many bytes."""


class CheckedPayload:
    """A payload that fits its checksum. marks: the checksums of its first 0, 1, 2 ... times MARK_BYTES bytes."""

    def __init__(self, payload: memoryview, crc: int, marks: array[int]) -> None:
        self.payload, self.crc, self._marks = payload, crc, marks
        self._data = np.frombuffer(payload, np.uint8)
        self._address: int = self._data.__array_interface__["data"][0]

    @classmethod
    def verified(cls, payload: memoryview, crc: int) -> CheckedPayload | None:
        """Return a payload that fits a checksum; None if it does not. What was verified before is not read again."""
        known = cls.shown_by(payload)
        if known is not None:
            return known if known.crc == crc else None
        data, marks, found = np.frombuffer(payload, np.uint8), array("I", [0]), 0
        for begin in range(0, len(data), MARK_BYTES):
            found = google_crc32c.extend(found, data[begin : begin + MARK_BYTES])
            marks.append(found)
        return cls(payload, crc, marks) if found == crc else None

    @classmethod
    def shown_by(cls, view: memoryview) -> CheckedPayload | None:
        """Return the checked payload that a view shows completely."""
        base = getattr(view.obj, "base", None)
        return base if isinstance(base, cls) and len(base.payload) == len(view) else None

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The bytes, for numpy: an array over them keeps this object."""
        return self._data.__array_interface__

    def view(self) -> memoryview:
        """Return the bytes, read-only. The view leads back to this object."""
        return np.asarray(self).data

    def before(self, offset: int) -> int:
        """Return the CRC32C of so many bytes from the first one on."""
        mark, rest = divmod(offset, MARK_BYTES)
        return int(google_crc32c.extend(self._marks[mark], self._data[offset - rest : offset]))

    def sums(self, column: pa.Array, rows: npt.NDArray[np.int64]) -> Sums:
        """Return the sums of rows of a binary column, n; NO_SUMS if its values are small or lie elsewhere."""
        _, offsets, data = column.buffers()
        if data is None or data.size < len(column) * SUMMED_FROM:
            return NO_SUMS
        begin = data.address - self._address
        if not 0 <= begin <= len(self._data) - data.size:
            return NO_SUMS
        ends = np.frombuffer(offsets, np.int32)[column.offset :].astype(np.int64) + begin
        found: list[tuple[int, int]] = []
        last, last_end = 0, 0
        for start, end in zip(ends[rows].tolist(), ends[rows + 1].tolist(), strict=True):
            first = last if start == last_end else self.before(start)
            last, last_end = self.before(end), end
            found.append((first, last))
        return np.array(found, np.uint32).reshape(-1, 2)


def payload_crc(payload: bytes | memoryview, before: int = 0) -> int:
    """Return the CRC32C of a payload (columns and body) behind bytes with the checksum `before`."""
    # The library takes no memoryview. A copy of few bytes costs less than an array that shows them.
    seen = np.frombuffer(payload, np.uint8) if len(payload) > COPIED_TO else bytes(payload)
    return int(google_crc32c.extend(before, seen))


def checked(payload: memoryview, crc: int) -> memoryview | None:
    """Return a payload that fits a checksum, a large one as a view of a CheckedPayload; None if it does not fit."""
    if len(payload) < CHECKED_FROM:
        return payload if payload_crc(payload) == crc else None
    found = CheckedPayload.verified(payload, crc)
    return None if found is None else found.view()


def holder(view: memoryview) -> object:
    """Return the object whose memory a view shows."""
    base = getattr(view.obj, "base", None)
    return base.payload.obj if isinstance(base, CheckedPayload) else view.obj


def behind_another(crc: int, before: int, end: int, size: int) -> int:
    """Return the checksum of bytes with the checksum `crc` and behind them a value of so many bytes, with its sums."""
    return end ^ moved(before ^ crc, size)


def moved(crc: int, size: int) -> int:
    """Return what a checksum contributes to that of its bytes and `size` more."""
    power = 0
    while size:
        if size & 1:
            table = _TABLES[power] if power < len(_TABLES) else _table(power)
            low, high = table[crc & 255] ^ table[256 + (crc >> 8 & 255)], table[512 + (crc >> 16 & 255)]
            crc = low ^ high ^ table[768 + (crc >> 24)]
        size >>= 1
        power += 1
    return crc


def _table(power: int) -> array[int]:
    """Return the table of a power of two. Those before it are made as well."""
    while len(_TABLES) <= power:
        size = 1 << len(_TABLES) >> 1
        bits = [moved(moved(1 << bit, size), size) if size else _behind_zero(1 << bit) for bit in range(32)]
        table = array("I", [0]) * 1024
        for number in range(1024):
            place, byte = divmod(number, 256)
            if byte:
                lowest = byte & -byte
                table[number] = table[number - lowest] ^ bits[8 * place + lowest.bit_length() - 1]
        _TABLES.append(table)
    return _TABLES[power]


def _behind_zero(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc

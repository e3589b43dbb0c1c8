"""Redelivery counts and delays of messages, as columns, and their encoding.

The bytes are part of a subscription's record, which is rewritten with every group of acknowledgements: each column
takes the narrowest numbers that hold it, and nothing at all is written for no rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack
import numpy as np
import numpy.typing as npt

from sluice.storage.errors import Corrupt, Invalid
from sluice.storage.format.cursor import seal, unseal
from sluice.storage.format.packed_ints import narrow, wide
from sluice.storage.format.position import Positions

MAGIC = b"SLR1"
FORMAT = 2
"""1 has no `overtook`, and is written as long as no row is."""
_TIMES = 1 << 62
"""Above any time in milliseconds that a sum of two of them can reach."""


class Redeliveries(NamedTuple):
    """One row a message, each of shape (n,).

    positions: int64, ascending. counts: uint8, how often it was given back and counted. until: int64, milliseconds
    since 1970 before which it is not sent again; 0 = at once. overtook: bool, an application had it before an earlier
    message of its key came again (`nack_order=key`).
    """

    positions: Positions
    counts: npt.NDArray[np.uint8]
    until: npt.NDArray[np.int64]
    overtook: npt.NDArray[np.bool_]

    def pick(self, which: npt.NDArray[Any]) -> Redeliveries:
        """Return some of the rows. which: a mask, or row numbers in ascending order."""
        return Redeliveries(self.positions[which], self.counts[which], self.until[which], self.overtook[which])


NOTHING = Redeliveries(np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.bool_))


def merged(first: Redeliveries, second: Redeliveries) -> Redeliveries:
    """Merge two tables; where both name a position, the higher count and the later time count."""
    if not len(first.positions) or not len(second.positions):
        return first if len(first.positions) else second
    positions, homes = np.unique(np.concatenate([first.positions, second.positions]), return_inverse=True)
    counts, until = np.zeros(len(positions), np.uint8), np.zeros(len(positions), np.int64)
    np.maximum.at(counts, homes, np.concatenate([first.counts, second.counts]))
    np.maximum.at(until, homes, np.concatenate([first.until, second.until]))
    overtook = np.zeros(len(positions), np.bool_)
    np.logical_or.at(overtook, homes, np.concatenate([first.overtook, second.overtook]))
    return Redeliveries(positions, counts, until, overtook)


def encode(rows: Redeliveries) -> bytes:
    """The bytes; none for no rows."""
    if not len(rows.positions):
        return b""
    waits = rows.until[rows.until > 0]
    base = int(waits.min()) - 1 if len(waits) else 0
    columns = [
        int(rows.positions[0]),
        narrow(np.diff(rows.positions)),
        rows.counts.tobytes(),
        base,
        narrow(np.where(rows.until > 0, rows.until - base, 0)),
    ]
    if rows.overtook.any():
        body: bytes = msgpack.packb([FORMAT, *columns, np.packbits(rows.overtook).tobytes()])
    else:
        body = msgpack.packb([1, *columns])
    return seal(MAGIC, body)


def decode(data: bytes) -> Redeliveries:
    """The rows back. Raises Corrupt on any damage, Invalid on a format that is newer than this code."""
    if not data:
        return NOTHING
    body = unseal(MAGIC, data, "the redelivery table")
    try:
        version, *columns = msgpack.unpackb(body)
        if version not in (1, FORMAT):
            raise Invalid(f"the redelivery table has format {version}, this version reads 1 to {FORMAT}")
        bits = columns.pop() if version == FORMAT else b""
        first, steps, counts, base, waits = columns
        positions = np.cumsum(np.concatenate([np.array([first], np.int64), wide(steps)]))
        after = wide(waits)
        if not 0 <= base < _TIMES or bool((after < 0).any()) or bool((after >= _TIMES).any()):
            raise Corrupt("the redelivery table has invalid times")
        overtook = np.zeros(len(positions), np.bool_)
        if version == FORMAT:
            if len(bits) != (len(positions) + 7) // 8:
                raise Corrupt("the columns of the redelivery table differ in length")
            overtook = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(positions)).astype(np.bool_)
        until = np.where(after > 0, after + base, 0)
        rows = Redeliveries(positions, np.frombuffer(counts, np.uint8), until, overtook)
    except (Invalid, Corrupt):
        raise
    except (ValueError, TypeError, LookupError, OverflowError, msgpack.UnpackException) as error:
        raise Corrupt(f"the redelivery table cannot be read: {error}") from error
    if not len(positions) == len(rows.counts) == len(rows.until):
        raise Corrupt("the columns of the redelivery table differ in length")
    if positions[0] < 0 or bool((positions[1:] <= positions[:-1]).any()):
        raise Corrupt("the positions of the redelivery table are not ascending")
    return rows

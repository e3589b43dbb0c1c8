"""Ranges of hashes that a reader brings: it is shown the messages whose keys fall into one of them, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.pulsar.codec.protocol import ServerError
from sluice.actors.pulsar.refusals import CommandRefused
from sluice.storage.format.batch import order_keys
from sluice.storage.format.hashing import HASH_RANGE, hash_column, reduce_hash

_NO_KEY = pa.scalar(b"NONE_KEY", pa.binary())
"""The key that Pulsar hashes for a message without a key."""


def check_ranges(ranges: Sequence[tuple[int, int]]) -> None:
    """Raise CommandRefused for a range that is none."""
    for start, end in ranges:
        if not 0 <= start <= end < HASH_RANGE:
            text = f"range {start}-{end} is not within 0-{HASH_RANGE - 1}"
            raise CommandRefused(ServerError.CONSUMER_ASSIGN, text)


def rows_outside(part: Received, ranges: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """The rows of a part whose keys fall into none of these ranges, which include their ends; int64, ascending."""
    keys = pc.fill_null(order_keys(part), _NO_KEY)
    hashes = reduce_hash(hash_column(keys), size=HASH_RANGE, start=0)
    inside = np.zeros(len(hashes), bool)
    for start, end in ranges:
        inside |= (hashes >= start) & (hashes <= end)
    return np.flatnonzero(~inside)

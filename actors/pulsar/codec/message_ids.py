"""Reads message ids that a client names, many at once.

Clients gather acknowledgements, so one command may have a thousand ids. All are read at once; one with more than a
ledger and an entry, above all a set of the batch's messages, is read by protobuf, one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sluice.actors.pulsar.codec.fields import Bytes, read_fields
from sluice.actors.pulsar.codec.protocol import MessageId, parse, tags
from sluice.actors.pulsar.codec.varints import Ints
from sluice.storage.format.position import ENTRY_BITS, MAX_ENTRY, MAX_LEDGER, position

_KNOWN = _LEDGER, _ENTRY, _PARTITION, _INDEX = tags("MessageId", "ledger", "entry", "partition", "batch_index")


def position_of(one: Any) -> int | None:
    """Return the position of an id's entry; None where there can be none (earliest, latest)."""
    ledger, entry = one.ledger, one.entry
    return position(ledger, entry) if 0 < ledger <= MAX_LEDGER and entry <= MAX_ENTRY else None


def parsed(encoded: Sequence[bytes]) -> list[Any]:
    """Return ids one by one. Raises Malformed."""
    return [parse(MessageId, one) for one in encoded]


def read_ids(encoded: Sequence[bytes], vectorized_from: int) -> tuple[Ints, list[Any]]:
    """(Positions of ids that are nothing but an entry, int64; the others). Raises Malformed.

    vectorized_from: from so many ids on they are read together; if there are fewer, all are others.
    """
    if len(encoded) < vectorized_from:
        return np.empty(0, np.int64), parsed(encoded)
    ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    read = read_fields(Bytes(b"".join(encoded)), np.concatenate([[0], ends[:-1]]), ends, _KNOWN)
    ledger, entry = read.value[_LEDGER], read.value[_ENTRY]
    plain = ~read.odd & (ledger > 0) & (ledger <= MAX_LEDGER) & (entry >= 0) & (entry <= MAX_ENTRY)
    positions = (ledger << ENTRY_BITS | entry)[plain]
    return positions, parsed([encoded[number] for number in np.flatnonzero(~plain).tolist()])

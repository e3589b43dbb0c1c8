"""Batches that pass through unread are one row, and clients make many messages of it: how many their metadata say."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sluice.actors.pulsar.codec.fields import joined
from sluice.actors.pulsar.codec.protocol import Metadata, tags
from sluice.actors.pulsar.codec.varints import Ints

_TAG = bytes(tags("Metadata", "num_messages"))
"""The byte before the number of messages. Other bytes may be equal, but without it there is no such number."""
_FEW = 32
"""The number of rows below which each row is looked at."""


def unread_messages(rests: pa.Array) -> Ints:
    """Count the messages that clients make of each row that travels alone, int64, 1 or more. rests: column `pulsar`."""
    counts = np.ones(len(rests), np.int64)
    if len(rests) < _FEW or _TAG in joined(rests):
        for row, rest in enumerate(rests.to_pylist()):
            if rest is not None and _TAG in rest:
                counts[row] = max(Metadata.FromString(rest).num_messages, 1)
    return counts

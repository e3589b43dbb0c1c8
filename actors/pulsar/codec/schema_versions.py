"""The version of a topic's schema with which each stored message was written, as its client named it."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.actors.pulsar.codec.compression import NONE
from sluice.actors.pulsar.codec.protocol import MalformedCommand, Metadata, parse
from sluice.storage.history.schema_fields import NO_VERSION

VERSION = struct.Struct(">q")
"""A version on the wire."""
UNREADABLE = -2
"""The version of a message whose payload passed through unread, or that names an impossible version."""


def versions_of(rests: pa.Array) -> npt.NDArray[np.int64]:
    """The version of each message, int64, or NO_VERSION, UNREADABLE; rests: the column `pulsar` of stored messages."""
    coded = rests.dictionary_encode()
    each = [version_of(rest) for rest in coded.dictionary.to_pylist()]
    known = np.append(np.array(each, np.int64), NO_VERSION)
    found: npt.NDArray[np.int64] = known[coded.indices.fill_null(len(each)).to_numpy(zero_copy_only=False)]
    return found


@lru_cache(1024)
def version_of(rest: bytes) -> int:
    """Return the version of one message, or NO_VERSION, UNREADABLE."""
    try:
        metadata: Any = parse(Metadata, rest)
    except MalformedCommand:
        return UNREADABLE
    version = bytes(metadata.schema_version)
    if not version or metadata.null_value:
        return NO_VERSION
    whole = metadata.compression == NONE and metadata.num_chunks <= 1 and not metadata.HasField("num_messages")
    if not whole or metadata.encryption_keys or len(version) != VERSION.size:
        return UNREADABLE
    return max(UNREADABLE, int(VERSION.unpack(version)[0]))

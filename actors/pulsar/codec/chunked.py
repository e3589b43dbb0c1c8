"""Chunks in bytes: the metadata by which Pulsar's clients know the chunks of a large message, cut and joined.

Each chunk has the metadata of the whole, and also `uuid`, `num_chunks`, `chunk_id` (from 0) and `total_chunk_size`. A
client of Pulsar compresses and encrypts the whole before it cuts it. A producer of Sluice leaves it as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.actors.consumer.chunks import MOST_BYTES, ChunkOf, MessageChunk, Whole
from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.pulsar.codec.compression import NONE, inflate
from sluice.actors.pulsar.codec.protocol import MalformedCommand, Metadata, parse

logger = logging.getLogger("sluice.client")

CHUNK_BYTES = 4 * 1024 * 1024
"""A chunk has so many: properties and keys have room in the frame beside it."""
OF_CHUNKS = ("uuid", "num_chunks", "chunk_id", "total_chunk_size")


def count_of(size: int) -> int:
    """Return how many chunks `cut` makes of a payload of so many bytes."""
    return -(-size // CHUNK_BYTES)


def cut(payload: bytes, uuid: bytes, rest: bytes | None) -> list[tuple[bytes, bytes]]:
    """Cut a payload. rest: what stands in the column `pulsar` of whole messages. Return payload and column of each
    chunk.
    """
    pieces = [payload[start : start + CHUNK_BYTES] for start in range(0, len(payload), CHUNK_BYTES)]
    metadata: Any = Metadata.FromString(rest or b"")
    metadata.uuid, metadata.num_chunks, metadata.total_chunk_size = uuid, len(pieces), len(payload)
    chunks = []
    for number, piece in enumerate(pieces):
        metadata.chunk_id = number
        chunks.append((piece, metadata.SerializeToString()))
    return chunks


@lru_cache(1024)
def chunk_of(rest: bytes | None) -> ChunkOf | None:
    """The place of a message among the chunks of one, by its column `pulsar`; None for a message that is whole."""
    if rest is None:
        return None
    try:
        metadata: Any = parse(Metadata, rest)
    except MalformedCommand:
        return None
    if metadata.num_chunks <= 1 or not 0 <= metadata.chunk_id < metadata.num_chunks:
        return None
    return ChunkOf(bytes(metadata.uuid), metadata.chunk_id, metadata.num_chunks)


def divide(part: Received) -> Sequence[Received]:
    """Return a part as it is, or with each chunk as a part of its own."""
    coded = part.column("pulsar").dictionary_encode()
    places = [chunk_of(rest) for rest in coded.dictionary.to_pylist()]
    if not any(places):
        return (part,)
    of_rows = [None if code is None else places[code] for code in coded.indices.to_pylist()]
    found: list[Received] = []
    start = 0
    for row, of in enumerate([*of_rows, None]):
        at_end = row == len(of_rows)
        if (of is not None or at_end) and start < row:
            found.append(part.take(np.arange(start, row)))
        if of is not None:
            found.append(MessageChunk(part if len(of_rows) == 1 else part.take(np.array([row])), of))
            start = row + 1
    return found


def whole(chunks: Sequence[MessageChunk]) -> Whole:
    """Join all chunks of a message, in order. A payload that its metadata do not inflate stays as it came."""
    rows = chunks[-1].rows
    payload = memoryview(b"".join(chunk.rows.column("payload")[0].as_buffer() for chunk in chunks))
    metadata: Any = Metadata.FromString(rows.column("pulsar")[0].as_py())
    for name in OF_CHUNKS:
        metadata.ClearField(name)
    if metadata.compression != NONE and not metadata.encryption_keys:
        try:
            payload = inflate(metadata.compression, payload, metadata.uncompressed_size, MOST_BYTES)
            metadata.ClearField("compression")
            metadata.ClearField("uncompressed_size")
        except MalformedCommand as error:
            logger.error("a message in chunks is handed out as it came: %s", error)
    columns = {
        "payload": pa.BinaryArray.from_buffers(
            pa.binary(), 1, [None, pa.py_buffer(np.array([0, len(payload)], np.int32)), pa.py_buffer(payload)]
        ),
        "pulsar": pa.array([metadata.SerializeToString() or None], pa.binary()),
    }
    taken = rows.take(pa.array([0]))
    joined = [columns.get(name, taken.column(name)) for name in rows.schema.names]
    return Whole(chunks, pa.RecordBatch.from_arrays(joined, schema=rows.schema))

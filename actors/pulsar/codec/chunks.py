"""What the metadata of a chunk may say: a large message travels as several, which its client joins again.

Clients make room for all chunks that are said to come when the first one does. One that is said to be the first of two
thousand million ends the process of whoever gets it, and of whoever gets it afterwards.
"""

from __future__ import annotations

from typing import Any

from actors.pulsar.codec.protocol import MalformedCommand
from storage.batch import MAX_MESSAGE_BYTES

MOST_CHUNKS = 1 << 16
"""Of one message."""


def check_chunk(metadata: Any) -> None:
    """Raises MalformedCommand for a chunk that there cannot be."""
    chunks, chunk, size = metadata.num_chunks, metadata.chunk_id, metadata.total_chunk_size
    if chunks <= 1:
        return
    if not 0 <= chunk < chunks <= MOST_CHUNKS:
        raise MalformedCommand(f"chunk {chunk} of {chunks}; a message has at most {MOST_CHUNKS}, counted from 0")
    if not 0 <= size <= chunks * MAX_MESSAGE_BYTES:
        raise MalformedCommand(f"{chunks} chunks do not make a message of {size} bytes")

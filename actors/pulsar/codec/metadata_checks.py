"""Checks the metadata of a frame, so that every client can read the message.

Much of them passes through unread. A client that is sent what it cannot read does not leave that message out: it hangs
up, comes back and is sent it again, or its process ends. So one such message would keep every consumer of its topic
from all that lies behind it. What it would trip over is refused when it comes: fields that must be there, numbers
beyond all reason, kinds of compression that there are not, and groups, which Java's client does not skip. Clients make
room for all chunks of a message when the first one comes, so their number has a limit as well.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from sluice.actors.pulsar.codec.compression import CODECS, MOST_FOLD, NONE
from sluice.actors.pulsar.codec.protocol import EncryptionKey, MalformedCommand, parse
from sluice.storage.format.batch import LAST_TIME, MAX_MESSAGE_BYTES, MAX_RUN_MESSAGES

MOST_CHUNKS = 1 << 16
"""The most chunks of one message."""
_LEAST = 64
"""Smaller payloads are taken for so many bytes."""
_MOST_INFLATED = (1 << 31) - 1
"""No client has room for more."""
_GROUP = 3
"""The kind of a field that begins a group."""


def check_metadata(metadata: Any, payload: int) -> None:
    """Raise MalformedCommand for metadata that not every client could read. payload: bytes of it, as it came."""
    for name in ("producer_name", "sequence_id", "publish_time"):
        if not metadata.HasField(name):
            raise MalformedCommand(f"the metadata have no {name}")
    if metadata.publish_time > LAST_TIME or metadata.deliver_at_time > LAST_TIME:
        raise MalformedCommand("a time lies behind the year 9999; times are milliseconds since 1970")
    if metadata.compression not in (NONE, *CODECS):
        raise MalformedCommand(f"there is no compression {metadata.compression}")
    count = metadata.num_messages
    if not 0 < count <= MAX_RUN_MESSAGES:
        raise MalformedCommand(f"a batch of {count} messages; it has 1 to {MAX_RUN_MESSAGES}")
    if any(field.wire_type == _GROUP for field in UnknownFieldSet(metadata)):
        raise MalformedCommand("the metadata have a group, which Pulsar's protocol does not")
    for encoded in metadata.encryption_keys:
        key = parse(EncryptionKey, encoded)
        if not all(one.HasField("key") and one.HasField("value") for one in (key, *key.metadata)):
            raise MalformedCommand("an encryption key has no name or no value")
    _check_chunk(metadata)
    _check_inflated(metadata, payload)


def _check_inflated(metadata: Any, payload: int) -> None:
    """Clients make room for what is said that a payload becomes."""
    codec, size, chunks = metadata.compression, metadata.uncompressed_size, metadata.num_chunks
    if chunks > 1:
        payload = metadata.total_chunk_size or chunks * MAX_MESSAGE_BYTES
    if codec != NONE and size > min(MOST_FOLD[codec] * max(payload, _LEAST), _MOST_INFLATED):
        raise MalformedCommand(f"{payload} bytes of compression {codec} never become {size}")


def _check_chunk(metadata: Any) -> None:
    chunks, chunk, size = metadata.num_chunks, metadata.chunk_id, metadata.total_chunk_size
    if chunks <= 1:
        return
    if not 0 <= chunk < chunks <= MOST_CHUNKS:
        raise MalformedCommand(f"chunk {chunk} of {chunks}; a message has at most {MOST_CHUNKS}, counted from 0")
    if not 0 <= size <= chunks * MAX_MESSAGE_BYTES:
        raise MalformedCommand(f"{chunks} chunks do not make a message of {size} bytes")

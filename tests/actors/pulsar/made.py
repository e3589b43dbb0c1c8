"""Bytes as clients of Pulsar send them, made by hand: frames, batches, metadata."""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.pulsar.codec.frames import Body
from sluice.actors.pulsar.codec.protocol import Metadata, Single, command
from sluice.actors.pulsar.codec.send_decoder import Send
from sluice.storage.format.batch import StoredBatch

U32 = struct.Struct(">I")
NOW = 1_795_310_341_430


def single(payload: bytes = b"paid", **fields: Any) -> Send:
    """A message that travels alone."""
    metadata = Metadata(producer_name=b"till", sequence_id=7, publish_time=NOW)
    fill(metadata, **fields)
    return sent(metadata, payload)


def batch(*messages: dict[str, Any], **common: Any) -> Send:
    """A client's batch. Each message: fields of its own metadata, and `payload`."""
    parts = []
    for number, message in enumerate(messages):
        payload = message.get("payload", b"x")
        one = Single(payload_size=len(payload), sequence_id=number)
        fill(one, **{name: value for name, value in message.items() if name != "payload"})
        encoded = one.SerializeToString()
        parts += [U32.pack(len(encoded)), encoded, payload]
    metadata = Metadata(producer_name=b"till", sequence_id=0, publish_time=NOW, num_messages=len(messages))
    fill(metadata, **common)
    return sent(metadata, b"".join(parts))


def fill(one: Any, **fields: Any) -> None:
    """Set fields; properties as pairs."""
    for key, value in fields.pop("properties", ()):
        one.properties.add(key=key, value=value)
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(one, name).extend(value)
        else:
            setattr(one, name, value)


def sent(metadata: Any, payload: bytes, **fields: Any) -> Send:
    """A SEND as it is read."""
    asked = command("send", producer_id=1, sequence_id=metadata.sequence_id, **fields).send
    return Send(asked, Body(memoryview(metadata.SerializeToString()), memoryview(payload), damaged=False))


def frame(told: Any, metadata: bytes, payload: bytes) -> bytes:
    """The bytes of a SEND or MESSAGE."""
    head: bytes = told.SerializeToString()
    body = U32.pack(len(metadata)) + metadata + payload
    rest = b"\x0e\x01" + U32.pack(google_crc32c.value(body)) + body
    return b"".join((U32.pack(4 + len(head) + len(rest)), U32.pack(len(head)), head, rest))


def part(made: StoredBatch, first: int = 1 << 32, **columns: Any) -> Received:
    """The rows of a batch as a consumer is given them."""
    count = len(made)
    due = np.zeros(count, np.int64) if made.deliver_at is None else made.deliver_at
    given = {
        "positions": first + np.arange(count, dtype=np.int64),
        "redeliveries": np.zeros(count, np.uint8),
        "rows": made.rows,
        "deliver_at": due,
    } | columns
    return Received(partition=0, dispatch=np.zeros(count, np.int64), epoch=1, session=1, **given)


def taken(given: Received, rows: list[int]) -> Received:
    """Some rows of a part."""
    places = np.array(rows)
    return Received(
        rows=given.rows.take(pa.array(rows)),
        partition=given.partition,
        positions=given.positions[places],
        dispatch=given.dispatch[places],
        redeliveries=given.redeliveries[places],
        deliver_at=given.deliver_at[places],
        epoch=given.epoch,
        session=given.session,
    )

"""Encodes many MESSAGE frames at once: the pieces of a part, in a few dozen steps of Arrow's kernels.

What is seldom is left to the loop of actors.pulsar.codec.delivery_encoder: null values, keys that are or must
be base64, numbers of more than 63 bits. Either way gives the same frames.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.pulsar.codec.batch_encoder import MOST_BYTES, EncodedBodies, bodies_of, is_text
from sluice.actors.pulsar.codec.fields import (
    UNSIGNED,
    Field,
    Views,
    encode_fields,
    encode_numbers,
    join,
    joined,
    lengths_of,
)
from sluice.actors.pulsar.codec.frames import CHECKSUMMED, Buffer, checksums, extended
from sluice.actors.pulsar.codec.properties import encode_pairs, plain
from sluice.actors.pulsar.codec.protocol import Metadata, tags
from sluice.actors.pulsar.codec.send_decoder import OF_ONE
from sluice.actors.pulsar.codec.varints import Cells, Ints, of_u32, side_by_side
from sluice.storage.format.position import ENTRY_BITS, MAX_ENTRY

NATIVE = b"sluice"
"""The producer's name that clients see of messages that came through no gateway: the protocol wants one."""
_NOTHING = pa.scalar(b"", pa.binary())
_TYPE, _MESSAGE = tags("Command", "type", "message")
_CONSUMER, _MESSAGE_ID, _REDELIVERIES, _EPOCH = tags(
    "Message", "consumer_id", "message_id", "redelivery_count", "consumer_epoch"
)
_LEDGER, _ENTRY, _PARTITION = tags("MessageId", "ledger", "entry", "partition")
_PROPERTIES, _NAME, _NUMBER, _PUBLISHED, _KEY, _MESSAGES, _EVENT, _ORDER, _DUE = tags(
    "Metadata", "properties", "producer_name", "sequence_id", "publish_time", "partition_key", "num_messages",
    "event_time", "ordering_key", "deliver_at_time",
)  # fmt: skip


class Addressee(NamedTuple):
    """The consumer that frames go to. partition: as clients number it, -1 for a topic without partitions."""

    consumer_id: int
    partition: int
    epoch: int | None


def encode_pieces(part: Received, starts: Ints, to: Addressee) -> pa.Array | None:
    """The frames of the pieces that begin at these rows, a binary column; None if they have to be made one by one."""
    if part.rows.nbytes > MOST_BYTES:
        return None
    rows = part.rows.take(pa.array(starts))
    alone = _alone(rows)
    bodies = bodies_of(part.rows) if not alone.all() else None
    if (bodies is None and not alone.all()) or (bodies is not None and bodies.odd.any()):
        return None
    encoded = _metadata(part, rows, starts, alone)
    if encoded is None:
        return None
    metadata, size = encoded
    body = join(of_u32(size).column(), *metadata, _payload(part, rows, starts, alone, bodies))
    commands, length = _commands(part, starts, np.append(starts[1:], len(part)), to), lengths_of(body)
    ends = np.cumsum(length)
    return join(_fronts(commands, length, checksums(joined(body), ends - length, ends)), body)


def encode_fronts(part: Received, to: Addressee) -> list[tuple[Buffer, Buffer]] | None:
    """Return the frame of each row of a part, as all that stands before the payload, and the payload, which is not
    copied; None if one does not travel alone, or the frames have to be made one by one.
    """
    starts, names = np.arange(len(part)), [name for name in part.schema.names if name != "payload"]
    rows = part.rows.select(names)
    alone = _alone(rows)
    encoded = _metadata(part, rows, starts, alone) if alone.all() else None
    if encoded is None:
        return None
    metadata, size = encoded
    payloads = Views(part.column("payload"))
    sized = join(of_u32(size).column(), *metadata)
    ends = np.cumsum(lengths_of(sized))
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    known = part.sums.tolist() or repeat((), len(part))
    seen = enumerate(zip(checksums(joined(sized), begins, ends).tolist(), known, strict=True))
    sums = [extended(crc, payloads[row], around) for row, (crc, around) in seen]
    commands = _commands(part, starts, starts + 1, to)
    length = lengths_of(sized) + lengths_of(part.column("payload"))
    fronts = Views(join(_fronts(commands, length, np.array(sums, np.int64)), sized))
    return [(fronts[row], payloads[row]) for row in range(len(part))]


def _fronts(commands: Cells, length: Ints, sums: Ints) -> pa.Array:
    """Return what stands before the metadata of frames, a binary column. length, sums: of all behind the checksum."""
    head = commands.lengths()
    parts: list[bytes | Cells] = [of_u32(length + head + 10), of_u32(head), commands, CHECKSUMMED, of_u32(sums)]
    return side_by_side(len(head), parts).column()


def repeat_bodies(part: Received, starts: Ints, ends: Ints, to: Addressee, bodies: pa.Array) -> pa.Array:
    """Return frames of the pieces of these rows, a binary column. bodies: of each the bytes behind the command."""
    commands = _commands(part, starts, ends, to)
    head = commands.lengths()
    front = side_by_side(len(starts), [of_u32(lengths_of(bodies) + head + 4), of_u32(head), commands])
    return join(front.column(), bodies)


def _alone(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return which rows travel alone, bool (n,)."""
    if "batch_index" not in rows.schema.names:
        return np.ones(rows.num_rows, bool)
    alone: npt.NDArray[np.bool_] = rows.column("batch_index").is_null().to_numpy(zero_copy_only=False)
    return alone


def _commands(part: Received, starts: Ints, ends: Ints, to: Addressee) -> Cells:
    count, positions = len(starts), part.positions[starts]
    ledgers = positions >> ENTRY_BITS
    ledger = int(ledgers[0]) if (ledgers == ledgers[0]).all() else ledgers
    message_id: list[Field] = [(_LEDGER, ledger), (_ENTRY, positions & MAX_ENTRY)]
    spans = np.column_stack([starts, ends]).ravel()
    counts = np.maximum.reduceat(np.append(part.redeliveries, 0), spans)[::2].astype(np.int64)
    fields: list[Field] = [
        (_CONSUMER, to.consumer_id),
        (_MESSAGE_ID, encode_numbers(count, [*message_id, (_PARTITION, to.partition & UNSIGNED)])),
        (_REDELIVERIES, np.where(counts, counts, -1) if counts.any() else None),
        (_EPOCH, to.epoch),
    ]
    return encode_numbers(count, [(_TYPE, _MESSAGE >> 3), (_MESSAGE, encode_numbers(count, fields))])


def _metadata(
    part: Received, rows: pa.RecordBatch, starts: Ints, alone: npt.NDArray[np.bool_]
) -> tuple[list[pa.Array], Ints] | None:
    """Return the metadata of each piece, as encode_fields gives them; None if some of them are seldom."""
    names, count = rows.schema.names, len(starts)
    key = rows.column("key")
    if not is_text(key):
        return None
    pairs = _properties(rows, alone)
    if pairs is None:
        return None
    kinds = _kinds(rows)
    number = _sequence(part, rows, starts)
    if kinds is None or (number < 0).any():
        return None
    producer, rest = kinds
    ends = np.append(starts[1:], len(part))
    order = rows.column("ordering_key") if "ordering_key" in names else None
    if order is not None and not alone.all():
        order = pc.if_else(pa.array(alone), order, pa.scalar(None, pa.binary()))
    due = part.deliver_at[starts]
    columns, size = encode_fields(
        count,
        [
            (_NAME, producer),
            (_NUMBER, number),
            (_PUBLISHED, rows.column("publish_time").to_numpy()),
            (_KEY, key),
            (_MESSAGES, np.where(alone, -1, ends - starts)),
            (_EVENT, _event_times(rows, alone)),
            (_ORDER, order),
            (_DUE, np.where(due, due, -1)),
        ],
    )
    return [*columns, *pairs, rest], size + np.sum([lengths_of(each) for each in [*pairs, rest]], axis=0)


def _properties(rows: pa.RecordBatch, alone: npt.NDArray[np.bool_]) -> list[pa.Array] | None:
    """Encode the properties of messages that travel alone: a column, or no column if no message has any; None if they
    have to be encoded one by one.
    """
    if "properties" not in rows.schema.names or rows.column("properties").null_count == rows.num_rows:
        return []
    column = rows.column("properties")
    if not plain(column):
        return None
    pairs = encode_pairs(column, _PROPERTIES)
    return [pairs if alone.all() else pc.if_else(pa.array(alone), pairs, _NOTHING)]


def _sequence(part: Received, rows: pa.RecordBatch, starts: Ints) -> Ints:
    """The client's number of each, or its entry where it came from no client; negative where it is too large here."""
    entries = part.positions[starts] & MAX_ENTRY
    if "sequence_id" not in rows.schema.names:
        return entries
    column = rows.column("sequence_id")
    given: Ints = column.fill_null(0).to_numpy()
    return np.where(column.is_null().to_numpy(zero_copy_only=False), entries, given)


def _event_times(rows: pa.RecordBatch, alone: npt.NDArray[np.bool_]) -> Ints:
    """-1 where there is none, or where it stands with the messages of a batch."""
    if "event_time" not in rows.schema.names:
        return np.full(len(alone), -1, np.int64)
    given = rows.column("event_time").fill_null(0).to_numpy()
    return np.where(alone & (given > 0), given, -1)


def _kinds(rows: pa.RecordBatch) -> tuple[pa.Array, pa.Array] | None:
    """(The producer's name, and the rest of what no column holds) of each; None if one is flagged."""
    count = rows.num_rows
    if "pulsar" not in rows.schema.names:
        return pa.repeat(pa.scalar(NATIVE, pa.binary()), count), pa.repeat(_NOTHING, count)
    coded = rows.column("pulsar").fill_null(b"").dictionary_encode()
    names, rests = [], []
    for kind in coded.dictionary.to_pylist():
        metadata: Any = Metadata.FromString(kind)
        if any(metadata.HasField(name) for name in OF_ONE):
            return None
        names.append(metadata.producer_name if metadata.HasField("producer_name") else NATIVE)
        metadata.ClearField("producer_name")
        rests.append(metadata.SerializeToString())
    return pa.array(names, pa.binary()).take(coded.indices), pa.array(rests, pa.binary()).take(coded.indices)


def _payload(
    part: Received, rows: pa.RecordBatch, starts: Ints, alone: npt.NDArray[np.bool_], bodies: EncodedBodies | None
) -> pa.Array:
    if bodies is None:
        return rows.column("payload")
    offsets = bodies.offsets[np.append(starts, len(part))].astype(np.int32)
    batches = pa.Array.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(bodies.data)])
    return pc.if_else(pa.array(alone), rows.column("payload"), batches) if alone.any() else batches

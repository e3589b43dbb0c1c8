"""SEND frames as rows: a client's batch of n messages becomes n neighbouring rows, a single message one.

What rows have columns for goes into them. The rest, `pulsar`, is a fragment of Pulsar's MessageMetadata: the producer's
name, the schema's version, and of each message whether its value or key is null and whether its key came in base64; it
is the same for nearly all messages of a batch. Fields that are not known here stay in it as they came.

Messages that must pass through unread are one row, whatever is in them: encrypted ones, and the chunks of a large one,
which are compressed only together. Their `pulsar` keeps compression, sizes and the number of messages.

**The id.** A row's position is L:(E+b), where E is the entry of the first row of its batch and b its index there. So an
id that a client was given is found again from the columns alone, whatever was restarted meanwhile.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from actors.pulsar.fields import Malformed, Metadata, ServerError, Single, parse
from actors.pulsar.frames import U32, Body
from actors.pulsar.inflating import NONE, inflate
from storage.batch import (
    GIVEN_BY_CLIENTS,
    LAST_TIME,
    MAX_KEY_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_RUN_MESSAGES,
    Batch,
    make_batch,
)

IN_COLUMNS = (
    "sequence_id",
    "publish_time",
    "properties",
    "partition_key",
    "event_time",
    "ordering_key",
    "deliver_at_time",
    "highest_sequence_id",
)
"""Fields of the metadata that columns hold."""
OF_ONE = ("key_is_base64", "null_value", "null_partition_key")
"""Flags of one message; in a batch each message has its own."""
GROUP_BYTES = 8 * 1024 * 1024
"""Payload of one run, about."""
OF_FORM = ("compression", "uncompressed_size", "num_messages")
"""How the payload was packed, which is of no meaning once it is unpacked."""


@dataclass(slots=True)
class Send:
    """One SEND frame. command: its fields. rows: how many it became.

    error: why it was refused, with Pulsar's code. position: of its first row, once it is confirmed; -1 if not known.
    """

    command: Any
    body: Body
    rows: int = 0
    error: tuple[int, str] | None = None
    position: int = -1
    settled: bool = False


@dataclass(slots=True)
class _Rows:
    """Rows as lists, a list a column."""

    key: list[bytes | None] = field(default_factory=list)
    payload: list[bytes] = field(default_factory=list)
    publish_time: list[int] = field(default_factory=list)
    ordering_key: list[bytes | None] = field(default_factory=list)
    properties: list[list[tuple[str, str]] | None] = field(default_factory=list)
    event_time: list[int | None] = field(default_factory=list)
    deliver_at: list[int] = field(default_factory=list)
    sequence_id: list[int | None] = field(default_factory=list)
    batch_index: list[int | None] = field(default_factory=list)
    pulsar: list[bytes] = field(default_factory=list)
    bytes: int = 0

    def extend(self, other: _Rows) -> None:
        for name in _TYPES:
            getattr(self, name).extend(getattr(other, name))
        self.bytes += other.bytes


_TYPES = {
    "key": pa.binary(),
    "payload": pa.binary(),
    "publish_time": pa.int64(),
    "ordering_key": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
    "event_time": pa.int64(),
    "deliver_at": pa.int64(),
    "sequence_id": pa.int64(),
    "batch_index": pa.int32(),
    "pulsar": pa.binary(),
}


@dataclass(frozen=True, slots=True)
class Group:
    """Frames whose rows go out as one run."""

    sends: list[Send]
    batch: Batch


def decode_sends(sends: list[Send], *, now: int, producer: str, first_sequence: int) -> list[Group]:
    """The rows of frames of one producer, in order, in as few runs as they fit. Sets `rows` and `error` of each frame.

    A frame that cannot be read is refused whole, and the others are not.
    """
    groups: list[Group] = []
    rows, taken = _Rows(), list[Send]()
    for send in sends:
        try:
            more = _decode(send)
        except Malformed as error:
            code = ServerError.CHECKSUM if send.body.damaged else ServerError.NOT_ALLOWED
            send.error = (code, str(error))
            continue
        send.rows = len(more.payload)
        if taken and (len(rows.payload) + send.rows > MAX_RUN_MESSAGES or rows.bytes + more.bytes > GROUP_BYTES):
            groups.append(Group(taken, _batch_of(rows, now, producer, first_sequence)))
            first_sequence += len(rows.payload)
            rows, taken = _Rows(), []
        rows.extend(more)
        taken.append(send)
    if taken:
        groups.append(Group(taken, _batch_of(rows, now, producer, first_sequence)))
    return groups


def _batch_of(rows: _Rows, now: int, producer: str, first_sequence: int) -> Batch:
    columns = {name: pa.array(getattr(rows, name), kind) for name, kind in _TYPES.items()}
    table = pa.RecordBatch.from_pydict(columns)
    return make_batch(table, now=now, producer=producer, first_sequence=first_sequence, accepted=GIVEN_BY_CLIENTS)


def _decode(send: Send) -> _Rows:
    if send.body.damaged:
        raise Malformed("the checksum does not fit")
    if send.command.txn_least or send.command.txn_most:
        raise Malformed("transactions are not offered")
    metadata = parse(Metadata, send.body.metadata)
    for name in ("producer_name", "sequence_id", "publish_time"):
        if not metadata.HasField(name):
            raise Malformed(f"the metadata have no {name}")
    payload = send.body.payload
    if metadata.encryption_keys or metadata.HasField("uuid"):
        return _single(metadata, payload, unread=True)
    if metadata.compression != NONE:
        payload = inflate(metadata.compression, payload, metadata.uncompressed_size)
    if metadata.HasField("num_messages"):
        return _batch(metadata, payload)
    return _single(metadata, payload, unread=False)


def _single(metadata: Any, payload: memoryview, *, unread: bool) -> _Rows:
    rows = _Rows()
    _add(rows, metadata, metadata, payload)
    rows.sequence_id.append(_signed(metadata.sequence_id))
    rows.batch_index.append(None)
    for name in IN_COLUMNS if unread else (*IN_COLUMNS, *OF_FORM):
        metadata.ClearField(name)
    rows.pulsar.append(metadata.SerializeToString())
    return rows


def _batch(metadata: Any, payload: memoryview) -> _Rows:
    """The messages of a batch, one after the other."""
    count, rows, at, end = metadata.num_messages, _Rows(), 0, len(payload)
    if not 0 < count <= MAX_RUN_MESSAGES:
        raise Malformed(f"a batch of {count} messages; it has 1 to {MAX_RUN_MESSAGES}")
    common = Metadata.FromString(metadata.SerializeToString())
    for name in (*IN_COLUMNS, *OF_FORM, *OF_ONE):
        common.ClearField(name)
    rest = common.SerializeToString()
    for index in range(count):
        if end - at < 4 or (size := U32.unpack_from(payload, at)[0]) > end - at - 4:
            raise Malformed("a message of a batch reaches behind it")
        single = parse(Single, payload[at + 4 : at + 4 + size])
        at += 4 + size
        if not 0 <= single.payload_size <= end - at or not single.HasField("payload_size"):
            raise Malformed("a payload of a batch reaches behind it")
        _add(rows, metadata, single, payload[at : at + single.payload_size])
        at += single.payload_size
        number = single.sequence_id if single.HasField("sequence_id") else metadata.sequence_id + index
        rows.sequence_id.append(_signed(number))
        rows.batch_index.append(index)
        rows.pulsar.append(rest + flags_of(single.key_is_base64, single.null_value, single.null_partition_key))
    if at != end:
        raise Malformed(f"{end - at} bytes follow the last message of a batch")
    return rows


@lru_cache(8)
def flags_of(key_is_base64: bool, null_value: bool, null_partition_key: bool) -> bytes:
    """The flags of one message as they stand at the end of `pulsar`: nothing where none is set."""
    flags = {"key_is_base64": key_is_base64, "null_value": null_value, "null_partition_key": null_partition_key}
    encoded: bytes = Metadata(**{name: True for name, flag in flags.items() if flag}).SerializeToString()
    return encoded


def _add(rows: _Rows, metadata: Any, one: Any, payload: memoryview) -> None:
    """What a single message and one of a batch have alike. one: where its own fields stand."""
    key = None
    if one.HasField("partition_key"):
        key = _key(one.partition_key, one.key_is_base64)
    order = one.ordering_key if one.HasField("ordering_key") else None
    if len(key or b"") > MAX_KEY_BYTES or len(order or b"") > MAX_KEY_BYTES:
        raise Malformed(f"a key has at most {MAX_KEY_BYTES} bytes")
    if len(payload) > MAX_MESSAGE_BYTES:
        raise Malformed(f"a message has at most {MAX_MESSAGE_BYTES} bytes, not {len(payload)}")
    if metadata.publish_time > LAST_TIME or metadata.deliver_at_time > LAST_TIME:
        raise Malformed("a time lies behind the year 9999; times are milliseconds since 1970")
    rows.key.append(key)
    rows.payload.append(bytes(payload))
    rows.bytes += len(payload)
    rows.publish_time.append(metadata.publish_time)
    rows.ordering_key.append(order)
    rows.properties.append(_pairs(one.properties) if one.properties else None)
    rows.event_time.append(_signed(one.event_time) if one.event_time else None)
    rows.deliver_at.append(max(metadata.deliver_at_time, 0))


def _key(key: bytes, is_base64: bool) -> bytes:
    """The key's bytes: what hashing and native consumers see."""
    if not is_base64:
        return key
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        raise Malformed("a key says that it is base64, and is not") from None


def _pairs(properties: Any) -> list[tuple[str, str]]:
    try:
        return [(pair.key.decode(), pair.value.decode()) for pair in properties]
    except UnicodeDecodeError:
        raise Malformed("a property is no UTF-8") from None


def _signed(number: int) -> int:
    """An unsigned number of 64 bits in a signed column."""
    return number - (1 << 64) if number >> 63 else number

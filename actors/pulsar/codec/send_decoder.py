"""Decodes SEND frames as rows: a client's batch of n messages becomes n neighbouring rows, a single message one.

What rows have columns for goes into them. The rest, `pulsar`, is a fragment of Pulsar's MessageMetadata: the producer's
name, the schema's version, and of each message whether its value or key is null and whether its key came in base64; it
is the same for nearly all messages of a batch. Fields that are not known here stay in it as they came.

Messages that must pass through unread are one row, whatever is in them: encrypted ones, the chunks of a large one,
which are compressed only together, and what would be larger than clients are told that a message may be if it were
inflated: no client would take it. Their `pulsar` keeps compression, sizes and the number of messages.

**The id.** A row's position is L:(E+b), where E is the entry of the first row of its batch and b its index there. So an
id that a client was given is found again from the columns alone, whatever was restarted meanwhile.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluice.actors.pulsar.codec.batch_decoder import Heads, find_messages, starts_of, table_of, walked
from sluice.actors.pulsar.codec.compression import CODECS, LZ4, MAX_INFLATED, MOST_TRIED, NONE, check_lz4, inflate
from sluice.actors.pulsar.codec.fields import UNSIGNED, Bytes
from sluice.actors.pulsar.codec.frames import HEADROOM, U32, Body
from sluice.actors.pulsar.codec.metadata_checks import check_metadata
from sluice.actors.pulsar.codec.properties import read_pairs
from sluice.actors.pulsar.codec.protocol import MalformedCommand, Metadata, ServerError, Single, parse
from sluice.actors.pulsar.codec.varints import Flags, Ints
from sluice.storage.format.batch import (
    GIVEN_BY_CLIENTS,
    MAX_KEY_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_RUN_MESSAGES,
    OPTIONAL,
    StoredBatch,
    make_batch,
    rows_of_values,
)
from sluice.storage.format.hashing import masked_hash

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
VECTORIZED_FROM = 32
"""From so many messages on vectorized reading is faster than the loop."""
GROUP_BYTES = 8 * 1024 * 1024
"""Payload of one run, about."""
PIECE_MESSAGES = 4096
"""A batch of more messages is decoded in pieces of so many,"""
PIECE_BYTES = 256 * 1024
"""or of about so many bytes."""
MOST_REST = 1024
"""Bytes that a batch's metadata may have for which there is no column: each of its messages gets them."""
OF_FORM = ("compression", "uncompressed_size", "num_messages")
"""How the payload was packed, which is of no meaning once it is unpacked."""
_CLEARED = (*IN_COLUMNS, *OF_FORM)


@dataclass(slots=True)
class Send:
    """A SEND frame. command: its fields. rows: how many it became.

    error: why it was refused, with Pulsar's code. position: of its first row, once it is confirmed; -1 if not known.
    metadata: its metadata, if that was read already. ahead: the part of it that was decoded already. messages: how many
    are in it, also where they stay one row. span: (first, last) of the sequences that it covers at a topic with
    deduplication; see actors.pulsar.conversation.producing.sequence_spans.
    """

    command: Any
    body: Body
    rows: int = 0
    error: tuple[int, str] | None = None
    position: int = -1
    settled: bool = False
    metadata: Any = None
    ahead: _Packed | None = None
    messages: int = 1
    span: tuple[int, int] = (0, 0)

    @property
    def size(self) -> int:
        """Bytes of metadata and payload, as they came."""
        return len(self.body.metadata) + len(self.body.payload)


Row = tuple[
    bytes | None,
    bytes,
    int,
    bytes | None,
    list[tuple[str, str]] | None,
    int | None,
    int,
    int,
    int | None,
    bytes,
]
"""A stored message: its values in the order of _TYPES."""


@dataclass(slots=True)
class _Packed:
    """A frame whose payload is inflated. count: messages of a batch, 0 for one that travels alone.

    number: its place among the frames that are decoded together. rows: what it became, if it was read alone. table: the
    same, if it was decoded ahead. first: index of its first message in the batch.
    """

    send: Send
    metadata: Any
    payload: bytes
    count: int
    opaque: bool = False
    number: int = 0
    rows: list[Row] | None = None
    table: pa.RecordBatch | None = None
    first: int = 0


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
KEY: Final = 0
ORDERING_KEY: Final = 3
SEQUENCE_ID: Final = 7
"""Places of values in a row."""


@dataclass(frozen=True, slots=True)
class Group:
    """Frames whose rows go out as one run."""

    sends: list[Send]
    batch: StoredBatch


def decode_sends(sends: list[Send], *, now: int, producer: str, largest: int = MAX_INFLATED) -> list[Group]:
    """The rows of frames of one producer, in order, in as few runs as they fit. Sets `rows` and `error` of each frame.

    A frame that cannot be read is refused whole, and the others are not. largest: bytes of one message, by what clients
    are told.
    """
    packed = [one for one in (_unpacked(send, largest) for send in sends) if one is not None]
    table, ranges = _vectorized(packed)
    for one in packed:
        if one.number not in ranges and one.table is None:
            _alone(one)
    fine = [one for one in packed if one.send.error is None]
    groups: list[Group] = []
    for taken in _grouped(fine):
        few = _few(taken)
        if few is not None:
            batch = stored(few, producer=producer)
        else:
            rows = _joined(taken, table, ranges)
            batch = run_of(rows, now=now, producer=producer)
        groups.append(Group([one.send for one in taken], batch))
    return groups


def run_of(rows: pa.RecordBatch, *, now: int, producer: str) -> StoredBatch:
    """Return rows in the form in which a producer publishes them."""
    return make_batch(rows, now=now, producer=producer, accepted=GIVEN_BY_CLIENTS)


def stored(rows: Sequence[Row], *, producer: str) -> StoredBatch:
    """Make the same as `run_of`, without columns in between: for one message each of those steps is costly.

    Nothing is checked: `_unpack` and `row_of` have.
    """
    count, columns = len(rows), _columns_of(rows)
    batch = rows_of_values(columns, tuple([name for name in OPTIONAL if columns[name].count(None) < count]))
    hashes = [
        masked_hash(key if order is None else order)
        if key is not None or order is not None
        else hash_without_key(producer, number)
        for key, order, number in zip(columns["key"], columns["ordering_key"], columns["sequence_id"], strict=True)
    ]
    due = columns["deliver_at"]
    return StoredBatch(batch, np.array(due, np.int64) if any(due) else None, np.array(hashes, np.uint32))


def _columns_of(rows: Sequence[Row]) -> dict[str, tuple[Any, ...]]:
    """Return the values of each column of at least one row."""
    return dict(zip(_TYPES, zip(*rows, strict=True), strict=True))


def hash_without_key(producer: str, number: int) -> int:
    """Return the hash of a message that has no key. number: its sequence id."""
    return masked_hash(b"%b-%d" % (producer.encode(), number))


def _few(taken: list[_Packed]) -> list[Row] | None:
    """Return the rows of frames that were all read alone and have fewer than VECTORIZED_FROM; None for others."""
    if sum([one.send.rows for one in taken]) >= VECTORIZED_FROM or any(one.rows is None for one in taken):
        return None
    return _together(taken)


def _together(packed: list[_Packed]) -> list[Row]:
    """Return the rows of frames, of those that were read alone."""
    return [row for one in packed for row in one.rows or ()]


def _grouped(packed: list[_Packed]) -> Iterator[list[_Packed]]:
    """Yield as many frames together as one run takes, a chunk alone: all chunks of a message have one sequence id."""
    taken: list[_Packed] = []
    rows = size = 0
    for one in packed:
        rows += one.send.rows
        size += len(one.payload)
        chunk = any(each.metadata.num_chunks > 1 for each in (one, *taken[-1:]))
        if taken and (rows > MAX_RUN_MESSAGES or size > GROUP_BYTES or chunk):
            yield taken
            taken, rows, size = [], one.send.rows, len(one.payload)
        taken.append(one)
    if taken:
        yield taken


def _joined(taken: list[_Packed], table: pa.RecordBatch | None, ranges: dict[int, tuple[int, int]]) -> pa.RecordBatch:
    """Return the rows of these frames, in order: those read together, and between them those read alone."""
    parts: list[pa.RecordBatch] = []
    for kind, several in groupby(taken, lambda one: one.rows is None):
        run = list(several)
        if run[0].table is not None:  # a frame that was decoded ahead comes alone
            parts.append(run[0].table)
        elif kind and table is not None:  # what is refused in between is not in the table
            first, end = ranges[run[0].number][0], ranges[run[-1].number][1]
            parts.append(table.slice(first, end - first))
        else:
            parts.append(_table_of(_together(run)))
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _table_of(rows: list[Row]) -> pa.RecordBatch:
    values = _columns_of(rows)
    return pa.RecordBatch.from_pydict({name: pa.array(values[name], kind) for name, kind in _TYPES.items()})


def _unpacked(send: Send, largest: int) -> _Packed | None:
    """Return a frame's metadata and inflated payload; None, and the frame's error, if that cannot be had."""
    if send.ahead is not None or send.error is not None:
        packed, send.ahead = send.ahead, None
        return packed
    try:
        return _unpack(send, largest)
    except MalformedCommand as error:
        refuse(send, error)
        return None


def refuse(send: Send, error: MalformedCommand) -> None:
    """A frame cannot be read."""
    send.error = (ServerError.CHECKSUM if send.body.damaged else ServerError.NOT_ALLOWED, str(error))
    send.settled = True


def read_metadata(send: Send) -> Any:
    """Return a frame's metadata, read once. Raises MalformedCommand, also where the checksum does not fit."""
    if send.metadata is None:
        if send.body.damaged:
            raise MalformedCommand("the checksum does not fit")
        metadata = parse(Metadata, send.body.metadata)
        check_metadata(metadata, len(send.body.payload))
        send.metadata = metadata
    return send.metadata


def _unpack(send: Send, largest: int) -> _Packed:
    metadata = read_metadata(send)
    if send.command.txn_least or send.command.txn_most:
        raise MalformedCommand("transactions are not offered")
    payload, send.messages = send.body.payload, metadata.num_messages
    sealed = metadata.encryption_keys or metadata.HasField("uuid")
    if sealed or _too_large(send, largest):
        if not sealed and metadata.compression == LZ4:
            check_lz4(payload, metadata.uncompressed_size)
        return _Packed(send, metadata, bytes(payload), 0, opaque=True)
    if metadata.compression != NONE:
        payload = inflate(metadata.compression, payload, metadata.uncompressed_size)
    count = metadata.num_messages if metadata.HasField("num_messages") else 0
    packed = _Packed(send, metadata, bytes(payload), count)
    if count > 1 and len(send.body.metadata) > MOST_REST and len(_rest(packed)) > MOST_REST:
        raise MalformedCommand(f"of a batch's metadata at most {MOST_REST} bytes are kept with each message")
    return packed


def unpacked_bytes(send: Send) -> int:
    """About how many bytes a frame takes once it is unpacked, by what it says of itself: a few thousand may become
    millions.
    """
    try:
        metadata = read_metadata(send)
    except MalformedCommand:
        return send.size
    most = MOST_TRIED if metadata.compression == LZ4 else MAX_INFLATED
    inflated = 0 if metadata.compression == NONE else min(int(metadata.uncompressed_size), most)
    each = min(len(send.body.metadata), MOST_REST)
    return max(send.size, inflated) + int(metadata.num_messages) * each


def _too_large(send: Send, largest: int) -> bool:
    """Whether a payload is small enough only as it is compressed, which is how Pulsar counts. Half of what clients
    allow for what stands around a message is left for the command, and for what is written in another way.
    """
    metadata, size = send.metadata, send.metadata.uncompressed_size
    around = len(send.body.metadata) - HEADROOM // 2
    return metadata.compression in CODECS and size + max(around, 0) > largest


def _rest(packed: _Packed) -> bytes:
    """Return the fields of a frame's metadata that have no column."""
    metadata = Metadata()
    metadata.CopyFrom(packed.metadata)
    return left_of(metadata, opaque=packed.opaque, batch=packed.count > 0)


def left_of(metadata: Any, *, opaque: bool, batch: bool = False) -> bytes:
    """Encode the fields of metadata that have no column, after the others are cleared."""
    for name in IN_COLUMNS if opaque else _CLEARED:
        metadata.ClearField(name)
    for name in OF_ONE:
        if batch or not getattr(metadata, name):
            metadata.ClearField(name)
    encoded: bytes = metadata.SerializeToString()
    return encoded


# -- many batches at once ---------------------------------------------------------------------------------------------


def _vectorized(packed: list[_Packed]) -> tuple[pa.RecordBatch | None, dict[int, tuple[int, int]]]:
    """Return the rows of all frames that are plain batches, and each one's range of rows, by its number among all."""
    for number, one in enumerate(packed):
        one.number = number
    if sum(one.count for one in packed) < VECTORIZED_FROM:
        return None, {}
    plain: list[tuple[_Packed, list[int]]] = []
    for one in packed:
        starts = starts_of(one.payload, one.count) if one.count and one.table is None else None
        if starts is not None:
            plain.append((one, starts))
    while plain:
        counts = np.array([one.count for one, _ in plain])
        table, odd = _columns(plain, counts)
        if table is not None:
            return table, _ranges(plain, counts)
        wrong = np.unique(np.searchsorted(np.cumsum(counts), np.flatnonzero(odd), side="right")).tolist()
        plain = [pair for number, pair in enumerate(plain) if number not in wrong]
    return None, {}


def _columns(plain: list[tuple[_Packed, list[int]]], counts: Ints) -> tuple[pa.RecordBatch | None, Flags]:
    """(The rows of plain batches, None if some are odd; which messages are odd.) plain: with the place of each message.

    counts: messages of each.
    """
    sizes = np.array([len(one.payload) for one, _ in plain])
    bases = np.cumsum(sizes) - sizes
    starts = np.concatenate([np.array(starts, np.int64) for _, starts in plain]) + np.repeat(bases, counts)
    ends = np.append(starts[1:], sizes.sum())
    source = Bytes(b"".join(one.payload for one, _ in plain))
    found, odd = find_messages(source, starts, ends)
    pairs, no_text = read_pairs(source, found.several, len(odd))
    odd = odd | no_text
    if odd.any():
        return None, odd
    return table_of(source, found, _heads_of([one for one, _ in plain], counts), pairs), odd


def _heads_of(plain: list[_Packed], counts: Ints) -> Heads:
    metadata = [one.metadata for one in plain]
    return Heads(
        counts=counts,
        alone=np.zeros(len(plain), bool),
        sequence=np.array([_signed(one.sequence_id) for one in metadata], np.int64),
        publish_time=np.array([one.publish_time for one in metadata], np.int64),
        deliver_at=np.array([max(one.deliver_at_time, 0) for one in metadata], np.int64),
        rests=pa.array([_rest(one) for one in plain], pa.binary()),
        kinds=np.arange(len(plain)),
        first=plain[0].first,
    )


def _ranges(plain: list[tuple[_Packed, list[int]]], counts: Ints) -> dict[int, tuple[int, int]]:
    ranges = {}
    for (one, _), end in zip(plain, np.cumsum(counts).tolist(), strict=True):
        one.send.rows = one.count
        ranges[one.number] = (end - one.count, end)
    return ranges


# -- one frame alone --------------------------------------------------------------------------------------------------


def _alone(packed: _Packed) -> None:
    """The rows of a frame, message by message; its error if it is malformed."""
    try:
        packed.rows = _batch(packed) if packed.count else _single(packed)
        packed.send.rows = len(packed.rows)
    except MalformedCommand as error:
        packed.send.error = (ServerError.NOT_ALLOWED, str(error))


def _single(packed: _Packed) -> list[Row]:
    metadata = packed.metadata
    return [row_of(metadata, metadata, packed.payload, metadata.sequence_id, None, _rest(packed))]


def _batch(packed: _Packed) -> list[Row]:
    """Decode the messages of a batch in order."""
    rows: list[Row] = []
    at = _add_messages(rows, packed, 0, packed.count)
    _check_end(packed, at)
    return rows


def _add_messages(rows: list[Row], packed: _Packed, at: int, count: int, most: int = sys.maxsize) -> int:
    """Add messages of a batch from a place on, one by one. Returns where the last of them ends.

    count: messages, at most. most: bytes after which no further message is added.
    """
    metadata, payload, end = packed.metadata, packed.payload, len(packed.payload)
    rest, enough = _rest(packed), at + most
    for index in range(packed.first, packed.first + count):
        if end - at < 4 or (size := U32.unpack_from(payload, at)[0]) > end - at - 4:
            raise MalformedCommand("a message of a batch reaches behind it")
        single = parse(Single, payload[at + 4 : at + 4 + size])
        at += 4 + size
        if not 0 <= single.payload_size <= end - at or not single.HasField("payload_size"):
            raise MalformedCommand("a payload of a batch reaches behind it")
        number = single.sequence_id if single.HasField("sequence_id") else metadata.sequence_id + index
        left = rest + flags_of(single.key_is_base64, single.null_value, single.null_partition_key)
        body = payload[at : at + single.payload_size]
        rows.append(row_of(metadata, single, body, number & UNSIGNED, index, left))
        at += single.payload_size
        if at >= enough:
            break
    return at


def _check_end(packed: _Packed, at: int) -> None:
    if (left := len(packed.payload) - at) > 0:
        raise MalformedCommand(f"{left} bytes follow the last message of a batch")


@lru_cache(8)
def flags_of(key_is_base64: bool, null_value: bool, null_partition_key: bool) -> bytes:
    """Return the flags of one message as they stand at the end of `pulsar`: nothing where none is set."""
    flags = {"key_is_base64": key_is_base64, "null_value": null_value, "null_partition_key": null_partition_key}
    encoded: bytes = Metadata(**{name: True for name, flag in flags.items() if flag}).SerializeToString()
    return encoded


def row_of(metadata: Any, one: Any, payload: bytes, number: int, batch_index: int | None, rest: bytes) -> Row:
    """Make the row of a single message, or of a message of a batch. one: where its own fields stand. number: its
    sequence id, of 64 bits without a sign. rest: its fields that have no column. Raises MalformedCommand.
    """
    key = None
    if one.HasField("partition_key"):
        key = _key(one.partition_key, one.key_is_base64)
    order = one.ordering_key if one.HasField("ordering_key") else None
    if len(key or b"") > MAX_KEY_BYTES or len(order or b"") > MAX_KEY_BYTES:
        raise MalformedCommand(f"a key has at most {MAX_KEY_BYTES} bytes")
    if len(payload) > MAX_MESSAGE_BYTES:
        raise MalformedCommand(f"a message has at most {MAX_MESSAGE_BYTES} bytes, not {len(payload)}")
    return (
        key,
        payload,
        metadata.publish_time,
        order,
        _pairs(one.properties) if one.properties else None,
        _signed(one.event_time) if one.event_time else None,
        max(metadata.deliver_at_time, 0),
        _signed(number),
        batch_index,
        rest,
    )


def _key(key: bytes, is_base64: bool) -> bytes:
    """Return the key's bytes: what hashing and native consumers see."""
    if not is_base64:
        return key
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        raise MalformedCommand("a key says that it is base64, and is not") from None


def _pairs(properties: Any) -> list[tuple[str, str]]:
    try:
        return [(pair.key.decode(), pair.value.decode()) for pair in properties]
    except UnicodeDecodeError:
        raise MalformedCommand("a property is no UTF-8") from None


def _signed(number: int) -> int:
    """Return an unsigned number of 64 bits in a signed column."""
    return number - (1 << 64) if number >> 63 else number


# -- a large frame, piece by piece ------------------------------------------------------------------------------------


def is_large(send: Send, size: int) -> bool:
    """Return whether a frame is decoded piece by piece. size: bytes, about, that it takes once it is unpacked."""
    several = send.metadata.num_messages if send.metadata is not None else 1
    return several > PIECE_MESSAGES or (several > 1 and size > PIECE_BYTES)


def decode_ahead(send: Send, *, largest: int = MAX_INFLATED) -> Iterator[None]:
    """Decode a frame ahead of `decode_sends`, which finds it done. Yields before each piece, so others have a turn."""
    packed = _unpacked(send, largest)
    if packed is None:
        return
    tables, at = [], 0
    try:
        while packed.first < packed.count:
            yield
            table, at = _piece(packed, at)
            tables.append(table)
            packed.first += table.num_rows
        if tables:
            _check_end(packed, at)
            packed.table, packed.first, send.rows = pa.concat_batches(tables), 0, packed.count
        send.ahead = packed
    except MalformedCommand as error:
        send.error = (ServerError.NOT_ALLOWED, str(error))


def _piece(packed: _Packed, at: int) -> tuple[pa.RecordBatch, int]:
    """(The rows of the next messages of a batch, from a place on; where they end.)"""
    count = min(PIECE_MESSAGES, packed.count - packed.first)
    found = walked(packed.payload, at, count, PIECE_BYTES)
    if found is not None:
        starts, end = found
        part = replace(packed, payload=packed.payload[at:end], count=len(starts))
        table, _ = _columns([(part, [start - at for start in starts])], np.array([part.count]))
        if table is not None:
            return table, end
    rows: list[Row] = []
    end = _add_messages(rows, packed, at, count, PIECE_BYTES)
    return _table_of(rows), end

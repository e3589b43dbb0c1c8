"""A batch: many messages as Arrow columns. No message is a Python object between producer and consumer.

Users may hand over loose shapes (strings for keys, missing optional columns, tables of several chunks). A stored batch
has exactly these columns, in this order, and an optional column only when some row uses it:

    key           binary, nullable   the partition key; null means a message without key
    payload       binary             the message
    publish_time  int64              milliseconds since 1970, set by the producer
    ordering_key  binary, nullable   optional; wins over key when hashing (KS-4)
    properties    map<string,string> optional
    event_time    int64, nullable    optional; the application's own time, milliseconds
    sequence_id   int64, nullable    optional; the number that a Pulsar client gave the message
    batch_index   int32, nullable    optional; its index in the batch that the client sent, null outside of one
    pulsar        binary, nullable   optional; the rest of the client's metadata (actors.pulsar.codec.send_decoder)

`deliver_at` and the sticky hash are not in the body: they are the index columns of the frame (see
storage.format.frame), the only ones that the dispatcher ever sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.storage.errors import Corrupt, Invalid, InvariantViolation
from sluice.storage.format.hashing import MASK, Hashes, hash_column
from sluice.storage.format.inflated import inflated_bytes

MAX_MESSAGE_BYTES = 5 * 1024 * 1024
MAX_KEY_BYTES = 1024
MAX_RUN_MESSAGES = 65536
MAX_RUN_BYTES = 64 * 1024 * 1024
MAX_INFLATED_BYTES = 256 * 1024 * 1024
"""Bytes that a compressed body may become; checked before anything of it is inflated."""
LAST_TIME = 253_402_300_799_999
"""The last millisecond of the year 9999: no time of a message lies behind it, so that it is a date everywhere."""

_REQUIRED = [
    pa.field("key", pa.binary()),
    pa.field("payload", pa.binary(), nullable=False),
    pa.field("publish_time", pa.int64(), nullable=False),
]
_OPTIONAL = [
    pa.field("ordering_key", pa.binary()),
    pa.field("properties", pa.map_(pa.string(), pa.string())),
    pa.field("event_time", pa.int64()),
    pa.field("sequence_id", pa.int64()),
    pa.field("batch_index", pa.int32()),
    pa.field("pulsar", pa.binary()),
]
OPTIONAL = tuple(field.name for field in _OPTIONAL)
_BITS = {name: 1 << bit for bit, name in enumerate(OPTIONAL)}
OF_CLIENTS = ("sequence_id", "batch_index", "pulsar")
"""Columns that only a gateway writes, for Pulsar's clients; no user sends them."""
_GIVEN = [f.name for f in _REQUIRED] + [f.name for f in _OPTIONAL] + ["deliver_at"]
_ACCEPTED = [name for name in _GIVEN if name not in OF_CLIENTS]
GIVEN_BY_CLIENTS = tuple(_GIVEN)
"""The columns that `make_batch` accepts of a gateway."""
_WITHOUT_NULLS = [index for index, field in enumerate(_REQUIRED) if not field.nullable]
"""All others, among them the optional ones, may hold nulls."""
_FINER = {"us": 1_000, "ns": 1_000_000}
"""Units of timestamps that are shorter than a millisecond: how many are one."""
_CODECS = (None, "lz4", "zstd")
_ROWS_AT_ONCE = 8
"""Of fewer rows all columns are made in one step: one by one they cost twice as much."""
_SMALL = 2048
"""Rows with so many bytes, or with others in so many, are not counted exactly."""


_Places = slice | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """Messages in their stored shape.

    rows: the record batch described above. deliver_at: int64 milliseconds, shape (n,), 0 = at once; None when no
    row is delayed. hashes: masked Murmur3 of the sticky keys, uint32, shape (n,). cut_from: of a slice the batch, and
    the numbers of its first row and of the one after its last.
    """

    rows: pa.RecordBatch
    deliver_at: npt.NDArray[np.int64] | None
    hashes: Hashes
    cut_from: tuple[StoredBatch, int, int] | None = None

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        return self.rows.schema

    def take(self, rows: npt.NDArray[np.int64]) -> StoredBatch:
        """The given rows in the given order, as a new batch."""
        return StoredBatch(self.rows.take(pa.array(rows)), self._delays_of(rows), self.hashes[rows])

    def slice(self, start: int, stop: int) -> StoredBatch:
        """Rows start .. stop-1, without a copy."""
        whole, begin, _ = self.cut_from or (self, 0, 0)
        rows, hashes = self.rows.slice(start, stop - start), self.hashes[start:stop]
        delays = self._delays_of(np.s_[start:stop])
        return StoredBatch(rows, delays, hashes, (whole, begin + start, begin + stop))

    def _delays_of(self, rows: _Places) -> npt.NDArray[np.int64] | None:
        delays = None if self.deliver_at is None else self.deliver_at[rows]
        return delays if delays is not None and delays.any() else None


def shape_of(schema: pa.Schema) -> int:
    """Which optional columns a stored body has, as a bit mask; it travels in the frame's header."""
    return sum([_BITS.get(name, 0) for name in schema.names])


def schema_of(shape: int) -> pa.Schema:
    """The stored schema for a bit mask of `shape_of`. Raises Corrupt for an unknown bit."""
    if not 0 <= shape < 1 << len(_OPTIONAL):
        raise Corrupt(f"unknown body shape {shape}")
    return _schema(shape)


@cache
def _schema(shape: int) -> pa.Schema:
    return pa.schema(_REQUIRED + [field for bit, field in enumerate(_OPTIONAL) if shape >> bit & 1])


def stored_schema(optional: Sequence[str]) -> pa.Schema:
    """The stored schema with these optional columns."""
    return schema_of(sum(1 << bit for bit, field in enumerate(_OPTIONAL) if field.name in optional))


@lru_cache(maxsize=64)
def _shape_with(optional: tuple[str, ...]) -> tuple[pa.Schema, pa.StructType]:
    """The stored schema with these optional columns, and a row of it."""
    schema = stored_schema(optional)
    return schema, pa.struct(list(schema))


def rows_of_values(columns: Mapping[str, Sequence[Any]], optional: tuple[str, ...]) -> pa.RecordBatch:
    """Make stored rows of the values of their columns, of the optional ones only of these. Check nothing."""
    schema, row = _shape_with(optional)
    values = [columns[name] for name in schema.names]
    if len(values[0]) < _ROWS_AT_ONCE:
        return pa.RecordBatch.from_struct_array(pa.array(list(zip(*values, strict=True)), row))
    arrays = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class UnbuiltBatch(StoredBatch):
    """A batch of values that becomes a record batch when its rows are first read. `joined` makes one record batch of
    several, so that messages of many senders which go together cost one.
    """

    __slots__ = ("_built", "columns", "optional")
    _built: pa.RecordBatch | None
    columns: Mapping[str, Sequence[Any]]
    optional: tuple[str, ...]

    def __init__(
        self,
        columns: Mapping[str, Sequence[Any]],
        optional: tuple[str, ...],
        deliver_at: npt.NDArray[np.int64] | None,
        hashes: Hashes,
    ) -> None:
        """columns, optional: see `rows_of_values`. Nothing of them changes from now on."""
        for name, value in (
            ("columns", columns), ("optional", optional), ("deliver_at", deliver_at), ("hashes", hashes),
            ("cut_from", None), ("_built", None),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    @property
    def rows(self) -> pa.RecordBatch:
        """The record batch."""
        if self._built is None:
            object.__setattr__(self, "_built", rows_of_values(self.columns, self.optional))
        return self._built

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows, without building them."""
        return _shape_with(self.optional)[0]


def keys_of_keyless(producer: str | pa.Array, sequence: pa.Array, sequence_id: pa.Array | None) -> pa.Array:
    """Return the bytes to hash for messages without a key, binary: `producer-sequence` (KS-4).

    A client's own sequence id, where it is set, stands in place of the sequence.
    """
    numbers = sequence if sequence_id is None else pc.coalesce(sequence_id, sequence)
    return pc.binary_join_element_wise(producer, numbers.cast(pa.string()), "-").cast(pa.binary())


def make_batch(
    data: pa.RecordBatch | pa.Table,
    *,
    now: int,
    producer: str,
    first_sequence: int = 0,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    accepted: Sequence[str] = _ACCEPTED,
) -> StoredBatch:
    """Check and convert what a user sends.

    Keys and payloads may be binary or string columns, times timestamps of any unit; what is no whole millisecond of a
    `deliver_at` is rounded up, of other times down. `publish_time` defaults to `now` (ms). A message without key gets
    the sticky key `producer-sequence` (KS-4), so key-less messages spread over the consumers; its stored key stays
    null. The sequence is that of `sequence_id` where there is one, which all chunks of a message share. Raises Invalid
    naming the column and what it should be.
    """
    unknown = sorted(set(data.schema.names) - set(accepted))
    if unknown:
        raise Invalid(f"unknown column {unknown[0]!r}; a batch may have {', '.join(accepted)}")
    count = data.num_rows
    if count == 0:
        raise Invalid("the batch is empty")
    columns = {"key": _binary(data, "key", count), "payload": _binary(data, "payload", count)}
    if columns["payload"].null_count:
        raise Invalid("column 'payload' has nulls; send an empty payload instead")
    _check_size(columns["payload"], "payload", max_message_bytes)
    _check_size(columns["key"], "key", MAX_KEY_BYTES)
    columns["publish_time"] = _milliseconds(data, "publish_time", count, default=now)
    for field in _OPTIONAL:
        if field.name in data.schema.names:
            column = _flat(data, field.name)
            if column.null_count < count:
                if field.name == "event_time" and pa.types.is_timestamp(column.type):
                    column = _from_timestamps(column, field.name)
                columns[field.name] = column if column.type == field.type else _cast(column, field)
    sticky = columns["key"]
    if "ordering_key" in columns:
        _check_size(columns["ordering_key"], "ordering_key", MAX_KEY_BYTES)
        sticky = pc.coalesce(columns["ordering_key"], sticky)
    if sticky.null_count:
        numbers = pa.array(np.arange(first_sequence, first_sequence + count))
        sticky = pc.coalesce(sticky, keys_of_keyless(producer, numbers, columns.get("sequence_id")))
    rows = pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema([_field(name) for name in columns]))
    deliver_at = None
    if "deliver_at" in data.schema.names:
        times = _milliseconds(data, "deliver_at", count, default=0).to_numpy()
        deliver_at = times if times.any() else None
    return StoredBatch(rows.select(schema_of(shape_of(rows.schema)).names), deliver_at, hash_column(sticky))


class HasColumns(Protocol):
    """A source of columns by name: a record batch, or messages that lie in several."""

    @property
    def schema(self) -> pa.Schema: ...

    def column(self, name: str) -> pa.Array: ...


def bytes_of(rows: pa.RecordBatch) -> int:
    """About how many bytes some rows take. Arrow counts those of a slice column by column, which takes as long as much
    else that is done for a message; where all that they lie in is small, that is near enough.
    """
    whole = int(rows.get_total_buffer_size()) if rows.num_rows else 0
    return whole if whole <= _SMALL else int(rows.nbytes)


def joined(batches: Sequence[StoredBatch]) -> StoredBatch:
    """Return batches of one shape as one. Slices that lie side by side in one batch become one without a copy."""
    if len(batches) == 1:
        return batches[0]
    pieces: list[tuple[StoredBatch, int, int]] = []
    for batch in batches:
        whole, start, stop = batch.cut_from or (batch, 0, len(batch))
        if pieces and pieces[-1][0] is whole and pieces[-1][2] == start:
            pieces[-1] = (whole, pieces[-1][1], stop)
        else:
            pieces.append((whole, start, stop))
    if len(pieces) < len(batches):
        return joined([whole.slice(start, stop) for whole, start, stop in pieces])
    delayed = None
    if any(batch.deliver_at is not None for batch in batches):
        delayed = np.concatenate(
            [np.zeros(len(b), np.int64) if b.deliver_at is None else b.deliver_at for b in batches]
        )
    hashes = np.concatenate([batch.hashes for batch in batches])
    unbuilt = [batch for batch in batches if isinstance(batch, UnbuiltBatch) and batch._built is None]
    if len(unbuilt) == len(batches):
        first = unbuilt[0]
        columns = {
            name: list(chain.from_iterable([batch.columns[name] for batch in unbuilt])) for name in first.schema.names
        }
        return UnbuiltBatch(columns, first.optional, delayed, hashes)
    return StoredBatch(pa.concat_batches([batch.rows for batch in batches]), delayed, hashes)


def order_keys(rows: HasColumns) -> pa.Array:
    """The key that keeps each message in order, binary; null if it has none."""
    if "ordering_key" in rows.schema.names:
        return pc.coalesce(rows.column("ordering_key"), rows.column("key"))
    return rows.column("key")


def check_compression(compression: str | None) -> None:
    """Raises Invalid for one that there is not."""
    if compression not in _CODECS:
        raise Invalid(f"compression is None, 'lz4' or 'zstd', not {compression!r}")


def encode_body(rows: pa.RecordBatch, compression: str | None = None) -> pa.Buffer:
    """Arrow IPC bytes of a stored record batch; `compression` is None, 'lz4' or 'zstd'."""
    check_compression(compression)
    if compression is None:
        return rows.serialize()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=options) as stream:
        stream.write_batch(rows)
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue()))
    reader.read_next_message()
    return reader.read_next_message().serialize()


def body_parts(rows: pa.RecordBatch) -> list[pa.Buffer | bytes]:
    """Return the uncompressed body of `encode_body` in consecutive parts; columns are not copied.

    The parts cost more than a copy where the batch takes less than some ten thousand bytes.
    """
    written = _Written()
    stream = pa.ipc.new_stream(pa.PythonFile(written, "w"), rows.schema)
    stream.write_batch(rows)
    parts = written.parts.copy()  # before the stream ends, which writes something as well
    stream.close()
    head = rows.schema.serialize().size
    while head > 0:
        head -= len(parts.pop(0))
    if head:
        raise InvariantViolation("Arrow did not begin a stream with its schema")
    return parts


class _Written:
    """A file for Arrow that keeps the written buffers without a copy."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[pa.Buffer | bytes] = []

    def write(self, part: pa.Buffer | bytes) -> None:
        self.parts.append(part)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def decode_body(body: bytes | memoryview, shape: int, count: int) -> pa.RecordBatch:
    """The record batch of a body, without a copy where it is not compressed.

    Everything is checked, so that no later look at a row can read beyond the bytes that are there: the size before
    inflating, each buffer, each offset, UTF-8, and nulls where there are none. A checksum does not replace this: it
    says that the bytes are the producer's, not that the producer made them well.

    Raises Corrupt if the bytes are no record batch of this shape and count, or would take more than
    MAX_INFLATED_BYTES.
    """
    schema = schema_of(shape)
    size = inflated_bytes(memoryview(body).cast("B"))
    if size > MAX_INFLATED_BYTES:
        raise Corrupt(f"the body would become {size} bytes, the limit is {MAX_INFLATED_BYTES}")
    try:
        rows = rows_of_body(body, shape)
        rows.validate(full=True)
    except (pa.lib.ArrowException, ValueError, OSError, EOFError) as error:
        raise Corrupt(f"the body is not an Arrow record batch: {error}") from error
    if rows.num_rows != count:
        raise Corrupt(f"the body holds {rows.num_rows} messages, its header says {count}")
    for index in _WITHOUT_NULLS:
        if rows.column(index).null_count:
            raise Corrupt(f"column {schema.field(index).name!r} of the body has nulls")
    return rows


def rows_of_body(body: bytes | memoryview, shape: int) -> pa.RecordBatch:
    """Decode a body without a check, as `decode_body` does with one. Only for a body that this process has made."""
    return pa.ipc.read_record_batch(pa.py_buffer(body), schema_of(shape))


def check_published(rows: pa.RecordBatch, deliver_at: npt.NDArray[np.int64] | None, hashes: Hashes) -> None:
    """Hold what a producer sent to the limits that `make_batch` keeps: a producer need not be this code.

    Raises Invalid naming the column.
    """
    if rows.get_total_buffer_size() > MAX_KEY_BYTES:  # else nothing in it is longer than it may be
        _check_size(rows.column("payload"), "payload", MAX_MESSAGE_BYTES)
        for name in ("key", "ordering_key"):
            if name in rows.schema.names:
                _check_size(rows.column(name), name, MAX_KEY_BYTES)
    _check_times(rows.column("publish_time"), "publish_time")
    if deliver_at is not None and not 0 <= int(deliver_at.min()) <= int(deliver_at.max()) <= LAST_TIME:
        raise Invalid(f"column 'deliver_at' holds a time outside of 0 to {LAST_TIME}; it is milliseconds since 1970")
    if int(hashes.max()) > MASK:
        raise Invalid("a sticky hash has more than 31 bits")


def has_keyed_delay(rows: pa.RecordBatch, deliver_at: npt.NDArray[np.int64] | None) -> bool:
    """Whether some message has both a key and a delay."""
    if deliver_at is None:
        return False
    return bool((rows.column("key").is_valid().to_numpy(zero_copy_only=False) & (deliver_at > 0)).any())


def _field(name: str) -> pa.Field:
    return next(field for field in _REQUIRED + _OPTIONAL if field.name == name)


def _flat(data: pa.RecordBatch | pa.Table, name: str) -> pa.Array:
    column = data.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    return column


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Invalid(f"column {field.name!r} has type {column.type}, it should be {field.type}") from error


def _binary(data: pa.RecordBatch | pa.Table, name: str, count: int) -> pa.Array:
    if name not in data.schema.names:
        if name == "payload":
            raise Invalid("column 'payload' is missing")
        return pa.nulls(count, pa.binary())
    column = _flat(data, name)
    return column if column.type == pa.binary() else _cast(column, pa.field(name, pa.binary()))


def _milliseconds(data: pa.RecordBatch | pa.Table, name: str, count: int, default: int) -> pa.Array:
    if name not in data.schema.names:
        return pa.array(np.full(count, default, np.int64))
    column = _flat(data, name)
    if pa.types.is_timestamp(column.type):
        column = _from_timestamps(column, name)
    column = _cast(column, pa.field(name, pa.int64()))
    column = pc.fill_null(column, default) if column.null_count else column
    _check_times(column, name)
    return column


def _from_timestamps(column: pa.Array, name: str) -> pa.Array:
    """Timestamps as whole milliseconds, int64. Nothing comes early for that."""
    numbers, finer = column.cast(pa.int64()), _FINER.get(column.type.unit)
    if finer is None:
        return _cast(_cast(column, pa.field(name, pa.timestamp("ms"))), pa.field(name, pa.int64()))
    given = pc.fill_null(numbers, 0).to_numpy()
    times = -(-given // finer) if name == "deliver_at" else given // finer
    return pa.array(times, mask=column.is_null().to_numpy(zero_copy_only=False))


def _check_times(column: pa.Array, name: str) -> None:
    if len(column) == 1:  # columns cost several times as much for one
        earliest = latest = column[0].as_py()
    elif len(column):
        times = column.to_numpy()
        earliest, latest = int(times.min()), int(times.max())
    else:
        return
    if earliest < 0:
        raise Invalid(f"column {name!r} holds a negative time; it is milliseconds since 1970")
    if latest > LAST_TIME:
        raise Invalid(f"column {name!r} holds {latest}, behind the year 9999; it is milliseconds since 1970")


def _check_size(column: pa.Array, name: str, limit: int) -> None:
    data = column.buffers()[2]
    if data is None or data.size <= limit:  # all of them together are no longer: what one message costs is this
        return
    if column.null_count:
        longest = pc.max(pc.binary_length(column)).as_py() or 0
    else:
        offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
        longest = int(np.diff(offsets).max(initial=0))
    if longest > limit:
        raise Invalid(f"column {name!r} holds {longest} bytes in one message, the limit is {limit}")

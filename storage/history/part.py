"""A part of a sealed ledger as a Parquet file: brokers read back the same table that every engine reads.

A file holds consecutive whole runs of one ledger, a row for each message, in order. The columns are those of a stored
batch (storage.format.batch), and these:

    ledger, entry   int64           together the position
    masked_hash     int32           31 bits of the sticky key's hash
    deliver_at      timestamp[us]   null: at once
    producer        string          who sent the run, as the topic knows it
    sequence        int64           the number that this producer gave the message

Behind these there may be columns of what the payloads say (`PayloadColumns`), for others: a run is made without them.

`publish_time` is a timestamp as well; `event_time` stays a number, because clients may send any. Times are whole
milliseconds. Their unit is microseconds, because Iceberg knows no larger one; in files of the format IN_MILLISECONDS it
is milliseconds. `milliseconds` reads either.

A row group holds whole runs, so a position is found in one row group. What Parquet has no place for stands in the
footer: the runs, and of each row group its bytes and their checksum (storage.history.checked_parquet). The record that
names the file keeps the checksum of the footer (actors.ledger.record).

A run that comes out has the rows, hashes and sequences of the run that went in. Its bytes are mostly the same too, but
not if the producer compressed them, or Arrow wrote the same rows in another way; its checksum is that of the bytes that
come out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.storage.errors import Corrupt
from sluice.storage.format.batch import StoredBatch, decode_body, schema_of, stored_schema
from sluice.storage.format.frame import Frame, Header, Segment, make_run
from sluice.storage.history.checked_parquet import IN_MILLISECONDS, CheckedWriter, SealedFile, read_footer, read_group
from sluice.storage.history.erasure import without

GROUP_BYTES = 4 * 1024 * 1024
"""Payload bytes after which a row group ends: what is read for one message that lies far from others."""
GROUP_ROWS = 65_536
PART_BYTES = 32 * 1024 * 1024
"""Payload bytes after which a file ends: what its writer has in hand."""

_TIME = pa.timestamp("us", "UTC")
_MILLISECONDS = pa.timestamp("ms", "UTC")
_OPTIONAL = ("ordering_key", "properties", "event_time", "sequence_id", "batch_index", "pulsar")
_BATCH = stored_schema(_OPTIONAL)
_TIMES = ("publish_time", "deliver_at")
SCHEMA = pa.schema(
    [
        pa.field("ledger", pa.int64(), nullable=False),
        pa.field("entry", pa.int64(), nullable=False),
        *(pa.field(field.name, _TIME, field.nullable) if field.name in _TIMES else field for field in _BATCH),
        pa.field("masked_hash", pa.int32(), nullable=False),
        pa.field("deliver_at", _TIME),
        pa.field("producer", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
    ]
)
"""Of every file."""
REPEATING = ["ledger", "key", "ordering_key", "producer"]
"""Columns that are worth a dictionary."""


class PayloadColumns(Protocol):
    """Makes columns of what payloads say, all that a topic has at a time. Safe in any thread."""

    @property
    def schema(self) -> pa.Schema:
        """Return the additional columns. No name is one of SCHEMA."""

    def decode(self, rows: pa.Table) -> tuple[list[pa.Array], int]:
        """The columns for rows with SCHEMA, and how many payloads did not decode. Never raises for what they hold."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Runs first_run .. stop_run-1, which begin at first_entry; bytes start .. start+length-1 of the file."""

    first_run: int
    stop_run: int
    first_entry: int
    start: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class SealedPart(SealedFile):
    """A part. headers: of the runs that it was made of, in order. undecoded: payloads that say nothing in columns."""

    headers: list[Header]
    undecoded: int = 0


class PartWriter:
    """Makes one file. first_run, first_entry: where it begins in its ledger. columns: what stands beside the rows."""

    def __init__(self, ledger: int, first_run: int, first_entry: int, columns: PayloadColumns | None = None) -> None:
        self._ledger = ledger
        self._next_run, self._next_entry = first_run, first_entry
        self._columns = columns
        self._undecoded = 0
        more = [] if columns is None else list(columns.schema)
        text = [field.name for field in more if field.type == pa.string()]
        self._file = CheckedWriter(pa.schema([*SCHEMA, *more]), [*REPEATING, *text])
        self._groups: list[RowGroup] = []
        self._headers: list[Header] = []
        self.bytes = 0
        """Of payload, so far."""

    def add(self, frames: Sequence[Frame]) -> None:
        """Write runs that follow those before as one row group. Raises Corrupt if they do not follow."""
        first_run, first_entry = self._next_run, self._next_entry
        for header in (frame.header for frame in frames):
            if (header.ledger, header.run, header.first_entry) != (self._ledger, self._next_run, self._next_entry):
                raise Corrupt(f"run {header.run} does not follow the one before it in ledger {self._ledger}")
            self._next_run, self._next_entry = header.run + 1, header.last_entry + 1
            self._headers.append(header)
        where = self._file.add(self._rows(frames))
        self._groups.append(RowGroup(first_run, self._next_run, first_entry, *where))
        self.bytes += sum(len(frame.payload) for frame in frames)

    def _rows(self, frames: Sequence[Frame]) -> pa.Table:
        """The rows of runs with all columns."""
        rows = rows_of_runs(frames)
        if self._columns is not None:
            more, undecoded = self._columns.decode(rows)
            self._undecoded += undecoded
            for field, column in zip(self._columns.schema, more, strict=True):
                rows = rows.append_column(field, column)
        return rows

    def finish(self) -> SealedPart:
        """The file; nothing can be added any more."""
        file = self._file.finish(_said(self._groups, self._headers))
        return SealedPart(file.data, file.footer_bytes, file.footer_crc, self._headers, self._undecoded)


class PartFooter:
    """The decoded footer of a file. Made by `decode_footer`."""

    def __init__(self, metadata: Any, size: int, values: dict[str, Any]) -> None:
        """metadata: Parquet's own. size: of the whole file. Raises KeyError, TypeError, ValueError, struct.error."""
        self.metadata, self.size = metadata, size
        self.times_per_ms = 1 if values["format"] == IN_MILLISECONDS else 1000
        """Units of the file's timestamps in a millisecond."""
        self.ledger: int = values["ledger"]
        self.groups = [RowGroup(*group) for group in values["groups"]]
        self.counts: npt.NDArray[np.uint32] = np.frombuffer(values["counts"], np.uint32)
        """Messages in each run."""
        self.epochs: npt.NDArray[np.int64] = np.frombuffer(values["epochs"], np.int64)
        self.shapes: npt.NDArray[np.uint8] = np.frombuffer(values["shapes"], np.uint8)
        self.delayed: npt.NDArray[np.bool_] = np.frombuffer(values["delayed"], np.bool_)
        self.positions: dict[int, bytes] = dict(values["positions"])
        """Source positions of runs of results (storage.format.frame), by run. Other runs have none."""
        runs = self.groups[-1].stop_run - self.groups[0].first_run
        if any(len(column) != runs for column in (self.counts, self.epochs, self.shapes, self.delayed)):
            raise ValueError("its columns differ in length")

    @cached_property
    def first_entries(self) -> npt.NDArray[np.int64]:
        """Return the first entry of each run."""
        return self.groups[0].first_entry + np.cumsum(self.counts, dtype=np.int64) - self.counts

    def group_of(self, run: int) -> int:
        """The number of the row group that holds a run of this file."""
        return int(np.searchsorted([group.stop_run for group in self.groups], run, side="right"))


class GroupRows:
    """One row group in memory, from which runs are taken. bytes: what it takes."""

    def __init__(self, footer: PartFooter, number: int, table: pa.Table) -> None:
        self._footer, self._number, self._group = footer, number, footer.groups[number]
        self._rows = batch_of_table(table)
        self.bytes = int(self._rows.get_total_buffer_size())

    def without(self, keys: Sequence[bytes]) -> tuple[GroupRows, list[int]]:
        """The same runs without what the messages of these keys were (storage.history.erasure), and how many each key
        had."""
        rows, counts = without(self._rows, keys)
        return GroupRows(self._footer, self._number, pa.Table.from_batches([rows])), counts

    def frames(self) -> list[Frame]:
        """All runs, in order."""
        return [self.frame(run) for run in range(self._group.first_run, self._group.stop_run)]

    def unlike(self, headers: Sequence[Header]) -> list[int]:
        """The runs of these headers whose bytes are others than they were: their rows are to be compared.

        Raises Corrupt if anything else of a run is not what it was.
        """
        found = []
        for wanted in headers:
            header = self.frame(wanted.run).header
            if _places(header) != _places(wanted):
                raise Corrupt(f"run {wanted.run} of ledger {wanted.ledger} does not come out of its file as it went in")
            if header.crc != wanted.crc:
                found.append(wanted.run)
        return found

    def has(self, wanted: Frame) -> bool:
        """Whether this run comes out with the same messages. Raises Corrupt."""
        return same_rows(self.frame(wanted.header.run), wanted)

    def frame(self, run: int) -> Frame:
        """A run that lies in this group. Raises Corrupt if the columns are not those of a run."""
        footer, group = self._footer, self._group
        at = run - footer.groups[0].first_run
        first = int(footer.first_entries[at])
        count = int(footer.counts[at])
        at_row = first - group.first_entry
        # Of a slice Arrow writes some bytes of its neighbours as well, and then the run has another checksum.
        piece = self._rows.take(pa.array(np.arange(at_row, min(at_row + count, self._rows.num_rows))))
        shape, delayed = int(footer.shapes[at]), bool(footer.delayed[at])
        if piece.num_rows != count:
            raise Corrupt(f"run {run} of ledger {footer.ledger} is not whole in the object store")
        made = make_run(stored_batch(piece, schema_of(shape), delayed))
        segments = _segments_of(piece)
        header = Header(
            ledger=footer.ledger,
            run=run,
            first_entry=first,
            count=count,
            epoch=int(footer.epochs[at]),
            last_confirmed=first - 1,
            producer=segments[0][0] if len(segments) == 1 else "",
            first_sequence=segments[0][1] if len(segments) == 1 else 0,
            delayed=delayed,
            shape=shape,
            crc=made.crc,
            positions=footer.positions.get(run, b""),
            segments=segments if len(segments) > 1 else (),
        )
        return Frame(header, made.payload)


def _segments_of(rows: pa.RecordBatch) -> tuple[Segment, ...]:
    """The producers of a run's rows: one ends where the next row has another producer, or not the next sequence."""
    producer, sequence = rows.column("producer"), rows.column("sequence").to_numpy()
    others = pc.not_equal(producer.slice(1), producer.slice(0, rows.num_rows - 1)).to_numpy(zero_copy_only=False)
    begins = np.append(0, np.flatnonzero(others | (np.diff(sequence) != 1)) + 1)
    counts = np.diff(np.append(begins, rows.num_rows))
    names = producer.take(pa.array(begins)).to_pylist()
    return tuple(zip(names, sequence[begins].tolist(), counts.tolist(), strict=True))


def stored_batch(rows: pa.RecordBatch, schema: pa.Schema, delayed: bool) -> StoredBatch:
    """Rows with SCHEMA as messages with these columns. delayed: whether any of them may be."""
    due = pc.fill_null(milliseconds(rows.column("deliver_at")), 0).to_numpy() if delayed else None
    columns = [
        milliseconds(rows.column(field.name)) if field.name in _TIMES else rows.column(field.name).cast(field.type)
        for field in schema
    ]
    hashes = rows.column("masked_hash").to_numpy().astype(np.uint32)
    return StoredBatch(pa.RecordBatch.from_arrays(columns, schema=schema), due, hashes)


def milliseconds(times: Any) -> Any:
    """Times as numbers (int64), from timestamps in milliseconds or microseconds, or such numbers."""
    return times.cast(_MILLISECONDS).cast(pa.int64())


def in_microseconds(rows: pa.Table) -> pa.Table:
    """Rows of a file with both times as SCHEMA has them."""
    for name in _TIMES:
        rows = rows.set_column(rows.schema.names.index(name), SCHEMA.field(name), rows.column(name).cast(_TIME))
    return rows


def decode_footer(tail: bytes, size: int, crc: int) -> PartFooter:
    """The footer of a file of `size` bytes. Raises Corrupt if it is not the one with this checksum."""
    metadata, values = read_footer(tail, crc)
    try:
        return PartFooter(metadata, size, values)
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"the footer cannot be read: {error}") from error


def decode_group(footer: PartFooter, number: int, data: bytes) -> GroupRows:
    """The rows of a row group, from its bytes. Raises Corrupt if they are not those with its checksum."""
    return GroupRows(footer, number, read_group(footer, number, data, SCHEMA.names))


def same_rows(found: Frame, wanted: Frame) -> bool:
    """Whether two runs hold the same messages, whatever their bytes are. Raises Corrupt if they cannot be read."""
    rows = [decode_body(frame.body, frame.header.shape, frame.header.count) for frame in (found, wanted)]
    return found.columns == wanted.columns and bool(rows[0].equals(rows[1]))


def _places(header: Header) -> tuple[object, ...]:
    """Return the fields of a header that identify its run: all but the checksum and the writer's state at that time."""
    return (
        header.ledger, header.run, header.first_entry, header.count, header.epoch, header.producer,
        header.first_sequence, header.delayed, header.shape, header.positions, header.segments,
    )  # fmt: skip


def rows_of_runs(frames: Sequence[Frame]) -> pa.Table:
    """The rows of some runs of one ledger that follow one another, with SCHEMA. Raises Corrupt."""
    alike = itertools.groupby(frames, lambda frame: frame.header.shape)
    return pa.concat_tables([_alike(list(group)) for _, group in alike]).combine_chunks()


def _alike(frames: list[Frame]) -> pa.Table:
    """The rows of runs of one shape."""
    headers = [frame.header for frame in frames]
    due = [np.zeros(frame.header.count, np.int64) if (at := frame.deliver_at) is None else at for frame in frames]
    rows = pa.Table.from_batches([decode_body(frame.body, frame.header.shape, frame.header.count) for frame in frames])
    segments = [segment for header in headers for segment in header.parts]
    sizes = np.array([count for _, _, count in segments])
    times = np.concatenate(due)
    columns = {
        "ledger": np.full(rows.num_rows, headers[0].ledger),
        "entry": headers[0].first_entry + np.arange(rows.num_rows),
        "masked_hash": np.concatenate([frame.hashes for frame in frames]).astype(np.int32),
        "deliver_at": pa.array(times, mask=times == 0).cast(_MILLISECONDS),
        "producer": pa.array([name for name, _, _ in segments]).take(np.repeat(np.arange(len(segments)), sizes)),
        "sequence": np.repeat([first for _, first, _ in segments], sizes) + rows_within(sizes),
        **{name: rows.column(name) for name in rows.schema.names},
        "publish_time": rows.column("publish_time").cast(_MILLISECONDS),
    }
    wanted = [
        pa.chunked_array([columns[field.name]])
        if isinstance(columns.get(field.name), np.ndarray)
        else columns.get(field.name, pa.nulls(rows.num_rows, field.type))
        for field in SCHEMA
    ]
    return pa.table([column.cast(field.type) for column, field in zip(wanted, SCHEMA, strict=True)], schema=SCHEMA)


def rows_within(counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Number the rows of each stretch from 0; counts: the stretches' rows, int64."""
    within: npt.NDArray[Any] = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return within


def batch_of_table(table: pa.Table) -> pa.RecordBatch:
    columns = [column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, names=table.schema.names)


def _said(groups: Sequence[RowGroup], headers: Sequence[Header]) -> dict[str, Any]:
    """Return the values that a footer holds beside Parquet's own."""
    columns: dict[str, npt.NDArray[Any]] = {
        "counts": np.array([header.count for header in headers], np.uint32),
        "epochs": np.array([header.epoch for header in headers], np.int64),
        "shapes": np.array([header.shape for header in headers], np.uint8),
        "delayed": np.array([header.delayed for header in headers], np.bool_),
    }
    return {
        "ledger": headers[0].ledger,
        "groups": [
            (group.first_run, group.stop_run, group.first_entry, group.start, group.length, group.crc)
            for group in groups
        ],
        "positions": [(header.run, header.positions) for header in headers if header.positions],
        **{name: column.tobytes() for name, column in columns.items()},
    }

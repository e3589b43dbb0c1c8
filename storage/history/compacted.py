"""The last message of each key: found in columns, and kept as Parquet files that every engine reads.

A table holds rows of the log with the columns of storage.history.part, in order of their positions, which have gaps. A
row without payload says that its key was deleted. A reader from the beginning of the table never knew the key and does
not get the row; a reader that had earlier messages needs it. So it stays for a while
(actors.topic.background.compaction).

A row group holds rows of any ledgers. The footer says of each group which positions it holds
(storage.history.checked_parquet). A row comes out as a message of its own, whatever batch of a client it came in: the
size of a batch that lost some of its messages is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.storage.errors import Corrupt
from sluice.storage.format.batch import MAX_RUN_MESSAGES, stored_schema
from sluice.storage.format.cursor import Cursor
from sluice.storage.format.frame import Run, make_run
from sluice.storage.format.hashing import MASK, hash_column
from sluice.storage.format.position import ENTRY_BITS, MAX_ENTRY, Positions, split_by_ledger
from sluice.storage.history.checked_parquet import CheckedWriter, SealedFile, read_footer, read_group
from sluice.storage.history.part import REPEATING, SCHEMA, batch_of_table, stored_batch

KEYS_BYTES = 64 * 1024 * 1024
"""What the keys in hand may take; if there are more, the log is read once more for the others."""
_ROW_BYTES = 100
"""What a row costs beside its key and payload, about."""
_OPTIONAL = ("ordering_key", "properties", "event_time", "sequence_id", "pulsar")
KIND = "compacted"


def positions_in(rows: pa.Table | pa.RecordBatch) -> Positions:
    """The positions of rows with the columns of the history."""
    ledgers, entries = (rows.column(name).to_numpy() for name in ("ledger", "entry"))
    found: Positions = (ledgers << ENTRY_BITS) | entries
    return found


def is_empty(rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Which of them have no payload, and say that their key is gone."""
    return np.asarray(pc.equal(pc.binary_length(rows.column("payload")), 0).to_numpy(zero_copy_only=False), bool)


# -- which messages are the last ones ----------------------------------------------------------------------------------


class LastOfKeys:
    """Finds the last message of each key in rows that come in order of position. Messages without key are passed over.

    limit: bytes of keys that it may hold. Of more keys it leaves some out, those with the highest hashes; `more` says
    so, and `again` begins with these. Then all rows are to be given once more.
    """

    def __init__(self, limit: int = KEYS_BYTES) -> None:
        self._limit = limit
        self._low, self._high = 0, MASK + 1
        self._known = self._nothing()
        self._new: list[pa.Table] = []
        self._new_rows = 0
        self._found = Cursor()

    @staticmethod
    def _nothing() -> pa.Table:
        return pa.table({"key": pa.array([], pa.binary()), "last": pa.array([], pa.int64())})

    def add(self, rows: pa.Table) -> None:
        """More rows, behind all that came before."""
        keys = rows.column("key").combine_chunks()
        keyed = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
        keys, positions = keys.take(pa.array(keyed)), positions_in(rows)[keyed]
        if self._low or self._high <= MASK:
            hashes = hash_column(keys)
            inside = np.flatnonzero((hashes >= self._low) & (hashes < self._high))
            keys, positions = keys.take(pa.array(inside)), positions[inside]
        if not len(positions):
            return
        table = pa.table({"key": keys, "last": pa.array(positions)})
        self._new.append(_last_of(table))
        self._new_rows += self._new[-1].num_rows
        if self._new_rows >= max(self._known.num_rows, MAX_RUN_MESSAGES):
            self._merge()

    def _merge(self) -> None:
        self._known = _last_of(pa.concat_tables([self._known, *self._new])).combine_chunks()
        self._new, self._new_rows = [], 0
        while self._known.nbytes > self._limit and self._high - self._low > 1:
            self._high = (self._low + self._high) // 2
            hashes = hash_column(self._known.column("key").combine_chunks())
            self._known = self._known.filter(pa.array(hashes < self._high)).combine_chunks()

    def end(self) -> None:
        """All rows were given: note what was found."""
        self._merge()
        self._found.acknowledge(np.sort(self._known.column("last").to_numpy()))
        self._known = self._nothing()

    @property
    def more(self) -> bool:
        """Whether keys were left out."""
        return self._high <= MASK

    def again(self) -> None:
        """Begin with the keys that were left out."""
        self._low, self._high = self._high, MASK + 1

    def mask(self, positions: Positions) -> npt.NDArray[np.bool_]:
        """Which of these ascending positions hold the last message of a key. A cursor is a set of positions."""
        return self._found.is_acknowledged(positions)


def _last_of(table: pa.Table) -> pa.Table:
    grouped = table.group_by("key").aggregate([("last", "max")])
    return grouped.select(["key", "last_max"]).rename_columns(["key", "last"])


# -- files -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompactedGroup:
    """Positions first .. last, with gaps; bytes start .. start+length-1 of the file."""

    first: int
    last: int
    start: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class SealedTable(SealedFile):
    """A file, and the rows that it was made of, by row group."""

    groups: list[CompactedGroup]
    rows: list[pa.Table]


class CompactedWriter:
    """Makes one file of a table."""

    def __init__(self) -> None:
        self._file = CheckedWriter(SCHEMA, REPEATING)
        self._groups: list[CompactedGroup] = []
        self._rows: list[pa.Table] = []
        self.bytes = 0
        """In memory, so far."""

    def add(self, rows: pa.Table) -> None:
        """Write rows, which follow those before, as one row group."""
        positions = positions_in(rows)
        self._groups.append(CompactedGroup(int(positions[0]), int(positions[-1]), *self._file.add(rows)))
        self._rows.append(rows)
        self.bytes += rows.nbytes

    def finish(self, table: Any = None) -> SealedTable:
        """The file; nothing can be added any more. table: of the last one, what the whole table is, in plain values."""
        groups = [(one.first, one.last, one.start, one.length, one.crc) for one in self._groups]
        file = self._file.finish({"kind": KIND, "groups": groups, **({"table": table} if table else {})})
        return SealedTable(file.data, file.footer_bytes, file.footer_crc, self._groups, self._rows)


class CompactedFooter:
    """The decoded footer of a compacted file. table: see CompactedWriter.finish."""

    def __init__(self, metadata: Any, size: int, groups: Sequence[CompactedGroup], table: Any = None) -> None:
        self.metadata, self.size, self.groups, self.table = metadata, size, groups, table

    def group_of(self, at: int) -> int:
        """The number of the first row group that may hold something from a position on."""
        return int(np.searchsorted([group.last for group in self.groups], at))


def decode_compacted_footer(tail: bytes, size: int, crc: int) -> CompactedFooter:
    """The footer of a file of `size` bytes. Raises Corrupt if it is not the one with this checksum."""
    metadata, values = read_footer(tail, crc)
    try:
        if values["kind"] != KIND:
            raise Corrupt("the file is no table of last messages")
        groups = [CompactedGroup(*group) for group in values["groups"]]
        return CompactedFooter(metadata, size, groups, values.get("table"))
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"the footer cannot be read: {error}") from error


def decode_compacted_group(footer: CompactedFooter, number: int, data: bytes) -> CompactedRows:
    """The rows of a row group, from its bytes. Raises Corrupt if they are not those with its checksum."""
    return CompactedRows(read_group(footer, number, data))


@dataclass(frozen=True, slots=True)
class CompactedPiece:
    """Messages of one ledger as a run with gaps: `cut` are those that there are of `count` entries from first_entry on
    (uint32, ascending). run: these messages.
    """

    ledger: int
    first_entry: int
    count: int
    cut: npt.NDArray[np.uint32]
    run: Run


class CompactedRows:
    """One row group in memory."""

    def __init__(self, table: pa.Table) -> None:
        columns = [table.column(field.name).cast(field.type) for field in SCHEMA]
        self.table = pa.Table.from_arrays(columns, schema=SCHEMA)
        self._rows = batch_of_table(self.table)
        self.positions = positions_in(self._rows)
        self._empty = is_empty(self._rows)

    def pieces(self, start: int, *, limit: int, max_bytes: int, empty: bool) -> tuple[list[CompactedPiece], int | None]:
        """Return messages from a position on, and the position to go on from; None at the end of this group.

        limit, max_bytes: the most messages and bytes; at least one message is returned. empty: also return rows that
        say that a key was deleted.
        """
        rows = np.arange(int(self.positions.searchsorted(start)), len(self.positions))
        if not empty:
            rows = rows[~self._empty[rows]]
        if not len(rows):
            return [], None
        few = self._rows.take(pa.array(rows))
        lengths = sum(
            np.asarray(pc.fill_null(pc.binary_length(few.column(name)), 0).to_numpy(zero_copy_only=False), np.int64)
            for name in ("key", "payload")
        )
        fits = int(np.searchsorted(np.cumsum(lengths + _ROW_BYTES), max_bytes, side="right"))
        taken = max(min(fits, limit, MAX_RUN_MESSAGES), 1)
        left = int(self.positions[rows[taken]]) if taken < len(rows) else None
        few, found, at = few.slice(0, taken), [], 0
        for ledger, entries in split_by_ledger(self.positions[rows[:taken]]):
            found.append(_piece(ledger, entries, few.slice(at, len(entries))))
            at += len(entries)
        return found, left

    def last(self, *, empty: bool) -> int:
        """The last position of those; -1 for none."""
        found = self.positions if empty else self.positions[~self._empty]
        return int(found[-1]) if len(found) else -1


def _piece(ledger: int, entries: npt.NDArray[np.uint32], rows: pa.RecordBatch) -> CompactedPiece:
    rows = rows.take(pa.array(np.arange(rows.num_rows)))  # else Arrow writes what lies behind the piece, too
    schema = stored_schema([name for name in _OPTIONAL if rows.column(name).null_count < rows.num_rows])
    delayed = rows.column("deliver_at").null_count < rows.num_rows
    cut = entries - entries[0]
    count = int(cut[-1]) + 1
    assert count <= MAX_ENTRY
    return CompactedPiece(ledger, int(entries[0]), count, cut, make_run(stored_batch(rows, schema, delayed)))

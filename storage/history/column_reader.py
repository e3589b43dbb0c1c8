"""Reads columns of a file of the history (storage.history.part), for those who scan messages and need no runs.

A broker takes a run and checks its row group's bytes as a whole. Who scans wants few columns of many row groups. So of
each row group the bytes of these columns are read and no others, and Parquet's own checksum of each page is compared,
below a footer that is checked as a whole: nothing is believed that is not what was written.

Row groups are skipped by the statistics in the footer: those that hold no message of the wanted entries, times or keys.
Statistics of a column without order, as most keys are, exclude little. So where keys are wanted their column is
read first, and the others only if one of them is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.storage.errors import Corrupt
from sluice.storage.history.checked_parquet import read_pieces
from sluice.storage.history.part import SCHEMA, PartFooter, milliseconds

DAY_MS = 86_400_000
GAP_BYTES = 16 * 1024
"""Columns that lie so close to each other are read with one request, and what is between them too."""

Get = Callable[[int, int], bytes]
"""Reads from byte `start` of the file `length` bytes. Raises NotFound, Unavailable."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages are wanted: published at or after `since` and before `until` (ms), and with one of `keys`.

    None: whatever it is.
    """

    since: int | None = None
    until: int | None = None
    keys: tuple[bytes, ...] | None = None

    @property
    def everything(self) -> bool:
        """Whether no message is left out."""
        return self == EVERYTHING

    def mask(self, rows: pa.Table | pa.RecordBatch) -> pa.Array | None:
        """Which rows are wanted, by their columns `publish_time` and `key`; None if all are."""
        found: list[Any] = []
        if self.since is not None or self.until is not None:
            times = milliseconds(rows.column("publish_time"))
            found += [pc.greater_equal(times, self.since)] if self.since is not None else []
            found += [pc.less(times, self.until)] if self.until is not None else []
        if self.keys is not None:
            found.append(pc.is_in(rows.column("key"), pa.array(self.keys, pa.binary())))
        for more in found[1:]:
            found[0] = pc.and_(found[0], more)
        return found[0] if found else None

    def columns(self) -> list[str]:
        """The columns by which it is decided."""
        timed = self.since is not None or self.until is not None
        return ["publish_time"] * timed + ["key"] * (self.keys is not None)


EVERYTHING = Selection()


def column_extents(metadata: Any, number: int, columns: Iterable[str]) -> list[tuple[int, int]]:
    """Return the extents (start, stop) of some columns of a row group, in order. Columns that lie close share one.

    metadata: Parquet's, of the file.
    """
    wanted, group = set(columns), metadata.row_group(number)
    found: list[tuple[int, int]] = []
    for place in range(group.num_columns):
        chunk = group.column(place)
        if chunk.path_in_schema.partition(".")[0] in wanted:
            start = chunk.data_page_offset
            if chunk.dictionary_page_offset is not None:
                start = min(start, chunk.dictionary_page_offset)
            found.append((start, start + chunk.total_compressed_size))
    found.sort()
    joined: list[tuple[int, int]] = []
    for start, stop in found:
        if joined and start - joined[-1][1] <= GAP_BYTES:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


class PartColumns:
    """Reads columns of one file. Safe for threads."""

    def __init__(self, footer: PartFooter, get: Get) -> None:
        self._footer, self._metadata, self._get = footer, footer.metadata, get
        first = self._metadata.row_group(0)
        self._names = [first.column(place).path_in_schema.partition(".")[0] for place in range(first.num_columns)]
        self._lengths = [footer.size - footer.groups[-1].start - footer.groups[-1].length]

    @property
    def bytes_read(self) -> int:
        """Return the bytes requested so far, the footer included."""
        return sum(self._lengths)

    def groups(self, first: int, last: int, wanted: Selection) -> list[int]:
        """The numbers of the row groups that may hold wanted messages among entries first .. last."""
        return [
            number
            for number in range(self._metadata.num_row_groups)
            if self._overlap(number, "entry", first, last)
            and self._overlap(number, "publish_time", wanted.since, None if wanted.until is None else wanted.until - 1)
            and (wanted.keys is None or any(self._overlap(number, "key", key, key) for key in wanted.keys))
        ]

    def days(self) -> tuple[int, int]:
        """The first and the last day of its messages' publish times, in days since 1970. Raises Corrupt."""
        known = [self._range(number, "publish_time") for number in range(self._metadata.num_row_groups)]
        times = [time for ends in known if ends is not None for time in ends]
        if len(times) < 2 * len(known):
            raise Corrupt("its footer does not say when its messages were published")
        return min(times) // DAY_MS, max(times) // DAY_MS

    @property
    def in_milliseconds(self) -> bool:
        """Whether its times are those of an earlier format (storage.history.part)."""
        return self._footer.times_per_ms == 1

    def of_payloads(self) -> pa.Schema:
        """The columns that are not those of every file (storage.history.part.PayloadColumns)."""
        return pa.schema([field for field in self._metadata.schema.to_arrow_schema() if field.name not in SCHEMA.names])

    def stop_entry(self, number: int, last: int) -> int:
        """The entry behind a row group, of entries up to `last`."""
        groups = self._footer.groups
        return min(groups[number + 1].first_entry, last + 1) if number + 1 < len(groups) else last + 1

    def read(self, number: int, columns: Iterable[str], first: int, last: int, wanted: Selection) -> pa.Table | None:
        """The wanted messages of a row group among entries first .. last; None if there are none.

        Raises Corrupt, and what `get` raises.
        """
        entries = self._range(number, "entry")
        whole = entries is not None and first <= entries[0] and entries[1] <= last
        deciding = {*wanted.columns(), *([] if whole else ["entry"])}
        names = {*columns} | deciding or {"entry"}

        def mask(rows: pa.Table) -> pa.Array | None:
            return _both(wanted.mask(rows), None if whole else _within(rows, first, last))

        # Keys leave out whole row groups that statistics could not: then nothing else of these is read.
        ahead = self._table(number, deciding) if wanted.keys is not None else None
        if ahead is not None and not pc.any(mask(ahead)).as_py():
            return None
        known = {} if ahead is None else {name: ahead.column(name) for name in ahead.schema.names}
        rest = names - known.keys()
        found = self._table(number, rest) if rest else None
        table = pa.table(known | ({} if found is None else {name: found.column(name) for name in rest}))
        if (rows := mask(table)) is not None:
            table = table.filter(rows)
        return table if table.num_rows else None

    def _table(self, number: int, columns: Iterable[str]) -> pa.Table:
        pieces = [
            (start, self._read(start, stop - start)) for start, stop in column_extents(self._metadata, number, columns)
        ]
        return read_pieces(self._footer, number, pieces, sorted(columns))

    def _read(self, start: int, length: int) -> bytes:
        data = self._get(start, length)
        self._lengths.append(len(data))
        return data

    def _range(self, number: int, column: str) -> tuple[Any, Any] | None:
        """The least and the greatest value of a column in a row group, times in ms; None if nobody knows."""
        statistics = self._metadata.row_group(number).column(self._names.index(column)).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        if column == "publish_time":
            return statistics.min_raw // self._footer.times_per_ms, statistics.max_raw // self._footer.times_per_ms
        return statistics.min_raw, statistics.max_raw

    def _overlap(self, number: int, column: str, low: Any, high: Any) -> bool:
        """Whether a row group may have values between low and high, both inclusive; None: any."""
        known = self._range(number, column)
        return known is None or not ((low is not None and known[1] < low) or (high is not None and high < known[0]))


def _within(rows: pa.Table, first: int, last: int) -> pa.Array:
    entries = rows.column("entry")
    return pc.and_(pc.greater_equal(entries, first), pc.less_equal(entries, last))


def _both(one: pa.Array | None, other: pa.Array | None) -> pa.Array | None:
    if one is None or other is None:
        return other if one is None else one
    return pc.and_(one, other)

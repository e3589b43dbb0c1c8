"""The index of a bookie: it maps (ledger, run) to segment, offset and size.

New rows go to a tail in memory. A checkpoint freezes the tail, writes it as a sorted table (see `table`) and only
then drops it, so that a look-up always finds a row in the tail, the frozen tail, or a table; newer ones win.
When there are `FAN` newer tables of comparable size they are merged, so that sizes fall off geometrically: a look-up
touches few tables, a row is rewritten a few times at most, and of the index only 12 bytes in 256 runs are in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.actors.bookie.index_table import ROW, Rows, Table, TableWriter, key_of, keys_of, merge, newest
from sluice.actors.ports import Disk
from sluice.storage.errors import Corrupt, NotFound, Unavailable
from sluice.storage.format.position import MAX_ENTRY

FAN = 8
_CACHED_BLOCKS = 16


class Row(NamedTuple):
    """One run. offset and size are those of its frame. segment 0: the run was here but cannot be read any more."""

    ledger: int
    run: int
    first_entry: int
    entries: int
    segment: int
    offset: int
    size: int

    @property
    def damaged(self) -> bool:
        """Whether the run was here and cannot be read."""
        return self.segment == 0


_Tail = dict[int, dict[int, Row]]


class Index:
    """The runs of all ledgers. damaged: why the next start must rebuild the index; empty if it need not."""

    def __init__(self, disk: Disk) -> None:
        self.tables: list[Table] = []
        self.next_table = 1
        self.tail_rows = 0
        self.damaged: str | None = None
        self._disk = disk
        self._tail: _Tail = {}
        self._frozen: _Tail = {}
        self._cache: OrderedDict[tuple[str, int], Rows] = OrderedDict()

    def insert(self, row: Row) -> None:
        """Add a run, or replace its place."""
        runs = self._tail.setdefault(row.ledger, {})
        self.tail_rows += row.run not in runs
        runs[row.run] = row

    def drop(self, ledger: int) -> None:
        """Drop a deleted ledger from memory; its rows in tables go when they are merged."""
        self.tail_rows -= len(self._tail.pop(ledger, ()))
        self._frozen.pop(ledger, None)

    async def find(self, ledger: int, run: int) -> Row | None:
        """The run, or None if it is not here. Raises Unavailable if the index itself is damaged."""
        while True:
            for tail in (self._tail, self._frozen):
                row = tail.get(ledger, {}).get(run)
                if row is not None:
                    return row
            tables = self.tables
            try:
                return await self._search(tables, key_of(ledger, run))
            except (NotFound, Corrupt) as error:
                self._retry_or_raise(tables, error)

    async def rows(self, ledger: int) -> Rows:
        """All runs of a ledger, ascending. Raises Unavailable if the index itself is damaged."""
        while True:
            recent = [_sorted(tail, ledger) for tail in (self._frozen, self._tail)]
            tables = self.tables
            first, last = key_of(ledger, 0), key_of(ledger, MAX_ENTRY)
            try:
                parts = [piece for table in tables async for piece in table.pieces(self._disk, first, last)]
            except (NotFound, Corrupt) as error:
                self._retry_or_raise(tables, error)
                continue
            return newest([*parts, *recent])

    def freeze(self) -> Rows:
        """Begin a new tail; the rows of the old one, which stays visible until `thaw`.

        A tail that was frozen before and could not be written is written with it.
        """
        for ledger, runs in self._tail.items():
            self._frozen.setdefault(ledger, {}).update(runs)
        self._tail, self.tail_rows = {}, 0
        return np.concatenate([np.empty(0, ROW), *(_sorted(self._frozen, ledger) for ledger in sorted(self._frozen))])

    def thaw(self, tables: list[Table]) -> None:
        """The frozen tail is in these tables now."""
        self.tables = tables
        self._frozen = {}

    def table_name(self) -> str:
        """A name for the next table."""
        self.next_table += 1
        return f"index-{self.next_table - 1:08x}"

    async def write_table(self, rows: Rows, name: str) -> Table:
        """Write sorted rows as a new table, durably."""
        await self._disk.delete(name)
        writer = TableWriter(self._disk, name)
        await writer.add(rows)
        return await writer.finish()

    def mergeable(self) -> int | None:
        """From which table on the newer ones are worth merging: `FAN` or more, none far bigger than its followers."""
        start, total = len(self.tables) - 1, 0
        while start >= 0 and (not total or self.tables[start].rows <= FAN * total):
            total += self.tables[start].rows
            start -= 1
        return start + 1 if len(self.tables) - start - 1 >= FAN else None

    async def merge_some(self, dropped: npt.NDArray[np.uint32]) -> bool:
        """Merge the newer tables, if that is worth it; the caller makes the new list durable."""
        start = self.mergeable()
        if start is None:
            return False
        name = self.table_name()
        await self._disk.delete(name)
        table = await merge(self._disk, self.tables[start:], name, dropped)
        self.tables = [*self.tables[:start], table]
        return True

    async def _search(self, tables: list[Table], key: int) -> Row | None:
        for table in reversed(tables):
            if not table.covers(key, key):
                continue
            rows = await self._block(table, table.block_of(key))
            at = int(np.searchsorted(keys_of(rows), np.uint64(key)))
            if at < len(rows) and int(keys_of(rows[at : at + 1])[0]) == key:
                return Row(*rows[at].item())
        return None

    async def _block(self, table: Table, block: int) -> Rows:
        rows = self._cache.get((table.name, block))
        if rows is None:
            rows = self._cache[table.name, block] = await table.load(self._disk, block, 1)
            if len(self._cache) > _CACHED_BLOCKS:
                self._cache.popitem(last=False)
        return rows

    def _retry_or_raise(self, tables: list[Table], error: Exception) -> None:
        """A table that was merged meanwhile is not damaged: look again."""
        if tables is self.tables:
            self.damaged = self.damaged or str(error)
            raise Unavailable(f"the index is damaged and will be built anew: {error}") from error


def _sorted(tail: _Tail, ledger: int) -> Rows:
    runs = tail.get(ledger, {})
    return np.array([runs[run] for run in sorted(runs)], ROW)

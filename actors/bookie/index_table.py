"""Index tables: immutable sorted files that say where each run is stored.

    blocks    rows of ROW sorted by key = ledger << 32 | run, 256 rows a block
    firsts    uint64[b]   first key of each block
    sums      uint32[b]   CRC32C of each block
    trailer   24 bytes    magic "SLX1", CRC32C of firsts, sums and the rest of the trailer, rows, last key

In memory a table is its firsts and sums: 12 bytes for 256 runs. A look-up reads one block and verifies it. A table
is derived from the journal, so damage to one is repaired by rebuilding it.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt

from sluice.actors.ports import Disk
from sluice.storage.errors import Corrupt

ROW = np.dtype([(name, "<u4") for name in ("ledger", "run", "first_entry", "entries", "segment", "offset", "size")])
"""One run; see `Row`."""
Rows = npt.NDArray[np.void]
"""Index rows, shape (n,), dtype ROW."""
Keys = npt.NDArray[np.uint64]

BLOCK_ROWS = 256
BLOCK_BYTES = BLOCK_ROWS * ROW.itemsize
PIECE_BLOCKS = 256
"""Blocks that are read or written at once: 1.75 MiB."""
_TRAILER = struct.Struct("<4sIQQ")
MAGIC = b"SLX1"


def keys_of(rows: Rows) -> Keys:
    """The sort key of each row, uint64."""
    keys: Keys = rows["ledger"].astype(np.uint64) << np.uint64(32) | rows["run"]
    return keys


def key_of(ledger: int, run: int) -> int:
    """The sort key of one run."""
    return ledger << 32 | run


def newest(parts: Sequence[Rows]) -> Rows:
    """Rows of several sources, oldest source first, as one sorted array with the newest row of each key."""
    rows = np.concatenate(parts)
    keys = keys_of(rows)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    keep = np.ones(len(keys), np.bool_)
    keep[:-1] = keys[:-1] != keys[1:]
    return rows[order[keep]]


@dataclass(frozen=True, eq=False)
class Table:
    """One open table."""

    name: str
    rows: int
    last: int
    firsts: Keys
    sums: npt.NDArray[np.uint32]

    def covers(self, first: int, last: int) -> bool:
        """Whether any key of first .. last may be here."""
        return self.rows > 0 and int(self.firsts[0]) <= last and first <= self.last

    def block_of(self, key: int) -> int:
        """The block that has a key, if this table has it."""
        return max(int(np.searchsorted(self.firsts, np.uint64(key), "right")) - 1, 0)

    async def load(self, disk: Disk, block: int, blocks: int) -> Rows:
        """Some consecutive blocks, verified. Raises Corrupt."""
        wanted = min(blocks * BLOCK_ROWS, self.rows - block * BLOCK_ROWS) * ROW.itemsize
        data = await disk.read(self.name, block * BLOCK_BYTES, wanted)
        if len(data) != wanted:
            raise Corrupt(f"{self.name} is cut off")
        for number in range(len(self.sums[block : block + blocks])):
            part = data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
            if google_crc32c.value(part) != self.sums[block + number]:
                raise Corrupt(f"{self.name} is damaged in block {block + number}")
        return np.frombuffer(data, ROW)

    async def pieces(self, disk: Disk, first: int = 0, last: int = (1 << 64) - 1) -> AsyncIterator[Rows]:
        """The rows with keys first .. last, ascending, piece by piece. Raises Corrupt."""
        if not self.covers(first, last):
            return
        block, end = self.block_of(first), self.block_of(last) + 1
        while block < end:
            rows = await self.load(disk, block, min(PIECE_BLOCKS, end - block))
            keys = keys_of(rows)
            low, high = np.searchsorted(keys, np.array([first, last], np.uint64), "left")
            high += int(high < len(keys) and keys[high] == last)
            if low < high:
                yield rows[low:high]
            block += PIECE_BLOCKS


class TableWriter:
    """Writes one table from rows in ascending order of keys."""

    def __init__(self, disk: Disk, name: str) -> None:
        self._disk = disk
        self._name = name
        self._rest: Rows = np.empty(0, ROW)
        self._firsts: list[Keys] = []
        self._sums: list[int] = []
        self._rows = 0
        self._last = 0

    async def add(self, rows: Rows) -> None:
        """Append rows. Each piece is synced, so that the journal's own syncs never wait for a long one."""
        rows = np.concatenate([self._rest, rows]) if len(self._rest) else rows
        whole = len(rows) // BLOCK_ROWS * BLOCK_ROWS
        step = PIECE_BLOCKS * BLOCK_ROWS
        for start in range(0, whole, step):
            await self._write(rows[start : min(start + step, whole)], sync=True)
        self._rest = rows[whole:].copy()

    async def finish(self) -> Table:
        """Durably write the remaining rows and the directory."""
        if len(self._rest):
            await self._write(self._rest, sync=False)
        firsts = np.concatenate(self._firsts) if self._firsts else np.empty(0, np.uint64)
        sums = np.array(self._sums, np.uint32)
        directory = firsts.tobytes() + sums.tobytes()
        trailer = _TRAILER.pack(MAGIC, _directory_crc(directory, self._rows, self._last), self._rows, self._last)
        await self._disk.append(self._name, [directory, trailer], sync=True)
        return Table(self._name, self._rows, self._last, firsts, sums)

    async def _write(self, rows: Rows, *, sync: bool) -> None:
        data = np.ascontiguousarray(rows).tobytes()
        keys = keys_of(rows)
        self._firsts.append(keys[::BLOCK_ROWS].copy())
        blocks = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
        self._sums += [int(google_crc32c.value(block)) for block in blocks]
        self._rows += len(rows)
        self._last = int(keys[-1])
        await self._disk.append(self._name, [data], sync=sync)


async def open_table(disk: Disk, name: str) -> Table:
    """Read a table's directory. Raises Corrupt, NotFound."""
    size = await disk.size(name)
    trailer = await disk.read(name, max(size - _TRAILER.size, 0), _TRAILER.size)
    if len(trailer) != _TRAILER.size:
        raise Corrupt(f"{name} is cut off")
    magic, crc, rows, last = _TRAILER.unpack(trailer)
    blocks = -(-rows // BLOCK_ROWS)
    start = rows * ROW.itemsize
    if magic != MAGIC or start + blocks * 12 + _TRAILER.size != size:
        raise Corrupt(f"{name} is not an index table")
    directory = await disk.read(name, start, blocks * 12)
    if len(directory) != blocks * 12 or _directory_crc(directory, rows, last) != crc:
        raise Corrupt(f"the directory of {name} is damaged")
    return Table(
        name,
        rows,
        last,
        np.frombuffer(directory, np.uint64, blocks),
        np.frombuffer(directory, np.uint32, -1, blocks * 8),
    )


async def merge(disk: Disk, tables: Sequence[Table], name: str, dropped: npt.NDArray[np.uint32]) -> Table:
    """Merge tables (oldest first) into one, without the rows of dropped ledgers (ascending ids).

    Holds one piece of each table in memory: all rows up to the smallest key at which some piece ends can be written.
    """
    writer = TableWriter(disk, name)
    sources = [table.pieces(disk) for table in tables]
    heads: list[Rows | None] = [await anext(source, None) for source in sources]
    while any(head is not None for head in heads):
        bound = min(keys_of(head[-1:])[0] for head in heads if head is not None)
        parts = []
        for number, head in enumerate(heads):
            if head is None:
                continue
            cut = int(np.searchsorted(keys_of(head), bound, "right"))
            parts.append(head[:cut])
            heads[number] = head[cut:] if cut < len(head) else await anext(sources[number], None)
        rows = newest(parts)
        await writer.add(rows[~np.isin(rows["ledger"], dropped)])
    return await writer.finish()


def _directory_crc(directory: bytes, rows: int, last: int) -> int:
    return int(google_crc32c.value(directory + struct.pack("<QQ", rows, last)))

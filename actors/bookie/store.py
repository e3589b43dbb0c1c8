"""The data on a bookie's disk: journal, index, ledgers, segments, and how a start makes one state of them.

**The index** maps (ledger, run) to segment, offset and size. New rows go to a tail in memory. A checkpoint freezes the
tail, writes it as a sorted table (see `index_table`) and only then drops it, so that a look-up always finds a row in
the tail, the frozen tail, or a table; newer ones win. When there are `FAN` newer tables of comparable size they are
merged, so that sizes fall off geometrically: a look-up touches few tables, a row is rewritten a few times at most, and
of the index only 12 bytes in 256 runs are in memory.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.actors.bookie.checkpoint import (
    Checkpoint,
    encode_checkpoint,
    load_checkpoints,
    load_watermark,
    raise_watermark,
    save_checkpoint,
)
from sluice.actors.bookie.index_table import ROW, Rows, Table, TableWriter, key_of, keys_of, merge, newest, open_table
from sluice.actors.bookie.journal import RESERVE, BookieJournal, segment_name
from sluice.actors.bookie.known_ledgers import FencingState, Segments
from sluice.actors.bookie.replay import Replay, read_file, read_segments
from sluice.actors.bookie.settings import BookieSettings
from sluice.actors.ports import Disk, DiskFull
from sluice.storage.errors import Corrupt, NotFound, Unavailable
from sluice.storage.format.frame import MAX_FRAME_BYTES, MAX_HEAD_BYTES, Frame, decode_frame, decode_head
from sluice.storage.format.journal import Envelope, Kind
from sluice.storage.format.position import MAX_ENTRY, MAX_LEDGER

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


REBUILD = "rebuild"
"""A file whose presence asks the next start to build the index anew."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint on disk: the first segment that a start from it replays, the tables that it needs, and the segments
    whose absence would be a loss to it.
    """

    segment: int
    tables: list[str]
    living: set[int]


class BookieStore:
    """The state of one bookie. After `open`, `journal` takes records and `apply` has seen all that are durable."""

    def __init__(
        self,
        disk: Disk,
        settings: BookieSettings,
        salt: bytes,
        *,
        on_failed: Callable[[str], None],
        on_full: Callable[[], None],
    ) -> None:
        self.disk = disk
        self.settings = settings
        self.salt = salt
        self.ledgers = FencingState()
        self.segments = Segments()
        self.index = Index(disk)
        self.journal = BookieJournal(
            disk,
            settings,
            salt,
            on_durable=self.apply,
            on_segment_closed=self._segment_closed,
            on_failed=on_failed,
            on_full=on_full,
        )
        self.on_failed = on_failed
        self.watermark = 0
        self._raising = asyncio.Lock()
        self.generation = 0
        self.saved: list[Saved] = []
        """The checkpoints on disk that can be read, newest first."""
        self.checkpointed = 0
        """The value of `journal.written` at the newest checkpoint."""
        self.replayed = Replay(self.apply)

    async def format(self) -> None:
        """Prepare a disk that never served."""
        await raise_watermark(self.disk, 0, self.salt)
        for generation in (0, 1):
            await save_checkpoint(self.disk, generation, encode_checkpoint(Checkpoint(generation), self.salt))

    async def open(self) -> None:
        """Bring the state back, cut off a torn tail, and begin a new segment.

        Raises Unavailable if the index turns out to be damaged: the next start builds it again.
        """
        try:
            await self._open()
        except Unavailable:
            if self.index.damaged is not None:
                await self.disk.replace(REBUILD, self.index.damaged.encode())
            raise

    async def _open(self) -> None:
        found = await load_checkpoints(self.disk, self.salt)
        checkpoint = found[0] if found else Checkpoint()
        self.saved = [Saved(each.segment, each.tables, each.segments.living()) for each in found]
        self.generation = checkpoint.generation
        self.watermark = await load_watermark(self.disk, self.salt)
        self.ledgers = checkpoint.ledgers
        self.index.next_table = await self._next_table(checkpoint)
        everything = not await self._open_tables(checkpoint)
        self.segments = Segments() if everything else checkpoint.segments
        replay = self.replayed
        replay.lost = not found
        async for scanned in read_segments(self.disk, self.salt, checkpoint, everything=everything):
            replay.apply_scan(scanned)
            self.segments.close(scanned.segment, scanned.size)
            if self.index.tail_rows >= self.settings.checkpoint_runs:
                await self._if_there_is_room(self.flush)
        await self._note_damage()
        if replay.last:
            await self._settle(segment_name(replay.last), replay.size)
        if replay.lost:
            self.ledgers.doubt_all(self.watermark)
            # The next segment says where this one ends, and from then on nobody sees that it ought to be longer.
            await self._with_reserve(lambda: self.checkpoint((replay.last, replay.size)))
        await self._with_reserve(lambda: self.journal.open(replay.last + 1, replay.last, replay.size))
        needed = replay.records or replay.lost or everything
        if needed and await self._if_there_is_room(self.checkpoint) and everything:
            await self.disk.delete(REBUILD)

    def apply(self, record: Envelope, readable: bool = True) -> None:
        """A record is durable: make it visible."""
        self.ledgers.apply(record)
        if record.kind is Kind.DELETE:
            self.index.drop(record.ledger)
            self.segments.forget_ledger(record.ledger)
        elif record.kind is Kind.RUN and record.ledger not in self.ledgers.deleted:
            self.segments.stored(record.segment, record.ledger, record.end - record.offset)
            if readable:
                self.index.insert(_row(record, record.segment))

    async def known_below(self, ledger: int, *, use_reserve: bool = False) -> None:
        """Raise the watermark above a ledger before its first record is written. Raises DiskFull."""
        if ledger < self.watermark:
            return
        async with self._raising:
            if ledger < self.watermark:
                return
            try:
                self.watermark = await raise_watermark(self.disk, ledger, self.salt)
            except DiskFull:
                if not use_reserve:
                    raise
                await self.disk.delete(RESERVE)
                self.watermark = await raise_watermark(self.disk, ledger, self.salt)

    async def load(self, ledger: int, run: int) -> tuple[bytes, Frame] | None:
        """The bytes of a stored run, and its verified frame; or None if the index has no such run.

        Raises Corrupt; NotFound if the ledger was deleted, whose rows may linger in tables without their segments.
        """
        return await self._load(ledger, run, MAX_FRAME_BYTES, decode_frame)

    async def load_head(self, ledger: int, run: int) -> tuple[bytes, Frame] | None:
        """The same without the payload, which is not read: the head has a checksum of its own."""
        return await self._load(ledger, run, MAX_HEAD_BYTES, lambda data: Frame(decode_head(data), memoryview(b"")))

    async def _load(
        self, ledger: int, run: int, most: int, decode: Callable[[bytes], Frame]
    ) -> tuple[bytes, Frame] | None:
        """The first bytes of a frame, up to a number, and the result of `decode`."""
        seen: Row | None = None
        while True:
            row = await self.index.find(ledger, run)
            self.ledgers.peek(ledger)
            if row is None:
                return None
            if row.damaged:
                raise Corrupt(f"run {run} of ledger {ledger} is damaged here")
            try:
                data = await self.disk.read(segment_name(row.segment), row.offset, min(row.size, most))
                frame = decode(data)
            except (NotFound, Corrupt) as error:
                self.ledgers.peek(ledger)
                if row != seen:  # A compaction may have moved it between the two reads.
                    seen = row
                    continue
                self.index.insert(_damaged(row))
                raise Corrupt(f"run {run} of ledger {ledger} is damaged here: {error}") from error
            if (frame.header.ledger, frame.header.run) != (ledger, run):
                raise Corrupt(f"run {run} of ledger {ledger} is not where its index says")
            return data, frame

    def highest_ledger(self) -> int:
        """The highest ledger that was ever here; after a loss without a name, that may have been here. 0 if none."""
        ledgers = self.ledgers
        doubtful = ledgers.limbo_below - 1 if ledgers.limbo_below <= MAX_LEDGER else 0
        deleted = ledgers.deleted.max() if ledgers.deleted else 0
        return max(doubtful, deleted, *ledgers.states, 0)

    async def flush(self) -> None:
        """Write the tail of the index as a table."""
        rows = self.index.freeze()
        table = await self.index.write_table(rows, self.index.table_name())
        self.index.thaw([*self.index.tables, table])

    async def checkpoint(self, place: tuple[int, int] | None = None) -> None:
        """Save the state at this place of the journal: a segment and an offset, if it is not where it has been applied.

        Raises DiskFull with the older checkpoints as they were.
        """
        # No await before everything is captured: rows, state and place belong together.
        segment, offset = place or self.journal.applied
        written = self.journal.written
        rows = self.index.freeze()
        name = self.index.table_name()
        tables = [table.name for table in self.index.tables] + [name] * bool(len(rows))
        living = self.segments.living()
        generation = self.generation + 1
        checkpoint = Checkpoint(generation, segment, offset, tables, self.index.next_table, self.ledgers, self.segments)
        data = encode_checkpoint(checkpoint, self.salt)
        fresh = [await self.index.write_table(rows, name)] if len(rows) else []
        await save_checkpoint(self.disk, generation, data)
        self.index.thaw([*self.index.tables, *fresh])
        self.generation = generation
        self.checkpointed = written
        self.saved = [Saved(segment, tables, living), *self.saved[:1]]

    # -- opening --

    async def _open_tables(self, checkpoint: Checkpoint) -> bool:
        if await self.disk.size(REBUILD):
            return False
        try:
            self.index.tables = [await open_table(self.disk, name) for name in checkpoint.tables]
        except (Corrupt, NotFound):
            self.index.tables = []
            return False
        return True

    async def _next_table(self, checkpoint: Checkpoint) -> int:
        numbers = [int(name[6:], 16) for name in await self.disk.names() if name.startswith("index-")]
        return max([checkpoint.next_table, *(number + 1 for number in numbers)])

    async def _note_damage(self) -> None:
        for (ledger, run), envelope in self.replayed.damaged.items():
            if ledger not in self.ledgers.deleted and await self.index.find(ledger, run) is None:
                self.index.insert(_row(envelope, 0))

    async def _with_reserve(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write what a start cannot do without, on a full disk in the place of the reserve. Raises DiskFull."""
        try:
            await write()
        except DiskFull:
            await self.disk.delete(RESERVE)
            await write()

    async def _if_there_is_room(self, write: Callable[[], Awaitable[None]]) -> bool:
        """Whether it was written. On a full disk a start does without, and the next one replays more: what is stored
        can be read, and where there is room again a later checkpoint has it.
        """
        try:
            await write()
        except DiskFull:
            return False
        return True

    async def _settle(self, name: str, size: int) -> None:
        """Make the last segment durable up to `size` before anything of it is served, and end it there.

        What lies above its witness was written by a process that may have ended because a sync failed. Such bytes can
        be read from the page cache, and a second sync of the file would succeed without writing them. So they are
        written again in their place, which makes them dirty again, with a sync of their own.
        """
        witness = self.replayed.witness
        if size > witness:
            tail = memoryview(await read_file(self.disk, name, witness))[: size - witness]
            await self.disk.rewrite(name, witness, tail)
        if await self.disk.size(name) > size:
            await self.disk.truncate(name, size)

    def _segment_closed(self, segment: int, size: int) -> None:
        self.segments.close(segment, size)


def _row(record: Envelope, segment: int) -> Row:
    return Row(record.ledger, record.run, record.first_entry, record.count, segment, record.body, record.size)


def _damaged(row: Row) -> Row:
    return Row(row.ledger, row.run, row.first_entry, row.entries, 0, row.offset, row.size)

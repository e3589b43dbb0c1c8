"""Runs in memory: the newest appends, for readers that follow the log closely, and recently read older ones.

A run that was appended stays until newer ones need its place; a reader that keeps up never touches a bookie. Runs
that had to be read from bookies go into a smaller part of their own, so that one slow subscription that reads old
runs does not drive the tail out for everybody else.

Each cache has its limit, and those of one process have one together (`CacheRoom`): an owner's memory grows until they
are full, which takes minutes under a small load, and then no more, however many partitions it has. What nobody has used
for a while, and no subscription waits for, the owner lets go (`actors.topic.background.maintenance`).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from sluice.actors.ledger.writer import Append
from sluice.actors.ports.wire import Blob
from sluice.storage.format.frame import Header

TAIL_BYTES = 64 * 1024 * 1024
OLD_BYTES = 16 * 1024 * 1024
PROCESS_BYTES = 4 * TAIL_BYTES
"""For all partitions of a process together."""
RUN_BYTES = 1_400
"""The memory of a small run beside its payload, as measured: its objects, and the head of its request."""
_AT_ONCE = 1024 * 1024
"""The bytes that the largest cache gives up at a time."""


@dataclass(frozen=True, slots=True)
class CachedRun:
    """A run in memory. columns: its index columns. blob: the whole payload, None when only the columns are here.

    bytes: length of the whole payload. appended: ms, when it was confirmed; 0 of one that was read from bookies.
    """

    header: Header
    columns: Blob
    blob: Blob | None
    bytes: int
    appended: int = 0

    @property
    def weight(self) -> int:
        """Bytes that it holds in memory, about."""
        return RUN_BYTES + (self.bytes if self.blob is not None else self.columns.size)


class CacheRoom:
    """How much the caches of one process may hold together. When they are full the largest one gives way."""

    def __init__(self, limit: int = PROCESS_BYTES) -> None:
        self._limit = limit
        self._caches: list[EntryCache] = []
        self.bytes = 0

    def enter(self, cache: EntryCache) -> None:
        """Count this cache from now on."""
        self._caches.append(cache)

    def leave(self, cache: EntryCache) -> None:
        """Remove a cache that holds nothing any more, and never will."""
        self._caches.remove(cache)

    def count(self, change: int) -> None:
        """Count the bytes by which a cache has grown; caches give way if there are too many."""
        self.bytes += change
        while change > 0 and self.bytes > self._limit:
            largest = max(self._caches, key=lambda cache: cache.bytes)
            largest.give_way(max(self.bytes - self._limit, min(_AT_ONCE, self._limit // 16)))


_NONE: OrderedDict[tuple[int, int], CachedRun] = OrderedDict()
"""The content of every empty cache; nothing is put into it."""


class EntryCache:
    """Runs by (ledger, run), the oldest leaving when `limit` bytes are reached. room: of the process; else its own."""

    def __init__(self, limit: int, room: CacheRoom | None = None) -> None:
        self._limit = limit
        self._runs = _NONE
        self.bytes = 0
        self._room = room or CacheRoom()
        self._room.enter(self)
        self._closed = self._used = False

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, ledger: int, run: int) -> CachedRun | None:
        """Return the run if it is here."""
        found = self._runs.get((ledger, run))
        if found is not None:
            self._used = True
        return found

    def put(self, run: CachedRun) -> None:
        """Keep a run; the oldest give way. A run above the whole limit is not kept."""
        key = (run.header.ledger, run.header.run)
        self._count(self._runs.pop(key, None), -1)
        if self._closed or run.weight > self._limit:
            return
        if self.bytes + run.weight > self._limit:
            self.give_way(self.bytes + run.weight - self._limit)
        if self._runs is _NONE:
            self._runs = OrderedDict()
        self._runs[key], self._used = run, True
        self._count(run, 1)

    def give_way(self, count: int) -> None:
        """Forget the oldest runs, of at least this number of bytes, or all."""
        until = self.bytes - count
        while self._runs and self.bytes > until:
            self._count(self._runs.popitem(last=False)[1], -1)
        if not self._runs:
            self._runs = _NONE

    def forget_unused(self) -> None:
        """Forget everything, if none of it was put or found since this was last called."""
        if not self._used:
            self.give_way(self.bytes)
        self._used = False

    def drop(self, ledger: int, run: int) -> None:
        """Forget one run; fine if it is not here."""
        self._count(self._runs.pop((ledger, run), None), -1)

    def drop_ledgers(self, ledgers: list[int]) -> None:
        """Forget the runs of deleted ledgers."""
        for key in [key for key in self._runs if key[0] in ledgers]:
            self._count(self._runs.pop(key), -1)

    def close(self) -> None:
        """Forget everything, and keep nothing any more. Idempotent."""
        if not self._closed:
            self.give_way(self.bytes)
            self._closed = True
            self._room.leave(self)

    def _count(self, run: CachedRun | None, sign: int) -> None:
        if run is not None:
            self.bytes += sign * run.weight
            self._room.count(sign * run.weight)


def cache_run(append: Append, now: int) -> CachedRun:
    """Return a run for the tail, since `now` (ms). A shared payload is kept by its handle alone, so no byte is here
    twice.
    """
    header, blob, size = append.header, append.blob, append.inline.size
    columns = (append.inline.data or b"")[: header.columns_bytes]
    if blob.handle is None:
        return CachedRun(header, Blob(columns), blob, size, now)
    return CachedRun(header, Blob(bytes(columns)), Blob(handle=blob.handle, size=size), size, now)

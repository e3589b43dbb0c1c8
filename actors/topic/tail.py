"""Runs kept in memory: the newest appends, for readers who follow the log closely, and lately read older ones.

A run that was appended stays until newer ones need its place; a reader that keeps up never touches a bookie. Runs
that had to be read from bookies go into a smaller part of their own, so that one slow subscription that reads old
runs does not drive the tail out for everybody else.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from actors.wire import Blob
from storage.frame import Header

SHARED_FROM = 64 * 1024
"""Payloads of so many bytes and more are shared and named by handle; smaller ones travel in requests and answers."""
TAIL_BYTES = 64 * 1024 * 1024
OLD_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CachedRun:
    """A run in memory. columns: its index columns. blob: the whole payload, None when only the columns are here.

    bytes: length of the whole payload.
    """

    header: Header
    columns: Blob
    blob: Blob | None
    bytes: int

    @property
    def weight(self) -> int:
        """Bytes that it holds in memory, about."""
        return 256 + (self.bytes if self.blob is not None else self.columns.size)


class RunCache:
    """Runs by (ledger, run), the oldest leaving when `limit` bytes are reached."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._runs: OrderedDict[tuple[int, int], CachedRun] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, ledger: int, run: int) -> CachedRun | None:
        """The run if it is here."""
        return self._runs.get((ledger, run))

    def put(self, run: CachedRun) -> None:
        """Keep a run; the oldest give way. A run above the whole limit is not kept."""
        key = (run.header.ledger, run.header.run)
        old = self._runs.pop(key, None)
        if old is not None:
            self.bytes -= old.weight
        if run.weight > self._limit:
            return
        self._runs[key] = run
        self.bytes += run.weight
        while self.bytes > self._limit:
            _, gone = self._runs.popitem(last=False)
            self.bytes -= gone.weight

    def drop(self, ledger: int, run: int) -> None:
        """Forget one run; fine if it is not here."""
        gone = self._runs.pop((ledger, run), None)
        self.bytes -= 0 if gone is None else gone.weight

    def drop_ledgers(self, ledgers: list[int]) -> None:
        """Forget the runs of deleted ledgers."""
        for key in [key for key in self._runs if key[0] in ledgers]:
            self.bytes -= self._runs.pop(key).weight

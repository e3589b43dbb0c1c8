"""The watch over open messages: each one that was read is known to a table, or it is read again.

A message that was read and is not done lies in the window, among the parked messages or in the delayed index. If a
defect took it out of all of them, it would wait for ever, and the mark-delete position with it. Once a minute, at the
end of the log, the watch looks at a piece of what is open, in columns. A message between two tables is in none for a
moment; so it counts as lost when two looks in a row find it nowhere. While a new owner of the partition restores the
shared index, nothing counts. An owner reads a message again once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.reader import BacklogReader
from sluice.actors.messages import NO_POSITIONS
from sluice.storage.format.position import EARLIEST, Positions, show

LOOK_MS = 60_000
LOOK_MOST = 65_536
"""Positions of one look, at most; the next one goes on behind them."""


class OpenPositions:
    """Looks for open messages that no table knows. read_again: how many were found since this owner began."""

    def __init__(self, context: SubscriptionContext, reader: BacklogReader) -> None:
        self._ports, self._cursor = context.ports, context.cursor
        self._core, self._tracker, self._reader = context.core, context.tracker, reader
        self._looked = self._ports.clock.monotonic()
        self._at, self._generation = EARLIEST, reader.generation
        self._suspected = self._lost = NO_POSITIONS
        self.read_again = 0

    def stats(self) -> dict[str, Any]:
        return {"msgReadAgainTotal": self.read_again}

    def search(self, every_ms: int = LOOK_MS) -> None:
        """Search the next piece, if the last look was so long ago and everything was read."""
        reader, now = self._reader, self._ports.clock.monotonic()
        if now < self._looked + every_ms:
            return
        self._looked = now
        if self._generation != reader.generation:
            self._suspected = self._lost = NO_POSITIONS
            self._generation = reader.generation
        indexed = reader.index_ready.is_set() and not self._tracker.recovering
        if not reader.at_end or not indexed or reader.reads_again():
            self._suspected = NO_POSITIONS
            return
        lost = self._suspected[self._unknown(self._suspected)]
        found = self._cursor.open_from(self._at, reader.end, LOOK_MOST)
        self._at = int(found[-1]) + 1 if len(found) else EARLIEST
        found = found[self._unknown(found)]
        self._suspected = found[~np.isin(found, self._lost)]
        if len(lost):
            self._read_again(lost)

    def _read_again(self, lost: Positions) -> None:
        self.read_again += len(lost)
        self._lost = np.union1d(self._lost, lost)
        first, last = show(int(lost[0])), show(int(lost[-1]))
        self._ports.log("read_again", messages=len(lost), first=first, last=last, why="no table knew them")
        self._reader.read_again(lost)

    def _unknown(self, positions: Positions) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which of these positions (ascending) are open and in no table, bool (n,)."""
        return ~(
            self._cursor.is_acknowledged(positions) | self._core.holds(positions) | self._tracker.contains(positions)
        )

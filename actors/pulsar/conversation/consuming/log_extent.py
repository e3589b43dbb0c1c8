"""The positions of a partition that exist, for ids that a client names although this connection has not sent them.

An id may be of an earlier connection, or made up. A position that does not exist must never reach the subscription: it
would count as done once it is published. Nor may a request wait for it.
"""

from __future__ import annotations

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import ReadEnds
from sluice.actors.pulsar.topic_names import TopicPartition
from sluice.storage.format.position import ledger_of, position

ASK_MS, PATIENCE_MS = 10_000, 15_000
"""An owner is asked, and the one after it, for less than the 30 s for which clients wait for an answer."""


class LogExtent:
    """The ledgers of a partition, as its owner reported them last."""

    def __init__(self, directory: Directory, tp: TopicPartition) -> None:
        self._directory, self._tp = directory, tp
        self._last_entries: dict[int, int] = {}
        self.last = -1
        """The last position that is known to exist, -1 for none."""

    async def refresh(self, positions: list[int]) -> None:
        """Learn of these positions; the owner is asked if one may have come since. Raises Unavailable."""
        if any(self.end_of(at) < at for at in positions):
            ask, tp = self._directory.ask_owner, self._tp
            ends = await ask(tp.topic, tp.partition, None, ReadEnds(), timeout=ASK_MS, patience=PATIENCE_MS)
            self._last_entries, self.last = ends.last_entries(), ends.last

    def end_of(self, at: int) -> int:
        """Return the last position in the ledger of this one; it is lower if this one does not exist or was trimmed."""
        entry = self._last_entries.get(ledger_of(at), -1)
        return -1 if entry < 0 else position(ledger_of(at), entry)

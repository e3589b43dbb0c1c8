"""Which positions of a partition exist, for ids that a client names and that were not sent to it here.

An id may be of an earlier connection, or made up. What does not exist must never reach the subscription: it would count
as done once it is published. Nor may anybody wait for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from actors.messages import Ends
from storage.position import ledger_of, position


class LogExtent:
    """The ledgers of a partition, as its owner told them last. ask: asks the owner; it raises Unavailable."""

    def __init__(self, ask: Callable[[], Awaitable[Ends]]) -> None:
        self._ask = ask
        self._ledgers: dict[int, int | None] = {}
        self.last = -1
        """The last position that is known to exist, -1 for none."""

    async def look(self, positions: list[int]) -> None:
        """Learn of these positions; the owner is asked if one may have come since. Raises Unavailable."""
        if any(self.end_of(at) < at for at in positions):
            ends = await self._ask()
            self._ledgers, self.last = dict(ends.ledgers), ends.last

    def end_of(self, at: int) -> int:
        """The last position in the ledger of this one; below it if this one does not exist, or is kept no more."""
        ledger = ledger_of(at)
        if ledger not in self._ledgers:
            return -1
        entry = self._ledgers[ledger]
        return self.last if entry is None or entry < 0 else position(ledger, entry)

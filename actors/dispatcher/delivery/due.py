"""Moves due messages from the delayed index to the core, as far as the core has room.

Where delayed messages hold back their keys, each has its place in the order of reading. The index of a new owner knows
messages that it has not read yet. It forgets those of them that are due; they come with the forward reads.
"""

from __future__ import annotations

import numpy as np

from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.reader import BacklogReader
from sluice.actors.messages import NO_POSITIONS, NO_ROWS
from sluice.actors.runtime.waiting import SignalTask
from sluice.actors.runtime.wall_clock import pause_until

DUE_AT_ONCE = 10_000
DUE_GROUP_MS = 20


class DueMessages:
    """A task that moves due messages of one subscription."""

    def __init__(self, context: SubscriptionContext, reader: BacklogReader) -> None:
        self._ports, self._tracker, self._core = context.ports, context.tracker, context.core
        self._cursor, self._sessions = context.cursor, context.sessions
        self._wakeups, self._ownership, self._reader = context.wakeups, context.ownership, reader

    def start(self) -> None:
        """Release whenever something is due, until the index has failed."""
        SignalTask(self._ports, self._wakeups.due, self._release, "due").start()

    async def _release(self) -> int | None:
        """Move the messages that are due now. Return ms until the next one is due, None if no message waits."""
        tracker, wakeups = self._tracker, self._wakeups
        wakeups.due.clear()
        wakeups.read.set()
        self._reader.look_for_lost()
        while not self._ownership.ended():
            now = self._ports.clock.now()
            due = tracker.next_due(now)
            room = self._core.due_room() if self._sessions.any() else 0
            ready = due is not None and due <= now and room > 0
            positions, hashes = tracker.pop_due(min(room, DUE_AT_ONCE), now) if ready else (NO_POSITIONS, NO_ROWS)
            if tracker.failed is not None:
                self._ownership.end(str(tracker.failed))
                break
            if not len(positions):
                if ready:  # what was due had been skipped or expired: the time that was asked before is over
                    due = tracker.next_due(now)
                return pause_until(due, now) if due is not None and due > now else None
            order = np.argsort(positions, kind="stable")
            open_rows = ~self._cursor.is_acknowledged(positions[order])
            if self._core.holds_keys:
                open_rows &= positions[order] < self._reader.position
            self._core.due(positions[order][open_rows], hashes[order][open_rows], now=now)
            wakeups.route.set()
            # Messages fall due one by one; moved in small groups they cost a call and a part a group, not each.
            await self._ports.clock.sleep(DUE_GROUP_MS if len(positions) < DUE_AT_ONCE else 0)
        return None

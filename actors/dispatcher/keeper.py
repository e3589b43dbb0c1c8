"""The durable half of a dispatcher: cursor, members and settings in one owned record.

Acknowledgements are grouped: while one version of the record is being written the next gathers. A version holds the
cursor as it was when the write began; the acknowledgement turns that had arrived by then are confirmed when it is on
disk, and not before (promise 4). Losing the write means that a newer owner exists: the dispatcher stops at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.dispatcher.sessions import Session
from actors.owned import OwnedRecord
from actors.ports import Ports
from actors.signal import Signal
from storage.errors import Fenced

GROUP_MS = 10
"""Milliseconds for which acknowledgements gather before a version is written."""


class Keeper:
    """Writes snapshots of the dispatcher's state, one at a time, and tells what became durable."""

    def __init__(
        self,
        ports: Ports,
        record: OwnedRecord,
        snapshot: Callable[[], dict[str, Any]],
        sessions: Callable[[], list[Session]],
        fenced: Callable[[str], None],
    ) -> None:
        self._ports = ports
        self._record = record
        self._snapshot = snapshot
        self._sessions = sessions
        self._fenced = fenced
        self._dirty = Signal()
        self._done = Signal()
        self._asked = 0
        self._completed = 0

    def dirty(self) -> None:
        """Something changed that must become durable soon."""
        self._asked += 1
        self._dirty.set()

    async def barrier(self) -> None:
        """Wait until everything up to now is durable. Raises Fenced when that can no longer happen."""
        self.dirty()
        wanted = self._asked
        while self._completed < wanted:
            if self._record.lost:
                raise Fenced("this dispatcher has a newer owner")
            self._done.clear()
            await self._done.wait(self._ports)

    async def run(self) -> None:
        """The writer; ends when the record is lost."""
        while True:
            await self._dirty.wait(self._ports)
            self._dirty.clear()
            began = self._ports.clock.monotonic()
            asked = self._asked
            turns = [(session, session.received) for session in self._sessions()]
            try:
                await self._record.save(self._snapshot())
            except Fenced as error:
                self._done.set()
                self._fenced(str(error))
                return
            for session, received in turns:
                session.durable = max(session.durable, received)
            self._completed = asked
            self._done.set()
            took = self._ports.clock.monotonic() - began
            await self._ports.clock.sleep(max(GROUP_MS, min(took, 500)))

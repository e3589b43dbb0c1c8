"""What moves messages to consumers: one task that routes, and one that brings what became due.

Everything that may make a message deliverable calls `wake`. Waking twice before the pump runs costs one pass, and a
pass that finds nothing is cheap; so no change needs to know what it might have freed, and none can be forgotten.
Acknowledgements, of which there are the most, may be told to wait for one another (`unblocking_interval_ms`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from actors.dispatcher.membership import State
from actors.messages import NO_POSITIONS, NO_ROWS
from actors.signal import Signal

if TYPE_CHECKING:
    from actors.dispatcher.dispatcher import Dispatcher

DUE_AT_ONCE = 10_000
DUE_GROUP_MS = 20


class Pump:
    """Routes whenever something changed.

    identifying: the sessions of those who came back and whose messages' hashes are not known yet, with what that waits
    for.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._d = dispatcher
        self._signal, self.due = Signal(), Signal()
        self.identifying: dict[int, str] = {}
        self.expected = False
        """A pass is put off until the interval is over."""

    def wake(self) -> None:
        """Something changed; look again."""
        self._signal.set()

    def wake_soon(self) -> None:
        """Messages are done, which may have set others free: look when `unblocking_interval_ms` is over (KS-43).

        What is done until then is looked at together. Whatever wakes the pump before that wakes it at once. The default
        is 0, not Pulsar's 10: here one pass takes whatever came before it, so a burst costs no pass a message anyway.
        """
        interval = self._d.settings.unblocking_interval_ms
        if interval <= 0:
            self.wake()
        elif not self.expected:
            self.expected = True
            self._d.ports.spawn(self._wake_after(interval), "unblock")

    async def _wake_after(self, milliseconds: int) -> None:
        await self._d.ports.clock.sleep(milliseconds)
        self.expected = False
        self.wake()

    def settled(self) -> bool:
        """Whether everybody who may hold messages of an earlier time has come back or must have stopped, and what those
        hold who came back is known.
        """
        d = self._d
        if d.membership.forget_overdue(d.ports.clock.monotonic()):
            d.store.dirty()
        return not (d.membership.all(State.AWAITED) or self.identifying)

    async def run(self) -> None:
        """Route for ever."""
        d = self._d
        while True:
            now = d.ports.clock.now()
            wakeup = d.core.wakeup(now)
            await self._signal.wait(d.ports, None if wakeup is None else max(wakeup - now, 1))
            self._signal.clear()
            if d.stopped is not None:
                return
            if self.settled() and not d.paused:
                self._route()
            if d.core.room() > 0:
                d.reader.signal.set()
            if d.core.due_room() > 0:
                self.due.set()

    def _route(self) -> None:
        d = self._d
        for assignment in d.core.route(d.ports.clock.now()):
            session = d.sessions.find(assignment.consumer)
            assert session is not None, "the core routed to a consumer without a session"
            session.outbox += d.runs.parts(assignment.positions, assignment.redeliveries, assignment.dispatch)
            session.ready.set()
        if d.core.has_dead_letters():
            d.dead_letters.wake()
        for session in d.sessions.all():
            events = d.core.take_events(session.number)
            if events:
                session.events += events
                session.ready.set()

    async def release_due(self) -> None:
        """Move what became due from the delayed index to the core, as far as the core has room."""
        d = self._d
        while True:
            now = d.ports.clock.now()
            due = d.tracker.next_due()
            room = d.core.due_room() if d.reader.enabled else 0
            ready = due is not None and due <= now and room > 0
            positions, hashes = d.tracker.take(min(room, DUE_AT_ONCE), now) if ready else (NO_POSITIONS, NO_ROWS)
            if d.tracker.failed is not None:
                d.fenced(str(d.tracker.failed))
                return
            if not len(positions):
                if ready:  # what was due had been skipped or expired: the time that was asked before is over
                    due = d.tracker.next_due()
                wait = max(due - now, 1) if due is not None and due > now else None
                await self.due.wait(d.ports, wait)
                self.due.clear()
                d.reader.signal.set()
                continue
            order = np.argsort(positions, kind="stable")
            open_rows = ~d.cursor.is_acknowledged(positions[order])
            d.core.due(positions[order][open_rows], hashes[order][open_rows])
            self.wake()
            # Messages fall due one by one; moved in small groups they cost a call and a part a group, not each.
            await d.ports.clock.sleep(DUE_GROUP_MS if len(positions) < DUE_AT_ONCE else 0)

    def hashes_moved(self) -> int:
        """Hashes that changed from one consumer to another since this owner began."""
        return self._d.core.history.hashes_moved

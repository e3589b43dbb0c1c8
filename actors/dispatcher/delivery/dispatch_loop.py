"""Messages out, acknowledgements in: one task routes whenever something changed, and polls fetch the result.

The most frequent change is an acknowledgement; with `unblocking_interval_ms` acknowledgements wait for one another.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.actors.dispatcher.delivery.ack_handler import AckHandler
from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.leases import Leases
from sluice.actors.dispatcher.delivery.reader import BacklogReader
from sluice.actors.dispatcher.delivery.sessions import Session
from sluice.actors.dispatcher.delivery.unacked_runs import mark_overtook
from sluice.actors.lookup.cutting import cut_delivery
from sluice.actors.lookup.topic_client import RETRY_FIRST, RETRY_MOST
from sluice.actors.messages import Acknowledge, Acknowledged, Delivery, Done, FindOpen, Poll, SentApart, StillOpen
from sluice.actors.runtime.waiting import Backoff, SignalTask
from sluice.actors.runtime.wall_clock import pause_until
from sluice.storage.errors import Conflict, Fenced
from sluice.storage.format.position import Positions, ascending


class DispatchLoop:
    """Sends messages that the core assigns, and takes acknowledgements. stalls: how often nothing moved that could."""

    def __init__(
        self,
        context: SubscriptionContext,
        reader: BacklogReader,
        ack_handler: AckHandler,
        leases: Leases,
        on_routed: Callable[[], None],
    ) -> None:
        """on_routed: called after a dispatch, some of whose messages may have failed for good."""
        self._ports, self._ownership, self._state = context.ports, context.ownership, context.state
        self._core, self._runs, self._sessions = context.core, context.runs, context.sessions
        self._clock = context.redelivery_clock
        self._store, self._wakeups = context.store, context.wakeups
        self._reader, self._ack_handler, self._leases = reader, ack_handler, leases
        self._on_routed = on_routed
        self._put_off = False
        """Whether a pass waits until `unblocking_interval_ms` is over."""
        self.stalls = 0

    # -- what consumers ask ---------------------------------------------------------------------------------------

    async def poll(self, request: Poll) -> Delivery:
        session = self._sessions.get(request.session)
        self._leases.renew(session)
        self._acknowledge(session, request)
        session.begin_turn(request.turn)
        if session.answered is None:
            if self._core.grant(session.number, request.granted):
                self._wakeups.route.set()
            await session.something(self._ports, request.wait)
        await self._store.be_certain()
        self._check_open(session)
        self._check_turn(session, request)
        self._leases.renew(session)
        delivery = session.answered or session.deliver(by_index=self._state.by_index)
        if not request.rows_from:
            return delivery
        delivery = await cut_delivery(self._ports, delivery, request.rows_from)
        self._check_open(session)
        self._check_turn(session, request)
        return delivery

    @staticmethod
    def _check_turn(session: Session, request: Poll) -> None:
        if request.turn != session.turn:
            raise Conflict(f"turn {request.turn} was overtaken by {session.turn}")

    async def acknowledge(self, request: Acknowledge) -> Acknowledged:
        session = self._sessions.get(request.session)
        self._leases.renew(session)
        self._acknowledge(session, request)
        if request.granted and self._core.grant(session.number, request.granted):
            self._wakeups.route.set()
        while request.durable and session.durable < request.ack_turn:
            await self._store.barrier()
            self._check_open(session)
            if session.received < request.ack_turn:
                raise Conflict("an earlier acknowledgement has not arrived")
        await self._store.be_certain()
        self._check_open(session)
        return Acknowledged(confirmed=session.durable)

    def _check_open(self, session: Session) -> None:
        if not self._sessions.is_open(session):
            raise Fenced(f"session {session.number} is over")

    def _acknowledge(self, session: Session, request: Poll | Acknowledge) -> None:
        turn, positions = request.ack_turn, request.acks
        if request.by_index:
            self._state.acknowledged_by_index()
        if not len(positions) or not session.arrived(turn):
            return
        positions = ascending(positions)
        if positions[-1] >= self._reader.position:
            # What this owner has sent, it has read, or was due, or the consumer brought it from an earlier owner.
            known = positions < self._reader.position
            known |= self._core.knows(session.number, positions)
            if not known.all():
                self._ports.spawn(self._acknowledge_ahead(session, turn, positions[~known]), "ahead")
                self._done(session, positions[known])
                return
        session.settle(turn)
        self._done(session, positions)

    async def _acknowledge_ahead(self, session: Session, turn: int, positions: Positions) -> None:
        """Acknowledge what an earlier owner has sent, perhaps to another session. The turn counts once it is known
        where the topic ends, because nothing behind that can be done.
        """
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while positions[-1] > self._reader.end and not await self._reader.refresh_end():
            await wait.pause()
            if self._ownership.ended() or not self._sessions.is_open(session):
                return
        if not self._ownership.ended() and self._sessions.is_open(session):
            session.settle(turn)
            self._done(session, positions[positions <= self._reader.end])
            if self._core.ordered:  # perhaps nobody was sent them, see `_may_send`
                self._store.hold_back()

    def _done(self, session: Session, positions: Positions) -> None:
        """Mark messages (ascending) as done for a consumer."""
        now = self._clock.now()
        self._ack_handler.acknowledge(positions, session.number, now)
        session.acknowledged(now)
        self._wake_soon()

    def _wake_soon(self) -> None:
        """Messages are done, which may have set others free: look when `unblocking_interval_ms` is over (KS-43).

        What is done until then is looked at together. Whatever sets `route` before that has it looked at at once. The
        default is 0, not Pulsar's 10: here one pass takes whatever came before it, so a burst costs no pass a message
        anyway.
        """
        interval = self._state.settings.unblocking_interval_ms
        if interval <= 0:
            self._wakeups.route.set()
        elif not self._put_off:
            self._put_off = True
            self._ports.spawn(self._wake_after(interval), "unblock")

    async def _wake_after(self, milliseconds: int) -> None:
        await self._ports.clock.sleep(milliseconds)
        self._put_off = False
        self._wakeups.route.set()

    # -- what senders of client batches ask -------------------------------------------------------------------------

    def still_open(self, request: FindOpen) -> StillOpen:
        positions = ascending(request.positions)
        return StillOpen(positions=positions[~self._state.cursor.is_acknowledged(positions)])

    async def sent_apart(self, request: SentApart) -> Done:
        """See messages.SentApart; durable when it returns."""
        self._state.sent_apart()
        await self._store.barrier()
        self._ownership.check_owner()
        return Done()

    # -- what goes out --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Route whenever something changed, until the dispatcher ends."""
        SignalTask(self._ports, self._wakeups.route, self._look, "route").start()

    async def _look(self) -> int | None:
        """Run one dispatch pass if it may send. Return the ms until a message is due for redelivery; None for never."""
        self._wakeups.route.clear()
        try:
            while not self._may_send():
                await self._store.until_may_send()
        except Fenced:
            return None
        # No await from here on.
        if self._ownership.ended():
            return None
        if self._sessions.unswept:
            self._reader.stop_waiting()
        elif self._leases.settled() and not self._state.paused:
            self._route()
        if self._core.room() > 0:
            self._wakeups.read.set()
        if self._ack_handler.any_delayed() and self._core.due_room() > 0:
            self._wakeups.due.set()
        now = self._clock.now()
        wakeup = self._core.wakeup(now)
        return None if wakeup is None else pause_until(wakeup, now)

    def _may_send(self) -> bool:
        """Return whether nothing must be durable first.

        A client may acknowledge a message that this owner never sent. A next owner that does not know of that would
        send the message after later ones of its key.
        """
        if self._core.taken_done_unsent():
            self._store.hold_back()
        return not self._store.holds_back

    def _leave_out(self) -> None:
        """Drop from each outbox the messages that another consumer has got by becoming the active one."""
        for session in self._sessions.all():
            if session.outbox:
                left = session.keep(self._core.pending(session.number))
                self._core.never_arrived(session.number, left)

    def _route(self) -> None:
        if self._state.settings.type == "failover":
            self._leave_out()
        for assignment in self._core.route(self._clock.now()):
            session = self._sessions.find(assignment.consumer)
            assert session is not None, "the core routed to a consumer without a session"
            parts = self._runs.parts(assignment.positions, assignment.redeliveries, assignment.dispatch)
            if len(overtook := self._core.overtook(assignment.positions)):
                mark_overtook(parts, overtook)
            session.push(parts)
        self._on_routed()
        for number in self._core.untold():
            session = self._sessions.find(number)
            if session is not None:
                session.tell(self._core.take_events(number))
                session.revoke(self._core.take_revoked(number))
        if self._reader.over and not self._ack_handler.count(self._reader.end):
            for session in self._sessions.all():
                session.tell_end()

    def look_if_stalled(self) -> None:
        """Notice, as a watchdog, when nothing moves although it could, and no pass is due that would move it."""
        due = self._wakeups.route.is_set() or self._put_off
        held = self._state.paused or self._sessions.unswept or self._store.holds_back
        if self._leases.settled() and not (due or held) and self._core.stalled():
            self.stalls += 1
            self._ports.log("stalled", stats=self._core.stats(self._ports.clock.now()))
            self._wakeups.route.set()

"""Consumers come and go: a session for each, its place in the core, and a name in the record before it gets anything.

**A place that is taken** (an exclusive subscription, or a range of hashes; KS-15). Its consumer is asked, by ending
its long poll: one that lives polls again at once. Nothing else counts, because a request may arrive long after the
death of its sender. One that is not heard within some seconds is dead or cut off and loses the place, as in Pulsar. But
it may still work on what it holds until its lease is over: until then that stays with it, its keys go to no other
consumer, and what it says is void. So the newcomer is let in and gets everything else, and no key is at two consumers.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.grace import ReconnectGrace
from sluice.actors.dispatcher.delivery.leases import Leases
from sluice.actors.dispatcher.delivery.sessions import Session
from sluice.actors.messages import Attach, Attached, Detach
from sluice.actors.ownership.names import check_name
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import Conflict, Invalid, Unavailable
from sluice.storage.format.position import ascending


class Consumers:
    """Attaches and detaches consumers."""

    def __init__(self, context: SubscriptionContext, leases: Leases, grace: ReconnectGrace) -> None:
        self._ports, self._epoch, self._ownership = context.ports, context.epoch, context.ownership
        self._state, self._membership, self._cursor = context.state, context.membership, context.cursor
        self._sessions, self._core = context.sessions, context.core
        self._store, self._wakeups = context.store, context.wakeups
        self._leases, self._grace = leases, grace
        self._attaching: dict[str, Signal] = {}

    @property
    def attaching(self) -> int:
        """How many consumers attach just now, and have no session yet."""
        return len(self._attaching)

    async def attach(self, request: Attach) -> Attached:
        """See messages.Attach. The membership is durable before anything is sent to the consumer."""
        check_name("consumer", request.consumer)
        if request.read_compacted and (kind := self._state.settings.type) not in ("exclusive", "failover"):
            raise Invalid(f"a {kind} subscription cannot read a compacted log; exclusive and failover ones can")
        while request.incarnation in self._attaching:
            await self._attaching[request.incarnation].wait(self._ports)
        self._ownership.check_owner()
        self._leases.forget_retired(self._membership.retired_lives(request.incarnation))
        session = self._sessions.find(self._membership.session(request.incarnation))
        if session is None and self._is_void(request):
            return self._attached(0)
        if session is None:
            done = self._attaching[request.incarnation] = Signal()
            try:
                with self._grace.coming(request.consumer):
                    session = await self._join(request)
            finally:
                self._attaching.pop(request.incarnation, None)
                done.set()
        apart = self._state.apart
        if self._grace.keeps_places or apart:  # copies wait too: any answer counts
            await self._store.barrier()  # its place is in the record before it gets anything, and so is what it is told
        await self._store.be_certain()
        if not self._sessions.is_open(session):
            raise Unavailable("the session ended while the owner checked its own record; attach again")
        self._leases.renew(session)
        return self._attached(session.number, apart=apart)

    async def detach(self, request: Detach) -> None:
        """See messages.Detach; a session that is over is fine."""
        session = self._sessions.find(request.session)
        if session is not None:
            await self._leases.end_in_turn(session, "detached", keep_place=request.keep_place)

    def _attached(self, session: int, *, apart: bool = False) -> Attached:
        return Attached(
            session=session,
            epoch=self._epoch,
            lease=self._membership.lease_ms,
            revokes=self._core.nack_ordered,
            apart=apart,
        )

    async def _join(self, request: Attach) -> Session:
        now = self._ports.clock.now()
        adopted = self._state.adopt(request.properties)
        if self._membership.admit(request.incarnation, request.consumer, request.process) or adopted:
            await self._store.barrier()
            self._ownership.check_owner()
        try:
            number = await self._enter_core(request, now)
        except (Conflict, Invalid, Unavailable):
            self._membership.refuse(request.incarnation)
            self._store.dirty()
            raise
        if self._membership.attach(request.incarnation, number, self._ports.clock.monotonic()):
            self._store.dirty()
        session = self._sessions.open(
            number,
            request.consumer,
            request.incarnation,
            read_compacted=request.read_compacted,
            moves=request.moves,
        )
        self._leases.identify(session)
        self._wakeups.read.set()
        self._wakeups.route.set()
        self._leases.watch_session(session, request.process)
        self._ports.log("attached", consumer=request.consumer, session=number)
        return session

    async def _enter_core(self, request: Attach, now: int) -> int:
        """Give a consumer its number in the core. Those that have its place are asked first, as in Pulsar (KS-15)."""
        holding = ascending(request.holding)

        async def join() -> int:
            entry = await self._grace.entry(request)
            self._check_standing(request)
            number = self._core.join(
                request.consumer,
                now=now,
                ranges=request.ranges,
                priority=request.priority,
                holding=holding,
                finished=holding[self._cursor.is_acknowledged(holding)],
                entry=entry,
            )
            self._grace.entered(number, request)
            return number

        try:
            return await join()
        except Conflict:
            if not await self._make_room(request.ranges):
                raise
        return await join()

    def _check_standing(self, request: Attach) -> None:
        """Check after an await. Raises Fenced, or Unavailable if the consumer must begin another life first."""
        self._ownership.check_owner()
        if self._is_void(request):
            raise Unavailable("every session was ended meanwhile; attach again")

    def _is_void(self, request: Attach) -> bool:
        """Return whether a consumer's earlier session was ended, so that it must begin another life."""
        return self._membership.is_void(request.incarnation, holds=bool(len(request.holding)))

    async def _make_room(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Ask the consumers whose place a newcomer wants; those that do not answer lose it. False: one of them did."""
        found = [self._sessions.find(number) for number in self._core.rivals(ranges)]
        silent = await self._leases.silent([session for session in found if session is not None])
        for session in silent or []:
            if self._sessions.is_open(session):
                self._leases.retire(session)
        return silent is not None

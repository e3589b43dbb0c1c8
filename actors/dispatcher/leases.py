"""Carries out what `membership` decides: ends sessions whose leases ran out, and whose processes have ended.

A process that is known to have ended holds nothing, so nobody waits for the lease of a consumer in it (`ports.Watch`,
where the world has one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from actors.dispatcher.context import SubscriptionContext
from actors.dispatcher.membership import LeaseHolder, LeaseState
from actors.dispatcher.sessions import Session
from actors.ports import Watch

LIVENESS_MS = 5_000
"""Pulsar's connectionLivenessCheckTimeoutMillis."""


class Leases:
    """The end of sessions, and of what is waited for."""

    def __init__(self, context: SubscriptionContext) -> None:
        self._ports, self._store = context.ports, context.store
        self._membership, self._sessions, self._core = context.membership, context.sessions, context.core
        self._wake = context.wakeups.came_or_went

    async def run(self, look: Callable[[], None]) -> None:
        """End what is over, twice in the time of trust. look: called each time that nobody is awaited."""
        while True:
            await self._ports.clock.sleep(max(self._membership.trust_ms // 2, 1))
            self._store.look_if_idle()
            now = self._ports.clock.monotonic()
            for member in self._membership.overdue(LeaseState.ATTACHED, now):
                session = self._sessions.find(member.session)
                if session is not None:
                    self.end(session, "lease expired")
            self.forget_retired(self._membership.overdue(LeaseState.RETIRED, now))
            if self._membership.all(LeaseState.AWAITED):
                self._wake()
            else:
                look()

    # -- the living -----------------------------------------------------------------------------------------------

    def heard(self, session: Session) -> None:
        """This consumer said something."""
        session.heard.set()
        self.renew(session)

    def renew(self, session: Session) -> None:
        """This consumer was heard or answered."""
        self._membership.renew(session.incarnation, self._ports.clock.monotonic())

    def watch_session(self, session: Session, process: str) -> None:
        """End this session as soon as its process has ended."""
        if process and self._ports.watch is not None:
            session.watched_by(self._ports.spawn(self._end_with(self._ports.watch, session, process), "watch"))

    def expect_members(self) -> None:
        """Send nothing before everybody of the record has come back, must have stopped, or has ended."""
        self._membership.begin(self._ports.clock.monotonic())
        for member in self._membership.all(LeaseState.AWAITED):
            self._forget_when_ended(member)

    # -- ends -----------------------------------------------------------------------------------------------------

    def end(self, session: Session, reason: str, *, dismissed: bool = False, keep_place: bool = True) -> None:
        """The consumer is out: its messages go to the others, or wait for it (`grace`).

        dismissed: it does not know, and stays a member. keep_place False: it is gone for good.
        """
        self._ports.log("session_ended", consumer=session.name, session=session.number, reason=reason)
        self._sessions.close(session)
        keep = keep_place and not self._is_late_copy(session)
        self._core.leave(session.number, now=self._ports.clock.now(), keep=keep)
        if not dismissed:
            self._membership.leave(session.incarnation)
        self._changed()

    def _is_late_copy(self, session: Session) -> bool:
        """It never polled, and another session has its name: its consumer had ended before this first request came."""
        namesakes = [other for other in self._sessions.all() if other.name == session.name and other is not session]
        return session.turn == 0 and bool(namesakes)

    def dismiss(self, reason: str) -> None:
        """End every session; see `Membership.dismiss`."""
        attached = self._membership.all(LeaseState.ATTACHED)
        self._membership.dismiss()
        for session in self._sessions.all():
            self.end(session, reason, dismissed=True)
        for member in attached:
            self._forget_when_ended(member)

    async def silent(self, asked: Sequence[Session]) -> list[Session] | None:
        """Ask these whether they live, by ending their long polls: a consumer that lives polls again at once.

        Returns those who do not within LIVENESS_MS, without those whose sessions ended; None: one of them lives.
        """
        until = self._ports.clock.monotonic() + LIVENESS_MS
        for session in asked:
            session.heard.clear()
            session.ready.set()
        silent = []
        for session in asked:
            await session.heard.wait(self._ports, max(until - self._ports.clock.monotonic(), 0))
            if self._sessions.is_open(session):
                if session.heard.is_set():
                    return None
                silent.append(session)
        return silent

    def retire(self, session: Session, *, succeeded: bool = False) -> None:
        """It does not answer: it loses its place, and as long as its lease may last it keeps what it holds.

        succeeded: another consumer takes its place over at once; until then the place stays as it is.
        """
        self._ports.log("retired", consumer=session.name, session=session.number)
        if not succeeded:
            self._core.retire(session.number, now=self._ports.clock.now())
        self._sessions.close(session)
        member = self._membership.retire(session.incarnation)
        self._changed()
        self._forget_when_ended(member)

    def forget_retired(self, members: Iterable[LeaseHolder]) -> None:
        """These hold nothing any more: what they had goes to the others."""
        for member in members:
            self._membership.leave(member.incarnation)
            if member.session:
                reason = "it did not answer"
                self._ports.log("session_ended", consumer=member.name, session=member.session, reason=reason)
                self._core.leave(member.session, now=self._ports.clock.now(), keep=True)
            self._changed()

    def _changed(self) -> None:
        self._store.dirty()
        self._wake()

    def _forget_when_ended(self, member: LeaseHolder) -> None:
        """Wait for this member no longer than its process lives."""
        if member.process and self._ports.watch is not None:
            self._ports.spawn(self._forget_with(self._ports.watch, member), "watch")

    async def _end_with(self, watch: Watch, session: Session, process: str) -> None:
        await watch.ended(process)
        session.watched_by(None)
        if self._sessions.is_open(session):
            self.end(session, "its process ended")

    async def _forget_with(self, watch: Watch, member: LeaseHolder) -> None:
        await watch.ended(member.process)
        gone = self._membership.ended(member.incarnation)
        if gone is not None:
            self.forget_retired([gone])

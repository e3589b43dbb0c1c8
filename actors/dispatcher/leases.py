"""Carries out what `membership` decides: ends sessions whose leases ran out, and whose processes have ended.

A process that is known to have ended holds nothing, so nobody waits for the lease of a consumer in it (`ports.Watch`,
where the world has one).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from actors.dispatcher.membership import Member, State
from actors.ports import Watch

if TYPE_CHECKING:
    from actors.dispatcher.dispatcher import Dispatcher
    from actors.dispatcher.sessions import Session


async def watch_leases(d: Dispatcher) -> None:
    """End the sessions whose lease ran out, and notice when nothing moves although it could."""
    while True:
        await d.ports.clock.sleep(max(d.membership.trust_ms // 2, 1))
        d.store.look_if_idle()
        now = d.ports.clock.monotonic()
        for member in d.membership.overdue(State.ATTACHED, now):
            session = d.sessions.find(member.session)
            if session is not None:
                d.end_session(session, "lease expired")
        forget_retired(d, d.membership.overdue(State.RETIRED, now))
        if d.membership.all(State.AWAITED):
            d.pump.wake()
        elif d.pump.settled() and not d.paused and not d.pump.expected and d.core.stalled():
            d.watchdog_stalls += 1
            d.ports.log("stalled", stats=d.core.stats(d.ports.clock.now()))
            d.pump.wake()


def watch_session(d: Dispatcher, session: Session, process: str) -> None:
    """End this session as soon as its process has ended."""
    if process and d.ports.watch is not None:
        session.watch = d.ports.spawn(_end_with(d, d.ports.watch, session, process), "watch")


def expect_members(d: Dispatcher) -> None:
    """Send nothing before everybody of the record has come back, must have stopped, or has ended."""
    d.membership.begin(d.ports.clock.monotonic())
    for member in d.membership.all(State.AWAITED):
        forget_when_ended(d, member)


def forget_when_ended(d: Dispatcher, member: Member) -> None:
    """Wait for this member no longer than its process lives."""
    if member.process and d.ports.watch is not None:
        d.ports.spawn(_forget_with(d, d.ports.watch, member), "watch")


def dismiss(d: Dispatcher, reason: str) -> None:
    """End every session; see `Membership.dismiss`."""
    attached = d.membership.all(State.ATTACHED)
    d.membership.dismiss()
    for session in d.sessions.all():
        d.end_session(session, reason, dismissed=True)
    for member in attached:
        forget_when_ended(d, member)


def retire(d: Dispatcher, session: Session) -> None:
    """It does not answer: it loses its place, and as long as its lease may last it keeps what it holds."""
    d.ports.log("retired", consumer=session.name, session=session.number)
    d.core.retire(session.number, now=d.ports.clock.now())
    d.sessions.close(session)
    member = d.membership.retire(session.incarnation)
    d.store.dirty()
    d.pump.wake()
    forget_when_ended(d, member)


def forget_retired(d: Dispatcher, members: Iterable[Member]) -> None:
    """These hold nothing any more: what they had goes to the others."""
    for member in members:
        d.membership.leave(member.incarnation)
        if member.session:
            d.ports.log("session_ended", consumer=member.name, session=member.session, reason="it did not answer")
            d.core.leave(member.session, now=d.ports.clock.now())
        d.store.dirty()
        d.pump.wake()


async def _end_with(d: Dispatcher, watch: Watch, session: Session, process: str) -> None:
    await watch.ended(process)
    session.watch = None
    if d.sessions.is_open(session):
        d.end_session(session, "its process ended")


async def _forget_with(d: Dispatcher, watch: Watch, member: Member) -> None:
    await watch.ended(member.process)
    gone = d.membership.ended(member.incarnation)
    if gone is not None:
        forget_retired(d, [gone])

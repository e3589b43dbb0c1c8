"""How a dispatcher learns that a consumer is gone without having said so.

A session is a lease: whoever was silent for so long must have stopped by itself. A process that is known to have ended
holds nothing either, so nobody waits for its lease (`ports.Watch`, where the world has one). The same two rules let a
new owner stop waiting for the consumers that its record names.

An owner that was replaced does not know it at once, and what it answers until then still lengthens leases; it says so
only for `trusted_ms` after it last knew itself the owner (`keeper`). So a new owner waits that much longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.ports import Watch

if TYPE_CHECKING:
    from actors.dispatcher.dispatcher import Dispatcher
    from actors.dispatcher.sessions import Session


def trusted_ms(lease_ms: int) -> int:
    """For so many milliseconds after its last proof an owner lengthens leases without a new one."""
    return lease_ms // 4


async def watch_leases(d: Dispatcher) -> None:
    """End the sessions whose lease ran out, and notice when nothing moves although it could."""
    while True:
        await d.ports.clock.sleep(max(trusted_ms(d.settings.lease_ms) // 2, 1))
        d.keeper.look_if_idle()
        now = d.ports.clock.monotonic()
        for session in d.sessions.all():
            if session.expires <= now:
                d.end_session(session, "lease expired")
        if d.pump.awaited:
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
    until = d.ports.clock.monotonic() + d.settings.lease_ms + trusted_ms(d.settings.lease_ms)
    d.pump.awaited = dict.fromkeys(d.members, until)
    for incarnation in d.members:
        _forget_when_ended(d, incarnation)


def _forget_when_ended(d: Dispatcher, incarnation: str) -> None:
    """Do not await this member any longer than its process lives."""
    process = d.members[incarnation].get("process")
    if process and d.ports.watch is not None:
        d.ports.spawn(_forget_with(d, d.ports.watch, incarnation, process), "watch")


def dismiss(d: Dispatcher, reason: str) -> None:
    """End every session, also of those who have not come back yet.

    They may work on what they hold until they are told, or their leases end. So they stay in the record, as dismissed:
    until then nothing is sent, by this owner or by the next, and what they still say of those messages is void.
    """
    ended = d.sessions.all()
    d.pump.awaited |= {session.incarnation: session.expires for session in ended}
    members = {
        incarnation: {**member, "dismissed": True} if incarnation in d.pump.awaited else member
        for incarnation, member in d.members.items()
    }
    for session in ended:
        d.end_session(session, reason)
    d.members = members
    for session in ended:
        _forget_when_ended(d, session.incarnation)


async def _end_with(d: Dispatcher, watch: Watch, session: Session, process: str) -> None:
    await watch.ended(process)
    session.watch = None
    if d.sessions.is_open(session):
        d.end_session(session, "its process ended")


async def _forget_with(d: Dispatcher, watch: Watch, incarnation: str, process: str) -> None:
    await watch.ended(process)
    if d.pump.awaited.pop(incarnation, None) is not None:
        d.members.pop(incarnation, None)
        d.keeper.dirty()
        d.pump.wake()

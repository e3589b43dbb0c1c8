"""A consumer whose place is taken: an exclusive subscription, or a range of hashes (KS-15).

Who has the place is asked, by ending its long poll: who lives polls again at once. Who is not heard within some seconds
is dead or cut off and loses the place, as in Pulsar. But it may still work on what it holds, as long as its lease says
so: until then that stays with it, its keys go to nobody, and what it says is void. So the newcomer is let in, gets
everything else, and no key is at two consumers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from actors.dispatcher import leases

if TYPE_CHECKING:
    from actors.dispatcher.dispatcher import Dispatcher

LIVENESS_MS = 5_000
"""Pulsar's connectionLivenessCheckTimeoutMillis."""


async def make_room(d: Dispatcher, ranges: Sequence[tuple[int, int]]) -> bool:
    """Ask those in whose place a newcomer would be; whoever does not answer loses it. False: somebody is there."""
    until = d.ports.clock.monotonic() + LIVENESS_MS
    found = [d.sessions.find(number) for number in d.core.rivals(ranges)]
    asked = [session for session in found if session is not None]
    for session in asked:
        session.heard.clear()
        session.ready.set()
    silent = []
    for session in asked:
        await session.heard.wait(d.ports, max(until - d.ports.clock.monotonic(), 0))
        if d.sessions.is_open(session):
            if session.heard.is_set():
                return False
            silent.append(session)
    for session in silent:
        if d.sessions.is_open(session):
            leases.retire(d, session)
    return True

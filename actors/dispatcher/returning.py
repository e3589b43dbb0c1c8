"""Consumers that come back to a new owner with messages in their hands.

A consumer names the positions that it holds, and not their keys. As long as those messages were not read again nobody
here knows which hashes they occupy: the ring may have changed, and a message of the same key that lies before them
would go to somebody else. So the topic is asked for their hashes first, and nothing is sent until it answered. Waiting
until they are read instead could last for ever: reading stops when permits or look-ahead are used up.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from actors.messages import NO_POSITIONS, NO_ROWS, ReadRowIndex, RowIndex
from actors.ports import Unknown
from storage.errors import Fenced, Unavailable

if TYPE_CHECKING:
    from actors.dispatcher.dispatcher import Dispatcher
    from actors.dispatcher.sessions import Session

CALL_TIMEOUT = 5_000
RETRY_MS = 50


def identify(d: Dispatcher, session: Session) -> None:
    """Ask for the hashes of what this consumer holds and was not read; the pump waits for it."""
    if d.core.ordered and len(d.core.unread(session.number)):
        d.pump.identifying[session.session] = None
        d.ports.spawn(_identify(d, session), "identify")


async def _identify(d: Dispatcher, session: Session) -> None:
    try:
        found = await _row_index(d, session)
        if d.sessions.is_open(session):
            d.core.bring(session.number, found.positions, found.hashes)
    finally:
        d.pump.identifying.pop(session.session, None)
        d.pump.wake()


async def _row_index(d: Dispatcher, session: Session) -> RowIndex:
    """Index columns of what it holds and was not read; waits for the topic as long as the session stands."""
    while d.sessions.is_open(session) and len(unread := d.core.unread(session.number)):
        with contextlib.suppress(Unavailable, Fenced):
            address = await d.directory.topic(d.topic, d.partition)
            reply = await d.ports.net.call(address, ReadRowIndex(positions=unread), CALL_TIMEOUT)
            if not isinstance(reply, Unknown):
                return reply
            await d.directory.suspect(address)
        await d.ports.clock.sleep(RETRY_MS)
    return RowIndex(positions=NO_POSITIONS, hashes=NO_ROWS)

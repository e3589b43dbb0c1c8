"""Consumers that come back to a new owner with messages in their hands.

A consumer names the positions that it holds, and not their keys. As long as those messages were not read again nobody
here knows which hashes they occupy: the ring may have changed, and a message of the same key that lies before them
would go to somebody else. So the topic is asked for their hashes first, and nothing is sent until it answered. Waiting
until they are read instead could take without end: reading stops when permits or look-ahead are used up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.backoff import Backoff
from actors.messages import NO_POSITIONS, NO_ROWS, ReadRowIndex, RowIndex
from storage.errors import SluiceError

if TYPE_CHECKING:
    from actors.dispatcher.dispatcher import Dispatcher
    from actors.dispatcher.sessions import Session

RETRY_FIRST, RETRY_MOST = 50, 2_000


def identify(d: Dispatcher, session: Session) -> None:
    """Ask for the hashes of what this consumer holds and was not read; the pump waits for it."""
    if d.core.ordered and len(d.core.unread(session.number)):
        d.pump.identifying[session.number] = "the topic was not asked yet"
        d.ports.spawn(_identify(d, session), "identify")


async def _identify(d: Dispatcher, session: Session) -> None:
    """Only an answer, or the end of the session, opens dispatch again: with anything else the keys stay unknown."""
    found = await _row_index(d, session)
    if d.sessions.is_open(session):
        d.core.bring(session.number, found.positions, found.hashes)
    d.pump.identifying.pop(session.number, None)
    d.pump.wake()


async def _row_index(d: Dispatcher, session: Session) -> RowIndex:
    """Index columns of what it holds and was not read; waits for the topic as long as the session stands."""
    wait = Backoff(d.ports, RETRY_FIRST, RETRY_MOST)
    while d.sessions.is_open(session) and len(unread := d.core.unread(session.number)):
        try:
            return await d.partition_client.ask(ReadRowIndex(positions=unread))
        except SluiceError as error:
            d.pump.identifying[session.number] = str(error)
            d.ports.log("identify_waits", session=session.number, error=str(error))
        await wait.pause()
    return RowIndex(positions=NO_POSITIONS, hashes=NO_ROWS)

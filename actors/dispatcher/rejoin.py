"""A new owner waits for those who may still hold messages of an earlier one.

Nothing is sent before each of them came back and said what it holds, or must have stopped (promise 2). A consumer that
comes back names the positions that it holds, and not their keys. As long as those messages were not read again nobody
here knows which hashes they occupy: the ring may have changed, and a message of the same key that lies before them
would go to another consumer. So the topic is asked for their hashes first, and nothing is sent until it has answered.
Waiting until they are read instead could take for ever: reading stops when permits or look-ahead are used up.
"""

from __future__ import annotations

from actors.backoff import Backoff
from actors.dispatcher.context import SubscriptionContext
from actors.dispatcher.membership import LeaseHolder, LeaseState
from actors.dispatcher.sessions import Session
from actors.messages import NO_POSITIONS, NO_ROWS, ReadRowIndex, RowIndex
from storage.errors import SluiceError

RETRY_FIRST, RETRY_MOST = 50, 2_000


class Rejoin:
    """Keeps dispatch closed. unknown: sessions whose messages' hashes are not known yet, and what that waits for."""

    def __init__(self, context: SubscriptionContext) -> None:
        self._ports, self._topic = context.ports, context.topic
        self._core, self._membership, self._sessions = context.core, context.membership, context.sessions
        self._store, self._wake = context.store, context.wakeups.route.set
        self.unknown: dict[int, str] = {}

    def awaited(self) -> list[LeaseHolder]:
        """Members of an earlier owner who have not come back, nor must have stopped by now."""
        if self._membership.forget_overdue(self._ports.clock.monotonic()):
            self._store.dirty()
        return self._membership.all(LeaseState.AWAITED)

    def settled(self) -> bool:
        """Whether nobody is awaited, and what those hold who came back is known."""
        return not (self.awaited() or self.unknown)

    def identify(self, session: Session) -> None:
        """Ask for the hashes of what this consumer holds and was not read."""
        if self._core.ordered and len(self._core.unread(session.number)):
            self.unknown[session.number] = "the topic was not asked yet"
            self._ports.spawn(self._identify(session), "identify")

    async def _identify(self, session: Session) -> None:
        """Only an answer, or the end of the session, opens dispatch again: with anything else the keys stay unknown."""
        found = await self._row_index(session)
        if self._sessions.is_open(session):
            self._core.bring(session.number, found.positions, found.hashes)
        self.unknown.pop(session.number, None)
        self._wake()

    async def _row_index(self, session: Session) -> RowIndex:
        """Index columns of what it holds and was not read; waits for the topic as long as the session stands."""
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while self._sessions.is_open(session) and len(unread := self._core.unread(session.number)):
            try:
                return await self._topic.ask(ReadRowIndex(positions=unread))
            except SluiceError as error:
                self.unknown[session.number] = str(error)
                self._ports.log("identify_waits", session=session.number, error=str(error))
            await wait.pause()
        return RowIndex(positions=NO_POSITIONS, hashes=NO_ROWS)

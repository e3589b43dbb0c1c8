"""Questions of an operator that change nothing, but for statistics and explanations."""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.dispatcher.context import SubscriptionContext
from actors.dispatcher.reader import Reader
from actors.messages import FindBacklog, FindOwner, ListDelayed, ListPending
from storage.errors import Invalid, Unavailable
from storage.hashing import masked_hash
from storage.position import show


class Inspection:
    """See the module."""

    def __init__(self, context: SubscriptionContext, reader: Reader) -> None:
        self._identity, self._core, self._sessions = context.identity, context.core, context.sessions
        self._tracker, self._cursor, self._reader = context.tracker, context.cursor, reader

    async def backlog(self, request: FindBacklog) -> int:
        """See messages.BacklogFound. Raises Unavailable while the end of the topic is not known."""
        if not await self._reader.look():  # it tells the cursor which ledgers there are
            raise Unavailable(
                f"how far partition {self._identity.partition} of {self._identity.topic!r} reaches is not known yet"
            )
        at = self._cursor.next_unacknowledged(request.start)
        return at if at <= self._reader.reach else -1

    def pending(self, request: ListPending) -> list[dict[str, Any]]:
        """See messages.ListPending; a row a consumer."""
        rows = []
        for session in self._sessions.all():
            if request.consumer in (None, session.name):
                held = self._core.pending(session.number)
                rows.append(
                    {
                        "consumerName": session.name,
                        "session": session.number,
                        "unackedMessages": len(held),
                        "messageIds": [show(at) for at in held[: request.most].tolist()],
                    }
                )
        return rows

    def owner(self, request: FindOwner) -> dict[str, Any]:
        """See messages.FindOwner. Raises Invalid if neither a key nor a hash is given."""
        wanted = request.hash
        if request.key is not None:
            wanted = int(self._core.reduce(np.array([masked_hash(request.key.encode())], np.uint32))[0])
        if wanted is None:
            raise Invalid("owner wants a key or a hash")
        return {"hash": wanted, **self._core.owner(wanted, request.at)}

    def delayed(self, request: ListDelayed) -> dict[str, Any]:
        following = self._tracker.next_messages(request.top)
        return {
            "partition": self._identity.partition,
            "count": self._tracker.count(),
            "histogram": self._tracker.histogram(),
            "next": [{"deliverAt": due, "messageId": show(at)} for due, at in following],
        }

"""What an owner knows for those who send batches of Pulsar's clients: what of one is done, and whether one was cut."""

from __future__ import annotations

from actors.dispatcher.consumers import ascending
from actors.dispatcher.context import SubscriptionContext
from actors.messages import Done, FindOpen, SentApart, StillOpen


class BatchAnswers:
    """Answers who is to send batches whole."""

    def __init__(self, context: SubscriptionContext) -> None:
        self._state, self._store, self._ownership = context.state, context.store, context.ownership

    def still_open(self, request: FindOpen) -> StillOpen:
        positions = ascending(request.positions)
        return StillOpen(positions=positions[~self._state.cursor.is_acknowledged(positions)])

    async def sent_apart(self, request: SentApart) -> Done:
        self._state.sent_apart()
        await self._store.barrier()
        self._ownership.check_owner()
        return Done()

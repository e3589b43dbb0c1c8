"""What an owner knows for those who send batches of Pulsar's clients: what of one is done, and whether one was cut."""

from __future__ import annotations

from collections.abc import Callable

from actors.dispatcher.consumers import ascending
from actors.dispatcher.state import SubscriptionState
from actors.dispatcher.store import CursorStore
from actors.messages import Done, FindOpen, SentApart, StillOpen


class BatchAnswers:
    """Answers who is to send batches whole. check_owner: raises Fenced when this dispatcher has ended."""

    def __init__(self, state: SubscriptionState, store: CursorStore, check_owner: Callable[[], None]) -> None:
        self._state, self._store, self._check_owner = state, store, check_owner

    def still_open(self, request: FindOpen) -> StillOpen:
        positions = ascending(request.positions)
        return StillOpen(positions=positions[~self._state.cursor.is_acknowledged(positions)])

    async def sent_apart(self, request: SentApart) -> Done:
        self._state.sent_apart()
        await self._store.barrier()
        self._check_owner()
        return Done()

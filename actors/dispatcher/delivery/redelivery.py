"""Messages come back unfinished: their delays and redelivery counts, which the next owner must know.

Both are in the subscription's record. A hand-back is answered when they are durable, so every later owner knows of an
answered one. A consumer repeats an unanswered hand-back to the next owner, with the count that it saw, so that hearing
it twice changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.actors.dispatcher.delivery.ack_handler import AckHandler
from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.redelivery_clock import RedeliveryClock
from sluice.actors.dispatcher.delivery.sessions import Session
from sluice.actors.key_shared import KeySharedDispatcher
from sluice.actors.messages import GivenBack, NegativeAcknowledge, RedeliverUnacknowledged
from sluice.actors.ports import Ports
from sluice.storage.errors import Invalid
from sluice.storage.format import redeliveries
from sluice.storage.format.position import Positions


class Redelivery:
    """The part of a dispatcher that takes back messages which consumers did not finish."""

    def __init__(self, context: SubscriptionContext, ack_handler: AckHandler) -> None:
        self._core, self._cursor = context.core, context.cursor
        self._store, self._wake, self._clock = context.store, context.wakeups.route.set, context.redelivery_clock
        self._ack_handler = ack_handler

    async def negative_acknowledge(self, session: Session, request: NegativeAcknowledge) -> GivenBack:
        """See messages.NegativeAcknowledge. Returns when it is durable; a late copy too, as the first may not be."""
        positions, seen = _columns(request.positions, request.seen)
        late = request.consumer_epoch < session.consumer_epoch
        if not late and (not request.number or session.first_time(request.number)):
            self._core.negative_acknowledge(
                session.number,
                positions,
                now=self._clock.now(),
                delay=request.delay,
                counted=request.counted,
                seen=seen,
                again=request.again,
                done=positions[self._cursor.is_acknowledged(positions)] if request.again else positions[:0],
                overtook=request.overtook,
            )
            session.revoke(self._core.take_revoked(session.number))
            self._wake()
        revocation = 0 if session.revocation is None else session.revocation.number
        await self._store.barrier()
        return GivenBack(revocation=revocation)

    async def redeliver(self, session: Session, request: RedeliverUnacknowledged) -> None:
        """See messages.RedeliverUnacknowledged. Returns when it is durable."""
        positions, seen = _columns(request.positions, request.seen)
        if request.consumer_epoch > session.consumer_epoch:
            done, now = np.unique(request.done), self._clock.now()
            self._ack_handler.acknowledge(done[self._core.knows(session.number, done)], session.number, now)
            unseen = session.void(request.consumer_epoch, request.turn)
            self._core.redeliver_all(session.number, positions, unseen=unseen, now=now, counts=seen)
            self._wake()
        await self._store.barrier()


class RecordedRedeliveries:
    """The delays and redelivery counts; see `Recorded`. Logs when there are more than the record takes."""

    field = "redeliveries"

    def __init__(self, ports: Ports, core: KeySharedDispatcher, clock: RedeliveryClock) -> None:
        self._ports, self._core, self._clock = ports, core, clock

    def to_record(self) -> Any:
        before = self._core.not_durable
        rows = self._core.redeliveries()
        if self._core.not_durable and not before:
            self._ports.log("redeliveries_not_durable", messages=self._core.not_durable)
        return rows

    async def load(self, stored: Any) -> None:
        self._clock.begin_with(redeliveries.decode(stored or b""))


def _columns(positions: Positions, seen: npt.NDArray[np.uint8]) -> tuple[Positions, npt.NDArray[np.uint8] | None]:
    """Return positions, ascending, each once, with their reported counts. Raises Invalid if the lengths differ."""
    if len(seen) and (len(seen) != len(positions) or seen.dtype != np.uint8):
        raise Invalid(f"{len(seen)} redelivery counts ({seen.dtype}) were sent for {len(positions)} messages")
    if len(positions) and not bool((positions[1:] > positions[:-1]).all()):
        positions, first = np.unique(positions, return_index=True)
        seen = seen[first] if len(seen) else seen
    return positions, seen if len(seen) else None

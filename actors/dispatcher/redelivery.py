"""Messages come back unfinished: delays and redelivery counts, and what the next owner has to know of them.

Both are in the subscription's record, and a hand-back is answered when they are: whoever was answered has been heard by
every later owner too. What was not answered the consumer says again to the next owner, with the count that it saw, so
that hearing it twice changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from actors.messages import NegativeAcknowledge, RedeliverUnacknowledged
from storage.errors import Invalid
from storage.position import Positions

if TYPE_CHECKING:
    from actors.dispatcher.dispatcher import Dispatcher
    from actors.dispatcher.sessions import Session


async def negative_acknowledge(d: Dispatcher, session: Session, request: NegativeAcknowledge) -> None:
    """See messages.NegativeAcknowledge. Returns when it is durable; a late copy too, as its first one may not be."""
    positions, seen = _columns(request.positions, request.seen)
    late = request.consumer_epoch < session.consumer_epoch
    if not late and (not request.number or session.first_time(request.number)):
        d.core.negative_acknowledge(
            session.number,
            positions,
            now=d.ports.clock.now(),
            delay=request.delay,
            counted=request.counted,
            seen=seen,
            again=request.again,
            done=positions[d.cursor.is_acknowledged(positions)] if request.again else positions[:0],
        )
        d.pump.wake()
    await d.store.barrier()


def kept(d: Dispatcher) -> bytes:
    """What the record says of it; tells when it is more than the record takes."""
    before = d.core.not_durable
    rows = d.core.redeliveries()
    if d.core.not_durable and not before:
        d.ports.log("redeliveries_not_durable", messages=d.core.not_durable)
    return rows


async def redeliver(d: Dispatcher, session: Session, request: RedeliverUnacknowledged) -> None:
    """See messages.RedeliverUnacknowledged. Returns when it is durable."""
    positions, seen = _columns(request.positions, request.seen)
    if request.consumer_epoch > session.consumer_epoch:
        unseen = session.void(request.consumer_epoch, request.turn)
        d.core.redeliver_all(session.number, positions, unseen=unseen, now=d.ports.clock.now(), counts=seen)
        d.pump.wake()
    await d.store.barrier()


def _columns(positions: Positions, seen: npt.NDArray[np.uint8]) -> tuple[Positions, npt.NDArray[np.uint8] | None]:
    """Positions ascending, each once, with the counts that were told of them. Raises Invalid if those do not fit."""
    if len(seen) and (len(seen) != len(positions) or seen.dtype != np.uint8):
        raise Invalid(f"{len(seen)} redelivery counts ({seen.dtype}) were told of {len(positions)} messages")
    if len(positions) and not bool((positions[1:] > positions[:-1]).all()):
        positions, first = np.unique(positions, return_index=True)
        seen = seen[first] if len(seen) else seen
    return positions, seen if len(seen) else None

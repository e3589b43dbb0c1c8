"""Pulsar's batches at a consumer that gets each one whole: what is left of one, and which came in parts.

Consumers of Exclusive and Failover subscriptions give a batch to their client whole, and may have to wait for the rest
of one. Where that does not come, the subscription notes for good that ids may stand for parts of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from sluice.actors.consumer.negative_acks import CALL_TIMEOUT, RETRY_FIRST, RETRY_MOST
from sluice.actors.consumer.unacked_messages import Received, UnackedMessageTracker
from sluice.actors.messages import NO_POSITIONS, FindOpen, SentApart
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.ports.wire import Reply, Request
from sluice.actors.runtime.waiting import Backoff
from sluice.storage.errors import SluiceError
from sluice.storage.format.position import Positions

R = TypeVar("R", bound=Reply)


def open_in(stretches: Sequence[tuple[Received, int, int]]) -> list[tuple[Received, Positions]]:
    """The open ones of rows first .. end-1 of some parts, by part."""
    return [(part, np.flatnonzero(part.open[first:end]) + first) for part, first, end in stretches]


class BatchAcks:
    """apart: of this subscription some batch may have been sent in parts, to whomever."""

    def __init__(
        self, ports: Ports, where: Callable[[], tuple[Address, int] | None], holding: UnackedMessageTracker
    ) -> None:
        """Begin for one partition. where: returns the current owner and session, None once the consumer closes."""
        self._ports, self._where, self._holding = ports, where, holding
        self.apart = False

    def attached(self, *, apart: bool) -> None:
        """An owner reports what it knows."""
        self.apart = self.apart or apart

    async def still_open(self, positions: Positions) -> Positions:
        """Which of these (int64, ascending) are not done, as the owner knows it; all of them once this one closes."""
        reply = await self._ask(lambda session: FindOpen(session=session, positions=positions))
        return positions if reply is None else reply.positions

    async def close_done(self, stretches: Callable[[], Sequence[tuple[Received, int, int]]]) -> None:
        """Close the rows that are done, by any consumer, among rows first .. end-1 of some parts. Rows may be in other
        parts when the answer comes.
        """
        asked = np.unique(np.concatenate([NO_POSITIONS, *(part.positions[its] for part, its in open_in(stretches()))]))
        done = np.setdiff1d(asked, await self.still_open(asked)) if len(asked) else asked
        for part, its in open_in(stretches()):
            part.close(its[np.isin(part.positions[its], done)])

    async def send_apart(self) -> None:
        """Note durably that a batch is sent in parts; done when this returns, or the consumer closes."""
        if not self.apart:
            self.apart = await self._ask(lambda session: SentApart(session=session)) is not None

    async def _ask(self, question: Callable[[int], Request[R]]) -> R | None:
        """Ask the present owner until it answers; None once the consumer closes."""
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while (owner := self._where()) is not None:
            try:
                reply: Any = await self._ports.net.call(owner[0], question(owner[1]), CALL_TIMEOUT)
                if not isinstance(reply, Unknown):
                    answered: R = reply
                    return answered
            except SluiceError:  # whoever is the owner then is asked
                pass
            await wait.pause()
        return None

    def joined(self, begun: Received, first: int, more: Received, row: int, count: int) -> Received:
        """Return one new held part, in the order of the log, with the open rows of `begun` from `first` on and those of
        `more` among `count` rows from `row` on. Both parts lose these rows.
        """
        ours = np.flatnonzero(begun.open[first:]) + first
        theirs = np.flatnonzero(more.open[row : row + count]) + row
        pieces = [(begun, ours), (more, theirs)]
        order = np.argsort(np.concatenate([part.positions[rows] for part, rows in pieces]))

        def column(name: str) -> Any:
            return np.concatenate([getattr(part, name)[rows] for part, rows in pieces])[order]

        new = Received(
            rows=pa.concat_batches([part.rows.take(pa.array(rows)) for part, rows in pieces]).take(pa.array(order)),
            partition=more.partition,
            positions=column("positions"),
            dispatch=column("dispatch"),
            redeliveries=column("redeliveries"),
            deliver_at=column("deliver_at"),
            epoch=more.epoch,
            session=more.session,
            overtook=column("overtook"),
            follows=more.follows if row + count == len(more) else 0,
        )
        for part, rows in pieces:
            part.close(rows)
        new.shown = len(new)
        self._holding.add(new)
        return new

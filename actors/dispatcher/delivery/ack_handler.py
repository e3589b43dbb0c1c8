"""How messages end at a consumer: they are done, or they come back unfinished.

**Done.** `AckHandler` is the one place where messages become done: by an acknowledgement, by expiry, by a skip, or
because they are lost. It keeps the cursor, the runs, the decision core and the delayed index in step, and asks the
store for a durable cursor.

**Unfinished.** Delays and redelivery counts of messages that come back are in the subscription's record. A hand-back is
answered when they are durable, so every later owner knows of an answered one. A consumer repeats an unanswered
hand-back to the next owner, with the count that it saw, so that hearing it twice changes nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.sessions import Session
from sluice.actors.messages import GivenBack, NegativeAcknowledge, RedeliverUnacknowledged
from sluice.storage.errors import Invalid
from sluice.storage.format.position import Positions, entries_of, ledger_of, position


class AckHandler:
    """The handler that makes messages done, and counts the others."""

    def __init__(self, context: SubscriptionContext) -> None:
        self._cursor, self._core, self._runs = context.cursor, context.core, context.runs
        self._tracker, self._store, self._wakeups = context.tracker, context.store, context.wakeups

    def count(self, end: int) -> int:
        """Return how many messages up to `end` are not done."""
        if end <= self._cursor.mark_delete:
            return 0
        return self._cursor.unacknowledged_in(self._cursor.mark_delete + 1, end)

    def any_delayed(self) -> bool:
        """Return whether a message waits for its time."""
        return self._tracker.count() > 0

    def acknowledge(self, positions: Positions, consumer: int, now: int) -> None:
        """Mark messages (int64, ascending) as done: a consumer acknowledges them now (ms)."""
        self._core.acknowledge_soon(positions, consumer, now=now)
        self._finish(positions)
        self._advance()

    def done_elsewhere(self, positions: Positions) -> None:
        """Mark messages as done that no consumer acknowledged: the dead letter topic has them."""
        self._core.acknowledge(positions)
        self._finish(positions)
        self._advance()
        self._wakeups.route.set()

    def give_up(self, positions: Positions) -> None:
        """Mark messages as done that cannot be read."""
        self._core.acknowledge(positions)
        self._cursor.acknowledge(positions)
        self._advance()

    def pass_over(self, stretches: list[tuple[int, int, int]], kept: Positions) -> None:
        """Mark as done what a compacted log has dropped: everything in `stretches` (ledger, first entry, last entry)
        except the positions in `kept`, int64, ascending.

        Nothing is sent before that is durable, see `skip_to`: the next consumer may want the whole log.
        """
        for ledger, first, last in stretches:
            low, high = kept.searchsorted([position(ledger, first), position(ledger, last) + 1])
            self._cursor.pass_over(ledger, first, last, entries_of(kept[low:high]))
        self._advance()
        if stretches:
            self._store.hold_back()

    def skip_to(self, target: int) -> None:
        """Mark everything before `target` as done.

        Nothing is sent before that is durable: the next owner would send the skipped messages behind later ones of
        their key.
        """
        self._core.remove(up_to=target - 1)
        self._cursor.chain([(ledger_of(target), None)])
        self._cursor.skip_to(target)
        self._advance()
        self._store.hold_back()

    def start_over(self, target: int) -> None:
        """Move the cursor to `target`: everything before it is done, everything from it on is open and not held.

        Nothing is sent before that is durable, see `skip_to`.
        """
        self._core.reset()
        self._runs.clear()
        self._cursor.chain([(ledger_of(target), None)])
        self._cursor.reset(target)
        self._core.mark_deleted(self._cursor.mark_delete)
        self._store.hold_back()

    async def forget_delayed(self) -> None:
        """Let no delayed message wait any longer. Raises Unavailable."""
        await self._tracker.clear()
        self._tracker.trim(self._cursor.mark_delete)

    def _finish(self, positions: Positions) -> None:
        """Mark messages as done, some of them perhaps for the second time; a run counts each of its messages once."""
        self._runs.done(positions[~self._cursor.is_acknowledged(positions)])
        self._cursor.acknowledge(positions)

    def _advance(self) -> None:
        """Drop everything below the changed cursor, and make the rest durable."""
        mark_delete = self._cursor.mark_delete
        self._runs.drop_below(mark_delete)
        self._core.mark_deleted(mark_delete)
        self._tracker.trim(mark_delete)
        self._store.dirty(gather=True)


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


def _columns(positions: Positions, seen: npt.NDArray[np.uint8]) -> tuple[Positions, npt.NDArray[np.uint8] | None]:
    """Return positions, ascending, each once, with their reported counts. Raises Invalid if the lengths differ."""
    if len(seen) and (len(seen) != len(positions) or seen.dtype != np.uint8):
        raise Invalid(f"{len(seen)} redelivery counts ({seen.dtype}) were sent for {len(positions)} messages")
    if len(positions) and not bool((positions[1:] > positions[:-1]).all()):
        positions, first = np.unique(positions, return_index=True)
        seen = seen[first] if len(seen) else seen
    return positions, seen if len(seen) else None

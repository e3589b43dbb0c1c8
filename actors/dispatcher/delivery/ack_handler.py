"""The one place where messages become done: by an acknowledgement, by expiry, by a skip, or because they are lost.

It keeps the cursor, the runs, the decision core and the delayed index in step, and asks the store for a durable cursor.
"""

from __future__ import annotations

from sluice.actors.dispatcher.delivery.context import SubscriptionContext
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

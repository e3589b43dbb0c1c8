"""Cancelling and rescheduling delayed messages of a subscription, with an answer that is true of each.

A cancellation is an acknowledgement that nobody made: the message is done for this subscription, and the cursor says
so. A reschedule gives it another due time, for this subscription. Neither touches the log, so other subscriptions get
the message as it was sent (`docs/decisions/0021-a-cancelled-delay-is-an-acknowledgement.md`).

What the answers mean. `cancelled`: nobody gets it from now on; one who gave it back, or died with it, may have seen it
before. `too late: at consumer X`: X holds it and has not acknowledged it. `too late: delivered`: it is done. Which of
them it is, is decided in one piece, without a pause between the look and the deed, and told when the record that holds
the deed is durable, which proves that this owner was the owner. Before consumers of an earlier owner have come back,
or must have stopped, nobody knows what they hold: nothing is decided until then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from actors.dispatcher.backlog import Backlog
from actors.dispatcher.context import SubscriptionContext
from actors.dispatcher.delayed_selection import DelayedSelection, SelectedDelays, places
from actors.dispatcher.ends import read_ends
from actors.dispatcher.reader import Reader
from actors.dispatcher.rejoin import Rejoin
from actors.dispatcher.sessions import Sessions
from actors.messages import CancelDelayed, RescheduleDelayed, SelectDelayed
from actors.messages.delayed import (
    CANCELLED,
    RESCHEDULED,
    TOO_LATE_AT,
    TOO_LATE_DELIVERED,
    TOO_LATE_DUE,
    UNKNOWN,
)
from storage.delayed.entries import Entries, Mask
from storage.errors import Overloaded, Unavailable
from storage.position import Positions, show

RESCHEDULED_MOST = 1_000_000
"""So many rescheduled messages may wait in memory, 30 MB; more are refused."""

Codes = npt.NDArray[np.int64]
"""An answer a message: those of `_ANSWERS`, or their number and above: the place of a consumer."""
_ANSWERS = (CANCELLED, RESCHEDULED, TOO_LATE_DELIVERED, TOO_LATE_DUE, UNKNOWN)
_OPEN = -1


class DelayedMessages:
    """Changes what is delayed. cancelled, rescheduled: how many messages since this owner began."""

    def __init__(self, context: SubscriptionContext, reader: Reader, backlog: Backlog, rejoin: Rejoin) -> None:
        self._ports, self._topic, self._core = context.ports, context.topic, context.core
        self._cursor, self._tracker, self._changed = context.cursor, context.tracker, context.changed_delays
        self._sessions, self._store, self._wakeups = context.sessions, context.store, context.wakeups
        self._selection = DelayedSelection(context)
        self._reader, self._backlog, self._rejoin = reader, backlog, rejoin
        self.cancelled = self.rescheduled = 0

    async def cancel(self, request: CancelDelayed) -> dict[str, Any]:
        """See messages.CancelDelayed. Raises Invalid, Unavailable."""
        return await self._change(request, lambda entries: self._cancel(entries, request.dry_run))

    async def reschedule(self, request: RescheduleDelayed) -> dict[str, Any]:
        """See messages.RescheduleDelayed. Raises Invalid, Unavailable, Overloaded."""
        return await self._change(
            request, lambda entries: self._reschedule(entries, request.deliver_at, request.dry_run)
        )

    def stats(self) -> dict[str, Any]:
        """How much was changed, and what waits for a new time."""
        return {
            "msgDelayedCancelledTotal": self.cancelled,
            "msgDelayedRescheduledTotal": self.rescheduled,
            "msgRescheduled": self._tracker.rescheduled(),
        }

    # -- one request ------------------------------------------------------------------------------------------------

    async def _change(self, request: SelectDelayed, act: Callable[[Entries], Codes]) -> dict[str, Any]:
        request.check()
        asked = bool(request.message_ids or request.delay_ids)
        ends = await read_ends(self._ports, self._topic)
        self._cursor.chain(ends.ledgers)
        start = 0 if asked else self._cursor.next_unacknowledged(0)
        tally = _Tally(self._topic.partition, self._sessions, asked)
        async for found in self._selection.select(request, start, ends.last):
            self._check_settled()
            tally.add(found, act(found.entries))
        self._check_settled()
        tally.missing(request)
        if not request.dry_run:
            await self._make_durable(ends.first)
        return tally.told()

    async def _make_durable(self, first: int) -> None:
        await self._changed.fold(first)
        stale = self._changed.take_stale()
        await self._store.barrier()
        await self._changed.remove(stale)

    def _check_settled(self) -> None:
        if not self._rejoin.settled():
            raise Unavailable("what consumers of an earlier owner hold is not known yet; ask again")

    # -- the deed ---------------------------------------------------------------------------------------------------

    def _look(self, positions: Positions) -> Codes:
        """What is true of each message now; _OPEN: nobody holds it, and it is not done."""
        codes = np.full(len(positions), _OPEN, np.int64)
        codes[np.isin(positions, self._core.dead_letters())] = _ANSWERS.index(TOO_LATE_DELIVERED)
        for place, session in enumerate(self._sessions.all()):
            held = np.isin(positions, self._core.pending(session.number))
            held |= np.isin(positions, self._core.unread(session.number))
            codes[held] = len(_ANSWERS) + place
        done = self._cursor.is_acknowledged(positions)
        codes[done] = _ANSWERS.index(TOO_LATE_DELIVERED)
        codes[done & self._changed.now.cancelled.contains(positions)] = _ANSWERS.index(CANCELLED)
        return codes

    def _cancel(self, entries: Entries, dry_run: bool) -> Codes:
        positions = entries.positions
        codes = self._look(positions)
        free = codes == _OPEN
        codes[free] = _ANSWERS.index(CANCELLED)
        if not dry_run and free.any():
            self._changed.cancel(positions[free])
            self._tracker.untrack(positions[free])
            self._backlog.done_elsewhere(positions[free])
            self.cancelled += int(np.count_nonzero(free))
        return codes

    def _reschedule(self, entries: Entries, deliver_at: int, dry_run: bool) -> Codes:
        codes = self._look(entries.positions)
        waits = (codes == _OPEN) & self._not_due(entries)
        codes[codes == _OPEN] = _ANSWERS.index(TOO_LATE_DUE)
        codes[waits] = _ANSWERS.index(RESCHEDULED)
        if not dry_run and waits.any():
            self._check_room(int(np.count_nonzero(waits)))
            moved = entries.take(waits)
            moved = Entries(np.full(len(moved), deliver_at, np.int64), moved.positions, moved.hashes)
            self._changed.move(moved)
            self._tracker.reschedule(moved, self._ports.clock.now())
            if not self._core.holds_keys:
                self._core.remove(moved.positions)  # it may have been due by a clock that was ahead
            self.rescheduled += len(moved)
            self._wakeups.due.set()
        return codes

    def _not_due(self, entries: Entries) -> Mask:
        """Which of them still wait for their time."""
        due = self._changed.now.due(entries.positions, entries.deliver_at)
        waits = due > self._ports.clock.now()
        if self._core.holds_keys:  # what is due keeps its place in the order of its key, and cannot be put back
            waits &= self._tracker.contains(entries.positions) | (entries.positions >= self._reader.position)
        return waits

    def _check_room(self, more: int) -> None:
        if self._tracker.rescheduled() + more > RESCHEDULED_MOST:
            raise Overloaded(
                f"{self._tracker.rescheduled()} rescheduled messages wait, and {RESCHEDULED_MOST} is the most; "
                "cancel and send anew, or wait until some are due"
            )


class _Tally:
    """Answers by kind, and for ids one each."""

    def __init__(self, partition: int, sessions: Sessions, each: bool) -> None:
        self._partition, self._each = partition, each
        self._sessions = sessions
        self._counts = dict.fromkeys(_ANSWERS, 0)
        self._held: dict[str, int] = {}
        self._rows: list[dict[str, str]] = []

    def add(self, found: SelectedDelays, codes: Codes) -> None:
        """Count these; of a filter, what is done does not count, for nobody asked about it."""
        names = [session.name for session in self._sessions.all()]
        for code in np.unique(codes).tolist():
            number = int(np.count_nonzero(codes == code))
            if code < len(_ANSWERS):
                if self._each or _ANSWERS[code] != TOO_LATE_DELIVERED:
                    self._counts[_ANSWERS[code]] += number
            else:
                name = names[code - len(_ANSWERS)]
                self._held[name] = self._held.get(name, 0) + number
        if self._each:
            words = [*_ANSWERS, *(f"{TOO_LATE_AT}{name}" for name in names)]
            for row, (at, code) in enumerate(zip(found.entries.positions.tolist(), codes.tolist(), strict=True)):
                called = {"delayId": found.names[row]} if found.names else {}
                self._rows.append({"messageId": f"{show(at)}:{self._partition}", "answer": words[code], **called})

    def missing(self, request: SelectDelayed) -> None:
        """Of the ids that were asked about, those that nothing was found for."""
        known = {row.get("delayId") or row["messageId"] for row in self._rows}
        wanted = request.delay_ids or [f"{show(at)}:{self._partition}" for at in places(request).tolist()]
        kind = "delayId" if request.delay_ids else "messageId"
        gone = [name for name in dict.fromkeys(wanted) if name not in known] if self._each else []
        self._rows += [{kind: name, "answer": UNKNOWN} for name in gone]
        self._counts[UNKNOWN] += len(gone)

    def told(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "partition": self._partition,
            "cancelled": self._counts[CANCELLED],
            "rescheduled": self._counts[RESCHEDULED],
            "tooLateDelivered": self._counts[TOO_LATE_DELIVERED],
            "tooLateDue": self._counts[TOO_LATE_DUE],
            "tooLateAtConsumer": self._held,
            "unknown": self._counts[UNKNOWN],
            "messages": self._rows,
        }

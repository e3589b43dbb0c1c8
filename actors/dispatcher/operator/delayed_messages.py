"""Cancelling and rescheduling delayed messages of a subscription, with an answer that is true of each.

A cancellation is an acknowledgement without a consumer: the message is done for this subscription, and the cursor says
so. A reschedule gives it another due time, for this subscription. Neither touches the log, so other subscriptions get
the message as it was sent (`docs/decisions/0021-a-cancelled-delay-is-an-acknowledgement.md`).

**The answers.** `cancelled`: no consumer gets the message from now on; a consumer that gave it back, or died with it,
may have seen it before. `too late: at consumer X`: X holds it and has not acknowledged it. `too late: delivered`: it is
done. The state is read and changed without an await in between. The answer is sent when the record with the change is
durable, which proves that this owner was the owner. Until consumers of an earlier owner have come back, or must have
stopped, their messages are not known, and nothing is decided.

**Finding them.** The log's index columns say where a delayed message lies, when it is due and what the hash of its key
is. Most questions need nothing else. Only the message itself has its key and its sender's id, so the few messages whose
hash fits are read whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.actors.dispatcher.delivery.ack_handler import AckHandler
from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.leases import Leases
from sluice.actors.dispatcher.delivery.reader import BacklogReader
from sluice.actors.dispatcher.delivery.sessions import Sessions
from sluice.actors.dispatcher.delivery.unacked_runs import parts_to_ask_for
from sluice.actors.lookup.topic_client import READ_MOST
from sluice.actors.messages import DELAY_ID, CancelDelayed, RescheduleDelayed, RunIndex, SelectDelayed
from sluice.actors.messages.delayed import (
    CANCELLED,
    RESCHEDULED,
    TOO_LATE_AT,
    TOO_LATE_DELIVERED,
    TOO_LATE_DUE,
    UNKNOWN,
)
from sluice.storage.delayed.entries import EMPTY, Entries, Mask, concat
from sluice.storage.errors import Overloaded, Unavailable
from sluice.storage.format.frame import index_columns
from sluice.storage.format.hashing import Hashes, hash_column, key_bytes
from sluice.storage.format.position import Positions, parse, position, show

RESCHEDULED_MOST = 1_000_000
"""The number of rescheduled messages that may wait in memory, 30 MB; more are refused."""

Codes = npt.NDArray[np.int64]
"""One answer a message: an index in `_ANSWERS`, or from their number on the consumer."""
_ANSWERS = (CANCELLED, RESCHEDULED, TOO_LATE_DELIVERED, TOO_LATE_DUE, UNKNOWN)
_OPEN = -1
_NO_NAMES: list[str] = []


class DelayedMessages:
    """The part of a dispatcher that changes delays. cancelled, rescheduled: messages since this owner began."""

    def __init__(
        self, context: SubscriptionContext, reader: BacklogReader, ack_handler: AckHandler, leases: Leases
    ) -> None:
        self._ports, self._log, self._core = context.ports, context.log, context.core
        self._partition = context.topic.partition
        self._cursor, self._tracker, self._changed = context.cursor, context.tracker, context.changed_delays
        self._sessions, self._store, self._wakeups = context.sessions, context.store, context.wakeups
        self._selection = DelayedSelection(context)
        self._reader, self._ack_handler, self._leases = reader, ack_handler, leases
        self._asked, self._looked = 0, (0, 0)
        """The number of questions; the newest question that looked where the topic ends, and the end that it found."""
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
        """Return how many messages were changed, and how many wait for a new time."""
        return {
            "msgDelayedCancelledTotal": self.cancelled,
            "msgDelayedRescheduledTotal": self.rescheduled,
            "msgRescheduled": self._tracker.rescheduled(),
        }

    # -- one request ------------------------------------------------------------------------------------------------

    async def _change(self, request: SelectDelayed, act: Callable[[Entries], Codes]) -> dict[str, Any]:
        request.check()
        asked = bool(request.message_ids or request.delay_ids)
        self._asked += 1
        number, ends = self._asked, await self._log.ends()
        # What came since a later request looked, which may be answered, is not what this one was asked about.
        last = min(ends.last, self._looked[1]) if number < self._looked[0] else ends.last
        self._looked = max(self._looked, (number, last))
        self._cursor.chain(ends.ledgers)
        start = 0 if asked else self._cursor.next_unacknowledged(0)
        tally = _Tally(self._partition, self._sessions, asked)
        async for found in self._selection.select(request, start, last):
            self._check_settled()
            tally.add(found, act(found.entries))
        self._check_settled()
        tally.missing(request)
        if not request.dry_run:
            await self._make_durable(ends.first)
        return tally.as_dict()

    async def _make_durable(self, first: int) -> None:
        await self._changed.fold(first)
        stale = self._changed.take_stale()
        await self._store.barrier()
        await self._changed.remove(stale)

    def _check_settled(self) -> None:
        if not self._leases.settled():
            raise Unavailable("what consumers of an earlier owner hold is not known yet; ask again")

    # -- the deed ---------------------------------------------------------------------------------------------------

    def _look(self, positions: Positions) -> Codes:
        """Return the present state of each message; _OPEN: no consumer holds it, and it is not done."""
        codes = np.full(len(positions), _OPEN, np.int64)
        codes[np.isin(positions, self._core.dead_letters())] = _ANSWERS.index(TOO_LATE_DELIVERED)
        for number, session in enumerate(self._sessions.all()):
            held = np.isin(positions, self._core.pending(session.number))
            held |= np.isin(positions, self._core.claims_of(session.number))
            codes[held] = len(_ANSWERS) + number
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
            self._ack_handler.done_elsewhere(positions[free])
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
        """Return which of them still wait for their time."""
        due = self._changed.now.due(entries.positions, entries.deliver_at)
        waits = due > self._ports.clock.now()
        if self._core.holds_keys:  # what is due keeps its place in the order of its key, and cannot be put back
            waits &= self._tracker.contains(entries.positions) | (entries.positions >= self._reader.position)
        return waits

    def _check_room(self, more: int) -> None:
        if self._tracker.rescheduled() + more > RESCHEDULED_MOST:
            raise Overloaded(
                f"{self._tracker.rescheduled()} rescheduled messages wait, and there may be {RESCHEDULED_MOST}; "
                "cancel and send anew, or wait until some are due"
            )


class _Tally:
    """A tally of answers by kind, and for ids one each."""

    def __init__(self, partition: int, sessions: Sessions, each: bool) -> None:
        self._partition, self._each = partition, each
        self._sessions = sessions
        self._counts = dict.fromkeys(_ANSWERS, 0)
        self._held: dict[str, int] = {}
        self._rows: list[dict[str, str]] = []

    def add(self, found: SelectedDelays, codes: Codes) -> None:
        """Count answers. With a filter, messages that are done do not count, because the question is not about them."""
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
        """Count the ids that were asked about and not found."""
        known = {row.get("delayId") or row["messageId"] for row in self._rows}
        wanted = request.delay_ids or [f"{show(at)}:{self._partition}" for at in named_positions(request).tolist()]
        kind = "delayId" if request.delay_ids else "messageId"
        gone = [name for name in dict.fromkeys(wanted) if name not in known] if self._each else []
        self._rows += [{kind: name, "answer": UNKNOWN} for name in gone]
        self._counts[UNKNOWN] += len(gone)

    def as_dict(self) -> dict[str, Any]:
        """Return the tally as plain values."""
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


@dataclass(frozen=True, slots=True)
class SelectedDelays:
    """A piece of delayed messages, positions ascending. names: the name that each has from its sender, if wanted."""

    entries: Entries
    names: list[str]


class DelayedSelection:
    """A reader of the log of one partition that finds the delayed messages an operator asks for."""

    def __init__(self, context: SubscriptionContext) -> None:
        self._log, self._payloads = context.log, context.payloads
        self._changes = context.changed_delays.now
        """The due times that count instead of the log's."""

    async def select(self, wanted: SelectDelayed, start: int, end: int) -> AsyncIterator[SelectedDelays]:
        """Yield the delayed messages from `start` to `end` (positions, inclusive) that are wanted, a piece at a time.

        With `message_ids`, yield those that exist, wherever they lie. Raises Unavailable.
        """
        if wanted.message_ids:
            async for entries in self._at(named_positions(wanted)):
                yield SelectedDelays(entries, _NO_NAMES)
            return
        hashes = _hashes(wanted)
        before = end + 1 if wanted.before is None else min(parse(wanted.before), end + 1)
        at = start
        while at < before:
            entries, resume = await self._read(at, READ_MOST, hashes)
            fits = (entries.positions >= at) & (entries.positions < before) & self._fits(wanted, entries)
            at = before if resume is None else resume
            entries = entries.take(fits)
            if len(entries):
                yield await self._named(wanted, entries)

    async def _at(self, positions: Positions) -> AsyncIterator[Entries]:
        """Yield those of the positions that are delayed messages; the log is read where they lie."""
        at = 0
        while at < len(positions):
            start = int(positions[at])
            entries, resume = await self._read(start, min(READ_MOST, int(positions[-1]) - start + 1))
            if len(here := entries.take(np.isin(entries.positions, positions))):
                yield here
            if resume is None:
                return
            at = max(at + 1, int(np.searchsorted(positions, resume)))

    async def _read(self, start: int, limit: int, hashes: Hashes | None = None) -> tuple[Entries, int | None]:
        """Return the delayed messages of some runs (hashes: only those), and where to read on; None at the end."""
        runs, resume = await self._log.runs(start, limit)
        parts = [_delayed_rows(run, columns, hashes) for run, columns in runs]
        return concat([part for part in parts if len(part)]), resume

    def _fits(self, wanted: SelectDelayed, entries: Entries) -> Mask:
        due = self._changes.due(entries.positions, entries.deliver_at)
        fits = np.ones(len(entries), np.bool_)
        if wanted.due_from is not None:
            fits &= due >= wanted.due_from
        if wanted.due_to is not None:
            fits &= due < wanted.due_to
        return fits

    async def _named(self, wanted: SelectDelayed, entries: Entries) -> SelectedDelays:
        """Return the messages that really have the wanted key or sender's id, because several can share a hash."""
        if wanted.key is None and not wanted.delay_ids:
            return SelectedDelays(entries, _NO_NAMES)
        positions: list[Positions] = []
        names: list[str] = []
        for part in parts_to_ask_for(entries.positions):
            for received in await self._payloads.resolve(part, 0, 0):
                fits, called = _meant(wanted, received.rows)
                positions.append(received.positions[fits])
                names += called.filter(pa.array(fits)).to_pylist() if wanted.delay_ids else []
        kept = np.concatenate([np.empty(0, np.int64), *positions])
        return SelectedDelays(entries.take(np.isin(entries.positions, kept)), names)


def named_positions(wanted: SelectDelayed) -> Positions:
    """Return the named positions, int64, ascending, each once. Raises Invalid for an invalid message id."""
    return np.unique(np.array([parse(text) for text in wanted.message_ids], np.int64))


def _hashes(wanted: SelectDelayed) -> Hashes | None:
    """Return the masked hashes that a wanted message may have; None: any."""
    if wanted.key is not None:
        return hash_column(pa.array([key_bytes(wanted.key)]))
    if wanted.delay_ids:
        return hash_column(pa.array([name.encode() for name in wanted.delay_ids]))
    return None


def _delayed_rows(run: RunIndex, columns: memoryview, wanted: Hashes | None) -> Entries:
    due, hashes = index_columns(columns, run.count, run.delayed)
    if due is None:
        return EMPTY
    fits = due > 0 if wanted is None else np.isin(hashes, wanted) & (due > 0)
    rows = np.flatnonzero(fits)  # of a million messages one may be wanted: no columns are made of the others
    return Entries(due[rows], rows + position(run.ledger, run.first_entry), hashes[rows])


def _meant(wanted: SelectDelayed, rows: pa.RecordBatch) -> tuple[Mask, pa.Array]:
    """Return which of the rows are wanted, bool (n,), and their sender's name for each (null: none)."""
    fits = np.ones(rows.num_rows, np.bool_)
    called = pa.nulls(rows.num_rows, pa.string())
    if "properties" in rows.schema.names:
        called = pc.map_lookup(rows.column("properties"), DELAY_ID, "last")
    if wanted.key is not None:
        fits &= pc.equal(rows.column("key"), key_bytes(wanted.key)).fill_null(False).to_numpy(zero_copy_only=False)
    if wanted.delay_ids:
        fits &= pc.is_in(called, pa.array(wanted.delay_ids)).to_numpy(zero_copy_only=False)
    return fits, called

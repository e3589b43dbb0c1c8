"""Moves a subscription: seek, skip, clear, expire.

An operation that moves the read position holds the reader while it works, so that nothing is read on the strength of
the old position. Skipping keeps the messages that connected consumers hold (KS-45). Seeking ends every session, and
dispatch begins again only when each of those consumers knows so or its lease has run out. The stores come last: an
outage is reported to the caller, and leaves a subscription that has moved, not one that is torn between two places.
Until the move is durable nothing is sent (`CursorStore.hold_back`).

Each may wait long for the topic, longer than its caller does. A seek is void if an operation that was asked for later
has been carried out meanwhile; the other operations are void if a later seek has been: its answer must hold. After a
later clear nothing is left for them to do: messages that came since then are not those that they were for. Policies
only remove messages that are too old or too many, at any time.
"""

from __future__ import annotations

from typing import Any

from sluice.actors.dispatcher.delivery.ack_handler import AckHandler
from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.leases import Leases
from sluice.actors.dispatcher.delivery.reader import BacklogReader
from sluice.actors.messages import Ends, FindExcess, FindTime
from sluice.actors.policies.expiry import LEFT, TopicExpiry
from sluice.storage.errors import Conflict, Invalid
from sluice.storage.format.cursor import Cursor
from sluice.storage.format.position import ledger_of, parse, position, show

CLOCKS_DIFFER = 60_000
"""The most by which an operator's clock may be ahead of the broker's, in milliseconds."""
_SHOWN = 5


class Seeker:
    """The part of a dispatcher that moves the cursor as an operator or the topic's policies demand."""

    def __init__(
        self, context: SubscriptionContext, reader: BacklogReader, ack_handler: AckHandler, leases: Leases
    ) -> None:
        self._ports, self._topic, self._directory = context.ports, context.topic, context.directory
        self._log = context.log
        self._cursor, self._changed, self._reporter = context.cursor, context.changed_delays, context.reporter
        self._store, self._wakeups = context.store, context.wakeups
        self._reader, self._ack_handler, self._leases = reader, ack_handler, leases
        self._expiry = TopicExpiry(context.ports, context.topic.topic)
        self._asked = self._sought = self._skipped = 0
        """The number of requests of operators; the last seek carried out, and the last other operation."""
        self._cleared = (0, 0)
        """The number of the last clear that was carried out, and where the subscription went on."""
        self._expired = 0

    # -- what is asked --------------------------------------------------------------------------------------------

    async def to_message(self, message_id: str) -> int:
        """Seek to `ledger:entry`, `earliest` or `latest`; see `_seek`. Raises Invalid for a place that never was."""
        number = self._number()
        return await self._seek(number, named_position(message_id, await self._log.ends()))

    async def to_time(self, time: int) -> int:
        """Seek to the first message of a time (ms) or later; see `_seek`. Raises Invalid for one in the future."""
        number = self._number()
        return await self._seek(number, await self._position_of(time))

    def _number(self) -> int:
        self._asked += 1
        return self._asked

    def _check_order(self, number: int, carried_out: int) -> None:
        if number < carried_out:
            raise Conflict("what was asked for later has moved the subscription")

    async def skip(self, messages: int) -> tuple[int, int]:
        """Mark the next `messages` that are not done as done, in whichever ledgers they lie.

        Returns how many, and where the subscription goes on; so do the following.
        """
        number = self._number()
        ends = await self._log.ends()
        self._cursor.chain(ends.ledgers)
        return await self._skip_to(behind(self._cursor, ends, messages), number)

    async def clear(self) -> tuple[int, int]:
        """Mark all existing messages as done, including those read meanwhile and delayed ones."""
        number = self._number()
        return await self._skip_to((await self._log.ends()).next, number, everything=True)

    async def expire(self, before: int) -> tuple[int, int]:
        """Mark everything as done that was published before a time (ms)."""
        number = self._number()
        expired, position = await self._skip_to(await self._position_of(before), number)
        self._expired += expired
        return expired, position

    def stats(self) -> dict[str, Any]:
        """Return the counts for the subscription's statistics."""
        return {"totalMsgExpired": self._expired}

    async def expire_old(self) -> None:
        """Mark messages as done that are too old, or too many: see actors.policies.expiry."""
        limits = await self._expiry.now(await self._directory.settings(self._topic.topic))
        if limits.age:
            found = await self._topic.ask(FindTime(time=max(self._ports.clock.now() - limits.age, 0)))
            self._expired += await self._drop_before(found.position)
        if limits.size is not None:
            keep, mark = int(limits.size * LEFT), self._cursor.mark_delete
            excess = await self._topic.ask(FindExcess(mark_delete=mark, limit=limits.size, keep=keep))
            await self._drop_before(excess.position or 0)

    async def _drop_before(self, position: int) -> int:
        """Mark everything before a position as done; returns how many messages that changed."""
        return (await self._skip_to(position))[0] if position > self._cursor.mark_delete + 1 else 0

    async def _position_of(self, time: int) -> int:
        check_time(time, self._ports.clock.now())
        return (await self._topic.ask(FindTime(time=time))).position

    # -- how it is done -------------------------------------------------------------------------------------------

    async def _skip_to(self, target: int, number: int | None = None, *, everything: bool = False) -> tuple[int, int]:
        """Mark everything before a position as done. Messages that come meanwhile are not in the returned number.

        number: of an operator's request. Raises Conflict if a seek that was asked for later was carried out.
        """
        await self._reader.refresh_end()
        if number is not None:
            self._check_order(number, self._sought)
            if number < self._cleared[0]:
                await self._store.barrier()
                return 0, self._cleared[1]
            self._skipped = max(self._skipped, number)
            if everything:
                self._cleared = number, target
        return await self._forward(target, everything=everything), target

    async def _seek(self, number: int, target: int) -> int:
        """Start over at a position, or where the topic begins if that lies behind it; durable when it returns.

        Every session ends, the consumers come back by themselves. The topic learns of it before anything moves, so that
        the messages are not trimmed. Nothing has moved if it raises Unavailable, because the topic does not answer, or
        Conflict, because an operation that was asked for after this `number` has moved the subscription.
        """
        with self._reporter.seeking(target):
            target = await self._reporter.secure(target)
            self._check_order(number, max(self._sought, self._skipped))
            self._sought = number
            self._leases.dismiss("seek")
            with self._reader.held():
                self._ack_handler.start_over(target)
                self._changed.reopen(target)  # what was cancelled from there on is wanted again, as durably
                self._reader.move(target)
                await self._ack_handler.forget_delayed()
            await self._store.barrier()
        self._wakeups.all()
        return target

    async def _forward(self, target: int, *, everything: bool = False) -> int:
        """Mark everything before `target` as done; with `everything`, also messages read beyond it meanwhile.

        Returns how many messages that changed, whatever else moves the subscription until it is durable.
        """
        end = self._reader.end
        with self._reader.held():
            if everything:
                target = max(target, self._reader.position)
            before = self._ack_handler.count(end)
            self._ack_handler.skip_to(target)
            skipped = before - self._ack_handler.count(end)
            if self._reader.position < target:
                self._reader.move(target)
            if everything:
                await self._ack_handler.forget_delayed()
        await self._store.barrier()
        self._wakeups.all()
        return skipped


def named_position(wanted: str, ends: Ends) -> int:
    """Return the position that a message id, `earliest` or `latest` names in a topic as it is now.

    A trimmed message means the oldest message that is kept. Raises Invalid for a place that never was: a seek to it
    would silently be one to the end.
    """
    if wanted in ("earliest", "latest"):
        return ends.first if wanted == "earliest" else ends.next
    at = parse(wanted)
    if at <= ends.first or at == ends.next:
        return max(at, ends.first)
    last = dict(ends.ledgers).get(ledger_of(at), -2)
    if last == -2 or at > (ends.next if last is None else position(ledger_of(at), max(last, 0)) + 1):
        kept = ", ".join(str(ledger) for ledger, _ in ends.ledgers[-_SHOWN:])
        raise Invalid(
            f"there is no message {wanted} here: the last ledgers are {kept}, the last message is {show(ends.last)}; "
            "`latest` names the end"
        )
    return at


def check_time(time: int, now: int) -> None:
    """Raise Invalid for a time in the future, which a time in micro- or nanoseconds is as well."""
    if time > now + CLOCKS_DIFFER:
        raise Invalid(
            f"the time {time} lies in the future: times are milliseconds since 1970, now is {now}; "
            "`latest` names the end"
        )


def behind(cursor: Cursor, ends: Ends, messages: int) -> int:
    """Return the position behind the next `messages` that are not done; the end of the topic if there are fewer."""
    for ledger, last_entry in ends.ledgers:
        first = max(position(ledger, 0), cursor.mark_delete + 1)
        last = min(
            position(ledger, last_entry) if last_entry is not None and last_entry >= 0 else ends.next - 1, ends.last
        )
        if last < first or ledger_of(last) != ledger:
            continue
        there = cursor.unacknowledged_in(first, last)
        if there < messages:
            messages -= there
            continue
        low, high = first, last
        while low < high:  # the smallest position up to which there are enough
            middle = (low + high) // 2
            if cursor.unacknowledged_in(first, middle) < messages:
                low = middle + 1
            else:
                high = middle
        return low + 1
    return ends.next

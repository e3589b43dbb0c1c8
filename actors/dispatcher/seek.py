"""Moving a subscription: seek, skip, clear, and other settings.

Whatever moves the read position holds the reader while it works, so that nothing is read on the strength of the old
position. Skipping keeps what connected consumers hold (KS-45); seeking ends every session, and dispatch begins again
only when each of those consumers was told so or its lease has run out. The stores are asked last: an outage is told to
who asked, and leaves a subscription that has moved, not one that is torn between two places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from actors.dispatcher import leases
from actors.messages import Ends, FindTime, SubscriptionSettings
from storage.cursor import Cursor
from storage.errors import Conflict, Invalid
from storage.position import parse, position, show

if TYPE_CHECKING:
    from actors.dispatcher.dispatcher import Dispatcher

CLOCKS_DIFFER = 60_000
"""By how much an operator's clock may be ahead of the broker's, in milliseconds."""
_SHOWN = 5


async def seek(d: Dispatcher, target: int) -> int:
    """Start over at a position, or where the topic begins if that lies behind it; durable when it returns.

    The topic is told before anything moves, so that what is sought is not trimmed. Raises Unavailable, and has moved
    nothing, if it does not answer.
    """
    with d.reporter.seeking(target):
        target = await d.reporter.secure(target)
        leases.dismiss(d, "seek")
        with d.reader.held():
            d.core.reset()
            d.runs.clear()
            d.cursor.chain([(target >> 32, None)])
            d.cursor.reset(target)
            d.core.mark_deleted(d.cursor.mark_delete)
            d.reader.move(target)
            await d.tracker.clear()
            d.tracker.trim(d.cursor.mark_delete)
        await d.store.barrier()
    d.wake()
    return target


async def forward(d: Dispatcher, target: int, *, everything: bool = False) -> None:
    """Everything before `target` is done; with `everything`, also what was read beyond it meanwhile."""
    with d.reader.held():
        if everything:
            target = max(target, d.reader.position)
        d.core.remove(up_to=target - 1)
        d.cursor.chain([(target >> 32, None)])
        d.cursor.skip_to(target)
        if d.reader.position < target:
            d.reader.move(target)
        d.mark_delete_moved()
        if everything:
            await d.tracker.clear()
            d.tracker.trim(d.cursor.mark_delete)
    await d.store.barrier()
    d.wake()


async def configure(d: Dispatcher, settings: SubscriptionSettings) -> bool:
    """Other settings, while no consumer is connected or awaited (Conflict); returns whether that changed any.

    An owner keeps the settings that it began with, and the trust in itself that hangs on its lease: when the new ones
    are durable it ends, and the next one begins with them. `initial_position` counts only when a subscription is made.
    """
    settings = msgspec.structs.replace(settings, initial_position=d.settings.initial_position)
    if settings == d.settings and d.next_settings is None:
        return False
    if len(d.membership):
        names = [name for name in settings.__struct_fields__ if getattr(settings, name) != getattr(d.settings, name)]
        told = ", ".join(f"{name} is {getattr(d.settings, name)!r}, not {getattr(settings, name)!r}" for name in names)
        raise Conflict(f"the settings of {d.subscription} can change only while no consumer is connected: {told}")
    d.next_settings = settings
    await d.store.barrier()
    d.fenced("it begins again with other settings")
    return True


async def expire_old(d: Dispatcher) -> None:
    """Messages older than the topic's time to live count as done (ttl_ms; 0 = they are kept)."""
    ttl = (await d.directory.settings(d.topic)).ttl_ms
    if ttl <= 0:
        return
    found = await d.partition_client.ask(FindTime(time=d.ports.clock.now() - ttl))
    if found.position > d.cursor.mark_delete + 1:
        await forward(d, found.position)


def place(wanted: str, ends: Ends) -> int:
    """The position that a message id, `earliest` or `latest` names in a topic as it is now.

    What was trimmed away means the oldest message that is kept. Raises Invalid for a place that never was: a seek to it
    would silently be one to the end.
    """
    if wanted in ("earliest", "latest"):
        return ends.first if wanted == "earliest" else ends.next
    at = parse(wanted)
    if at <= ends.first or at == ends.next:
        return max(at, ends.first)
    last = dict(ends.ledgers).get(at >> 32, -2)
    if last == -2 or at > (ends.next if last is None else position(at >> 32, max(last, 0)) + 1):
        kept = ", ".join(str(ledger) for ledger, _ in ends.ledgers[-_SHOWN:])
        raise Invalid(
            f"there is no message {wanted} here: the last ledgers are {kept}, the last message is {show(ends.last)}; "
            "`latest` names the end"
        )
    return at


def check_time(time: int, now: int) -> None:
    """Raises Invalid for a time in the future, which a time in micro- or nanoseconds is as well."""
    if time > now + CLOCKS_DIFFER:
        raise Invalid(
            f"the time {time} lies in the future: times are milliseconds since 1970, now is {now}; "
            "`latest` names the end"
        )


def behind(cursor: Cursor, ends: Ends, messages: int) -> int:
    """The position behind the next so many messages that are not done; the end of the topic if there are fewer."""
    for ledger, last_entry in ends.ledgers:
        first = max(position(ledger, 0), cursor.mark_delete + 1)
        last = min(
            position(ledger, last_entry) if last_entry is not None and last_entry >= 0 else ends.next - 1, ends.last
        )
        if last < first or last >> 32 != ledger:
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

"""Moving a subscription: seek, skip, clear, and other settings.

Whatever moves the read position holds the reader while it works, so that nothing is read on the strength of the old
position. Skipping keeps what connected consumers hold (KS-45); seeking ends every session, and dispatch begins again
only when each of those consumers was told so or its lease has run out. The stores are asked last: an outage is told to
who asked, and leaves a subscription that has moved, not one that is torn between two places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.delayed.tracker import delays
from actors.dispatcher import leases
from actors.key_shared.dispatch import Dispatch
from actors.messages import Ends, FindTime, SubscriptionSettings
from actors.ports import Unknown
from storage.cursor import Cursor
from storage.errors import Conflict
from storage.position import position

if TYPE_CHECKING:
    from actors.dispatcher.dispatcher import Dispatcher

CALL_TIMEOUT = 5_000
_WHILE_UNUSED = ("type", "policy", "selector", "allow_out_of_order_delivery", "remember_unacked_keys")


async def seek(d: Dispatcher, target: int) -> None:
    """Start over at a position; durable when it returns."""
    leases.dismiss(d, "seek")
    with d.reader.held():
        _new_core(d, d.settings)
        d.cursor.chain([(target >> 32, None)])
        d.cursor.reset(target)
        d.core.mark_deleted(d.cursor.mark_delete)
        d.reader.move(target)
        await d.tracker.clear()
        d.tracker.trim(d.cursor.mark_delete)
    await d.keeper.barrier()
    d.wake()


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
    await d.keeper.barrier()
    d.wake()


async def configure(d: Dispatcher, settings: SubscriptionSettings) -> None:
    """Other settings. Type, policy and selector change only while no consumer is connected (Conflict).

    With other settings of delayed delivery the dispatcher ends when they are durable, and is started anew with them.
    """
    if settings == d.settings:
        return
    changed = [name for name in _WHILE_UNUSED if getattr(settings, name) != getattr(d.settings, name)]
    if len(d.sessions):
        if changed:
            raise Conflict(f"{changed[0]} of {d.subscription} can change only while no consumer is connected")
        return
    delayed = _delayed(settings) != _delayed(d.settings)
    with d.reader.held():
        _new_core(d, settings)
        d.core.mark_deleted(d.cursor.mark_delete)
        d.reader.move(d.cursor.mark_delete + 1)
    await d.keeper.barrier()
    if delayed:
        d.fenced("its delayed delivery is set up anew")


def _delayed(settings: SubscriptionSettings) -> list[Any]:
    """Everything on which the choice of the delayed tracker and its working rests."""
    names = [name for name in SubscriptionSettings.__struct_fields__ if name.startswith("delayed_")]
    return [delays(settings), *(getattr(settings, name) for name in names)]


async def expire_old(d: Dispatcher) -> None:
    """Messages older than the topic's time to live count as done (ttl_ms; 0 = they are kept)."""
    ttl = (await d.directory.settings(d.topic)).ttl_ms
    if ttl <= 0:
        return
    address = await d.directory.topic(d.topic, d.partition)
    found = await d.ports.net.call(address, FindTime(time=d.ports.clock.now() - ttl), CALL_TIMEOUT)
    if not isinstance(found, Unknown) and found.position > d.cursor.mark_delete + 1:
        await forward(d, found.position)


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


def _new_core(d: Dispatcher, settings: SubscriptionSettings) -> None:
    d.settings = settings
    d.core = Dispatch(settings, first_dispatch=d.pump.next_dispatch, history=d.core.history)
    d.reader.use(d.core)
    d.runs.clear()

"""Negative acknowledgements: messages are given back, their redeliveries are counted, and their delays kept.

Messages in the window keep their count and their time there. A new owner knows most counts before it reads the messages
again: from the record of the owner before, and from consumers that give back messages from that time. These rows wait
in `given_back`, and `recall` applies each to its row when that is added. The snapshot has both.

**Bound.** A snapshot takes `MOST` rows, those that wait the longest. The others are in memory only: a new owner knows
neither the delay nor the count of a message that is left out.

**Revocation** (`nack_order=key`): a returned message goes out again before later ones, which are asked back. Three
rules ensure that, for every way in which a message comes back (negative acknowledgement, redelivery of all, a
consumer that leaves, a new owner). All of them work by hash, like everything else:

* A returned message keeps its place: it waits as REPLAY, never as UNORDERED. With a delay it waits as WAITING, and the
  key waits for it, as for a HELD message (`DispatchState.holding`).
* Later messages of the key that a consumer holds are *revoked*: the consumer is asked to give them back. They stay
  PENDING, with the flag REVOKED, until they are back or acknowledged, or the consumer leaves. So promise 2 still holds.
* As long as any message of a hash is revoked, nothing of that hash goes out (Gate.REDELIVERY).

So no message goes out while a later one of its key is with a consumer: first and repeated deliveries of a key ascend
until they are acknowledged. The sentinel checks that from its own books. Delayed messages that fall due without
a place in the order (KS-64) get one when they are given back, and lose the flag DUE.
"""

from __future__ import annotations

from typing import Required, TypedDict

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.key_shared.state.members import AttachedConsumer
from sluice.actors.key_shared.state.window import (
    DEAD,
    DELIVERED,
    DONE,
    DUE,
    EXAMINED,
    FRESH,
    HELD,
    MAX_REDELIVERIES,
    OVERTOOK,
    PENDING,
    REMOVED,
    REPLAY,
    REVOKED,
    UNORDERED,
    WAITING,
    Mask,
    Rows,
)
from sluice.actors.messages import NO_POSITIONS
from sluice.storage.format import redeliveries
from sluice.storage.format.hashing import HASH_RANGE
from sluice.storage.format.position import Positions
from sluice.storage.format.redeliveries import Redeliveries

Counts = npt.NDArray[np.uint8]


class NackOptions(TypedDict, total=False):
    """How messages are given back.

    delay: milliseconds until they are sent again. counted False: a hand-back at close or one that was asked for, in
    order and without raising the redelivery count. seen: the count that the consumer had with each. again: it was said
    to an owner before this one, which may not have kept it; so it also counts for messages that are with nobody, but
    for `done`, those of the positions that are acknowledged. overtook: those that the application had.
    """

    now: Required[int]
    delay: int
    counted: bool
    seen: Counts | None
    again: bool
    done: Positions
    overtook: Positions


def negative_acknowledge(
    core: DispatchState,
    member: AttachedConsumer,
    positions: Positions,
    *,
    now: int,
    delay: int = 0,
    counted: bool = True,
    seen: Counts | None = None,
    again: bool = False,
    done: Positions = NO_POSITIONS,
    overtook: Positions = NO_POSITIONS,
) -> int:
    core.at(now)
    window = core.window
    until = now + delay if delay > 0 else 0
    done = np.union1d(done, member.finished)
    # What it held before a change of owner, and gives back before it is read again, goes out when it is read.
    unread = member.unclaim(positions)
    rows = window.find(positions)
    state = window.state[rows]
    mine = rows[(state == PENDING) & (window.consumer[rows] == member.slot)]
    total = len(mine) + len(unread)
    idle = rows[np.isin(state, (FRESH, REPLAY, UNORDERED, WAITING))] if again else rows[:0]
    if again:
        here, _ = window.locate(positions)
        unread = np.union1d(unread, np.setdiff1d(positions, window.position[here]))
    unread = np.setdiff1d(unread, done)
    if core.parked.live:  # what is parked has begun anew
        unread = unread[~core.parked.contains(unread)]
    _note(core, unread, counted, until, _of(seen, positions, unread), np.isin(unread, overtook))
    window.flags[idle] |= DELIVERED  # by an owner before this one
    now_there = WAITING if until else UNORDERED if counted and not core.nack_ordered else REPLAY
    mine = core.reinsert(mine, now_there, now)
    _overtook(core, np.concatenate([mine, idle]), overtook)
    if until:
        longer = idle[(window.state[idle] != WAITING) | (window.since[idle] < until)]
        for before in (FRESH, REPLAY, UNORDERED):
            core.move_waiting(longer[window.state[longer] == before], before, WAITING)
        rows = np.sort(np.concatenate([mine, longer]))
        _wait(core, rows, np.full(len(rows), until, np.int64))
    if counted:
        both = np.sort(np.concatenate([mine, idle]))
        _count_redelivery(core, both, _of(seen, positions, window.position[both]))
    core.members.given_back[member.slot] += total
    _leave_fresh(core, idle)
    revoke(core)
    window.trim()
    return total


def redeliver_all(
    core: DispatchState, member: AttachedConsumer, seen: Positions, counts: Counts | None, *, unseen: int, now: int
) -> int:
    core.at(now)
    window = core.window
    done = member.finished
    unread = member.unclaim()
    known = np.setdiff1d(unread[np.isin(unread, seen)], done)
    _note(core, known, True, 0, _of(counts, seen, known), np.zeros(len(known), np.bool_))
    rows = window.rows_in(PENDING)
    rows = rows[window.consumer[rows] == member.slot]
    total = len(rows) + len(unread)
    rows = core.reinsert(rows, REPLAY, now)
    rows = rows[np.isin(window.position[rows], seen)]
    _count_redelivery(core, rows, _of(counts, seen, window.position[rows]))
    core.members.take_back(member, unseen)
    core.members.given_back[member.slot] += total
    core.look_again()
    window.trim()
    return total


def recall(core: DispatchState, positions: Positions) -> None:
    """Apply counts and delays from before rows were read to rows that were just added, `positions` ascending."""
    if not len(core.carried):
        return
    window = core.window
    found = core.carried.pop(positions)
    if not len(found.positions):
        return
    rows = window.find(found.positions)
    window.count_redeliveries(rows, found.counts)
    # They were delivered by an owner before this one: what is sent of them is no first delivery.
    window.flags[rows] |= DELIVERED
    _overtook(core, rows, found.positions[found.overtook])
    waits = found.until > core.now
    for before in (FRESH, UNORDERED):
        core.move_waiting(rows[waits & (window.state[rows] == before)], before, WAITING)
    _wait(core, rows[waits], found.until[waits])
    _leave_fresh(core, rows)
    _send_to_dead_letters(core, rows)
    core.settle_limits()
    core.look_again()


def wake(core: DispatchState, now: int) -> None:
    """Let rows whose delay is over wait to be sent, unless they were given back again meanwhile."""
    window = core.window
    while (positions := core.delays.pop_due(now)) is not None:
        rows = window.find(positions)
        rows = rows[window.state[rows] == WAITING]
        over = window.since[rows] <= now
        if not over.all():
            core.delays.add(window.position[rows[~over]], window.since[rows[~over]])
        core.move_waiting(rows[over], WAITING, REPLAY if core.nack_ordered else UNORDERED)
        core.look_again()
        core.settle_limits()


def clock_was_set(core: DispatchState, by: int) -> None:
    """Move the times of delays by so many ms, as the clock was set: the rest of each delay stays as it is, and so does
    the time for which each message has waited.
    """
    window = core.window
    window.why_since[window.head : window.tail] += by
    rows = window.rows_in(WAITING)
    window.since[rows] = np.maximum(window.since[rows] + by, 1)
    core.delays.shift(by)
    core.carried.shift(by)
    core.at(core.now + by)


def delays(core: DispatchState) -> bool:
    """Return whether any message waits because it was given back with a delay."""
    return core.window.count[WAITING] > 0 or core.carried.delays()


def _wait(core: DispatchState, rows: Rows, until: npt.NDArray[np.int64]) -> None:
    """Let WAITING rows wait until these times (ms, one a row). Their `since` is that time."""
    core.window.since[rows] = until
    core.delays.add(core.window.position[rows], until)


def _count_redelivery(core: DispatchState, rows: Rows, seen: Counts | None) -> None:
    """Rows that were just given back come again for one more time, or are dead letters.

    seen: the count that the consumer had with each, if it told; said twice, a hand-back counts once.
    """
    if len(rows):
        core.window.count_redeliveries(rows, _raised(core.window.redelivery[rows], seen))
        _send_to_dead_letters(core, rows)


def _raised(counts: Counts, seen: Counts | None) -> Counts:
    """Return one more than the count that the consumer saw, or than the known one. A repetition changes nothing."""
    more: Counts
    if seen is None:
        more = counts + (counts < MAX_REDELIVERIES).astype(np.uint8)
    else:
        more = np.maximum(counts, seen + (seen < MAX_REDELIVERIES).astype(np.uint8))
    return more


def _send_to_dead_letters(core: DispatchState, rows: Rows) -> None:
    """Move waiting rows that were redelivered too often to the dead letters."""
    window, most = core.window, core.settings.max_redeliver_count
    if most <= 0:
        return
    rows = rows[window.redelivery[rows] > most]
    if len(rows) == 0:
        return
    state = window.state[rows]
    for before in (FRESH, REPLAY, UNORDERED, WAITING):
        core.move_waiting(rows[state == before], before, DEAD)
    if core.parked.on:
        core.parked.look_again()
        if core.parked.examined:  # it may be of the key that was another one
            alike = np.isin(window.masked_hash[window.head : window.tail], window.masked_hash[rows])
            window.flags[window.head : window.tail][alike] &= np.uint8(0xFF ^ EXAMINED)
    core.settle_limits()


def snapshot(core: DispatchState) -> bytes:
    """The redelivery state for a new owner; `core.carried.not_durable` says how many rows found no room in it."""
    window, known = core.window, None
    if window.redelivered or window.count[WAITING] or window.overtaken:
        part = slice(window.head, window.tail)
        state = window.state[part]
        wanted = ((window.redelivery[part] > 0) | (state == WAITING)) & (state != DONE)
        wanted |= ((window.flags[part] & OVERTOOK) != 0) & (state != DONE)
        wanted &= (window.flags[part] & REMOVED) == 0
        at = np.flatnonzero(wanted) + window.head
        until = np.where(window.state[at] == WAITING, window.since[at], 0)
        known = Redeliveries(window.position[at], window.redelivery[at], until, (window.flags[at] & OVERTOOK) != 0)
    rows = core.carried.snapshot(known)
    return redeliveries.encode(rows) if len(rows.positions) else b""


def _note(
    core: DispatchState, positions: Positions, counted: bool, until: int, seen: Counts | None, overtook: Mask
) -> None:
    """Carry counts and delays of messages that were given back and are not here.

    seen: the count that the consumer had with each.
    """
    if not (counted or until):
        positions, overtook = positions[overtook], overtook[overtook]
    if not len(positions):
        return
    before = np.zeros(len(positions), np.uint8)
    carried = core.carried.rows
    _, homes, found = np.intersect1d(carried.positions, positions, assume_unique=True, return_indices=True)
    before[found] = carried.counts[homes]
    counts = _raised(before, seen) if counted else before
    given = Redeliveries(positions, counts, np.full(len(positions), until, np.int64), overtook)
    core.carried.add(given)
    core.carried.bound()


def _overtook(core: DispatchState, rows: Rows, positions: Positions) -> None:
    """Mark the rows at `positions`: the application had them before an earlier message of their key came again."""
    if len(positions):
        core.window.note_overtaking(rows[np.isin(core.window.position[rows], positions)])


def _of(seen: Counts | None, positions: Positions, wanted: Positions) -> Counts | None:
    """Return the entries of some of these positions, all ascending."""
    return None if seen is None else seen[np.searchsorted(positions, wanted)]


def _leave_fresh(core: DispatchState, rows: Rows) -> None:
    """Move rows with a count or an overtaking mark from FRESH to REPLAY: they keep their place among repeated rows.

    With `nack_order=key` UNORDERED rows get a place as well.
    """
    if core.nack_ordered:
        core.window.flags[rows] &= np.uint8(0xFF ^ DUE)
        core.move_waiting(rows[core.window.state[rows] == UNORDERED], UNORDERED, REPLAY)
    rows = rows[(core.window.redelivery[rows] > 0) | ((core.window.flags[rows] & OVERTOOK) != 0)]
    core.move_waiting(rows[core.window.state[rows] == FRESH], FRESH, REPLAY)
    core.look_again()


_NOWHERE = np.iinfo(np.int64).max
_PLACED = (FRESH, REPLAY, WAITING, HELD)
"""States in which a row waits with a place in the order."""


def revoke(core: DispatchState) -> None:
    """Ask back everything that is with a consumer and lies behind a message of its hash that waits.

    For whenever something was given back, or was read that lies before what consumers hold from an earlier owner.
    """
    window = core.window
    if not core.nack_ordered or not window.count[PENDING]:
        return
    if core.parked.stale:
        close_hashes(core)
        ask_back_closed(core)
    waits = window.rows_in(*_PLACED)
    if not len(waits):
        return
    first = np.full(HASH_RANGE, _NOWHERE, np.int64)
    np.minimum.at(first, window.hash[waits], window.position[waits])
    rows = window.rows_in(PENDING)
    ask_back(
        core, rows[(window.position[rows] > first[window.hash[rows]]) & ((window.flags[rows] & (REVOKED | DUE)) == 0)]
    )


def close_hashes(core: DispatchState) -> None:
    """Find the closed hashes again, and the position in each behind which no message goes out (`parked_messages`)."""
    dead = core.window.rows_in(DEAD)
    core.parked.close(core.window.position[dead], core.window.masked_hash[dead])
    core.look_again()


def ask_back_closed(core: DispatchState) -> None:
    """Ask consumers for messages of a closed hash that lie behind its failed message."""
    window, parked = core.window, core.parked
    parked.asked_back()
    if parked.closes_any and window.count[PENDING]:
        rows = window.rows_in(PENDING)
        rows = rows[parked.closed(window.masked_hash[rows], window.position[rows])]
        ask_back(core, rows[(window.flags[rows] & (REVOKED | DUE | EXAMINED | REMOVED)) == 0])


def ask_back(core: DispatchState, rows: Rows) -> None:
    """Revoke these PENDING rows."""
    if not len(rows):
        return
    window = core.window
    window.flags[rows] |= REVOKED
    core.tables.revoke(window.hash[rows])
    for slot in np.unique(window.consumer[rows]).tolist():
        core.members.at(slot).ask_back(window.position[rows[window.consumer[rows] == slot]])


def keep_order(core: DispatchState) -> None:
    """Before a dispatch: what was given back to an earlier owner may lie behind what was read and not offered yet.

    Then all of that waits too, and goes out by position, as when a HELD message falls due.
    """
    window = core.window
    if not (core.nack_ordered and window.count[FRESH] and window.count[REPLAY]):
        return
    fresh = window.rows_in(FRESH)
    if window.rows_in(REPLAY)[-1] > fresh[0]:
        core.move_waiting(fresh, FRESH, REPLAY)
        core.look_again()


def take_revoked(core: DispatchState, member: AttachedConsumer) -> Positions:
    """Take the messages that a consumer must give back and was not asked for yet (int64, ascending)."""
    if not len(member.revoked):
        return NO_POSITIONS
    rows = core.window.find(member.taken_revoked())
    still: Positions = core.window.position[rows[(core.window.flags[rows] & REVOKED) != 0]]
    return still


def overtook(core: DispatchState, positions: Positions) -> Positions:
    """Return which of these the application had before an earlier message of their key came again."""
    if not core.window.overtaken:
        return positions[:0]
    rows = core.window.find(positions)
    found: Positions = core.window.position[rows[(core.window.flags[rows] & OVERTOOK) != 0]]
    return found

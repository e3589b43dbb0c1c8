"""One dispatch pass: which consumer gets which waiting rows (KS-37, KS-41), as gathers and masks over columns.

A pass takes candidates in ascending order of position, finds their owners, and strikes out those that a gate holds
back. The rest is sorted by owner, stably, and each owner's part is cut at its permits. All rows of one hash have one
owner, a gate holds back a whole hash (or, for recently joined consumers, all above a position), and cuts are by
position. So a pass always sends the first waiting messages of a hash, and nothing overtakes.

Messages that wait for redelivery go first, in a pass of their own, and messages that were read forward follow. A
forward message stays behind any message of its hash that still waits in the order. Because a pass judges all its rows
against one state, a hash cannot come free in the middle of it and let a later message overtake an earlier, skipped one,
which was a defect upstream (#23870).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.state import nacks, parking
from sluice.actors.key_shared.state.assignments import NO_REDELIVERIES, Assignments, Share
from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.key_shared.state.members import Counts
from sluice.actors.key_shared.state.policies import (
    GRACE,
    LOOK_AHEAD_LIMIT,
    NO_PERMITS,
    NOT_READ,
    REASONS,
    UNACKED_LIMIT,
    Candidates,
    Gate,
)
from sluice.actors.key_shared.state.tables import distinct
from sluice.actors.key_shared.state.window import (
    DELIVERED,
    DUE,
    FRESH,
    NO_REASON,
    NO_SLOT,
    PENDING,
    REPLAY,
    SENT,
    UNORDERED,
    WAITING,
    Mask,
    Reduced,
    Rows,
)
from sluice.storage.format.position import Positions

_NO_ROWS: npt.NDArray[np.intp] = np.empty(0, np.intp)


def closed(core: DispatchState, rows: Candidates) -> Iterator[tuple[Gate, Mask]]:
    """Yield each gate that holds any row back, with these rows: the one predicate of dispatch and explain.

    Permits are not here: how many may go is a matter of the whole pass, see `cut`.
    """
    tables = core.tables
    if any(core.window.count[state] for state in core.holding):
        yield Gate.KEY_DELAYED, rows.positions > tables.held_from[rows.hashes]
    if core.tables.revoked_messages:
        yield Gate.REDELIVERY, tables.revoked[rows.hashes] > 0
    if rows.fresh and core.policy.ordered and core.window.count[REPLAY]:
        yield Gate.EARLIER_WAITS, tables.any_replayed(rows.hashes)
    gate = core.policy.gate(tables, core.window, rows)
    if gate is not None:
        yield gate
    if tables.holes or core.shared:
        yield Gate.NO_OWNER, rows.owners == NO_SLOT


def route(core: DispatchState, now: int) -> Assignments:
    """Return everything that can go out now."""
    core.at(now)
    core.counters.waits.read(now)
    nacks.wake(core, now)
    out = Assignments()
    window = core.window
    if core.parked.on:
        parking.collect(core)
    nacks.keep_order(core)
    if core.taken_recheck():
        core.members.starved[:] = False
        if window.count[REPLAY] or window.count[UNORDERED]:
            _pass(core, redelivered(core), out, now, fresh=False)
    if window.count[FRESH]:
        _pass(core, window.rows_fresh(), out, now, fresh=True)
    return out


def redelivered(core: DispatchState) -> Rows:
    """Return the rows that wait to be sent again, or are delayed and due, as far as a dispatch may look at them."""
    rows = core.window.rows_in(REPLAY, UNORDERED)
    return rows[~core.window.unreached(rows)] if core.nack_ordered else rows


def would_send(core: DispatchState) -> int:
    """Return how many messages `route` would send now; changes nothing."""
    count = core.window.count
    if not core.members.allowed or not (count[FRESH] or count[REPLAY] or count[UNORDERED]):
        return 0
    allowance = core.members.allowance()
    total = 0
    for fresh, rows in (
        (False, redelivered(core)),
        (True, core.window.rows_fresh()),
    ):
        candidates = candidates_of(core, rows, allowance, fresh=fresh)
        blocked = closed_rows(closed(core, candidates))
        owners = candidates.owners if blocked is None else candidates.owners[~blocked]
        counts = np.bincount(owners, minlength=len(allowance))
        going = np.minimum(counts, allowance)
        allowance = allowance - going
        total += int(going.sum())
    return total


def reads_not_because(core: DispatchState) -> str:
    """Return the gate that keeps the next messages from being read, a name in REASONS: the first of `explain`."""
    members = core.members
    if not len(members):
        return Gate.NO_OWNER.name.lower()
    if members.all_blocked:
        return UNACKED_LIMIT
    if not members.allowance().any():
        return UNACKED_LIMIT if any(members.blocked[member.slot] for member in members) else NO_PERMITS
    return LOOK_AHEAD_LIMIT if core.waiting >= core.look_ahead_limit() else NOT_READ


def candidates_of(core: DispatchState, rows: Rows | slice, allowance: Counts, *, fresh: bool) -> Candidates:
    """Return rows of the window with their hashes and owners. A Shared subscription deals the owners out here."""
    # As wide as an index: each of them is used as one about ten times.
    hashes = core.window.hash[rows].astype(np.intp)
    owners = deal(core, len(hashes), allowance) if core.shared else core.tables.owner[hashes]
    return Candidates(core.window.position[rows], hashes, owners, fresh)


def closed_rows(gates: Iterable[tuple[Gate, Mask]]) -> Mask | None:
    """Return which candidates a gate holds back, bool, one a row; None: no gate holds any."""
    blocked: Mask | None = None
    for _, mask in gates:
        blocked = mask if blocked is None else blocked | mask
    return blocked if blocked is not None and blocked.any() else None


def reasons_of(core: DispatchState, candidates: Candidates, gates: list[tuple[Gate, Mask]]) -> npt.NDArray[np.uint8]:
    """Return why each candidate waits, index in REASONS: the first gate that holds it back, else its owner."""
    reasons = np.full(len(candidates.hashes), REASONS.index(NO_PERMITS), np.uint8)
    for slot in core.kept.by_slot:
        reasons[candidates.owners == slot] = REASONS.index(GRACE)
    for gate, mask in reversed(gates):
        if gate == Gate.EARLIER_WAITS:
            continue  # for the reason of the earlier one
        reasons[mask] = gate - 1
        if gate == Gate.KEY_DELAYED and mask.any():
            held_from = core.tables.held_from[candidates.hashes[mask]]
            given_back = core.window.position[core.window.rows_in(WAITING)]
            reasons[np.flatnonzero(mask)[np.isin(held_from, given_back)]] = Gate.REDELIVERY - 1
    return reasons


def _pass(core: DispatchState, rows: Rows | slice, out: Assignments, now: int, *, fresh: bool) -> None:
    """Judge `rows`, send what may go, leave the others waiting in the order."""
    allowance = core.members.allowance()
    candidates = candidates_of(core, rows, allowance, fresh=fresh)
    gates = list(closed(core, candidates))
    for gate, mask in gates:  # draining hashes note a real attempt, once a hash and pass (KS-27, KS-33)
        if gate == Gate.DRAINING:
            core.drains.block(core.tables, distinct(candidates.hashes[mask]))
        if gate in (Gate.DRAINING, Gate.RECENTLY_JOINED):
            core.counters.hold_back(int(np.count_nonzero(mask)))
    blocked = closed_rows(gates)
    core.counters.begin_pass()
    picked, left, counts = cut(core, candidates.owners, blocked, allowance)
    total = int(np.add.reduce(counts))
    if core.shared and total < len(candidates.hashes):
        core.members.starved[:] = True
    if fresh:
        _mark_fresh(core, rows, candidates.owners, left, now)
        core.window.none_fresh()
    if len(left):
        kept = left + rows.start if isinstance(rows, slice) else rows[left]
        _note_reasons(core, kept, reasons_of(core, candidates, gates)[left], now, fresh=fresh)
    if total:
        _send(core, rows, candidates, picked, counts, out, now)


def _note_reasons(core: DispatchState, rows: Rows, reasons: npt.NDArray[np.uint8], now: int, *, fresh: bool) -> None:
    """Let rows go on waiting. If the reason of a row has changed, count its wait for the earlier reason."""
    window = core.window
    if not fresh:
        changed = (window.why[rows] != reasons) & ((window.flags[rows] & DELIVERED) == 0)
        rows, reasons = rows[changed], reasons[changed]
        _count_waits(core, rows, now)
    window.wait_for(rows, reasons, now)


def _count_waits(core: DispatchState, rows: Rows, now: int) -> None:
    """End the waits of rows for their present reason, and count them."""
    window = core.window
    rows = rows[window.why[rows] != NO_REASON]
    core.counters.waits.end(window.why[rows], now - window.why_since[rows])


def _mark_fresh(core: DispatchState, rows: Rows | slice, owners: Reduced, left: npt.NDArray[np.intp], now: int) -> None:
    """Give the rows that were read forward to their owners, all except `left`.

    The rows of `left` wait with their place in the order (KS-37.3). As they are few, all rows are marked as sent, in
    the order in which they lie, and then these are taken back.
    """
    window = core.window
    window.since[rows] = now
    window.move(rows, len(owners) - len(left), FRESH, PENDING)
    window.consumer[rows] = owners
    window.flags[rows] = DELIVERED | SENT
    if len(left) == 0:
        return
    kept = left + rows.start if isinstance(rows, slice) else rows[left]
    window.move(kept, len(kept), FRESH, REPLAY)
    window.consumer[kept] = NO_SLOT
    window.flags[kept] = 0
    core.queue(kept)


def cut(
    core: DispatchState, owners: Reduced, blocked: Mask | None, allowance: Counts
) -> tuple[npt.NDArray[np.intp] | None, npt.NDArray[np.intp], Counts]:
    """Sort by owner, keep the order within, and cut each owner's part at its permits; blocked rows go to nobody.

    Returns the rows that go, sorted by slot (None: all, as they are), those that stay, and how many go to each slot.
    """
    slots = len(allowance)
    if blocked is not None:
        # One more owner behind all others, so that one sort puts the rows aside.
        owners = np.where(blocked, np.uint16(slots), owners)
    every = np.bincount(owners, minlength=slots)
    counts = every[:slots]
    over = counts > allowance
    enough = not np.count_nonzero(over)
    if enough and (not len(owners) or (owners[0] < slots and counts[owners[0]] == len(owners))):
        return None, _NO_ROWS, counts
    order = np.argsort(owners.astype(np.uint8) if len(every) <= 256 else owners, kind="stable")
    if enough:
        total = int(counts.sum())
        return order[:total], order[total:], counts
    core.members.note_starved(over)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(every) - every, every)
    most = np.append(allowance, 0) if len(every) > slots else allowance
    goes = rank < np.repeat(most, every)
    return order[goes], order[~goes], np.minimum(counts, allowance)


def _send(
    core: DispatchState,
    rows: Rows | slice,
    candidates: Candidates,
    picked: npt.NDArray[np.intp] | None,
    counts: Counts,
    out: Assignments,
    now: int,
) -> None:
    """Send messages: change counts, tables and sentinel, and add one assignment for each consumer."""
    window = core.window
    if picked is None:
        slots, hashes, positions = candidates.owners, candidates.hashes, candidates.positions.copy()
    else:
        slots = np.repeat(np.arange(len(counts), dtype=np.uint16), counts)
        hashes, positions = candidates.hashes[picked], candidates.positions[picked]
    redeliveries = NO_REDELIVERIES
    if candidates.fresh:
        core.sentinel.sent(slots, hashes, positions, None)
    else:
        chosen = _all(rows) if picked is None else _all(rows)[picked]
        flags = window.flags[chosen] & (DELIVERED | DUE)
        core.sentinel.sent(slots, hashes, positions, flags == 0, placed=(flags & DUE) == 0)
        _take_from_queue(core, chosen)
        _count_waits(core, chosen[flags & DELIVERED == 0], now)
        window.consumer[chosen] = slots
        window.flags[chosen] |= DELIVERED | SENT
        window.since[chosen] = now
        if window.redelivered:
            redeliveries = window.redelivery[chosen]
    core.tables.sent(hashes, slots)
    core.members.count_sent(counts)
    core.settle_limits()
    _assign(core, positions, redeliveries, counts, out, now)


def _all(rows: Rows | slice) -> Rows:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def _take_from_queue(core: DispatchState, rows: Rows) -> None:
    state = core.window.state[rows]
    for before in (REPLAY, UNORDERED):
        mine = rows[state == before]
        if before == REPLAY:
            core.unqueue(mine)
        core.window.move(mine, len(mine), before, PENDING)


def _assign(
    core: DispatchState,
    positions: Positions,
    redeliveries: npt.NDArray[np.uint8],
    counts: Counts,
    out: Assignments,
    now: int,
) -> None:
    """Record which consumer gets which of the rows, which are sorted by slot."""
    members = core.members
    to = counts.nonzero()[0]
    members.last_sent[to] = now
    if not np.count_nonzero(redeliveries):
        redeliveries = NO_REDELIVERIES
    dispatch = core.counters.dispatch(len(positions))
    share = Share(members.numbers[to], counts.cumsum()[to], positions, redeliveries, dispatch)
    out.shares.append(share)


def deal(core: DispatchState, count: int, allowance: Counts) -> Reduced:
    """Return owners in a Shared subscription for `count` rows: the lowest priority number first, each a fair share."""
    owners: Reduced = np.full(count, NO_SLOT, np.uint16)
    left = allowance.copy()
    done = 0
    for priority in sorted({member.priority for member in core.members}):
        level = [member.slot for member in core.members if member.priority == priority]
        shift = core.counters.passes % len(level)
        level = level[shift:] + level[:shift]
        while done < count and (level := [slot for slot in level if left[slot] > 0]):
            for at, slot in enumerate(level):
                share = min(int(left[slot]), -(-(count - done) // (len(level) - at)))
                owners[done : done + share] = slot
                left[slot] -= share
                done += share
    return owners

"""The two ends of a message's time in the window: it comes, and it is done.

Messages come in three ways: they are read forward, they are due, or a consumer that holds them from an earlier owner
names them.

**Acknowledgements.** A consumer reports about a thousand messages at a time, and with hundreds of consumers such
reports make up most of the calls. What one of them changes (counts by hash, by consumer and by state) nobody looks at
before the next routing or the next question. So `KeySharedDispatcher` gathers the reports and brings all of them in
together before anything else happens: the cost is then by message, hardly by report.

A consumer's report is ascending, so putting many in order is a merge; a message that several consumers report counts
once, for the first of them.
"""

from __future__ import annotations

import numpy as np

from sluice.actors.key_shared.state import nacks, parking
from sluice.actors.key_shared.state.claims import claim_all, finish_claims
from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.key_shared.state.members import AttachedConsumer
from sluice.actors.key_shared.state.policies import held_elsewhere
from sluice.actors.key_shared.state.window import (
    DELIVERED,
    DONE,
    DUE,
    FRESH,
    HELD,
    PENDING,
    REMOVED,
    REPLAY,
    UNORDERED,
    Mask,
    Rows,
)
from sluice.actors.messages import NO_POSITIONS
from sluice.storage.errors import InvariantViolation
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions, show


def append(core: DispatchState, positions: Positions, hashes: Hashes, delayed: Mask | None, appended: int) -> None:
    window = core.window
    if len(positions) == 0:
        return
    if int(positions[0]) <= window.last_read:
        raise InvariantViolation(f"{show(int(positions[0]))} was read after {show(window.last_read)}")
    window.read_up_to(int(positions[-1]))
    if core.nack_ordered:
        core.look_again()
    _add(core, positions, hashes, FRESH, 0)
    core.counters.waits.came(len(positions) - (0 if delayed is None else int(np.count_nonzero(delayed))), appended)
    if delayed is not None and delayed.any():
        if not core.holds_keys:
            raise InvariantViolation("delayed messages were read into a subscription in which they hold no keys")
        rows = window.find(positions[delayed])
        core.hold(rows[window.state[rows] == FRESH])


def due(core: DispatchState, positions: Positions, hashes: Hashes) -> None:
    window = core.window
    if len(positions) == 0:
        return
    positions, first = np.unique(positions, return_index=True)
    if window.count[HELD]:
        rows = window.find(positions)
        rows = rows[window.state[rows] == HELD]
        # What was read and not offered yet may lie before them: then all of it waits, and goes out by position.
        core.move_waiting(window.rows_in(FRESH), FRESH, REPLAY)
        window.since[rows] = core.now
        core.move_waiting(rows, HELD, REPLAY)
    _add(core, positions, hashes[first], UNORDERED, DUE)
    core.look_again()


def bring(core: DispatchState, member: AttachedConsumer, positions: Positions, hashes: Hashes) -> None:
    if len(member.finished):
        member.unclaim(np.setdiff1d(member.finished, positions))
    mine = np.full(len(positions), member.slot, np.uint16)
    wanted = np.isin(positions, member.claims)
    wanted &= ~held_elsewhere(core.window, core.reduce(hashes), mine)
    positions, hashes = positions[wanted], hashes[wanted]
    # What was done here while the topic was asked has left a hole in the window, which becomes its row again.
    rows, _ = core.window.locate(positions)
    core.window.revive(rows[core.window.state[rows] == DONE], UNORDERED)
    if len(positions):
        _add(core, positions, hashes, FRESH, 0)


def _add(core: DispatchState, positions: Positions, hashes: Hashes, state: int, flags: int) -> None:
    window = core.window
    if core.parked.on and core.parked.live:
        new = ~core.parked.contains(positions)
        positions, hashes = positions[new], hashes[new]
        if not len(positions):
            return
    behind = window.tail == window.head or bool(positions[0] > window.position[window.tail - 1])
    if not behind:
        new = np.isin(positions, window.position[window.rows_live()], invert=True)
        positions, hashes = positions[new], hashes[new]
    # What was read, and put off to a later time then, has left a hole in the window, which becomes its row again.
    add = window.add if behind else window.put
    add(positions, hashes, core.reduce(hashes), state, flags, core.now)
    nacks.recall(core, positions)
    claimed = bool(core.members.claiming())
    if claimed:
        claim_all(core)
    if claimed or not behind:
        nacks.revoke(core)


def acknowledge(core: DispatchState, positions: Positions, consumer: int | None) -> Positions:
    """Mark messages as done, and return those that were here, ascending, each once."""
    done, unread = _acknowledge(core, positions)
    _credit(core, consumer, len(done) + len(unread))
    core.window.trim()
    return done


def acknowledge_all(core: DispatchState, reports: list[tuple[Positions, int | None]]) -> None:
    """Do the same for many reports (positions in any order, consumer) at once."""
    if len(reports) == 1:
        acknowledge(core, *reports[0])
        return
    positions = np.concatenate([report[0] for report in reports])
    positions.sort()
    done, unread = _acknowledge(core, positions)
    if len(unread):
        done = np.union1d(done, unread)
    if len(done) == len(positions):
        for reported, consumer in reports:
            _credit(core, consumer, len(reported))
    else:
        for reported, consumer in reports:
            mine = np.isin(done, reported)
            _credit(core, consumer, int(np.count_nonzero(mine)))
            done = done[~mine]
    core.window.trim()


def _acknowledge(core: DispatchState, positions: Positions) -> tuple[Positions, Positions]:
    """Return the messages that were in the window, and those that consumers held before they were read again.

    Both are ascending, and each message comes once.
    """
    if core.parked.on:
        parking.forget(core, positions)
    window = core.window
    rows, done = window.locate(positions)
    core.carried.discard(positions)
    unread = NO_POSITIONS
    if claiming := core.members.claiming():
        unread = np.unique(np.concatenate([member.unclaim(positions) for member in claiming]))
    state = window.state[rows]
    held = state == PENDING
    pending = rows
    if np.count_nonzero(held) < len(held):
        pending = rows[held]
        _drop_waiting(core, rows[~held & (state != DONE)])
        done = done[state != DONE]
    elif done is positions:
        done = done.copy()
    core.release(pending, DONE)
    return done, unread


def _drop_waiting(core: DispatchState, rows: Rows) -> None:
    """Drop done messages that no consumer holds: some had been given back, others were perhaps never sent."""
    if core.policy.ordered and bool((core.window.flags[rows] & DELIVERED == 0).any()):
        core.note_done_unsent()
    core.drop(rows)


def remove(core: DispatchState, positions: Positions | None, up_to: int | None) -> None:
    window = core.window
    if positions is None:
        parking.forget_up_to(core, up_to)
    else:
        parking.forget(core, positions)
    rows = window.rows_live() if positions is None else window.find(positions)
    if up_to is not None:
        rows = rows[window.position[rows] <= up_to]
    held = window.state[rows] == PENDING
    core.drop(rows[~held])
    if core.policy.ordered:
        window.flags[rows[held]] |= REMOVED
    else:
        core.release(rows[held], DONE)
    for member in core.members:
        claims = member.claims
        gone = claims if positions is None else claims[np.isin(claims, positions)]
        finish_claims(core, member, gone if up_to is None else gone[gone <= up_to])
    if positions is None and up_to is None:
        core.carried.clear()
    window.trim()


def _credit(core: DispatchState, consumer: int | None, count: int) -> None:
    if consumer in core.members.by_number:
        core.members.by_number[consumer].count_acked(count)

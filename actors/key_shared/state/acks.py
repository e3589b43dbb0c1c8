"""Acknowledgements: messages are done, one report at a time or many reports in one pass.

A consumer reports about a thousand messages at a time, and with hundreds of consumers such reports make up most of
the calls. What one of them changes (counts by hash, by consumer and by state) nobody looks at before the next routing
or the next question. So `KeySharedDispatcher` gathers the reports and brings all of them in together before anything
else happens: the cost is then by message, hardly by report.

A consumer's report is ascending, so putting many in order is a merge; a message that several consumers report counts
once, for the first of them.
"""

from __future__ import annotations

import numpy as np

from sluice.actors.key_shared.state import parking
from sluice.actors.key_shared.state.claims import finish_claims
from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.key_shared.state.position_table import DONE, Rows
from sluice.actors.key_shared.state.window import DELIVERED, PENDING, REMOVED
from sluice.actors.messages import NO_POSITIONS
from sluice.storage.format.position import Positions


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

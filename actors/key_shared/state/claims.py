"""Messages that consumers hold from before a change of owner.

A consumer that comes back says which positions it holds. Until they are read they are its `claims`; then they are rows
that it holds.
"""

from __future__ import annotations

import numpy as np

from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.key_shared.state.members import AttachedConsumer
from sluice.actors.key_shared.state.policies import held_elsewhere
from sluice.actors.key_shared.state.window import (
    DEAD,
    DELIVERED,
    DUE,
    FRESH,
    HELD,
    PENDING,
    REMOVED,
    REPLAY,
    SENT,
    UNORDERED,
    WAITING,
)
from sluice.storage.format.position import Positions


def claim(core: DispatchState, member: AttachedConsumer) -> None:
    """Give a consumer what it claims, as far as that was read.

    A row stays unclaimed if it, or a message of its hash, is already with another consumer: claiming it would
    put one key at two consumers. It is then sent again in its turn, which is a duplicate and allowed. What is done
    already is never sent again; as long as the consumer holds it, it keeps its key there (KS-45).
    """
    window, tables = core.window, core.tables
    rows = window.find(member.claims)
    if len(rows) == 0:
        return
    state, over = window.state[rows], np.isin(window.position[rows], member.finished)
    member.unclaim(window.position[rows])
    mine = (state != PENDING) & (state != DEAD)
    if core.policy.ordered:
        mine &= ~held_elsewhere(window, window.hash[rows], np.full(len(rows), member.slot, np.uint16))
    core.drop(rows[over & ~mine & (state != PENDING)])
    rows, over = rows[mine], over[mine]
    if len(rows) == 0:
        return
    state = window.state[rows]
    for before in (FRESH, REPLAY, UNORDERED, WAITING, HELD):
        core.move_waiting(rows[state == before], before, PENDING)
    hashes = window.hash[rows]
    slots = np.full(len(rows), member.slot, np.uint16)
    core.sentinel.note_held(slots, hashes, window.position[rows], (window.flags[rows] & DUE) == 0)
    window.consumer[rows] = member.slot
    window.since[rows] = core.now
    window.flags[rows] |= DELIVERED | SENT
    window.flags[rows[over]] |= REMOVED
    tables.sent(hashes, slots)
    tables.recount()
    core.drains.owners_changed(tables, core.now)
    core.members.count_claimed(member.slot, len(rows))
    core.settle_limits()


def claim_all(core: DispatchState) -> None:
    """Claim rows that were added for the consumers that hold them."""
    for member in core.members.claiming():
        claim(core, member)


def finish_claims(core: DispatchState, member: AttachedConsumer, positions: Positions) -> None:
    """Note that some claims of a consumer are done. They keep their keys only in an ordered subscription."""
    if len(positions) == 0:
        return
    if core.policy.ordered:
        member.finish(positions)
    else:
        member.unclaim(positions)

"""Which messages wait for their first delivery, and by which gate: the same gates as the dispatch, without reasons."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.state.dispatch_pass import candidates_of, closed
from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.key_shared.state.policies import Gate
from sluice.actors.key_shared.state.window import DEAD, DELIVERED, FRESH, HELD, REPLAY, UNORDERED, WAITING
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions

NO_PERMITS, SET_ASIDE, GRACE = "no_permits", "parked_or_dead", "grace"
REDELIVERY = Gate.REDELIVERY.name.lower()
REASONS = (*(gate.name.lower() for gate in Gate), NO_PERMITS, SET_ASIDE, GRACE)
"""Why a message may wait, by the numbers in `WaitingMessages`."""


class WaitingMessages(NamedTuple):
    """One row a message that was never sent, each of shape (n,). hashes: masked, uint32. owners: number of the consumer
    that should get it, int64, 0 for nobody. reasons: index in REASONS, uint8. holders: number of the consumer whose
    messages hold a draining hash, int64, 0 for another reason.
    """

    positions: Positions
    hashes: Hashes
    owners: npt.NDArray[np.int64]
    reasons: npt.NDArray[np.uint8]
    holders: npt.NDArray[np.int64]


def waiting(core: DispatchState) -> WaitingMessages:
    """All that wait, and the first gate that holds each."""
    window = core.window
    rows = window.rows_in(FRESH, REPLAY, UNORDERED, HELD, WAITING, DEAD)
    rows = rows[(window.flags[rows] & DELIVERED) == 0]
    reasons = np.full(len(rows), REASONS.index(NO_PERMITS), np.uint8)
    candidates = candidates_of(core, rows, core.members.allowance(), fresh=False)
    for slot in core.kept.by_slot:
        reasons[candidates.owners == slot] = REASONS.index(GRACE)
    for gate, mask in reversed(list(closed(core, candidates))):
        reasons[mask] = REASONS.index(gate.name.lower())
        if gate == Gate.KEY_DELAYED and mask.any():
            held_from = core.tables.held_from[candidates.hashes[mask]]
            given_back = window.position[window.rows_in(WAITING)]
            reasons[np.flatnonzero(mask)[np.isin(held_from, given_back)]] = REASONS.index(REDELIVERY)
    state = window.state[rows]
    reasons[(state == HELD) | (state == WAITING)] = REASONS.index(Gate.KEY_DELAYED.name.lower())
    reasons[state == DEAD] = REASONS.index(SET_ASIDE)
    # A row behind the slots is nobody's.
    numbers = np.append(core.members.numbers, 0)
    owners = numbers[np.minimum(candidates.owners, len(numbers) - 1)]
    drains = reasons == REASONS.index(Gate.DRAINING.name.lower())
    holders = np.zeros(len(rows), np.int64)
    holders[drains] = numbers[core.tables.holders(candidates.hashes[drains])]
    return WaitingMessages(window.position[rows], window.masked_hash[rows], owners, reasons, holders)


def positions_of(core: DispatchState, key_hash: int) -> Positions:
    """Positions of the messages of a masked hash that are not done, ascending."""
    found = []
    for table in (core.window, core.parked.table):
        rows = table.rows_live()
        found.append(table.position[rows[table.masked_hash[rows] == key_hash]])
    positions: Positions = np.sort(np.concatenate(found))
    return positions

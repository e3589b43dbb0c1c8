"""The messages that wait for their first delivery, and by which gate: the gates of the dispatch, without reasons."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.state.dispatch_pass import candidates_of, closed, reasons_of
from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.key_shared.state.policies import (
    REASONS,
    SET_ASIDE,
    Gate,
)
from sluice.actors.key_shared.state.window import DEAD, DELIVERED, FRESH, HELD, REPLAY, UNORDERED, WAITING
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions


class WaitingMessages(NamedTuple):
    """The messages that were never sent, one row each, shape (n,).

    hashes: masked, uint32. owners: number of the consumer that should get it, int64, 0 for none. reasons: index in
    REASONS, uint8. holders: number of the consumer whose messages hold a draining hash, int64, 0 for another reason.
    """

    positions: Positions
    hashes: Hashes
    owners: npt.NDArray[np.int64]
    reasons: npt.NDArray[np.uint8]
    holders: npt.NDArray[np.int64]


def waiting(core: DispatchState) -> WaitingMessages:
    """Return all messages that wait, and the first gate that holds each."""
    window = core.window
    rows = window.rows_in(FRESH, REPLAY, UNORDERED, HELD, WAITING, DEAD)
    rows = rows[(window.flags[rows] & DELIVERED) == 0]
    candidates = candidates_of(core, rows, core.members.allowance(), fresh=False)
    reasons = reasons_of(core, candidates, list(closed(core, candidates)))
    state = window.state[rows]
    reasons[(state == HELD) | (state == WAITING)] = Gate.KEY_DELAYED - 1
    reasons[state == DEAD] = REASONS.index(SET_ASIDE)
    # A row behind the slots is nobody's.
    numbers = np.append(core.members.numbers, 0)
    owners = numbers[np.minimum(candidates.owners, len(numbers) - 1)]
    drains = reasons == Gate.DRAINING - 1
    holders = np.zeros(len(rows), np.int64)
    holders[drains] = numbers[core.tables.holders(candidates.hashes[drains])]
    return WaitingMessages(window.position[rows], window.masked_hash[rows], owners, reasons, holders)


def positions_of(core: DispatchState, key_hash: int) -> Positions:
    """Return positions of the messages of a masked hash that are not done, ascending."""
    found = []
    for table in (core.window, core.parked.table):
        rows = table.rows_live()
        found.append(table.position[rows[table.masked_hash[rows] == key_hash]])
    positions: Positions = np.sort(np.concatenate(found))
    return positions

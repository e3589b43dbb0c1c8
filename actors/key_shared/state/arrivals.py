"""Messages come into the window: read forward, due, or named by a consumer that holds them from an earlier owner."""

from __future__ import annotations

import numpy as np

from sluice.actors.key_shared.state import nacks, revocation
from sluice.actors.key_shared.state.claims import claim_all
from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.key_shared.state.members import AttachedConsumer
from sluice.actors.key_shared.state.policies import held_elsewhere
from sluice.actors.key_shared.state.position_table import DONE
from sluice.actors.key_shared.state.window import DUE, FRESH, HELD, REPLAY, UNORDERED, Mask
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
    if core.parked.live:
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
    claim_all(core)
    if claimed or not behind:
        revocation.revoke(core)

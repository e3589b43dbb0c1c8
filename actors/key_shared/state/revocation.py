"""Revocation (`nack_order=key`): a returned message goes out again before later ones, which are asked back.

Three rules ensure that, for every way in which a message comes back (negative acknowledgement, redelivery of all, a
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

import numpy as np

from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.key_shared.state.members import AttachedConsumer
from sluice.actors.key_shared.state.position_table import Rows
from sluice.actors.key_shared.state.window import (
    DEAD,
    DUE,
    EXAMINED,
    FRESH,
    HELD,
    OVERTOOK,
    PENDING,
    REMOVED,
    REPLAY,
    REVOKED,
    WAITING,
)
from sluice.actors.messages import NO_POSITIONS
from sluice.storage.format.hashing import HASH_RANGE
from sluice.storage.format.position import Positions

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

"""Answers what would happen if consumers came or left: a copy of the selector tries it, and nothing changes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from sluice.actors.key_shared.observe.explain import owner_name
from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.storage.errors import Invalid, NotFound
from sluice.storage.format.hashing import HASH_RANGE

MOST_POINTS = 100_000
"""Points on the ring that may be added: a quarter of a second, in which the broker does nothing else."""


def what_if(core: DispatchState, add: int, remove: Sequence[str]) -> dict[str, Any]:
    """Count the hashes that would move if consumers came or left, and those that would drain; give the fewest possible.

    Consumers are removed by name, or by `name#number`. Nothing changes. Raises NotFound for an unknown name.
    """
    if core.settings.type != "key_shared" or core.settings.selector == "sticky":
        raise Invalid("what_if is for Key_Shared subscriptions whose selector divides the hashes itself")
    if core.settings.selector == "consistent_hashing" and add * core.settings.replica_points > MOST_POINTS:
        most = MOST_POINTS // core.settings.replica_points
        raise Invalid(f"{add} consumers with {core.settings.replica_points} points each: ask for at most {most}")
    trial = copy.deepcopy(core.selector)
    leaving = {member.number for name in remove for member in _named(core, name)}
    slot = core.members.slots
    for number in range(add):
        trial.add(slot + number, f"new-{number + 1}")
    for member in core.members:
        if member.number in leaving:
            trial.remove(member.slot)
    before, after = core.tables.owner[1:], trial.owners()[1:]
    moved = before != after
    pending, holder = core.tables.pending[1:], core.tables.holder[1:]
    would_drain = moved & (pending > 0) & (holder != after)
    gone = np.isin(holder, [m.slot for m in core.members if m.number in leaving])
    would_drain &= ~gone
    holders, pending = holder[would_drain], pending[would_drain]
    left = len(core.members) - len(leaving) + add
    return {
        "consumers": left,
        "hashes_moved": int(moved.sum()),
        "hashes_moved_at_least": _least_moved(core, leaving, add),
        "hashes_draining": int(would_drain.sum()),
        "pending_by_holder": {
            owner_name(core, int(slot)): int(pending[holders == slot].sum()) for slot in np.unique(holders)
        },
    }


def _least_moved(core: DispatchState, leaving: set[int], add: int) -> int:
    """Return the fewest hashes that any even division moves: all of the leavers', and the newcomers' fair share."""
    total = HASH_RANGE - 1
    owner = core.tables.owner[1:]
    stay = [member for member in core.members if member.number not in leaving]
    orphaned = total - sum(int((owner == member.slot).sum()) for member in stay)
    share = total * add // max(len(stay) + add, 1)
    return max(orphaned, share)


def _named(core: DispatchState, name: str) -> list[Any]:
    found = [member for member in core.members if name in (member.name, f"{member.name}#{member.number}")]
    if not found:
        raise NotFound(f"no connected consumer is called {name!r}")
    return found

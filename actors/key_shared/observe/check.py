"""Checks the state: counts everything again from the rows alone, and compares with the running counts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.state import parking
from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.key_shared.state.tables import NOTHING_HELD
from sluice.actors.key_shared.state.window import (
    DONE,
    DUE,
    FRESH,
    HELD,
    NO_SLOT,
    PENDING,
    REPLAY,
    REVOKED,
    STATES,
    UNORDERED,
    WAITING,
    Reduced,
)
from sluice.storage.errors import InvariantViolation
from sluice.storage.format.hashing import HASH_RANGE
from sluice.storage.format.position import Positions


def check(core: DispatchState) -> None:
    """Raise InvariantViolation on any difference; costs a few passes over the window."""
    window, tables, members = core.window, core.tables, core.members
    view = slice(window.head, window.tail)
    state = window.state[view]
    counts = np.bincount(state, minlength=len(STATES)).tolist()
    for kind, name in enumerate(STATES):
        if kind != DONE and counts[kind] != window.count[kind]:
            raise InvariantViolation(f"{counts[kind]} rows are {name}, the count says {window.count[kind]}")
    if not (np.diff(window.position[view]) > 0).all():
        raise InvariantViolation("the window is not ascending")
    hashes, holders = window.hash[view], window.consumer[view]
    held = state == PENDING
    _same("pending", np.bincount(hashes[held], minlength=HASH_RANGE), tables.pending)
    _same("replayed", np.bincount(hashes[state == REPLAY], minlength=HASH_RANGE), tables.replayed)
    if len(tables.held_from):
        held_from = np.full(HASH_RANGE, NOTHING_HELD)
        holding = np.isin(state, core.holding)
        np.minimum.at(held_from, hashes[holding], window.position[view][holding])
        _same("held_from", held_from, tables.held_from)
    if core.nack_ordered:
        _check_revoked(core, hashes, window.position[view], state)
    parking.Parking(core).check()
    slots = max(members.slots, 1)
    _same("allowance", members.count_allowance(), members.allowance())
    _same("unacked", np.bincount(holders[held], minlength=slots)[: members.slots], members.unacked)
    for slot in np.unique(holders[held]):
        if slot == NO_SLOT or members.by_slot[int(slot)] is None:
            raise InvariantViolation(f"rows are pending at slot {slot}, where nobody is")
    if core.sentinel.held != int(held.sum()):
        raise InvariantViolation(f"the sentinel knows of {core.sentinel.held} messages sent, {int(held.sum())} are")
    if int(tables.draining_mask().sum()) != tables.draining:
        raise InvariantViolation(f"{int(tables.draining_mask().sum())} hashes drain, the count says {tables.draining}")
    if not (tables.draining_mask() == tables.drains).all():
        raise InvariantViolation("the set of draining hashes is not what its definition says")
    _check_owners(core)
    if members.with_news() != [each.number for each in members if each.has_news]:
        raise InvariantViolation("consumers have news that they would not be told")
    if core.policy.strict and not (tables.holder[hashes[held]] == holders[held]).all():
        raise InvariantViolation("a hash is pending at two consumers")


def _check_revoked(core: DispatchState, hashes: Reduced, positions: Positions, state: npt.NDArray[np.uint8]) -> None:
    """Check that exactly the messages behind one that waits, or did when they were asked back, are revoked."""
    window = core.window
    flags = window.flags[window.head : window.tail]
    revoked = (state == PENDING) & ((flags & REVOKED) != 0)
    _same("revoked", np.bincount(hashes[revoked], minlength=HASH_RANGE), core.tables.revoked)
    if int(revoked.sum()) != core.tables.revoked_messages:
        raise InvariantViolation(
            f"{int(revoked.sum())} rows are revoked, not {core.tables.revoked_messages} as counted"
        )
    if ((state != PENDING) & ((flags & REVOKED) != 0) & (state != DONE)).any():
        raise InvariantViolation("a row is revoked that is with nobody")
    first = np.full(HASH_RANGE, NOTHING_HELD)
    waits = np.isin(state, (FRESH, REPLAY, WAITING, HELD))
    np.minimum.at(first, hashes[waits], positions[waits])
    placed = (flags & DUE) == 0
    if ((state == PENDING) & ~revoked & placed & (positions > first[hashes])).any():
        raise InvariantViolation("a row is out, and not revoked, behind one of its hash that waits")
    if ((state == UNORDERED) & placed).any():
        raise InvariantViolation("a row that was given back has no place in the order")


def _check_owners(core: DispatchState) -> None:
    _same("owner", core.selector.owners().astype(np.int64), core.tables.owner)
    for slot in np.unique(core.tables.owner[1:]).tolist():
        if slot != NO_SLOT and core.members.by_slot[slot] is None:
            raise InvariantViolation(f"slot {slot} owns hashes, and nobody is there")


def _same(what: str, counted: np.ndarray, kept: np.ndarray) -> None:
    wrong = np.flatnonzero(counted != kept)
    if len(wrong):
        at = int(wrong[0])
        raise InvariantViolation(f"{what}[{at}] is {int(counted[at])} by the rows, {int(kept[at])} by the count")

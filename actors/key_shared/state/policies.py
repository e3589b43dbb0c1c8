"""The four policies by which Pulsar has kept, or failed to keep, the order of keys, behind one interface.

A policy owns one gate: given rows with their hashes and owners, which of them may not go to their owner yet?

* `DrainingHashes` (PIP-379): a hash waits while another consumer holds unacknowledged messages of it. Only such
  hashes wait.
* `RecentlyJoined` with `LAST_SENT` (PIP-282): a consumer that joined while messages were unacknowledged may get only
  what had been sent, up to some position, before it came, until all of that is acknowledged. One stuck message
  holds the newcomer back for all keys (LS-8).
* `RecentlyJoined` with `READ` (before PIP-282): the same with the read position in place of the last sent one. Its
  two published defects follow from that (a message may be read, but not sent, when a consumer joins) and are kept, so
  that the verifier has something to find.
* `Unordered`: no gate (Shared, and `allow_out_of_order_delivery`).

`remember_unacked_keys` (PIP-319) lets a recently joined consumer have messages above its position after all, when
nobody else holds unacknowledged messages of their hash (RK-3). Under draining hashes it has no effect (RK-4).

A new owner of the subscription does not know who had joined recently, and to it all consumers are new. In Pulsar they
lose what they hold then. Here they keep it, so `RecentlyJoined` holds back what belongs to a hash of which another
consumer has messages, until all that consumers brought is acknowledged. Otherwise both flows of PIP-282 would be out of
order again.

The gate is asked by the dispatch and by `explain`; there is no second copy of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Protocol

import numpy as np

from sluice.actors.key_shared.state.tables import HashTables
from sluice.actors.key_shared.state.window import (
    FRESH,
    HELD,
    NO_SLOT,
    PENDING,
    REPLAY,
    SENT,
    HashIndex,
    Mask,
    Reduced,
    Window,
)
from sluice.storage.errors import Invalid
from sluice.storage.format.hashing import HASH_RANGE
from sluice.storage.format.position import EARLIEST, Positions, entry_of, show


class Gate(IntEnum):
    """The reasons that hold a message back from its owner, in order of precedence for an explanation."""

    KEY_DELAYED = 1
    REDELIVERY = 2
    EARLIER_WAITS = 3
    DRAINING = 4
    RECENTLY_JOINED = 5
    NO_OWNER = 6


@dataclass(slots=True)
class Candidates:
    """Rows that ask to be sent, ascending by position. fresh: read forward, as opposed to waiting for redelivery."""

    positions: Positions
    hashes: HashIndex
    owners: Reduced
    fresh: bool


NO_PERMITS, SET_ASIDE, GRACE, NOT_READ = "no_permits", "parked_or_dead", "grace", "not_read"
NEW_OWNER, UNACKED_LIMIT, LOOK_AHEAD_LIMIT = "new_owner_waits_for_leases", "unacked_limit", "look_ahead_limit"
REASONS = (
    *(gate.name.lower() for gate in Gate),
    *(NO_PERMITS, SET_ASIDE, GRACE, NOT_READ, NEW_OWNER, UNACKED_LIMIT, LOOK_AHEAD_LIMIT),
)
"""Why a message may wait for its first delivery; columns have the numbers of these."""


class Policy(Protocol):
    """The differences between the policies."""

    ordered: bool
    """A message waits behind an earlier one of its hash that waits for redelivery."""
    strict: bool
    """The policy promises that no key is at two consumers and that first deliveries rise; breaking it is fatal."""

    def gate(self, tables: HashTables, window: Window, rows: Candidates) -> tuple[Gate, Mask] | None:
        """Which rows may not go to their owner, bool, one a row; None: all may."""

    def joined(self, slot: int, others: int, window: Window, last_read: int) -> None:
        """A consumer joined `others` others. last_read: highest position read forward."""

    def left(self, slot: int, remaining: int) -> None:
        """A consumer left."""

    def brought(self, position: int) -> None:
        """A consumer holds messages from before a change of owner, the last of them at this position."""

    def remembers(self) -> bool:
        """An acknowledgement alone may open the gate."""

    def marked(self, position: int) -> bool:
        """Everything up to `position` is acknowledged; True if that opened the gate for a consumer."""


class DrainingHashes:
    """The policy of PIP-379: a hash waits while another consumer than its owner has messages of it."""

    ordered = True
    strict = True

    def gate(self, tables: HashTables, window: Window, rows: Candidates) -> tuple[Gate, Mask] | None:
        """Rows whose hash is draining at another consumer than their owner."""
        if tables.draining == 0:
            return None
        return Gate.DRAINING, tables.drains[rows.hashes]

    def joined(self, slot: int, others: int, window: Window, last_read: int) -> None:
        """Nothing to remember: draining is derived."""

    def left(self, slot: int, remaining: int) -> None:
        """Nothing to forget."""

    def brought(self, position: int) -> None:
        """It drains like everything else."""

    def remembers(self) -> bool:
        """Draining has its own count."""
        return False

    def marked(self, position: int) -> bool:
        """No gate depends on the mark-delete position."""
        return False


class Unordered(DrainingHashes):
    """Shared, and `allow_out_of_order_delivery`: no gate at all (KS-32)."""

    ordered = False
    strict = False

    def gate(self, tables: HashTables, window: Window, rows: Candidates) -> tuple[Gate, Mask] | None:
        """Everything may go."""
        return None


class JoinPosition(Enum):
    """Which position is remembered for a consumer when it joins."""

    LAST_SENT = "last_sent_position"
    READ = "read_position"


class RecentlyJoined:
    """PIP-282 and what was before it: `recent` maps a slot to the highest position that it may get."""

    ordered = True
    strict = False

    def __init__(self, which: JoinPosition, *, remember_unacked_keys: bool = False) -> None:
        self.which = which
        self.remember_unacked_keys = remember_unacked_keys
        self.recent: dict[int, int] = {}
        self.mark_delete = self._brought = EARLIEST

    def gate(self, tables: HashTables, window: Window, rows: Candidates) -> tuple[Gate, Mask] | None:
        """Rows above the position of their owner, if that is a recently joined one (LS-6), and rows of which another
        consumer may hold earlier ones since an earlier owner.
        """
        above = self._above(window, rows) if self.recent else None
        if self.keeps_brought:
            held = held_elsewhere(window, rows.hashes, rows.owners)
            above = held if above is None else above | held
        return None if above is None else (Gate.RECENTLY_JOINED, above)

    def _above(self, window: Window, rows: Candidates) -> Mask:
        limits = np.full(HASH_RANGE, np.iinfo(np.int64).max, np.int64)
        for slot in self.recent:
            _, limits[slot] = self.limit(slot, fresh=rows.fresh)
        above: Mask = rows.positions > limits[rows.owners]
        if self.remember_unacked_keys and above.any():
            above &= held_elsewhere(window, rows.hashes, rows.owners)
        return above

    @property
    def keeps_brought(self) -> bool:
        """Whether something that consumers hold from before a change of owner may not be acknowledged yet."""
        return self._brought > self.mark_delete

    def limit(self, slot: int, *, fresh: bool) -> tuple[int, int]:
        """The highest position that a recently joined consumer may get, behind the slot of whose joining that is.

        What waits for redelivery may be held back on account of another newcomer that came before this one.
        """
        whose = slot if fresh else min((slot, *self.recent), key=self.recent.__getitem__)
        return whose, self.recent[whose]

    def joined(self, slot: int, others: int, window: Window, last_read: int) -> None:
        """Remember the position if there are other consumers and unacknowledged messages (LS-5)."""
        if others and window.live:
            limit = last_read if self.which is JoinPosition.READ else self.last_sent(window, last_read)
            if limit > self.mark_delete:
                self.recent[slot] = limit

    def left(self, slot: int, remaining: int) -> None:
        """One consumer alone has no need to wait for itself."""
        self.recent.pop(slot, None)
        if remaining <= 1:
            self.recent.clear()

    def brought(self, position: int) -> None:
        """Until all up to there is acknowledged, hashes wait for whoever has messages of them."""
        self._brought = max(self._brought, position)

    def remembers(self) -> bool:
        """With PIP-319, while a consumer has joined recently, and while what consumers brought is not acknowledged."""
        return self.keeps_brought or (self.remember_unacked_keys and bool(self.recent))

    def marked(self, position: int) -> bool:
        """Release those whose position is acknowledged with all before it."""
        kept = self.keeps_brought
        self.mark_delete = max(self.mark_delete, position)
        free = [slot for slot, limit in self.recent.items() if limit <= self.mark_delete]
        for slot in free:
            del self.recent[slot]
        return bool(free) or kept != self.keeps_brought

    def last_sent(self, window: Window, last_read: int) -> int:
        """Highest position such that everything up to it was sent (LS-1 .. LS-3), derived from the window."""
        unsent = _unsent(window)
        if len(unsent) == 0:
            return max(last_read, self.mark_delete)
        first = int(unsent[0])
        if entry_of(first) > 0:
            return first - 1
        live = window.position[window.rows_live()]
        before = int(live.searchsorted(first))
        return int(live[before - 1]) if before else self.mark_delete

    def individually_sent(self, window: Window, last_read: int) -> list[tuple[str, str]]:
        """Open-closed ranges that were sent above `last_sent`, as Pulsar shows them (LS-7)."""
        unsent = _unsent(window)
        if len(unsent) == 0:
            return []
        ends = np.append(unsent[1:], last_read + 1) - 1
        return [
            (show(int(after)), show(int(end)))
            for after, end in zip(unsent, ends, strict=True)
            if end > after and last_read > after
        ]


def _unsent(window: Window) -> Positions:
    """Positions that wait for their first delivery and have a place in the order, ascending."""
    rows = window.rows_in(FRESH, REPLAY, HELD)
    positions: Positions = window.position[rows[(window.flags[rows] & SENT) == 0]]
    return positions


def held_elsewhere(window: Window, wanted: HashIndex, owners: Reduced) -> Mask:
    """For each hash with its owner: does another consumer hold unacknowledged messages of it (RK-3)?

    Asks the rows themselves, since under some policies a hash may be at several consumers.
    """
    pending = window.rows_in(PENDING)
    hashes, slots = window.hash[pending], window.consumer[pending]
    somebody: Reduced = np.full(HASH_RANGE, NO_SLOT, np.uint16)
    somebody[hashes] = slots
    several = np.zeros(HASH_RANGE, np.bool_)
    several[hashes[somebody[hashes] != slots]] = True
    holder = somebody[wanted]
    held: Mask = several[wanted] | ((holder != NO_SLOT) & (holder != owners))
    return held


def make_policy(name: str, *, remember_unacked_keys: bool = False) -> Policy:
    """The policy of a Key_Shared subscription by its configured name. Raises Invalid for an unknown one."""
    if name == "draining_hashes":
        return DrainingHashes()
    try:
        which = JoinPosition(name)
    except ValueError:
        raise Invalid(f"policy is draining_hashes, last_sent_position or read_position, not {name!r}") from None
    return RecentlyJoined(which, remember_unacked_keys=remember_unacked_keys)


def policy_stats(policy: Policy, window: Window, last_read: int, describe: Callable[[int], str]) -> dict[str, Any]:
    """Statistics that only this policy has, with Pulsar's names (LS-7); `describe(slot)` names a consumer uniquely."""
    if not isinstance(policy, RecentlyJoined):
        return {}
    after = {describe(slot): show(limit) for slot, limit in policy.recent.items()}
    if policy.which is JoinPosition.READ:
        return {"consumersAfterMarkDeletePosition": after}
    return {
        "consumersAfterMarkDeletePosition": after,
        "lastSentPosition": show(policy.last_sent(window, last_read)),
        "individuallySentPositions": [f"({low},{high}]" for low, high in policy.individually_sent(window, last_read)],
    }

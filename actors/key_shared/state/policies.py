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

A new owner of the subscription does not know which consumers joined recently, and to it all consumers are new. In
Pulsar they lose the messages that they hold then. Here they keep them. So `RecentlyJoined` holds back the messages of a
hash while another consumer has messages of it, until all that consumers brought is acknowledged. Otherwise both flows
of PIP-282 would be out of order again.

The dispatch and `explain` ask the same gate.
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
        """Return which rows may not go to their owner, bool, one a row; None: all may."""

    def joined(self, slot: int, others: int, window: Window, last_read: int) -> None:
        """Note a consumer that joined `others` others. last_read: highest position read forward."""

    def left(self, slot: int, remaining: int) -> None:
        """Note that a consumer left."""

    def brought(self, position: int) -> None:
        """Note that a consumer holds messages from before a change of owner; `position`: the last of them."""

    def remembers(self) -> bool:
        """Return whether an acknowledgement alone may open the gate."""

    def marked(self, position: int) -> bool:
        """Note that everything up to `position` is acknowledged; True if that opened the gate for a consumer."""


class DrainingHashes:
    """The policy of PIP-379: a hash waits while another consumer than its owner has messages of it."""

    ordered = True
    strict = True

    def gate(self, tables: HashTables, window: Window, rows: Candidates) -> tuple[Gate, Mask] | None:
        """Return the rows whose hash is draining at another consumer than their owner."""
        if tables.draining == 0:
            return None
        return Gate.DRAINING, tables.drains[rows.hashes]

    def joined(self, slot: int, others: int, window: Window, last_read: int) -> None:
        """Do nothing: draining is derived."""

    def left(self, slot: int, remaining: int) -> None:
        """Do nothing: draining is derived."""

    def brought(self, position: int) -> None:
        """Do nothing: messages from before drain like all others."""

    def remembers(self) -> bool:
        """Return False: draining has its own count."""
        return False

    def marked(self, position: int) -> bool:
        """Return False: no gate depends on the mark-delete position."""
        return False


class Unordered(DrainingHashes):
    """Shared, and `allow_out_of_order_delivery`: no gate at all (KS-32)."""

    ordered = False
    strict = False

    def gate(self, tables: HashTables, window: Window, rows: Candidates) -> tuple[Gate, Mask] | None:
        """Return None: every message may go."""
        return None


class JoinPosition(Enum):
    """The kind of position that is remembered for a consumer when it joins."""

    LAST_SENT = "last_sent_position"
    READ = "read_position"


class RecentlyJoined:
    """The policy of PIP-282 and the one before it: `recent` maps a slot to the highest position that it may get."""

    ordered = True
    strict = False

    def __init__(self, which: JoinPosition, *, remember_unacked_keys: bool = False) -> None:
        self.which = which
        self.remember_unacked_keys = remember_unacked_keys
        self.recent: dict[int, int] = {}
        self.mark_delete = self._brought = EARLIEST

    def gate(self, tables: HashTables, window: Window, rows: Candidates) -> tuple[Gate, Mask] | None:
        """Return the rows that may not go to their owner.

        A row is refused if it lies above the position of its owner, and that is a recently joined one (LS-6). A row is
        also refused if another consumer may hold earlier rows of its hash since an earlier owner.
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
        """Whether a message that a consumer holds from before a change of owner may still be unacknowledged."""
        return self._brought > self.mark_delete

    def limit(self, slot: int, *, fresh: bool) -> tuple[int, int]:
        """Return the slot whose joining limits a recently joined consumer, and the highest position that it may get.

        Messages that wait for redelivery may be held back because of another newcomer, which came before this one.
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
        """Forget a consumer. A single one that remains has no need to wait for itself."""
        self.recent.pop(slot, None)
        if remaining <= 1:
            self.recent.clear()

    def brought(self, position: int) -> None:
        """Let hashes wait for the consumers that hold messages of them, until all up to `position` is acknowledged."""
        self._brought = max(self._brought, position)

    def remembers(self) -> bool:
        """Return whether an acknowledgement alone may open the gate.

        That may be while messages that consumers brought are not acknowledged; with PIP-319 also while a consumer has
        joined recently.
        """
        return self.keeps_brought or (self.remember_unacked_keys and bool(self.recent))

    def marked(self, position: int) -> bool:
        """Release consumers whose position is acknowledged with all before it."""
        kept = self.keeps_brought
        self.mark_delete = max(self.mark_delete, position)
        free = [slot for slot, limit in self.recent.items() if limit <= self.mark_delete]
        for slot in free:
            del self.recent[slot]
        return bool(free) or kept != self.keeps_brought

    def last_sent(self, window: Window, last_read: int) -> int:
        """Return the highest position up to which everything was sent (LS-1 .. LS-3), derived from the window."""
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
        """Return the open-closed ranges that were sent above `last_sent`, as Pulsar shows them (LS-7)."""
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
    """Return the positions that wait for their first delivery and have a place in the order, ascending."""
    rows = window.rows_in(FRESH, REPLAY, HELD)
    positions: Positions = window.position[rows[(window.flags[rows] & SENT) == 0]]
    return positions


def held_elsewhere(window: Window, wanted: HashIndex, owners: Reduced) -> Mask:
    """Return for each hash with its owner whether another consumer holds unacknowledged messages of it (RK-3).

    The rows themselves are asked, since under some policies a hash may be at several consumers.
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
    """Return the policy of a Key_Shared subscription by its configured name. Raises Invalid for an unknown one."""
    if name == "draining_hashes":
        return DrainingHashes()
    try:
        which = JoinPosition(name)
    except ValueError:
        raise Invalid(f"policy is draining_hashes, last_sent_position or read_position, not {name!r}") from None
    return RecentlyJoined(which, remember_unacked_keys=remember_unacked_keys)


def policy_stats(policy: Policy, window: Window, last_read: int, describe: Callable[[int], str]) -> dict[str, Any]:
    """Return the statistics that only this policy has, with Pulsar's names (LS-7).

    describe(slot): a unique name of a consumer.
    """
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

"""The window: every message between the mark-delete position and the read position that is not done.

One row a message, by column, always ascending by position. A row is in one of these states:

    FRESH     read forward, not yet offered to a consumer
    REPLAY    waits to be sent, and its place in the order is known: later messages of its hash wait behind it
    UNORDERED waits to be sent without a place in the order: negatively acknowledged, or a delayed message that is
              now due (KS-60); later messages of its hash may overtake it
    WAITING   negatively acknowledged with a delay that is not over
    PENDING   sent, not acknowledged; `consumer` says where it is
    DEAD      redelivered too often; waits for the dead letter topic
    HELD      delayed and not due, under `delay_key_policy=block_key`: later messages of its hash wait behind it
    DONE      gone; the row is free

`since` is when a row came into its state, for ages in explanations, and of a WAITING row when it may leave it;
`redelivery` counts counted redeliveries. `why` is the reason for which a row waits for its first delivery (index in
REASONS, `NO_REASON` before the first look), and `why_since` when that began.

`masked_hash` is the masked hash of a message's key (`storage.format.hashing`), and `hash` is what the selector makes of
it. How rows are found, added and squeezed is `position_table`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.state.position_table import DONE, PositionTable, Rows
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import EARLIEST, Positions

Reduced = npt.NDArray[np.uint16]
"""Hashes as the selector sees them, 1 .. 65535; 0 never occurs (KS-2)."""

HashIndex = npt.NDArray[np.intp] | Reduced
"""Hashes used as an index, widened where they are used often."""

Mask = npt.NDArray[np.bool_]


# States of a row, see above. Plain numbers, because columns are compared with them on every path.
FRESH, REPLAY, UNORDERED, WAITING, PENDING, DEAD, HELD = range(1, 8)
STATES = ("done", "fresh", "replay", "unordered", "waiting", "pending", "dead", "held")

DELIVERED = 1
"""Flag: the row was sent to a consumer at least once by this object."""
DUE = 2
"""Flag: a delayed message; its first delivery is exempt from the order (KS-64)."""
REMOVED = 4
"""Flag: skipped, expired or cleared while pending; never to be sent again (KS-45)."""
SENT = 8
"""Flag: sent since the last time that there was no consumer (LS-1)."""
REVOKED = 16
"""Flag: PENDING, and its consumer was asked to give it back (`revocation`)."""
OVERTOOK = 32
"""Flag: the application had it before an earlier message of its key, which was given back, came again."""
EXAMINED = 64
"""Flag: its hash is that of a parked key, and its own key is another one (`parked_messages`)."""

NO_SLOT = 0xFFFF
NO_REASON = 0xFF
MAX_REDELIVERIES = 255


class Window(PositionTable):
    """The messages of one subscription that were read and are not done."""

    columns = (*PositionTable.columns, "hash", "flags", "redelivery", "consumer", "since", "why", "why_since")

    def __init__(self) -> None:
        super().__init__(len(STATES), rows=16)
        rows = self.capacity
        self.hash: Reduced = np.zeros(rows, np.uint16)
        self.flags: npt.NDArray[np.uint8] = np.zeros(rows, np.uint8)
        self.redelivery: npt.NDArray[np.uint8] = np.zeros(rows, np.uint8)
        self.consumer: Reduced = np.zeros(rows, np.uint16)
        self.since: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self.why: npt.NDArray[np.uint8] = np.zeros(rows, np.uint8)
        self.why_since: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self.fresh_from = 0
        """No row before it is FRESH."""
        self.redelivered = False
        """Whether a redelivery was counted since the table was empty."""
        self.overtaken = False
        """Whether any row was ever OVERTOOK."""
        self.last_read = self.reached = EARLIEST
        """last_read: the highest position that was read forward. reached: up to where the log was looked at."""

    def add(self, positions: Positions, masked: Hashes, hashes: Reduced, state: int, flags: int, now: int) -> None:
        """Add rows; positions strictly ascending and not in the table. Anywhere, but at the end it is cheapest."""
        self._add(state, positions, _values(masked, hashes, flags, now))

    def put(self, positions: Positions, masked: Hashes, hashes: Reduced, state: int, flags: int, now: int) -> None:
        """Do as `add` does, for positions that may have been here before: a hole becomes its row again."""
        self._put(state, positions, _values(masked, hashes, flags, now))
        if state == FRESH:
            self.fresh_from = self.head

    def read_up_to(self, position: int) -> None:
        """The highest position that was read forward."""
        self.last_read = position

    def reach(self, position: int) -> bool:
        """Note that the log was looked at up to here; return whether that is news."""
        further = position > self.reached
        self.reached = max(self.reached, position)
        return further

    def unreached(self, rows: Rows) -> Mask:
        """Return which rows wait because the log was not read up to them. Only with `nack_order=key`.

        Consumers held them from an earlier owner and gave them back; earlier messages of their keys may not be read
        yet.
        """
        unreached: Mask = self.position[rows] > max(self.last_read, self.reached)
        if unreached.any():
            unreached &= self.state[rows] == REPLAY
        return unreached

    def count_redeliveries(self, rows: Rows, counts: npt.NDArray[np.uint8]) -> None:
        """Set the redelivery count of each row (uint8)."""
        self.redelivery[rows] = counts
        self.redelivered = True

    def wait_for(self, rows: Rows, reasons: npt.NDArray[np.uint8], now: int) -> None:
        """Let rows wait for these reasons from `now` (ms) on, one a row."""
        self.why[rows], self.why_since[rows] = reasons, now

    def note_overtaking(self, rows: Rows) -> None:
        """Mark rows that the application had before an earlier message of their key came again."""
        self.flags[rows] |= OVERTOOK
        self.overtaken = True

    def forget_sent(self) -> None:
        """Clear SENT: it counts from the first consumer, and there is none any more."""
        self.flags &= np.uint8(0xFF ^ SENT)

    def none_fresh(self) -> None:
        """Note that no row is FRESH any more."""
        self.fresh_from = self.tail

    def revive(self, rows: Rows, state: int) -> None:
        """Open rows again that are DONE, as they were read."""
        self.move(rows, len(rows), DONE, state)
        self.flags[rows] = 0
        self.redelivery[rows] = 0
        self.why[rows] = NO_REASON

    def rows_fresh(self) -> Rows | slice:
        """Return the FRESH rows: a slice when they are all at the end of the table, as they almost always are."""
        if self.count[FRESH] == self.tail - self.fresh_from:
            return slice(self.fresh_from, self.tail)
        return np.flatnonzero(self.state[self.fresh_from : self.tail] == FRESH) + self.fresh_from

    def trim(self) -> None:
        """Move the head over rows that are DONE; an empty table starts again at row 0."""
        super().trim()
        if self.tail == 0:
            self.fresh_from, self.redelivered = 0, False
        self.fresh_from = max(self.fresh_from, self.head)

    def _sort(self) -> None:
        super()._sort()
        self.fresh_from = self.head

    def _squeeze(self, count: int) -> Rows:
        keep = super()._squeeze(count)
        self.fresh_from = int(np.searchsorted(keep, self.fresh_from))
        return keep


def _values(masked: Hashes, hashes: Reduced, flags: int, now: int) -> dict[str, Any]:
    """Return the first values of rows, by column."""
    return {
        "masked_hash": masked,
        "hash": hashes,
        "flags": flags,
        "redelivery": 0,
        "consumer": NO_SLOT,
        "since": now,
        "why": NO_REASON,
    }

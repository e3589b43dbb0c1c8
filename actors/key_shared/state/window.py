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
it.

**Rows by position.** The window and the parked messages are each a `PositionTable`: `state` says what becomes of a row,
and `count[state]` how many rows are in each state. Rows leave from anywhere, so the table keeps holes. The head moves
over holes, and when the table is full, holes are squeezed out or the table grows. Squeezing copies the live rows only
after at least as many rows have gone, so the cost is constant per message however long one stuck message holds the head
in place. Nothing outside keeps a row number across a call: rows are found again by position, mostly by one subtraction,
because positions of one ledger are consecutive. Where holes were squeezed out, a short list of stretches without a gap
says what to subtract.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sluice.actors.messages import NO_POSITIONS
from sluice.storage.errors import InvariantViolation
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import EARLIEST, Positions, show

Rows = npt.NDArray[np.intp]
"""Row numbers of a table, shape (n,), valid until rows are added or squeezed out."""

DONE = 0
_SMALLEST = 64
_BLOCK = 1024


class PositionTable:
    """The columns that every such table has; a table adds its own to `columns`. Valid in rows head .. tail-1.

    states: how many there are. rows: for how many there is room at first.
    """

    columns: ClassVar[tuple[str, ...]] = ("position", "masked_hash", "state")

    def __init__(self, states: int, rows: int = _SMALLEST) -> None:
        self.head = 0
        self.tail = 0
        self.position: Positions = np.zeros(rows, np.int64)
        """Invariant: strictly ascending from head to tail."""
        self.masked_hash: Hashes = np.zeros(rows, np.uint32)
        self.state: npt.NDArray[np.uint8] = np.zeros(rows, np.uint8)
        self.count = [0] * states
        """Invariant: the number of rows in each state, but for rows that are done."""
        self._stretch_from: Positions = NO_POSITIONS
        self._stretch_by: Positions = NO_POSITIONS
        self._stretched = 0

    @property
    def live(self) -> int:
        """Rows that are not DONE."""
        return sum(self.count[1:])

    @property
    def capacity(self) -> int:
        """Rows that fit without growing."""
        return len(self.position)

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(int(getattr(self, name).nbytes) for name in self.columns)

    # -- adding -----------------------------------------------------------------------------------------------------

    def _add(self, state: int, positions: Positions, values: dict[str, Any]) -> None:
        """Add rows; positions strictly ascending and not in the table. Anywhere, but at the end it is cheapest.

        values: of every other column, one a row or one for all.
        """
        count = len(positions)
        if count == 0:
            return
        if count > 1 and not bool((positions[1:] > positions[:-1]).all()):
            raise InvariantViolation(f"positions from {show(int(positions[0]))} on are not ascending")
        self._reserve(count)
        start, end = self.tail, self.tail + count
        behind = start == self.head or bool(positions[0] > self.position[start - 1])
        self.position[start:end] = positions
        self.state[start:end] = state
        for name, value in values.items():
            getattr(self, name)[start:end] = value
        self.tail = end
        self.count[state] += count
        if not behind:
            self._sort()

    def _put(self, state: int, positions: Positions, values: dict[str, Any]) -> None:
        """Do as `_add` does, for positions that may have been here before: a hole becomes its row again."""
        rows, known = self.locate(positions)
        if len(known):
            new = np.isin(positions, known, invert=True)
            self.move(rows, len(rows), DONE, state)
            for name, value in values.items():
                getattr(self, name)[rows] = value[~new] if isinstance(value, np.ndarray) else value
            values = {name: value[new] if isinstance(value, np.ndarray) else value for name, value in values.items()}
            positions = positions[new]
        self._add(state, positions, values)

    def _sort(self) -> None:
        """Bring rows that were put at the end to their places; timsort merges the two ascending runs."""
        old = slice(self.head, self.tail)
        order = np.argsort(self.position[old], kind="stable")
        for name in self.columns:
            column = getattr(self, name)
            column[old] = column[old][order]
        self._forget_stretches()

    def _reserve(self, count: int) -> None:
        if self.tail + count > self.capacity:
            self._squeeze(count)

    def _squeeze(self, count: int) -> Rows:
        """Make room for so many rows: holes go, and the table grows or shrinks. Returns the rows that are kept."""
        keep = self._worth_keeping()
        capacity = self.capacity
        while (len(keep) + count) * 4 > capacity:
            capacity *= 2
        while capacity > _SMALLEST and (len(keep) + count) * 16 < capacity:
            capacity //= 2
        for name in self.columns:
            old = getattr(self, name)
            new = old if capacity == len(old) else np.zeros(capacity, old.dtype)
            new[: len(keep)] = old[keep]
            setattr(self, name, new)
        self.head, self.tail = 0, len(keep)
        self._forget_stretches()
        return keep

    def _worth_keeping(self) -> Rows:
        """Return the live rows, and few holes among them: stretches without a squeeze are found faster."""
        first = self.head - self.head % _BLOCK
        blocks = np.add.reduceat(self.state[first : self.tail] != DONE, np.arange(0, self.tail - first, _BLOCK))
        whole = np.repeat(blocks * 2 >= _BLOCK, _BLOCK)[self.head - first : self.tail - first]
        return np.flatnonzero(whole | (self.state[self.head : self.tail] != DONE)) + self.head

    # -- finding ----------------------------------------------------------------------------------------------------

    def find(self, positions: Positions) -> Rows:
        """Return rows of the given positions that are live, ascending, each once; positions not here are left out."""
        rows, _ = self.locate(positions)
        alive = self.state[rows] != DONE
        return rows if alive.all() else rows[alive]

    def locate(self, positions: Positions) -> tuple[Rows, Positions]:
        """Return rows of the given positions, ascending, each once, and their positions. Some may be DONE."""
        view = self.position[self.head : self.tail]
        if len(positions) == 0 or len(view) == 0:
            return np.empty(0, np.intp), np.empty(0, np.int64)
        if len(positions) > 1 and not bool((positions[1:] > positions[:-1]).all()):
            positions = np.unique(positions)
        last = min(int(view.searchsorted(positions[-1])), len(view) - 1)
        # Where no position is missing from the table between a wanted one and the last one, a subtraction finds it.
        at = positions - (int(view[last]) - last)
        if view[last] == positions[-1] and at[0] >= 0 and view[at[0]] == positions[0]:
            # Positions rise by one a row or more; from the first to the last by exactly one, so none is missing.
            at += self.head
            return at, positions
        self._find_stretches()
        which = self._stretch_from.searchsorted(positions, side="right") - 1
        at = positions - self._stretch_by[which]
        if which[0] < 0 or at.min() < self.head or at.max() >= self.tail:
            # Before the first stretch, before the head, or behind the end of a stretch (another ledger's, perhaps).
            inside = (which >= 0) & (at >= self.head) & (at < self.tail)
            at, positions = at[inside], positions[inside]
        found = self.position[at] == positions
        return (at, positions) if found.all() else (at[found], positions[found])

    def _find_stretches(self) -> None:
        """Note where the rows that were added since the last time leave positions out."""
        start = max(self._stretched, self.head)
        if start == self.tail:
            return
        part = self.position[max(start - 1, self.head) : self.tail]
        breaks = np.flatnonzero(part[1:] - part[:-1] != 1) + (self.tail - len(part) + 1)
        if start == self.head:
            breaks = np.append(start, breaks)
        self._stretch_from = np.append(self._stretch_from, self.position[breaks])
        self._stretch_by = np.append(self._stretch_by, self.position[breaks] - breaks)
        self._stretched = self.tail

    def _forget_stretches(self) -> None:
        self._stretch_from = self._stretch_by = NO_POSITIONS
        self._stretched = 0

    def rows_in(self, *states: int) -> Rows:
        """Return all rows in the given states, ascending."""
        view = self.state[self.head : self.tail]
        wanted = view == states[0]
        for state in states[1:]:
            wanted |= view == state
        return np.flatnonzero(wanted) + self.head

    def rows_live(self) -> Rows:
        """Return all rows that are not DONE, ascending."""
        return np.flatnonzero(self.state[self.head : self.tail]) + self.head

    # -- changing ---------------------------------------------------------------------------------------------------

    def move(self, rows: Rows | slice, count: int, before: int, after: int) -> None:
        """Put `count` rows from one state into another."""
        self.state[rows] = after
        self.count[before] -= count
        self.count[after] += count

    def trim(self) -> None:
        """Move the head over rows that are DONE; an empty table starts again at row 0, and takes no more memory than a
        new one: most of a broker's tables are empty most of the time.
        """
        if self.live == 0:
            self.head = self.tail = 0
            self._forget_stretches()
            if self.capacity > _SMALLEST:
                for name in self.columns:
                    setattr(self, name, np.zeros(_SMALLEST, getattr(self, name).dtype))
            return
        while self.state[self.head] == DONE:
            part = self.state[self.head : self.head + 4096] != DONE
            ahead = int(part.argmax())
            self.head += ahead if part[ahead] else len(part)


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
"""Flag: PENDING, and its consumer was asked to give it back (`nacks`)."""
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

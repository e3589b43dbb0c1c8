"""Rows by position: the table from which the window and the parked messages are made.

One row a message, by column, always ascending by position; `state` says what becomes of it, and `count[state]` how
many rows are in each state. State 0 is DONE: the row is free.

Rows leave from anywhere, so the table keeps holes. The head moves over holes, and when the table is full, holes are
squeezed out or the table grows. Squeezing copies the live rows only after at least as many rows have gone, so the
cost is constant per message however long one stuck message holds the head in place. Nothing outside keeps a row
number across a call: rows are found again by position, mostly by one subtraction, because positions of one ledger
are consecutive. Where holes were squeezed out, a short list of stretches without a gap says what to subtract.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sluice.actors.messages import NO_POSITIONS
from sluice.storage.errors import InvariantViolation
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions, show

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

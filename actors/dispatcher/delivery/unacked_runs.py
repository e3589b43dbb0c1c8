"""Runs with messages that are not done yet: how positions become parts of a delivery.

The decision core speaks in positions; a consumer needs (run, rows, handle). A run is kept from when it is read until
the last of its messages is done, independently of the mark-delete position: a message that is never finished costs only
its own run. Messages that are due only much later do not count, because they cannot be sent soon. The table only saves
a question: the consumer asks the topic for a run that is not here. A payload is named for a while only, because
messages of it may have been erased since.

Columns by run, ascending by first position. A run that is done leaves a hole; when there are more holes than runs,
the runs are moved together. So adding and finishing cost a constant per run, and a lookup the logarithm of the number
of kept runs.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sluice.actors.messages import NO_COUNTS, NO_ROWS, Part, RunIndex
from sluice.actors.messages.limits import KEPT_MS
from sluice.actors.ports.wire import INLINE, Blob, owned
from sluice.storage.format.position import Positions, entries_of, ledgers_of, position, positions_of

SHARED_BYTES = 128 * 1024 * 1024
"""The bytes of payloads that one dispatcher keeps in shared memory by naming them; older ones come from the topic."""
_SMALLEST = 16
_NOTHING = Blob(b"")


class UnackedRuns:
    """The runs by first position, each with the number of its messages that are not done. monotonic: the time in ms."""

    def __init__(self, monotonic: Callable[[], int], shared_bytes: int = SHARED_BYTES) -> None:
        self._monotonic, self._limit = monotonic, shared_bytes
        self._head = self._end = self._live = 0
        self.clear()

    def __len__(self) -> int:
        return self._live

    @property
    def shared_bytes(self) -> int:
        """Bytes of the payloads that are kept by naming them."""
        return self._shared_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return self._firsts.nbytes + self._lasts.nbytes + self._open.nbytes

    def add(self, run: RunIndex, open_messages: int | None = None) -> None:
        """Remember a run; runs arrive in order, a repetition replaces its twin. Drop the index columns of the run.

        open_messages: how many `done` calls for its messages are to come; None: as many as it has messages.
        """
        first = position(run.ledger, run.first_entry)
        while self._end > self._head and self._firsts[self._end - 1] >= first:
            self._end -= 1
            self._forget(self._end)
            self._runs.pop()
        if self._end == len(self._firsts):
            self._make_room()
        self._firsts[self._end] = first
        self._lasts[self._end] = first + run.count - 1
        self._open[self._end] = run.count if open_messages is None else open_messages
        self._runs.append(run)
        self._end += 1
        self._live += 1
        run.columns = _NOTHING
        if run.blob is not None:
            self._share(first, run, run.blob)

    def _share(self, first: int, run: RunIndex, blob: Blob) -> None:
        if blob.data is not None and blob.size > INLINE:
            # It lies in the memory of the whole answer, which one run must not keep.
            run.blob = Blob(owned(blob.data), blob.handle)
        self._shared[first] = run, self._monotonic()
        self._shared_bytes += run.bytes
        while self._shared_bytes > self._limit and len(self._shared) > 1:
            self._name_no_more()
        self._let_go_old()

    def _let_go_old(self) -> None:
        """Name no payload that has been here for long."""
        before = self._monotonic() - KEPT_MS
        while self._shared and next(iter(self._shared.values()))[1] <= before:
            self._name_no_more()

    def _name_no_more(self) -> None:
        _, (oldest, _) = self._shared.popitem(last=False)
        oldest.blob = None
        self._shared_bytes -= oldest.bytes

    def done(self, positions: Positions) -> None:
        """Count down messages (int64, ascending) that are done, each once, and forget runs without open messages."""
        if not len(positions) or not self._live:
            return
        if len(positions) == 1:
            self._finish(self._home(int(positions[0])))
            return
        homes = self._homes(positions)
        known = homes >= 0
        known[known] = positions[known] <= self._lasts[homes[known]]
        homes = homes[known]
        if not len(homes):
            return
        cuts = np.flatnonzero(np.diff(homes, prepend=-1))
        homes, counts = homes[cuts], np.diff(cuts, append=len(homes))
        self._open[homes] -= counts
        for home in homes[self._open[homes] <= 0].tolist():
            self._forget(home)
        self._tidy()

    def drop_below(self, mark_delete: int) -> None:
        """Forget the runs that lie wholly at or below the mark-delete position."""
        if self._head == self._end or self._lasts[self._head] > mark_delete:
            return
        stop = int(self._lasts[self._head : self._end].searchsorted(mark_delete, side="right")) + self._head
        for home in range(self._head, stop):
            self._forget(home)
        self._head = stop
        self._tidy()

    def clear(self) -> None:
        """Forget everything (the cursor was moved)."""
        self._shared: OrderedDict[int, tuple[RunIndex, int]] = OrderedDict()
        """The runs with a payload, and since when; the oldest first."""
        self._shared_bytes = 0
        """Invariant: the bytes of the payloads in `_shared`."""
        self._firsts: Positions = np.zeros(_SMALLEST, np.int64)
        """Invariant: strictly ascending from head to end."""
        self._lasts: Positions = np.zeros(_SMALLEST, np.int64)
        self._open: npt.NDArray[np.int64] = np.zeros(_SMALLEST, np.int64)
        self._runs: list[RunIndex | None] = []
        self._head = self._end = self._live = 0
        """Invariant: `_live` counts the runs from head to end that are not None."""

    def parts(self, positions: Positions, redeliveries: npt.NDArray[np.uint8], dispatch: int) -> list[Part]:
        """Cut ascending positions into parts, one a run; `dispatch` numbers the first of them.

        Positions of unknown runs become parts with count 0, whose rows are entry ids: the consumer asks the topic for
        them.
        """
        self._let_go_old()
        homes = self._homes(positions)
        bounds = [0, *(np.flatnonzero(homes[1:] != homes[:-1]) + 1).tolist(), len(positions)]
        parts: list[Part] = []
        for start, stop in itertools.pairwise(bounds):
            home = int(homes[start])
            known = self._runs[home] if home >= 0 else None
            group = positions[start:stop]
            counts = redeliveries[start:stop]
            if known is None:
                parts += parts_to_ask_for(group, counts, dispatch + start)
                continue
            inside = int(group.searchsorted(self._lasts[home], side="right"))
            if inside:
                rows = (group[:inside] - self._firsts[home]).astype(np.uint32)
                parts.append(_part(known, rows, counts[:inside], dispatch + start))
            if inside < len(group):
                parts += parts_to_ask_for(group[inside:], counts[inside:], dispatch + start + inside)
        return parts

    # -- the columns --------------------------------------------------------------------------------------------------

    def _homes(self, positions: Positions) -> npt.NDArray[np.intp]:
        """Return the last run that begins at or before each position, -1 if there is none; it may be a hole."""
        homes = self._firsts[self._head : self._end].searchsorted(positions, side="right") - 1
        return np.where(homes >= 0, homes + self._head, -1)

    def _home(self, position: int) -> int:
        """Return the run that holds a position, -1 if none does; it may be a hole."""
        home = int(self._firsts[self._head : self._end].searchsorted(position, side="right")) - 1 + self._head
        return home if home >= self._head and position <= self._lasts[home] else -1

    def _finish(self, home: int) -> None:
        """Count down one message of a run."""
        if home < 0:
            return
        self._open[home] -= 1
        if self._open[home] <= 0:
            self._forget(home)
            self._tidy()

    def _forget(self, home: int) -> None:
        run = self._runs[home]
        if run is None:
            return
        self._runs[home] = None
        self._live -= 1
        if self._shared.pop(int(self._firsts[home]), None) is not None:
            self._shared_bytes -= run.bytes

    def _tidy(self) -> None:
        if self._end > 2 * self._live + _SMALLEST:
            self._squeeze(len(self._firsts))

    def _make_room(self) -> None:
        self._squeeze(len(self._firsts) if self._end > 2 * self._live else 2 * len(self._firsts))

    def _squeeze(self, capacity: int) -> None:
        """Move the runs together, into columns of this length or less."""
        kept = [home for home in range(self._head, self._end) if self._runs[home] is not None]
        while capacity > _SMALLEST and 8 * len(kept) < capacity:
            capacity //= 2
        for name in ("_firsts", "_lasts", "_open"):
            new = np.zeros(capacity, np.int64)
            new[: len(kept)] = getattr(self, name)[kept]
            setattr(self, name, new)
        self._runs = [self._runs[home] for home in kept]
        self._head, self._end = 0, len(kept)


def _part(run: RunIndex, rows: npt.NDArray[np.uint32], redeliveries: npt.NDArray[np.uint8], dispatch: int) -> Part:
    return Part(
        ledger=run.ledger,
        first_entry=run.first_entry,
        count=run.count,
        delayed=run.delayed,
        shape=run.shape,
        crc=run.crc,
        dispatch=dispatch,
        rows=rows,
        redeliveries=redeliveries,
        overtook=NO_ROWS,
        cut=run.cut,
        blob=run.blob,
    )


def parts_to_ask_for(
    positions: Positions, redeliveries: npt.NDArray[np.uint8] = NO_COUNTS, dispatch: int = 0
) -> list[Part]:
    """Return parts, one for each ledger, of ascending positions whose payload only the topic has.

    Their rows are entry ids.
    """
    parts = []
    ledgers = ledgers_of(positions)
    bounds = [0, *(np.flatnonzero(np.diff(ledgers)) + 1).tolist(), len(positions)]
    for start, stop in itertools.pairwise(bounds):
        parts.append(
            Part(
                ledger=int(ledgers[start]),
                first_entry=0,
                count=0,
                delayed=False,
                shape=0,
                crc=0,
                dispatch=dispatch + start,
                rows=entries_of(positions[start:stop]),
                redeliveries=redeliveries[start:stop],
            )
        )
    return parts


def mark_overtook(parts: list[Part], positions: Positions) -> None:
    """Mark in each part the rows that the application had before an earlier message of their key came again."""
    for part in parts:
        at = positions_of(part.ledger, part.rows.astype(np.int64) + part.first_entry)
        part.overtook = part.rows[np.isin(at, positions)]

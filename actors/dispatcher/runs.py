"""The runs between the mark-delete position and the read position: how positions become parts of a delivery.

The decision core speaks in positions; a consumer needs (run, rows, handle). Runs are kept in order of their first
position, in parallel lists, and forgotten once everything in them is acknowledged.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import deque

import numpy as np
import numpy.typing as npt

from actors.messages import Part, RunIndex
from storage.position import MAX_ENTRY, Positions, position

SHARED_BYTES = 128 * 1024 * 1024
"""Payloads that one dispatcher keeps in shared memory by naming them; consumers ask the topic for older ones."""


class RunTable:
    """Runs by first position."""

    def __init__(self, shared_bytes: int = SHARED_BYTES) -> None:
        self._limit = shared_bytes
        self._shared: deque[RunIndex] = deque()
        self._shared_bytes = 0
        self._firsts: list[int] = []
        self._runs: list[RunIndex] = []
        self._starts: Positions | None = None

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, run: RunIndex) -> None:
        """Remember a run; runs arrive in order, a repetition replaces its twin."""
        first = position(run.ledger, run.first_entry)
        while self._firsts and self._firsts[-1] >= first:
            self._firsts.pop()
            self._runs.pop()
        self._firsts.append(first)
        self._runs.append(run)
        self._starts = None
        if run.blob is not None:
            self._shared.append(run)
            self._shared_bytes += run.bytes
            while self._shared_bytes > self._limit and len(self._shared) > 1:
                oldest = self._shared.popleft()
                oldest.blob = None
                self._shared_bytes -= oldest.bytes

    def drop_below(self, mark_delete: int) -> None:
        """Forget the runs that lie wholly at or below the mark-delete position."""
        keep = bisect_right(self._firsts, mark_delete)
        while keep and self._last(keep - 1) > mark_delete:
            keep -= 1
        if keep:
            for run in self._runs[:keep]:
                if self._shared and self._shared[0] is run:
                    self._shared_bytes -= self._shared.popleft().bytes
            del self._firsts[:keep]
            del self._runs[:keep]
            self._starts = None

    def clear(self) -> None:
        """Forget everything (the cursor was moved)."""
        self._shared.clear()
        self._shared_bytes = 0
        self._firsts.clear()
        self._runs.clear()
        self._starts = None

    def parts(self, positions: Positions, redeliveries: npt.NDArray[np.uint8], dispatch: int) -> list[Part]:
        """Cut ascending positions into parts, one a run; `dispatch` numbers the first of them.

        Positions whose run is not known become parts with count 0, whose rows are entry ids: the consumer asks the
        topic for them.
        """
        if self._starts is None:
            self._starts = np.array(self._firsts, np.int64)
        homes = np.searchsorted(self._starts, positions, side="right") - 1
        cuts = np.flatnonzero(np.diff(homes)) + 1
        bounds = [0, *cuts.tolist(), len(positions)]
        parts: list[Part] = []
        for start, stop in itertools.pairwise(bounds):
            home = int(homes[start])
            known = self._runs[home] if home >= 0 else None
            group = positions[start:stop]
            counts = redeliveries[start:stop]
            if known is None:
                parts += _unknown(group, counts, dispatch + start)
                continue
            inside = int(np.searchsorted(group, self._last(home), side="right"))
            if inside:
                rows = (group[:inside] - self._firsts[home]).astype(np.uint32)
                parts.append(_part(known, rows, counts[:inside], dispatch + start))
            if inside < len(group):
                parts += _unknown(group[inside:], counts[inside:], dispatch + start + inside)
        return parts

    def _last(self, index: int) -> int:
        return self._firsts[index] + self._runs[index].count - 1


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
        blob=run.blob,
    )


def _unknown(positions: Positions, redeliveries: npt.NDArray[np.uint8], dispatch: int) -> list[Part]:
    parts = []
    ledgers = positions >> 32
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
                rows=(positions[start:stop] & MAX_ENTRY).astype(np.uint32),
                redeliveries=redeliveries[start:stop],
            )
        )
    return parts

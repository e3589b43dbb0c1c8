"""How many messages an id stands for: a client that got it on an earlier connection may acknowledge it later.

An id names the first row of what was sent as one frame, and not how many rows that were. Clients repeat
acknowledgements, and acknowledge on a new connection what they were sent on an earlier one. An unknown id stands for
its first row alone: another consumer may have a part of the producer's batch, so to take the rest for acknowledged
would lose messages, while a message that comes again is only a duplicate.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.actors.consumer.payload import DecodedRun
from sluice.storage.format.batch import MAX_RUN_MESSAGES
from sluice.storage.format.position import entry_of

MOST = 50_000
"""The number of ids that are remembered; the oldest are forgotten first."""
MOST_REPORTS = 4_000
"""The most reports that wait for a question."""
MOST_WORDS = MAX_RUN_MESSAGES // 64
"""The most words of an ack_set: there is no batch of more messages."""
Rows = npt.NDArray[np.int64]
Key = tuple[str, int, str]
"""Topic, partition and subscription."""


class AckedBatchSizes:
    """Counts by the position of the first row, of all subscriptions.

    What is reported is brought in when somebody asks: nearly nobody does.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        # A plain dict looks for its first entry past all that were deleted before it.
        self._counts: OrderedDict[tuple[Key, int], tuple[int, bool]] = OrderedDict()
        self._reports: deque[tuple[Key, Rows, Rows]] = deque()
        self._reported = 0

    def remember(self, key: Key, positions: Rows, counts: Rows) -> None:
        """Record how many rows the frame at each position has, int64; of different counts for one position the least
        is kept.
        """
        self._reports.append((key, positions, counts))
        self._reported += len(positions)
        while self._reported - len(self._reports[0][1]) >= self._most:
            self._reported -= len(self._reports.popleft()[1])
        if len(self._reports) > MOST_REPORTS:
            self._bring_in()

    def _bring_in(self) -> None:
        for key, positions, counts in self._reports:
            for position, count in zip(positions.tolist(), counts.tolist(), strict=True):
                self._remember(key, position, count)
        self._reports.clear()
        self._reported = 0

    def _remember(self, key: Key, position: int, count: int) -> None:
        known, sure = self._counts.pop((key, position), (count, True))
        self._counts[key, position] = min(known, count), sure and known == count
        while len(self._counts) > self._most:
            self._counts.popitem(last=False)

    def begins(self, key: Key, position: int) -> bool:
        """Return whether a sent message is remembered to have begun there."""
        self._bring_in()
        return (key, position) in self._counts

    def count(self, key: Key, position: int, ack_set: Iterable[int]) -> tuple[int, bool]:
        """Return how many rows an id stands for at least, and whether this number is known to be exact.

        ack_set: its last open bit is one of its rows, if there is one.
        """
        self._bring_in()
        known = self._counts.get((key, position))
        return known or (max(len(open_rows(ack_set)), 1), False)


def open_rows(ack_set: Iterable[int]) -> npt.NDArray[np.bool_]:
    """Return the bits of an ack_set up to the last one that is set: True for a row that is not acknowledged."""
    words = np.array([word & (1 << 64) - 1 for word in islice(ack_set, MOST_WORDS)], "<u8")
    bits = np.unpackbits(words.view(np.uint8), bitorder="little").astype(bool)
    last = np.flatnonzero(bits)
    return bits[: int(last[-1]) + 1] if len(last) else bits[:0]


def acknowledged_rows(count: int, ack_set: Iterable[int]) -> Rows:
    """Return the rows of 0 .. count-1, ascending, that an acknowledgement means: all, or those whose bit is not set.

    A single row may be a batch that nobody reads here, and the bits those of its messages: it is done when all are.
    """
    open_ = np.zeros(count, bool)
    bits = open_rows(ack_set)
    if count == 1:
        open_[:] = bits.any()
    else:
        open_[: len(bits)] = bits[:count]
    return np.flatnonzero(~open_)


def rows_behind(run: DecodedRun, at: int, one: Any) -> Rows:
    """The positions that an id stands for, from the columns: its row and the following ones of the same batch."""
    return at + acknowledged_rows(rest_of_batch(run, at), one.ack_set)


def rest_of_batch(run: DecodedRun, at: int) -> int:
    """Return how many rows of a batch there are from this position on; 1 of a message that came alone."""
    if "batch_index" not in run.rows.schema.names:
        return 1
    index = (
        run.rows.column("batch_index").fill_null(-1).to_numpy(zero_copy_only=False)[entry_of(at) - run.first_entry :]
    )
    if not len(index) or index[0] < 0:
        return 1
    return int(np.argmin(np.append(np.diff(index) == 1, False))) + 1

"""The assignments of one dispatch pass: whole columns, sorted by consumer, and cut for one only on request.

With hundreds of consumers the cuts are most of the objects of a pass. Whoever works on columns takes the `shares`
and needs none of them; whoever serves one consumer after the other iterates, and gets one `Assignment` for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.storage.format.position import Positions

NO_REDELIVERIES: npt.NDArray[np.uint8] = np.empty(0, np.uint8)


class Assignment(NamedTuple):
    """Messages for one consumer.

    positions: int64, ascending. redeliveries: uint8, how often each was redelivered; empty = all 0. dispatch: number
    of the first row in the order of all dispatching, the others follow.
    """

    consumer: int
    positions: Positions
    redeliveries: npt.NDArray[np.uint8]
    dispatch: int


class Share(NamedTuple):
    """One pass. Consumer number consumers[i] gets the rows from ends[i-1] to ends[i].

    positions: int64, ascending within each consumer. redeliveries: uint8, one a row; empty = all 0. consumers, ends:
    int64, one a consumer that gets anything. dispatch: number of the first row.
    """

    consumers: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    positions: Positions
    redeliveries: npt.NDArray[np.uint8]
    dispatch: int


class DispatchCounters:
    """What is counted over all passes. passes: how many there were. dispatched: how many messages were sent.
    held_back: how many a gate of the policy refused.
    """

    def __init__(self) -> None:
        self.passes = self.dispatched = self.held_back = 0

    def begin_pass(self) -> None:
        """One more pass."""
        self.passes += 1

    def dispatch(self, count: int) -> int:
        """So many messages are sent; returns the number of the first of them."""
        self.dispatched += count
        return self.dispatched - count

    def hold_back(self, count: int) -> None:
        """A gate of the policy refused so many."""
        self.held_back += count

    def continue_from(self, before: DispatchCounters) -> None:
        """The numbers of messages go on, and the total."""
        self.dispatched, self.held_back = before.dispatched, before.held_back


class Assignments:
    """The result of one dispatch pass; iterates over the consumers' parts, in the order of dispatching."""

    def __init__(self) -> None:
        self.shares: list[Share] = []

    def __len__(self) -> int:
        return sum(len(share.ends) for share in self.shares)

    def __iter__(self) -> Iterator[Assignment]:
        for share in self.shares:
            start = 0
            for consumer, end in zip(share.consumers.tolist(), share.ends.tolist(), strict=True):
                again = share.redeliveries[start:end]
                if len(again) and not again.any():
                    again = NO_REDELIVERIES
                yield Assignment(consumer, share.positions[start:end], again, share.dispatch + start)
                start = end

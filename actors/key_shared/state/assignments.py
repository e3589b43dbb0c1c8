"""The assignments of one dispatch pass: whole columns, sorted by consumer, and cut for one only on request.

With hundreds of consumers the cuts are most of the objects of a pass. A caller that works on columns takes the `shares`
and needs no cut; a caller that serves single consumers iterates, and gets one `Assignment` for each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.state.policies import NEW_OWNER, REASONS
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
    """The result of one pass. Consumer number consumers[i] gets the rows from ends[i-1] to ends[i].

    positions: int64, ascending within each consumer. redeliveries: uint8, one a row; empty = all 0. consumers, ends:
    int64, one a consumer that gets anything. dispatch: number of the first row.
    """

    consumers: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    positions: Positions
    redeliveries: npt.NDArray[np.uint8]
    dispatch: int


STEPS_MS = (1, 5, 10, 50, 100, 500, 1000, 5000, 30_000, 60_000)
_STEPS, _GATES = np.array(STEPS_MS), 1_000


class ReadGates:
    """The gates that kept messages from being read, in order of time. since: ms, nothing counts before it."""

    def __init__(self, since: int = 0) -> None:
        self.since = since
        self._now = NEW_OWNER
        self._past: list[tuple[int, str]] = []
        """The end (ms) of each gate that was there, oldest first."""

    def own_since(self, now: int) -> None:
        """Note that the owner is there since `now` (ms), unless that was known before."""
        self.since = self.since or now

    def read_at(self, now: int) -> None:
        """Note that messages are read at `now` (ms), past the gate that was there until then."""
        self.own_since(now)
        if self._past and self._past[-1][1] == self._now:
            self._past[-1] = now, self._now
        else:
            self._past.append((now, self._now))
            del self._past[:-_GATES]

    def next(self, gate: str) -> None:
        """Note the gate that holds reading back from the last reading on."""
        self._now = gate

    def parts(self, appended: int) -> Iterator[tuple[str, int, int]]:
        """Divide the wait of a message from its confirmation (ms) to its reading: gates with their starts and ends."""
        first = max(appended, self.since)
        for at in range(len(self._past) - 1, -1, -1):
            end, gate = self._past[at]
            start = max(self._past[at - 1][0], first) if at else first
            yield gate, start, end
            if start <= first:
                return


class WaitTimes:
    """How long messages waited for their first delivery: a histogram of the lengths (ms) of their parts, by reason.

    Invariant: `sums` of all reasons are what the messages waited from their confirmation, or since this owner began.
    """

    def __init__(self) -> None:
        self.counts = np.zeros((len(REASONS), len(STEPS_MS) + 1), np.int64)
        self.sums = np.zeros(len(REASONS), np.int64)
        self.gates = ReadGates()
        self._came: list[tuple[int, int]] = []

    def came(self, count: int, appended: int) -> None:
        """Note messages that were read. appended: when the topic confirmed them, ms, 0 if that is unknown."""
        self._came.append((count, appended))

    def read(self, now: int) -> None:
        """Take the messages that came into a dispatch at `now` (ms)."""
        self.gates.read_at(now)
        for count, appended in self._came:
            for gate, start, end in self.gates.parts(appended or now):
                reason, waited = REASONS.index(gate), max(end - start, 0)
                self.counts[reason, bisect_left(STEPS_MS, waited)] += count
                self.sums[reason] += count * waited
        self._came.clear()

    def end(self, reasons: npt.NDArray[np.uint8], waited: npt.NDArray[np.int64]) -> None:
        """Count waits that are over: a reason (index in REASONS) and a time (ms) for each message, shape (n,)."""
        if len(reasons):
            steps = reasons.astype(np.intp) * self.counts.shape[1] + np.searchsorted(_STEPS, waited)
            self.counts += np.bincount(steps, minlength=self.counts.size).reshape(self.counts.shape)
            self.sums += np.bincount(reasons, waited, len(self.sums)).astype(np.int64)

    def stats(self) -> dict[str, Any]:
        """Return histograms of the reasons that there were, by name."""
        names = [*map(str, STEPS_MS), "overflow"]
        return {
            REASONS[reason]: {
                "quantile": dict(zip(names, self.counts[reason].tolist(), strict=True)),
                "sum": int(self.sums[reason]),
            }
            for reason in np.flatnonzero(self.counts.any(axis=1)).tolist()
        }


class DispatchCounters:
    """Counters over all passes. passes: their number. dispatched: messages that were sent. held_back: messages that a
    gate of the policy refused. waits: times until the first delivery.
    """

    def __init__(self) -> None:
        self.passes = self.dispatched = self.held_back = 0
        self.waits = WaitTimes()

    def begin_pass(self) -> None:
        """Count one more pass."""
        self.passes += 1

    def dispatch(self, count: int) -> int:
        """Count messages that are sent, and return the number of the first of them."""
        self.dispatched += count
        return self.dispatched - count

    def hold_back(self, count: int) -> None:
        """Count messages that a gate of the policy refused."""
        self.held_back += count

    def continue_from(self, before: DispatchCounters) -> None:
        """Go on with the numbers of messages and the totals of an earlier state."""
        self.dispatched, self.held_back, self.waits = before.dispatched, before.held_back, before.waits


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

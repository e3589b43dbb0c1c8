"""Clocks that leapt: a delayed message may come early by as much as some clock is ahead just then.

Clocks decide when a message is due, and a process cannot know that its clock is wrong. The owner of a partition may
change at any time, so each leap counts for all partitions: from the request until it is over and all messages sent
meanwhile have arrived. A clock that is behind permits nothing, and none permits that a message stays away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sluice.loadgen.base.history import Int64s
from sluice.loadgen.base.kinds import CLOCK_JUMP
from sluice.loadgen.judge.column_operations import Mask

ON_ITS_WAY_US = 60_000_000
"""How long after a leap its messages may be received: their consumer, or the process that was asked to have the
wrong clock, may have been stopped or cut off meanwhile."""


class WrongClock(NamedTuple):
    """One leap: from when until when (microseconds) messages may be early by it, and by how many milliseconds."""

    since: int
    until: int
    ahead_ms: int


def wrong_clocks(faults: Sequence[dict[str, Any]]) -> list[WrongClock]:
    """Return the wrong clocks of a run, from the rows of its faults."""
    return [
        WrongClock(row["at_us"], row["at_us"] + int(row["lasts_s"] * 1e6) + ON_ITS_WAY_US, row["ahead_ms"])
        for row in faults
        if row["kind"] == CLOCK_JUMP and row["ahead_ms"] > 0
    ]


def permitted(clocks: Sequence[WrongClock], received_at: Int64s, early_ms: Int64s) -> Mask:
    """Whether a message could be received so many milliseconds early at that time (microseconds); shape (n,)."""
    result = np.zeros(len(received_at), np.bool_)
    for clock in clocks:
        result |= (clock.since <= received_at) & (received_at <= clock.until) & (early_ms <= clock.ahead_ms)
    return result

"""Delays and counts of messages that were given back, as the record has them, and the clock of the delays.

Such messages wait by the wall clock, by which the record names their times.

A delay is a length of time, and a wall clock can be set, or be wrong for a while. An owner that finds it set moves all
times by as much as the clock leapt, so that the rest of each delay stays the same. The monotonic clock shows how much
that was.

The next owner has another monotonic clock, and only the times in the record. By its wall clock more may be left of a
delay than when the record was written: one of the two clocks is wrong. So the record says when it was written, and no
message waits longer than was left then. The owner cannot know which clock is wrong, so a delay may end early by as
much.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sluice.actors.key_shared import KeySharedDispatcher
from sluice.actors.ports import Ports
from sluice.storage.format import redeliveries
from sluice.storage.format.redeliveries import Redeliveries

SET_MS = 1_000
"""The least change (ms) that counts as set: a clock that is adjusted by less runs a little faster or slower."""


class RedeliveryClock:
    """The clock of one owner. It is `Recorded`, before the redeliveries whose times it explains."""

    field = "redeliveries_at"
    used = True

    def __init__(self, ports: Ports, core: KeySharedDispatcher) -> None:
        self._clock, self._core = ports.clock, core
        self._ahead = self._clock.now() - self._clock.monotonic()
        """By how much the wall clock is ahead of the monotonic one, as the core knows it."""
        self._written = 0
        """When the record of the last owner was written, by its clock; 0: the record does not say."""

    def now(self) -> int:
        """Return the wall clock, in ms since 1970; first tell the core if it was set."""
        now = self._clock.now()
        by = now - self._clock.monotonic() - self._ahead
        if abs(by) >= SET_MS:
            self._ahead += by
            self._core.clock_was_set(by)
        return now

    def to_record(self) -> Any:
        now = self.now()
        return now if self._core.delays_redeliveries() else None

    async def load(self, stored: Any) -> None:
        self._written = int(stored or 0)

    def begin_with(self, rows: Redeliveries) -> None:
        """Tell the core what the last owner's record says."""
        now = self.now()
        if self._written:
            most = np.maximum(now + rows.until - self._written, 1)
            rows = rows._replace(until=np.where(rows.until > 0, np.minimum(rows.until, most), 0))
        self._core.remember(rows, now)


class RecordedRedeliveries:
    """The delays and redelivery counts; see `Recorded`. Logs when there are more than the record takes."""

    field = "redeliveries"
    used = True

    def __init__(self, ports: Ports, core: KeySharedDispatcher, clock: RedeliveryClock) -> None:
        self._ports, self._core, self._clock = ports, core, clock

    def to_record(self) -> Any:
        before = self._core.not_durable
        rows = self._core.redeliveries()
        if self._core.not_durable and not before:
            self._ports.log("redeliveries_not_durable", messages=self._core.not_durable)
        return rows

    async def load(self, stored: Any) -> None:
        self._clock.begin_with(redeliveries.decode(stored or b""))

"""Slows processes down for a while: stops them or limits their share of time. A timer ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence

from sluice.loadgen.faults.lasting_faults import Episode

SLOW_SHARE, SLICE_S = 0.1, 0.2
"""A slowed process runs a tenth of every fifth of a second."""


class Slowdown(Episode):
    """Processes that are stopped or slowed down, until `end` or for a number of seconds."""

    def __init__(self, pids: Sequence[int], seconds: float, share: float = 0.0) -> None:
        """Begin at once. share: part of the time that the processes may run, 0 = none."""
        self.pids = list(pids)
        self._share = share
        self._signal(signal.SIGSTOP)
        super().__init__(seconds)

    def _run(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        try:
            while (left := deadline - time.monotonic()) > 0:
                if self._quiet.wait(min(left, SLICE_S * (1 - self._share)) if self._share else left):
                    return
                if self._share:
                    self._signal(signal.SIGCONT)
                    if self._quiet.wait(SLICE_S * self._share):
                        return
                    self._signal(signal.SIGSTOP)
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

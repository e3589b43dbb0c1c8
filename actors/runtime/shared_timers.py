"""Timers of a process that ring together, and rather early than late.

Ten thousand consumers that nothing comes for have as many leases, and each has somebody who sees to its end at both
sides. Mostly there is none, because the lease was renewed meanwhile: who is asked finds that out and waits on. A timer
of its own for each of them wakes the event loop each time. So all that are due in one spell of TICK_MS are asked at its
beginning; who must be exact has another timer made for the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from sluice.actors.ports import Clock

TICK_MS = 250
AT_ONCE = 500
"""The number of timers that ring before other tasks have a turn of the event loop."""


class SharedTimers:
    """The shared timers of one process; see `Ports.process`."""

    def __init__(self) -> None:
        self._ticks: dict[int, dict[SharedTimer, None]] = {}

    def timer(self, clock: Clock, milliseconds: int, call: Callable[[], object]) -> SharedTimer:
        """Do as `Clock.timer` does, but up to TICK_MS early. `call` must not raise."""
        now = clock.monotonic()
        tick = (now + milliseconds) // TICK_MS
        timers = self._ticks.get(tick)
        if timers is None:
            timers = self._ticks[tick] = {}
            clock.timer(tick * TICK_MS - now, partial(self._ring, clock, tick))
        return SharedTimer(timers, call)

    def _ring(self, clock: Clock, tick: int) -> None:
        self._ring_some(clock, self._ticks.pop(tick))

    def _ring_some(self, clock: Clock, timers: dict[SharedTimer, None]) -> None:
        for timer in list(islice(timers, AT_ONCE)):
            timer.ring()
        if timers:
            clock.timer(0, partial(self._ring_some, clock, timers))


class SharedTimer:
    """A call that shares its timer with others. Implements ports.Timer."""

    __slots__ = ("_call", "_together")

    def __init__(self, together: dict[SharedTimer, None], call: Callable[[], object]) -> None:
        """together: all that have not rung and were not cancelled; this one is added."""
        self._together, self._call = together, call
        together[self] = None

    def cancel(self) -> None:
        """Let it not happen; fine if it has."""
        self._together.pop(self, None)
        self._call = _nothing  # what waits has this timer, and would be a cycle with it

    def ring(self) -> None:
        """Make the call, unless the timer was cancelled."""
        if self in self._together:
            del self._together[self]
            call, self._call = self._call, _nothing
            call()


def _nothing() -> None:
    """Do nothing: the call of a timer that is over."""

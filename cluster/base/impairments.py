"""The impairments of a process in a chaos run: for a while its disk is slow, or its clock is wrong.

No signal from outside does either, and the rest of the machine must not suffer. A chaos run asks for an impairment over
a connection to the process (`cluster.launch.process_requests`), with the cluster's token like all requests there. A
timer ends the impairment, even if the chaos run has ended meanwhile.
"""

from __future__ import annotations

import asyncio
import time

from sluice.storage.errors import Invalid

SLOW_DISK = "slow-disk"
"""The amount is how many milliseconds each sync takes longer."""
CLOCK_JUMP = "clock-jump"
"""The amount is by how many milliseconds the wall clock leaps forward, or back if it is less than zero. It is the one
that actors see (`cluster.base.real.RealClock`); libraries, as those of TLS and of S3, see the machine's.
"""


class Impairments:
    """The impairments of one process. felt: how often each was felt since it last began."""

    def __init__(self) -> None:
        self.felt: dict[str, int] = {}
        self.clock_leapt = False
        """Whether `wall_clock` differs from its argument: each message that is sent looks at the clock."""
        self.disk_slowed = False
        """Whether `before_sync` waits: each group of messages that is stored looks at this."""
        self._amounts = {SLOW_DISK: 0, CLOCK_JUMP: 0}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self, kind: str, amount: int, seconds: float) -> None:
        """Begin an impairment in place of an earlier one of its kind. The event loop ends it again. Raises Invalid."""
        if kind not in self._amounts:
            raise Invalid(f"no process can do {kind!r} to itself")
        self.end(kind)
        self.felt[kind] = 0
        self._set(kind, amount)
        self._timers[kind] = asyncio.get_running_loop().call_later(seconds, self.end, kind)

    def end(self, kind: str) -> None:
        """Take it back. Idempotent."""
        if kind in self._amounts:
            self._set(kind, 0)
        timer = self._timers.pop(kind, None)
        if timer is not None:
            timer.cancel()

    def _set(self, kind: str, amount: int) -> None:
        self._amounts[kind] = amount
        self.clock_leapt = bool(self._amounts[CLOCK_JUMP])
        self.disk_slowed = bool(self._amounts[SLOW_DISK])

    def wall_clock(self, now: int) -> int:
        """Return the time that the clock shows when it is `now`, both in milliseconds."""
        if amount := self._amounts[CLOCK_JUMP]:
            self.felt[CLOCK_JUMP] += 1
        return now + amount

    def before_sync(self) -> None:
        """Wait as a slow disk does, in the thread that syncs."""
        if amount := self._amounts[SLOW_DISK]:
            self.felt[SLOW_DISK] += 1
            time.sleep(amount / 1000)


IMPAIRMENTS = Impairments()
"""This process's."""

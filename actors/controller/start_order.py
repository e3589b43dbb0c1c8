"""The order of starts when many owners are lost: first the awaited ones, then the others a few at a time.

A lost process may have had thousands of partitions. Started all at once, all of them come back at the same time, and a
client that waits for one of them waits for all.

A start that takes long, because its bookies are away, keeps others waiting for HOLD_MS at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from sluice.actors.ports import Ports, Timer
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import SluiceError

AT_ONCE = 128
"""The number of starts under way at once that no caller waits for."""
HOLD_MS = 1_000


@dataclass(eq=False, slots=True)
class Start:
    """One start of an actor, which goes on even if no caller waits for it. error: why it failed, once it is over."""

    over: Signal = field(default_factory=Signal)
    error: SluiceError | None = None
    wanted: bool = False
    """Whether a caller waits for the start."""
    begins: Signal = field(default_factory=Signal)


class StartOrder:
    """Lets the starts of one process begin in their turn."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._waiting: dict[Start, None] = {}
        self._under_way: dict[Start, Timer] = {}

    async def turn(self, start: Start) -> None:
        """Wait until this one may begin. `done` must follow."""
        if start.wanted or len(self._under_way) < AT_ONCE:
            self._begin(start)
        else:
            self._waiting[start] = None
            await start.begins.wait(self._ports)

    def want(self, start: Start) -> None:
        """Begin a start at once, because a caller waits for it."""
        start.wanted = True
        if start in self._waiting:
            self._begin(start)

    def done(self, start: Start) -> None:
        """End a start that is over, or has had its time, and begin others."""
        self._waiting.pop(start, None)
        if (timer := self._under_way.pop(start, None)) is None:
            return
        timer.cancel()
        while self._waiting and len(self._under_way) < AT_ONCE:
            self._begin(next(iter(self._waiting)))

    def _begin(self, start: Start) -> None:
        self._waiting.pop(start, None)
        self._under_way[start] = self._ports.clock.timer(HOLD_MS, partial(self.done, start))
        start.begins.set()

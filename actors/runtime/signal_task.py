"""Work that somebody asks for now and then, in a task that is there only while it goes on.

A topic with clients has half a dozen loops that mostly wait for a signal. A task that waits takes a kilobyte: itself,
the frames of its coroutines, what it waits for. With ten thousand topics that are idle these would be half the tasks of
a process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sluice.actors.ports import Ports
from sluice.actors.runtime.signal import Signal


class SignalTask:
    """Work that is done whenever a signal is set. step: does it, and clears the signal at the moment from which on it
    must be called once more for what is set; returns after how many ms to call it though nothing was set, None for
    never. One step runs at a time. Behind one that raised none does: the error is its task's.
    """

    __slots__ = ("_name", "_ports", "_signal", "_step", "_under_way")

    def __init__(self, ports: Ports, signal: Signal, step: Callable[[], Awaitable[int | None]], name: str) -> None:
        self._ports, self._signal, self._step, self._name = ports, signal, step, name
        self._under_way = False
        signal.on_set(self.begin)

    def begin(self) -> None:
        """Let the work be done, unless it is under way."""
        if not self._under_way:
            self._under_way = True
            self._ports.spawn(self._run(), self._name)

    async def _run(self) -> None:
        while (rest := await self._step()) is not None or self._signal.is_set():
            await self._signal.wait(self._ports, rest)
        self._under_way = False

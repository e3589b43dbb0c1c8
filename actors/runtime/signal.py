"""Waiting for a condition, at most so long, through the ports.

asyncio's own timeouts read the loop's clock behind the actor's back; a Signal takes its time from ports.clock, so a
wait behaves the same in every world.

A topic with clients has half a dozen loops that mostly wait for a signal. A task that waits takes a kilobyte: itself,
the frames of its coroutines, what it waits for. With ten thousand topics that are idle these would be half the tasks of
a process. So a SignalTask is there only while there is work. A CancellableWait needs no task of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar, cast

from sluice.actors.ports import Ports, Timer
from sluice.actors.runtime.shared_timers import SharedTimers

T = TypeVar("T")

SHARED_FROM_MS = 1_000
"""A wait of so long has a timer together with others, if it can be told to last longer."""


class Signal:
    """A flag that tasks wait for. `set` wakes all tasks that wait now; it stays set until a `clear`."""

    __slots__ = ("_on_set", "_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._on_set: Callable[[], None] | None = None
        self._waiters: list[asyncio.Future[bool]] | None = None
        """None while nobody waits: a topic with clients has two dozen signals, and most have nobody."""

    def is_set(self) -> bool:
        """Return whether a wait would return at once."""
        return self._set

    def set(self) -> None:
        """Wake all waiters, and let later waits pass until cleared."""
        self._set = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(True)
        if self._on_set is not None:
            self._on_set()

    def on_set(self, call: Callable[[], None]) -> None:
        """Call this whenever it is set, and now if it is."""
        self._on_set = call
        if self._set:
            call()

    def clear(self) -> None:
        """Let later waits block again."""
        self._set = False

    def wait(
        self,
        ports: Ports,
        milliseconds: int | None = None,
        longer: Callable[[], int] | None = None,
        *,
        about: bool = False,
    ) -> Awaitable[bool]:
        """Wait until it is set (True) or for a time in ms (False); None waits without end. longer: asked when the time
        is over, or will be in less than TICK_MS, for how many ms more to wait from then, 0 for none. Who need not do
        anything yet is not woken for that. about: a second or more may end up to TICK_MS early, together with others'.
        """
        if self._set:
            return _PASSED
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = [waiter]
        else:
            while self._waiters and self._waiters[-1].done():  # who gave up stays until somebody else comes
                self._waiters.pop()
            self._waiters.append(waiter)
        if milliseconds is None:
            return waiter  # most wait so, and a coroutine around it would take more than the rest of a wait
        return self._until(waiter, _Alarm(ports, waiter, milliseconds, longer, about))

    async def _until(self, waiter: asyncio.Future[bool], alarm: _Alarm) -> bool:
        try:
            return await waiter
        finally:
            alarm.timer.cancel()
            if self._waiters is not None and waiter in self._waiters:
                self._waiters.remove(waiter)


class _Passed:
    """A wait that is over at once."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, bool]:
        yield from ()
        return True


_PASSED = _Passed()


class _Alarm:
    """Ends a wait when its time is over. Who can say how much longer it is may be asked before that as well."""

    __slots__ = ("_about", "_due", "_longer", "_ports", "_waiter", "timer")

    def __init__(
        self,
        ports: Ports,
        waiter: asyncio.Future[bool],
        milliseconds: int,
        longer: Callable[[], int] | None,
        about: bool,
    ) -> None:
        self._ports, self._waiter, self._longer, self._about = ports, waiter, longer, about
        self.timer = self._wait(milliseconds)

    def _wait(self, milliseconds: int) -> Timer:
        self._due = self._ports.clock.monotonic() + milliseconds
        if milliseconds < SHARED_FROM_MS or not (self._about or self._longer):
            return self._ports.clock.timer(milliseconds, self._ring)
        return self._ports.process.of(SharedTimers).timer(self._ports.clock, milliseconds, self._ring)

    def _ring(self) -> None:
        if self._waiter.done():
            return
        try:
            more = 0 if self._longer is None else self._longer()
        except Exception as error:
            self._waiter.set_exception(error)
            return
        if more > 0:
            self.timer = self._wait(more)
        elif not self._about and (early := self._due - self._ports.clock.monotonic()) > 0:
            self.timer = self._ports.clock.timer(early, self._ring)
        else:
            self._waiter.set_result(False)


class SignalTask:
    """Work that is done whenever a signal is set. step: does it, and clears the signal at the moment from which on it
    must be called once more for what is set; returns after how many ms to call it though nothing was set, None for
    never. One step runs at a time. Behind one that raised none does: the error is its task's.
    """

    __slots__ = ("_name", "_ports", "_signal", "_step", "_under_way")

    def __init__(self, ports: Ports, signal: Signal, step: Callable[[], Awaitable[int | None]], name: str) -> None:
        self._ports, self._signal, self._step, self._name = ports, signal, step, name
        self._under_way = False
        signal.on_set(self.start)

    def start(self) -> None:
        """Let the work be done, unless it is under way."""
        if not self._under_way:
            self._under_way = True
            self._ports.spawn(self._run(), self._name)

    async def _run(self) -> None:
        while (rest := await self._step()) is not None or self._signal.is_set():
            await self._signal.wait(self._ports, rest)
        self._under_way = False


class CancellableWait:
    """An interruptible wait; one at a time."""

    __slots__ = ("_ended", "_waits")

    def __init__(self) -> None:
        self._waits: asyncio.Task[None] | None = None
        self._ended = False

    def end(self) -> None:
        """End the wait that is under way, if there is one."""
        if self._waits is not None and not self._ended:
            self._ended = True
            self._waits.cancel()

    async def run(self, work: Awaitable[T]) -> T | None:
        """Return the result of some work, or raise its error; None if `end` ended it. A cancellation of the task itself
        ends the task.
        """
        self._waits = task = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            return await work
        except asyncio.CancelledError:
            if self._ended and task.uncancel() == 0:
                return None
            raise
        finally:
            self._waits, self._ended = None, False

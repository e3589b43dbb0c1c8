"""Runs several pieces of work at once, and returns their outcomes one by one as they come.

Quorum protocols act on the first so-many answers, not on all of them. Everything runs through ports.spawn, so the
work belongs to its actor and ends with it. The coroutine of a piece of work is made when the work begins: a task that
is cancelled before leaves none behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, ParamSpec, TypeVar

from sluice.actors.ports import Ports, Task
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import SluiceError

K = TypeVar("K")
T = TypeVar("T")
P = ParamSpec("P")


class FanOut(Generic[K, T]):
    """Runs work under keys. A SluiceError is an outcome; any other error is a defect, and `next` raises it."""

    def __init__(self, ports: Ports, name: str) -> None:
        self._ports = ports
        self._name = name
        self._signal = Signal()
        self._outcomes: deque[tuple[K, T | BaseException]] = deque()
        self._tasks: list[Task] = []
        self._open = 0

    def start(self, key: K, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Begin a piece of work with these arguments."""
        self._open += 1
        self._tasks.append(self._ports.spawn(self._run(key, work, *args, **kwargs), self._name))

    @property
    def busy(self) -> bool:
        """Whether `next` has something to give."""
        return self._open > 0

    async def within(self, milliseconds: int | None = None) -> bool:
        """Whether an outcome is there or comes within a time (ms)."""
        self._signal.clear()
        if not self._outcomes:
            await self._signal.wait(self._ports, milliseconds)
        return bool(self._outcomes)

    async def next(self) -> tuple[K, T | SluiceError]:
        """The next outcome, in order of arrival."""
        while not self._outcomes:
            self._signal.clear()
            await self._signal.wait(self._ports)
        self._open -= 1
        key, outcome = self._outcomes.popleft()
        if isinstance(outcome, BaseException) and not isinstance(outcome, SluiceError):
            raise outcome
        return key, outcome

    def cancel(self) -> None:
        """Stop waiting; requests that were sent may still take effect."""
        for task in self._tasks:
            task.cancel()

    async def _run(self, key: K, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> None:
        outcome: T | BaseException
        try:
            outcome = await work(*args, **kwargs)
        except Exception as error:
            outcome = error
        self._outcomes.append((key, outcome))
        self._signal.set()


async def together(ports: Ports, name: str, works: Iterable[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    """Run all at once and return their results in the given order; the first SluiceError is raised."""
    fan: FanOut[int, T] = FanOut(ports, name)
    for index, work in enumerate(works):
        fan.start(index, work)
    results: dict[int, T] = {}
    try:
        while fan.busy:
            index, outcome = await fan.next()
            if isinstance(outcome, SluiceError):
                raise outcome
            results[index] = outcome
    finally:
        fan.cancel()
    return [results[index] for index in sorted(results)]

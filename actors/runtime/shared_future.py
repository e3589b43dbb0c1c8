"""A result for which several tasks wait. A task that gives up waiting ends nothing for the others.

It does for actors what `asyncio.shield` around a future does, with one change of tasks less a wait and without a second
future: a message passes two of these on its way to the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

from sluice.actors.ports import Ports
from sluice.storage.errors import SluiceError

K = TypeVar("K")
T = TypeVar("T")


class SharedFuture(Generic[T]):
    """Settled once. `await` brings the result, or raises the error, to each who waits."""

    __slots__ = ("_calls", "_done", "_error", "_result")

    _result: T
    """Not there before it is settled with a result."""

    def __init__(self) -> None:
        self._done = False
        self._error: BaseException | None = None
        self._calls: list[Callable[[], object]] = []

    def done(self) -> bool:
        return self._done

    def set_result(self, result: T) -> None:
        """Set the result and wake all waiters. Does nothing if it is settled."""
        if not self._done:
            self._result = result
            self._settle()

    def set_exception(self, error: BaseException) -> None:
        """Set the error and wake all waiters. Does nothing if it is settled; fine if no task ever waits."""
        if not self._done:
            self._error = error
            self._settle()

    def set_outcome(self, outcome: T | SluiceError) -> None:
        """Set the result, or the error."""
        if isinstance(outcome, SluiceError):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)

    @property
    def error(self) -> BaseException | None:
        """The error that it was settled with, if there is one."""
        return self._error

    def outcome(self) -> T | SluiceError:
        """Return the result, or the refusal, of a future that is settled. Raises any other error."""
        if self._error is None:
            return self._result
        if isinstance(self._error, SluiceError):
            return self._error
        raise self._error

    def then(self, call: Callable[[], object]) -> None:
        """Call this as soon as it is settled; at once if it is."""
        if self._done:
            call()
        else:
            self._calls.append(call)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._calls.append(partial(_wake, waiter))
            yield from waiter
        if self._error is not None:
            raise self._error
        return self._result

    def _settle(self) -> None:
        self._done = True
        calls, self._calls = self._calls, []
        for call in calls:
            call()


async def all_of(outcomes: Iterable[SharedFuture[Any]]) -> None:
    """Wait for each, in order. Raises the first error; what comes behind it goes on."""
    for outcome in outcomes:
        await outcome


class SingleFlight(Generic[K, T]):
    """A question with one answer for all who ask it at the same time; one is under way at once for each subject.

    Who asks while one is under way waits for the next, because that one may have been answered from before. So each
    answer is newer than its question, and a thousand who ask at once cost two questions.
    """

    __slots__ = ("_ask", "_asked", "_name", "_ports")

    def __init__(self, ports: Ports, ask: Callable[[K], Coroutine[Any, Any, T]], name: str) -> None:
        self._ports, self._ask, self._name = ports, ask, name
        self._asked: dict[K, SharedFuture[T] | None] = {}
        """By subject of a question that is under way, the answer to the one after it, if somebody waits for that."""

    async def __call__(self, subject: K) -> T:
        """Return the answer. Raises what the question raises."""
        under_way, answer = subject in self._asked, self._asked.get(subject)
        if answer is None:
            answer = self._asked[subject] = SharedFuture()
        if not under_way:
            self._ports.spawn(self._go_on(subject), self._name)
        return await answer

    async def _go_on(self, subject: K) -> None:
        try:
            while (answer := self._asked[subject]) is not None:
                self._asked[subject] = None
                try:
                    answer.set_result(await self._ask(subject))
                except SluiceError as error:
                    answer.set_exception(error)
                except BaseException as error:
                    answer.set_exception(error)
                    raise
        finally:
            del self._asked[subject]
            if not self._asked:
                self._asked = {}  # one that was in use once takes three times as much


async def carry_through(ports: Ports, work: Callable[[], Awaitable[T]], name: str) -> T:
    """Return the result of some work, or raise its error. The work goes on when the waiting task is cancelled; what it
    then raises is logged. It does not begin where its actor ends first.
    """
    outcome: SharedFuture[T] = SharedFuture()
    waits = [True]

    async def carried() -> None:
        try:
            outcome.set_result(await work())
        except SluiceError as error:
            if not waits:
                ports.log("carried_through", work=name, error=str(error))
            outcome.set_exception(error)
        except BaseException as error:
            outcome.set_exception(error)
            raise

    ports.spawn(carried(), name)
    try:
        return await outcome
    finally:
        waits.clear()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

"""What several wait for, and none of them can end: whoever gives up waiting gives up alone.

It does for actors what `asyncio.shield` around a future does, with one change of tasks less a wait and without a second
future: a message passes two of these on its way to the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable
from functools import partial
from typing import Any, Generic, TypeVar, cast

from actors.ports import Ports
from storage.errors import SluiceError

T = TypeVar("T")


class SharedFuture(Generic[T]):
    """Settled once. `await` brings the result, or raises the error, to each who waits."""

    __slots__ = ("_calls", "_done", "_error", "_result")

    def __init__(self) -> None:
        self._done = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._calls: list[Callable[[], object]] = []

    def done(self) -> bool:
        """Whether it is settled."""
        return self._done

    def set_result(self, result: T) -> None:
        """It went well. Does nothing if it is settled."""
        if not self._done:
            self._result = result
            self._settle()

    def set_exception(self, error: BaseException) -> None:
        """It did not. Does nothing if it is settled; fine if nobody ever waits."""
        if not self._done:
            self._error = error
            self._settle()

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
        return cast(T, self._result)

    def _settle(self) -> None:
        self._done = True
        calls, self._calls = self._calls, []
        for call in calls:
            call()


async def all_of(outcomes: Iterable[SharedFuture[Any]]) -> None:
    """Wait for each, in order. Raises the first error; what comes behind it goes on."""
    for outcome in outcomes:
        await outcome


async def carry_through(ports: Ports, work: Coroutine[Any, Any, T], name: str) -> T:
    """What some work returns or raises. It goes on when whoever waits for it is cancelled; what it then raises is
    logged.
    """
    outcome: SharedFuture[T] = SharedFuture()
    waits = [True]

    async def carried() -> None:
        try:
            outcome.set_result(await work)
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

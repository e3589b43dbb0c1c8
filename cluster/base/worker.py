"""A thread that does the work of an event loop, one call after the other.

asyncio's own way to a thread makes a future for each side and joins them with callbacks; here there is one, and a hop
costs half the processor time. Where a message takes several hops, that is what most of its time goes into.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar, cast

T = TypeVar("T")

_Job = tuple["asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class Worker:
    """The thread begins with the first work and waits for more until `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._under_way = 0
        self.closed = False

    @property
    def idle(self) -> bool:
        """Whether all work is done, as the event loop that gave it knows."""
        return not self._under_way

    def do(self, work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Call a function in the thread; the future gets its result or error.

        A caller that gives up changes nothing: the work is done all the same. Raises RuntimeError once closed.
        """
        if self.closed:
            raise RuntimeError(f"the thread {self._name} has ended")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        self._queue.put((future, work, arguments))
        return future

    def close(self) -> None:
        """Finish the given work, then end. Idempotent."""
        self.closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            future, work, arguments = job
            result: object = None
            error: BaseException | None = None
            try:
                result = work(*arguments)
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                future.get_loop().call_soon_threadsafe(self._settle, future, result, error)
            del job, future, work, arguments, result, error  # not to be kept until the next work comes

    def _settle(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._under_way -= 1
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(cast("Exception", error))

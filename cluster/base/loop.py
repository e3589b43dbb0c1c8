"""The event loop of a client: one in a thread of its own for callers that block, or the one that its caller runs.

`Home` is all that the parts of a client see of either. So a client is written once, and only its outermost calls
differ: a blocking call hands a coroutine over to a LoopThread and waits, and an asynchronous one awaits it in its own
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakSet

from sluice.cluster.base.forks import forget_in_children
from sluice.storage.errors import Fenced, Invalid, Unavailable

logger = logging.getLogger("sluice.client")

T = TypeVar("T")

CLOSED = "the client is closed"
STOP_S = 10.0
"""So long a loop that is stopped is waited for."""
MOST_ROUNDS = 10
"""Tasks that end with their loop, and timers that ring meanwhile, may begin others: so often these are ended too."""


class NoReplyInTime(Unavailable):
    """The answer did not come in time."""


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop: uvloop's where it is installed, else asyncio's own, which costs more processor time a message.

    Ray decides in the same way for the processes that it starts, and by the same variable: RAY_USE_UVLOOP=0 is asyncio
    everywhere.
    """
    if os.environ.get("RAY_USE_UVLOOP", "1").lower() not in ("1", "true"):
        return asyncio.new_event_loop()
    try:
        import uvloop
    except ImportError:  # there is none for this platform
        return asyncio.new_event_loop()
    return cast("asyncio.AbstractEventLoop", uvloop.new_event_loop())


def call_user(what: str, callback: Callable[..., object], *arguments: object) -> None:
    """Call a function of the user's on a loop's thread. Whatever it raises is the user's and is logged: it ends no work
    of ours, and `sys.exit` not the thread that everybody waits for.
    """
    try:
        callback(*arguments)
    except BaseException:
        logger.exception("%s failed", what)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def wake_task(wait: asyncio.Future[None], loop: asyncio.AbstractEventLoop) -> None:
    """End a task's wait, from the thread of its loop or from another one. Do nothing for a loop that has ended."""
    if running_loop() is loop:
        end_wait(wait)
        return
    with contextlib.suppress(RuntimeError):  # its loop has ended
        loop.call_soon_threadsafe(end_wait, wait)


def end_wait(wait: asyncio.Future[None]) -> None:
    """End a wait, unless it was given up."""
    if not wait.done():
        wait.set_result(None)


async def within(work: Awaitable[T], timeout_s: float | None) -> T:
    """Return the result of some work. Raises NoReplyInTime after `timeout_s` seconds, when the work is cancelled."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise NoReplyInTime(f"no answer within {timeout_s} s") from None


async def carried_out(call: Callable[[], T]) -> T:
    """Return the result of a call in another thread. A caller that is cancelled hears so when the call has ended."""
    calling = asyncio.ensure_future(asyncio.to_thread(call))
    cancelled: asyncio.CancelledError | None = None
    while not calling.done():
        try:
            await asyncio.wait([calling])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        calling.exception()  # nobody else hears of it
        raise cancelled
    return calling.result()


class Home(Protocol):
    """An event loop as the parts of a client see it."""

    @property
    def is_here(self) -> bool:
        """Whether the loop runs in this process, and not in the one that this was forked from."""

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Call a function there, soon; do nothing once the loop has ended."""

    def later(self, milliseconds: int, call: Callable[[], object]) -> asyncio.TimerHandle:
        """Call a function there after so long."""

    def check_process(self) -> None:
        """Raise Invalid for a caller that cannot use the loop."""

    def check_thread(self) -> None:
        """Raise Invalid for a caller that must not wait for the loop."""


class CallersLoop:
    """The running event loop of the program that uses a client. No thread is added to it."""

    def __init__(self) -> None:
        self._made_in = os.getpid()
        self.loop = asyncio.get_running_loop()

    @property
    def is_here(self) -> bool:
        """Whether this is the process that the client was made in."""
        return os.getpid() == self._made_in

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Call a function behind what the loop has to do already; do nothing once the loop has ended."""
        if not self.loop.is_closed():
            self.loop.call_soon(call, *arguments)

    def later(self, milliseconds: int, call: Callable[[], object]) -> asyncio.TimerHandle:
        """Call a function after so long."""
        return self.loop.call_later(milliseconds / 1000, call)

    def check_process(self) -> None:
        """Raise Invalid in another event loop, another thread, and a forked child."""
        if running_loop() is not self.loop:
            raise Invalid("this client belongs to the event loop that made it; another loop or thread makes its own")

    def check_thread(self) -> None:
        """Accept every caller: nothing here waits for the loop."""


class LoopThread:
    """Runs coroutines for threads that block."""

    def __init__(self, name: str) -> None:
        self._made_in = os.getpid()
        self.is_here = True
        """Whether the thread runs in this process, and not in the one that this was forked from."""
        self.loop = new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._handing_over = threading.Lock()
        self._ended = False
        """It takes no more work: what came behind the end would never be carried out, and waited for for ever."""
        self._thread.start()
        _running.add(self)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        for _ in range(MOST_ROUNDS):
            if not (left := asyncio.all_tasks(self.loop)):
                break
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine there and wait for it. Raises NoReplyInTime after `timeout` seconds, and Fenced if another
        thread has closed the client, or does so meanwhile; see `check_process` and `check_thread`.
        """
        try:
            self.check_process()
            self.check_thread()
            with self._handing_over:
                if self._ended:
                    raise Fenced(CLOSED)
                future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except (Invalid, Fenced):
            work.close()
            raise
        return self._outcome(future, timeout)

    def _outcome(self, future: Future[T], timeout: float | None) -> T:
        try:
            return future.result(timeout)
        except CancelledError:
            raise Fenced(CLOSED) from None
        except FutureTimeout:
            if not future.cancel():  # it ended just now, or this error is its own
                return future.result()
            raise NoReplyInTime(f"no answer within {timeout} s") from None
        except KeyboardInterrupt:
            future.cancel()
            raise

    def ask(self, question: Callable[[], T]) -> T:
        """Call a function on that thread and return its result. The caller may run on that thread itself."""
        if threading.current_thread() is self._thread:
            return question()

        async def answer() -> T:
            return question()

        return self.run(answer())

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Call a function there, soon; does nothing once the loop has ended. See `check_process`."""
        self.check_process()
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(call, *arguments)

    def later(self, milliseconds: int, call: Callable[[], object]) -> asyncio.TimerHandle:
        """Call a function there after so long. For callers that run on that thread themselves."""
        return self.loop.call_later(milliseconds / 1000, call)

    def check_process(self) -> None:
        """Raises Invalid in a forked child: it has no such thread, and would wait for it for ever."""
        if not self.is_here:
            raise Invalid(
                f"this client was made by process {self._made_in}; one that was forked from it connects itself"
            )

    def check_thread(self) -> None:
        """Raise Invalid on the loop's own thread: a caller there would wait for the loop for ever, and so would all
        others.
        """
        if threading.current_thread() is self._thread:
            raise Invalid("this waits for the thread that runs the callback; do it in a thread of your own")

    def stop(self) -> None:
        """End the loop and its thread; they are the parent's in a forked child."""
        if not self.is_here:
            return
        with self._handing_over:
            self._ended = True
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(STOP_S)
        if not self.loop.is_running():
            self.loop.close()


_running: WeakSet[LoopThread] = WeakSet()


def _leave_threads() -> None:
    """A forked child has none of these threads. Nobody goes on with their tasks there, which is no error to print."""
    for thread in list(_running):
        thread.is_here = False
        for task in asyncio.all_tasks(thread.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]


forget_in_children(_leave_threads)

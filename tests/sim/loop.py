"""One seeded event loop: a whole cluster on one thread, with a clock that only moves when everybody waits.

Theory of operation. An asyncio program makes two kinds of free choices: in which order callbacks that are ready run,
and how long things take. Here both come from one seed. Callbacks that are ready are picked at random (or first in,
first out: each seed decides, because some defects show only in a polite order). When none is ready, time jumps to the
next timer; no real time passes. So a seed replays a run exactly, and an hour of cluster time takes a second.

Processes. Every task runs in a context that names the process it belongs to (`OWNER`). Freezing a process holds back
its callbacks until it thaws: it sees nothing, and then goes on in the middle of whatever it was doing, as a process
does after SIGSTOP and SIGCONT. Killing it drops its callbacks for good: not even its `finally` blocks run, as after
SIGKILL. What others wait for belongs to the network, not to the dead.

Three things end a run as failed: a problem that somebody reported (`fail`), nothing left to do while the main
coroutine still waits (a lost wake-up), and too many steps (a busy loop: time stands still, or never-ending work).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import random
import traceback
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
P = ParamSpec("P")

OWNER: ContextVar[object] = ContextVar("OWNER")
"""The process on whose behalf the current callback runs."""

STEP_LIMIT = 20_000_000
STANDSTILL_LIMIT = 200_000
"""So many callbacks in a row without time moving are a busy loop."""


class SimFailure(AssertionError):
    """A run broke a promise or got stuck. The text tells the whole story."""


class _Ready(events.Handle):
    """A callback in its context. asyncio's own handle asks each time whether anybody debugs; nobody does here."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None, _copy: Any = copy_context
    ) -> None:
        self._context = _copy() if context is None else context
        self._callback = callback
        self._args = args
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True


class SimLoop(asyncio.BaseEventLoop):
    """A deterministic event loop. `now` is virtual milliseconds since the start of the run."""

    def __init__(self, seed: int, *, shuffle: bool | None = None, step_limit: int = STEP_LIMIT) -> None:
        super().__init__()
        rng = random.Random(f"loop/{seed}")
        self.seed = seed
        self.now = 0
        self.steps = 0
        self.shuffle = rng.random() < 0.8 if shuffle is None else shuffle
        self.problem: BaseException | None = None
        self._pick = rng.random
        self._step_limit = step_limit
        self._line: deque[events.Handle] = deque()
        self._pool: list[events.Handle] = []
        self._timers: list[tuple[int, int, events.Handle]] = []
        self._ready: deque[events.Handle] | list[events.Handle] = self._pool if self.shuffle else self._line
        self._counter = 0
        self._root = Context()
        self._frozen: dict[object, list[events.Handle] | None] = {}
        self._dropped: list[events.Handle] = []
        self._awaited: dict[asyncio.Future[None], Callable[[], bool]] = {}

    # -- what asyncio asks of a loop --

    get_debug = bool
    """Always False, and asked at every step."""

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def time(self) -> float:
        """Virtual seconds, for asyncio's own timers."""
        return self.now / 1000

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> events.Handle:
        """Make a callback ready."""
        handle = _Ready(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> events.Handle:
        """Refused: a second thread would end determinism."""
        raise SimFailure("a thread was used inside the simulator")

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> events.TimerHandle:
        """A timer of asyncio itself, on virtual time."""
        handle = events.TimerHandle(when, callback, args, self, context)
        self._push(max(self.now, round(when * 1000)), handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> events.TimerHandle:
        """A timer of asyncio itself, on virtual time."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Refused: a second thread would end determinism."""
        raise SimFailure("an executor was used inside the simulator")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception that nobody caught fails the run."""
        error = context.get("exception") or SimFailure(str(context.get("message")))
        self.fail(error)

    # -- what the simulator adds --

    def after(self, milliseconds: int, callback: Callable[..., object], *args: object) -> events.Handle:
        """Run a callback of the simulated world (not of a process) after some virtual time."""
        handle = _Ready(callback, args, self._root)
        if milliseconds <= 0:
            self._ready.append(handle)
        else:
            self._counter += 1
            heappush(self._timers, (self.now + milliseconds, self._counter, handle))
        return handle

    def work(self, milliseconds: int) -> None:
        """Keep the loop busy for so many milliseconds: everybody else is late."""
        self.now += milliseconds

    def busy(self) -> bool:
        """Whether anything can run before time moves."""
        return bool(self._ready)

    async def pause(self, milliseconds: int) -> None:
        """Wait on virtual time."""
        future: asyncio.Future[None] = asyncio.Future(loop=self)
        handle = self.after(milliseconds, _wake, future)
        try:
            await future
        finally:
            handle._cancelled = True

    async def until(self, condition: Callable[[], bool], milliseconds: int) -> bool:
        """Wait for a condition, so long at the most; returns whether it holds.

        The loop asks for it whenever time is about to move: at the end of each moment at which something happened.
        """
        end = self.now + milliseconds
        last = self.after(milliseconds, bool)
        holds = condition()

        def over() -> bool:
            nonlocal holds
            holds = condition()
            return holds or self.now >= end

        if not holds:
            future = self.create_future()
            self._awaited[future] = over
            try:
                await future
            finally:
                del self._awaited[future]
        last.cancel()
        return holds

    def fail(self, error: BaseException) -> None:
        """Report a problem; the first one ends the run."""
        if self.problem is None:
            self.problem = error

    def freeze(self, owner: object) -> None:
        """Hold back every callback of a process until it thaws."""
        self._frozen.setdefault(owner, [])

    def thaw(self, owner: object) -> None:
        """Let a frozen process go on where it was. Fine if it was not frozen, or is dead."""
        held = self._frozen.get(owner)
        if held is not None:
            del self._frozen[owner]
            self._ready.extend(held)

    def send_to_dead_letters(self, owner: object) -> None:
        """Drop every callback of a process, now and for ever."""
        self._dropped.extend(self._frozen.get(owner) or ())
        self._frozen[owner] = None

    def play(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end on virtual time and return its result. Raises SimFailure."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        task = self.create_task(main)
        try:
            self._drive(task)
            if self.problem is not None:
                raise self.problem
            return task.result()
        finally:
            self._clear(task)
            events._set_running_loop(before)
            self.close()

    def _push(self, when: int, handle: events.Handle) -> None:
        self._counter += 1
        heappush(self._timers, (when, self._counter, handle))

    def _drive(self, main: asyncio.Task[Any]) -> None:
        """Run until the main task is done. The hot loop: one turn is one step of the whole cluster."""
        moved = self.steps
        frozen, pool, pick, take, done = self._frozen, self._pool, self._pick, self._line.popleft, main.done
        while self.problem is None and not done():
            if pool:
                last = len(pool) - 1
                at = int(pick() * (last + 1))
                pool[at], pool[last] = pool[last], pool[at]
                handle = pool.pop()
            elif self._line:
                handle = take()
            elif (self._awaited and self._has_come()) or self._advance():
                moved = self.steps
                continue
            else:
                raise SimFailure(f"nothing is left to do at {self.now} ms, but the run still waits:\n{_where(main)}")
            if handle._cancelled:
                continue
            context = handle._context  # type: ignore[attr-defined]
            if frozen and context.get(OWNER) in frozen:
                self._hold(handle)
                continue
            self.steps += 1
            if self.steps > self._step_limit or self.steps - moved > STANDSTILL_LIMIT:
                raise SimFailure(
                    f"{self.steps} steps at {self.now} ms, {self.steps - moved} without time moving: a busy loop?"
                )
            try:
                context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
            except Exception as error:
                self.fail(error)

    def _next(self) -> events.Handle | None:
        if not self.shuffle:
            return self._line.popleft() if self._line else None
        pool = self._pool
        if not pool:
            return None
        last = len(pool) - 1
        at = int(self._pick() * (last + 1))
        pool[at], pool[last] = pool[last], pool[at]
        return pool.pop()

    def _has_come(self) -> bool:
        """Wake those whose conditions hold; returns whether there are any."""
        come = False
        for future, condition in list(self._awaited.items()):
            if future.done():
                continue
            try:
                if not condition():
                    continue
                future.set_result(None)
            except Exception as error:
                future.set_exception(error)
            come = True
        return come

    def _advance(self) -> bool:
        """Jump to the next timer that still counts and make everything due then ready."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        if not timers:
            return False
        self.now = max(self.now, timers[0][0])
        ready = self._ready
        while timers and timers[0][0] <= self.now:
            ready.append(heappop(timers)[2])
        return True

    def _hold(self, handle: events.Handle) -> None:
        held = self._frozen[handle._context.get(OWNER)]  # type: ignore[attr-defined]
        # The dropped callbacks of the dead are kept: a pending task that is collected would complain.
        (self._dropped if held is None else held).append(handle)

    def _clear(self, main: asyncio.Task[Any]) -> None:
        """End what is left, quietly: the run is over and nothing that happens now counts."""
        self.problem = self.problem or SimFailure("the run is over")
        # The frozen and the dead run their last steps now, only to take their cancellation.
        ready = self._ready
        ready.extend(self._dropped)
        for held in self._frozen.values():
            ready.extend(held or ())
        self._frozen.clear()
        self._dropped.clear()
        left = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        _close_unbegun(task.get_coro() for task in left)
        for task in left:
            task.cancel()
        for _ in range(100_000):
            handle = self._next()
            if handle is None:
                break
            if not handle._cancelled:
                with contextlib.suppress(Exception):
                    handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
        for task in left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if task.done() and not task.cancelled():
                task.exception()
        self._timers.clear()


def run(seed: int, main: Callable[[], Coroutine[Any, Any, T]], *, shuffle: bool | None = None) -> T:
    """Run a coroutine function on a fresh seeded loop and return its result."""
    return SimLoop(seed, shuffle=shuffle).play(main())


def simulated(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine, played on virtual time. Its seed is its argument `seed`, or 1."""

    @functools.wraps(test)
    def play(*args: P.args, **given: P.kwargs) -> None:
        seed = given.get("seed", 1)
        assert isinstance(seed, int)
        SimLoop(seed).play(test(*args, **given))

    return play


def current_loop() -> SimLoop:
    """The simulated loop that plays what calls this."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop


class Work:
    """The coroutine of a task. A task that is cancelled before it begins never awaits it, and Python would complain."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, None, None]:
        return self._work.__await__()

    def __del__(self) -> None:
        self._work.close()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _where(task: asyncio.Task[Any]) -> str:
    return "".join(line for frame in task.get_stack() for line in traceback.format_stack(frame, 1))


def _close_unbegun(works: Iterable[object]) -> None:
    """End coroutines whose tasks have not begun: else Python complains of each that it was never awaited.

    One may have been given another one to await, which has not begun either.
    """
    for work in works:
        if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
            _close_unbegun(list(inspect.getcoroutinelocals(work).values()))
            work.close()

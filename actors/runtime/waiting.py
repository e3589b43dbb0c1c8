"""Waiting in an actor: for a condition, for a result, or for a time, at most so long, through the ports.

asyncio's own timeouts read the loop's clock behind the actor's back; a Signal takes its time from ports.clock, so a
wait behaves the same in every world.

**Tasks.** A topic with clients has half a dozen loops that mostly wait for a signal. A task that waits takes a
kilobyte: itself, the frames of its coroutines, what it waits for. With ten thousand topics that are idle these would be
half the tasks of a process. So a SignalTask is there only while there is work. A CancellableWait needs no task of its
own.

**Answers** come by a call. A wait for a bookie is most of what a message does; as a task it costs more than the work
before and behind it. So `ask` needs none, and neither does `soon`, for what is due in the next turn of the event loop.
A call has the rules of a background task: an error in it ends its actor, and after the end of its actor none is made.

**Pauses between tries** are each twice as long as the one before, up to a limit. Tasks that wait for the same thing, as
a thousand consumers for a new dispatcher, began to wait at the same moment. So that they do not retry in step, every
pause is shortened by a random part of at most a tenth (as Pulsar's clients do).

**Results.** Several tasks may wait for a SharedFuture, and a task that gives up waiting ends nothing for the others. It
does for actors what `asyncio.shield` around a future does, with one change of tasks less a wait and without a second
future: a message passes two of these on its way to the disk.

**Timers.** Ten thousand consumers that nothing comes for have as many leases, and each has somebody who sees to its end
at both sides. Mostly there is none, because the lease was renewed meanwhile: who is asked finds that out and waits on.
A timer of its own for each of them wakes the event loop each time. So SharedTimers ring together, and rather early than
late: all that are due in one spell of TICK_MS are asked at its beginning. Who must be exact has another timer made for
the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar, cast

from sluice.actors.ports import Address, Clock, Ports, Timer, Unknown
from sluice.actors.ports.wire import Reply, Request
from sluice.storage.errors import SluiceError

K = TypeVar("K")
R = TypeVar("R", bound=Reply)
T = TypeVar("T")

JITTER = 10
"""A pause between tries is shortened by at most one part in so many."""

TICK_MS = 250
AT_ONCE = 500
"""The number of timers that ring before other tasks have a turn of the event loop."""
SHARED_FROM_MS = 1_000
"""A wait of so long has a timer together with others, if it can be told to last longer."""


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


class SharedTimers:
    """The shared timers of one process; see `Ports.process`."""

    def __init__(self) -> None:
        self._ticks: dict[int, dict[SharedTimer, None]] = {}

    def timer(self, clock: Clock, milliseconds: int, call: Callable[[], object]) -> SharedTimer:
        """Do as `Clock.timer` does, but up to TICK_MS early. `call` must not raise."""
        now = clock.monotonic()
        tick = (now + milliseconds) // TICK_MS
        timers = self._ticks.get(tick)
        if timers is None:
            timers = self._ticks[tick] = {}
            clock.timer(tick * TICK_MS - now, partial(self._ring, clock, tick))
        return SharedTimer(timers, call)

    def _ring(self, clock: Clock, tick: int) -> None:
        self._ring_some(clock, self._ticks.pop(tick))

    def _ring_some(self, clock: Clock, timers: dict[SharedTimer, None]) -> None:
        for timer in list(islice(timers, AT_ONCE)):
            timer.ring()
        if timers:
            clock.timer(0, partial(self._ring_some, clock, timers))


class SharedTimer:
    """A call that shares its timer with others. Implements ports.Timer."""

    __slots__ = ("_call", "_together")

    def __init__(self, together: dict[SharedTimer, None], call: Callable[[], object]) -> None:
        """together: all that have not rung and were not cancelled; this one is added."""
        self._together, self._call = together, call
        together[self] = None

    def cancel(self) -> None:
        """Let it not happen; fine if it has."""
        self._together.pop(self, None)
        self._call = _nothing  # what waits has this timer, and would be a cycle with it

    def ring(self) -> None:
        """Make the call, unless the timer was cancelled."""
        if self in self._together:
            del self._together[self]
            call, self._call = self._call, _nothing
            call()


def _nothing() -> None:
    """Do nothing: the call of a timer that is over."""


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


def ask(
    ports: Ports,
    to: Address,
    request: Request[R],
    timeout: int,
    on_answer: Callable[[R | Unknown | SluiceError], None],
) -> None:
    """Ask a peer and wait at most `timeout` ms. on_answer: called once, after this has returned."""
    ports.net.ask(to, request, timeout, partial(_call, ports, on_answer))


def soon(ports: Ports, call: Callable[[], None]) -> None:
    """Call a function in the next turn of the event loop, without a task."""
    asyncio.get_running_loop().call_soon(_call, ports, call)


def _call(ports: Ports, call: Callable[..., None], *given: object) -> None:
    if ports.actor.over:
        return
    try:
        call(*given)
    except Exception as error:
        ports.spawn(_fail(error), "call")


async def _fail(error: Exception) -> None:
    raise error


class Backoff:
    """The pauses of one series of tries. first, most: milliseconds. patience: the series ends after so many."""

    def __init__(self, ports: Ports, first: int, most: int, patience: int = 0) -> None:
        self._ports = ports
        self._first, self._most = first, most
        self._next = first
        # Each message begins some series, and nearly none has a patience: those do not look at the clock.
        self._until = ports.clock.monotonic() + patience if patience else 0

    async def pause(self) -> None:
        """Wait before the next try."""
        wait, self._next = self._next, min(2 * self._next, self._most)
        await self._ports.clock.sleep(wait - self._ports.rng.randrange(wait // JITTER + 1))

    async def pause_after(self, error: Exception) -> None:
        """Wait before the next try, or raise why the last one failed once the patience is over."""
        if self._ports.clock.monotonic() >= self._until:
            raise error
        await self.pause()

    def reset(self) -> None:
        """Begin with the first pause again: a try went well."""
        self._next = self._first

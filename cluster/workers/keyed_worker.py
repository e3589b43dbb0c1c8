"""Workers that handle several keys at once, or publish their handler's results before they acknowledge a message.

A plan (`schedule.py`) says who may run, and `result_loop.py` decides what happens to a message. Here are the threads. A
quick function that handles one key at a time is called in the worker's own thread, which sees to what came meanwhile
after HAND_OVER_S. A slow one is called in a thread of its own, with `concurrency` in several, and coroutine functions
on an event loop. Some messages wait in line to be called, each of another key, so that many results go together. The
iterators that handlers return are read where they are called, because the handler's code runs while they are. Without
an output what a handler returns is left alone, and its message is acknowledged when it has returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import numpy as np

from sluice.actors.consumer.unacked_messages import Received
from sluice.cluster.client.blocking import Consumer
from sluice.cluster.client.message import Batch, Message
from sluice.cluster.workers.ages import Rows
from sluice.cluster.workers.handler_worker import Handler, HandlerWorker, awaited, key_of
from sluice.cluster.workers.options import WorkersOptions
from sluice.cluster.workers.outputs import MOST_RESULTS, results_of
from sluice.cluster.workers.result_loop import Call, NotOurs, ResultLoop
from sluice.cluster.workers.result_sender import ResultSender
from sluice.cluster.workers.schedule import KeySchedule
from sluice.storage.errors import Fenced, Timeout

AT_ONCE = 256
"""Messages that are received together, and that wait in line to be called beside those that are."""
HAND_OVER_S = 0.01
HAND_OVER_BYTES = 1024 * 1024
"""Results of so many bytes do not wait for others."""
SLOW_S, SLOW_CALLS = 0.05, 3
"""A function that takes longer, so often in a row, has a thread of its own from then on: what was confirmed meanwhile
would not be acknowledged for so long, and be handled again if the worker dies.
"""
FEW = 16
"""So many messages are acknowledged for less one by one than as rows of their batches."""
LOOK_S = 1.0
"""The longest wait between two looks whether the client still runs."""


def is_stale(message: Message) -> bool:
    """Whether the message is no longer this consumer's: it comes again, here or elsewhere."""
    return message.batch.received.revoked or message.taken_back()


class KeyedWorker(HandlerWorker):
    """A worker for functions and for coroutine functions. Their own steps are those of `ResultSteps`."""

    _called: Handler
    _work: ResultLoop[Message]

    def __init__(self, consumer: Consumer, handler: Handler, options: WorkersOptions, sender: ResultSender) -> None:
        super().__init__(consumer, handler, options)
        self._sender = sender
        self._plan: KeySchedule[Message] = KeySchedule(options.concurrency, is_stale)
        """The pool looks at it from its own thread."""
        self._planning = threading.Condition()
        """Guards the plan and what is counted. Told when there is something to run, or room for more."""
        self._started_at: dict[bytes, float] = {}
        """Since when each key's handler runs."""

    def _under_way(self) -> Iterable[tuple[bytes, float]]:
        with self._planning:
            return list(self._started_at.items())

    def _taken(self) -> Iterable[Rows]:
        with self._planning:
            firsts = {**dict(self._plan.first_waiting()), **self._plan.running}
        rows: dict[Received, list[int]] = {}
        for message in firsts.values():
            rows.setdefault(message.batch.received, []).append(message.row)
        return [(part, np.array(sorted(chosen))) for part, chosen in rows.items()]

    def _has_room(self) -> bool:
        return self._plan.waiting < self._options.prefetch

    def _take(self, work: ResultLoop[Message], first: Message | None = None) -> None:
        """This one, and what is here already."""
        if first is not None:
            work.submit(key_of(first), first)
        if (room := self._options.prefetch - self._plan.waiting) > 0:
            for message in self._consumer.receive_here(min(room, AT_ONCE)):
                work.submit(key_of(message), message)
        work.start()

    def _end(self, work: ResultLoop[Message]) -> None:
        """All is under way to its end, or cannot be. Raises what went wrong."""
        if work.error is not None:
            raise work.error

    def publish(self, calls: list[Call[Message]]) -> None:
        self._sender.publish(calls)

    def acknowledge(self, calls: list[Call[Message]]) -> None:
        rows: dict[Batch, list[int]] = {}
        for call in calls:
            if len(calls) <= FEW:
                self._consumer.acknowledge(call.item)
            else:
                rows.setdefault(call.item.batch, []).append(call.item.row)
        for batch, done in rows.items():
            self._consumer.acknowledge(batch, rows=np.array(sorted(done)))
        self._handled += len(calls)

    def _nack_call(self, call: Call[Message]) -> None:
        """Wait until it was given back. Raises GaveUp."""
        why = "".join(traceback.format_exception(call.error)) if call.error is not None else ""
        self._nack(call.key, call.item, why)

    def _gave(self, call: Call[Message], returned: Any) -> None:
        if self._options.outputs:
            call.results = results_of(returned)
            call.size = sum(result.size for result in call.results)


class ThreadedWorker(KeyedWorker):
    """Functions: in the worker's own thread, or in threads of their own."""

    def __init__(self, consumer: Consumer, handler: Handler, options: WorkersOptions, sender: ResultSender) -> None:
        super().__init__(consumer, handler, options, sender)
        self._plan = KeySchedule(options.concurrency + min(AT_ONCE, options.prefetch), is_stale)
        self._line: deque[Call[Message]] = deque()
        """What is to be called."""
        self._back: deque[Call[Message]] = deque()
        """What threads have called."""
        self._back_bytes = 0
        self._news = threading.Event()
        self._told = False
        self._over = False
        self._threads: list[threading.Thread] = []
        self._slow = 0
        """Slow calls in a row."""

    def stop(self) -> None:
        super().stop()
        self._tell()

    # -- in the worker's thread -------------------------------------------------------------------------------------

    def _serve(self, call: Handler) -> None:
        self._called = call
        self._sender.on_end = self._tell
        work = self._work = ResultLoop(self._plan, self, guard=self._planning)
        if self._options.concurrency > 1:
            self._begin_threads()
        try:
            while not self._stop_asked.is_set() and work.error is None:
                self._go_on(work, receiving=True)
            work.stop()
            while not work.finished and work.error is None:
                self._go_on(work, receiving=False)
        finally:
            with self._planning:
                self._over = True
                self._planning.notify_all()
            for thread in self._threads:
                thread.join()
            self._sender.close()
        self._end(work)

    def _begin_threads(self) -> None:
        name = self._consumer.consumer_name()
        for number in range(self._options.concurrency):
            thread = threading.Thread(target=self._call_in_thread, name=f"{name}-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _go_on(self, work: ResultLoop[Message], *, receiving: bool) -> None:
        """See to what has come, or wait for something."""
        self._news.clear()
        self._told = False  # whoever has something from here on tells it, and what came before is seen below
        if ended := self._sender.ended():
            work.published(ended)
        if back := self._called_in_threads():
            work.returned(back)
        if receiving:
            self._take(work)
        if self._line and not self._threads and not work.full:
            work.returned(self._call_some())
        elif not (ended or back):
            self._wait(work, receiving=receiving)

    def _wait(self, work: ResultLoop[Message], *, receiving: bool) -> None:
        if self._sender.cut_off:
            raise Fenced("the client is closed")
        if not (receiving and self._has_room()):
            self._news.wait(LOOK_S)
            return
        try:
            self._take(work, self._consumer.receive())
        except Timeout:  # somebody woke it
            return

    def _tell(self) -> None:
        """Wake the worker for news, from any thread."""
        if not self._told:
            self._told = True
            self._news.set()
            self._consumer.wake()

    # -- the steps of a message -------------------------------------------------------------------------------------

    def call(self, calls: list[Call[Message]]) -> None:
        if not self._threads:
            self._line.extend(calls)
            return
        with self._planning:
            self._line.extend(calls)
            self._planning.notify_all()

    def give_back(self, call: Call[Message]) -> None:
        self._nack_call(call)
        self._work.given_back(call)

    def _call_some(self) -> list[Call[Message]]:
        """Call the handler for some messages, in the worker's own thread."""
        since = now = time.monotonic()
        size, called = 0, []
        while self._line and size < HAND_OVER_BYTES and now - since < HAND_OVER_S:
            call = self._line.popleft()
            self._call(call)
            size += call.size
            called.append(call)
            before, now = now, time.monotonic()
            self._slow = self._slow + 1 if now - before > SLOW_S else 0
            if self._slow == SLOW_CALLS:
                self._begin_threads()
                break
        return called

    def _call(self, call: Call[Message]) -> None:
        """Once the worker is to stop nothing begins."""
        message = call.item
        try:
            if self._stop_asked.is_set() or not self._is_ours(message):
                raise NotOurs
            with self._planning:
                self._started_at[call.key] = time.monotonic()
            try:
                self._gave(call, self._handled_by_user(message))
            finally:
                with self._planning:
                    self._started_at.pop(call.key, None)
        except BaseException as error:
            call.error = error

    def _handled_by_user(self, message: Message) -> Any:
        returned = self._called(message)
        if inspect.isasyncgen(returned) and self._options.outputs:
            returned = _collected(returned)
        # A coroutine function in a wrapper does not say that it is one.
        return asyncio.run(awaited(returned)) if inspect.isawaitable(returned) else returned

    # -- in threads for handlers ------------------------------------------------------------------------------------

    def _call_in_thread(self) -> None:
        while (call := self._next_in_line()) is not None:
            self._call(call)
            with self._planning:
                self._back.append(call)
                self._back_bytes += call.size
            self._tell()

    def _next_in_line(self) -> Call[Message] | None:
        """Waits for one; None: the worker has ended."""
        with self._planning:
            while not self._over and (not self._line or self._work.full or self._back_bytes > HAND_OVER_BYTES):
                self._planning.wait()
            return None if self._over else self._line.popleft()

    def _called_in_threads(self) -> list[Call[Message]]:
        if not self._threads:
            return []
        with self._planning:
            back = list(self._back)
            self._back.clear()
            self._back_bytes = 0
            self._planning.notify_all()
        return back


class LoopWorker(KeyedWorker):
    """Coroutine functions as tasks of one event loop. What comes from other threads sets `_changed`."""

    def __init__(self, consumer: Consumer, handler: Handler, options: WorkersOptions, sender: ResultSender) -> None:
        super().__init__(consumer, handler, options, sender)
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._back: list[Call[Message]] = []
        """Whose handlers have returned in this round of the loop."""

    def stop(self) -> None:
        super().stop()
        self._in_loop(self._changed.set)

    def _serve(self, call: Handler) -> None:
        self._called = call
        try:
            asyncio.run(self._receive())
        finally:
            self._sender.close()

    async def _receive(self) -> None:
        self._running = asyncio.get_running_loop()
        self._sender.on_end = lambda: self._in_loop(self._guarded, self._published)
        work = self._work = ResultLoop(self._plan, self, self._on_change, self._planning)
        while not self._stop_asked.is_set() and work.error is None:
            self._changed.clear()
            if not self._has_room():
                await self._change()
            elif (message := await self._next()) is not None:
                self._take(work, message)
        work.stop()
        while not work.finished and work.error is None:
            self._changed.clear()
            await self._change()
        self._end(work)

    async def _change(self) -> None:
        """Wait for one, LOOK_S at most. Raises Fenced once the client is closed."""
        if self._sender.cut_off:
            raise Fenced("the client is closed")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), LOOK_S)

    def _on_change(self) -> None:
        self._changed.set()
        if self._work.error is not None:
            self._consumer.wake()

    async def _next(self) -> Message | None:
        """The next message, or nothing if it was woken."""
        try:
            if here := self._consumer.receive_nowait(1):
                return here[0]
            return await self._consumer.receive_async()
        except Timeout:
            return None

    def _in_loop(self, step: Callable[..., object], *arguments: Any) -> None:
        """Take a step in the worker's loop; from any thread."""
        if self._running is not None:
            with contextlib.suppress(RuntimeError):  # the worker has ended
                self._running.call_soon_threadsafe(step, *arguments)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except BaseException as error:  # it ends the worker, and the pool says why
            self._work.fail(error)

    def _published(self) -> None:
        self._work.published(self._sender.ended())

    # -- the steps of a message -------------------------------------------------------------------------------------

    def call(self, calls: list[Call[Message]]) -> None:
        for call in calls:
            self._spawn(self._call(call))

    async def _call(self, call: Call[Message]) -> None:
        message = call.item
        try:
            if message.batch.consumer.lease_over():
                await asyncio.to_thread(self._is_ours, message)
            if is_stale(message):
                raise NotOurs
            with self._planning:
                self._started_at[call.key] = time.monotonic()
            try:
                self._gave(call, await awaited(self._called(message)))
            finally:
                with self._planning:
                    self._started_at.pop(call.key, None)
        except BaseException as error:
            call.error = error
        if not self._back and self._running is not None:
            self._running.call_soon(self._guarded, self._returned)
        self._back.append(call)

    def _returned(self) -> None:
        back, self._back = self._back, []
        self._work.returned(back)

    def give_back(self, call: Call[Message]) -> None:
        self._spawn(self._give_back(call))

    async def _give_back(self, call: Call[Message]) -> None:
        try:
            await asyncio.to_thread(self._nack_call, call)
            self._work.given_back(call)
        except BaseException as error:  # it ends the worker, and the pool says why
            self._work.fail(error)


async def _collected(returned: Any) -> list[Any]:
    found: list[Any] = []
    async for one in returned:
        found.append(one)
        if len(found) > MOST_RESULTS:  # too many, which is told where they are looked at
            break
    return found

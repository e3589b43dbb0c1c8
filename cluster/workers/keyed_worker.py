"""Workers that handle several keys at once: functions in threads, coroutine functions on one event loop.

Messages are taken from the consumer into a plan (`schedule.py`), which says who may run. Whoever ends makes room for
the next one of its key.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import traceback
from collections.abc import Iterable
from typing import Any

from cluster.consumer import Consumer
from cluster.message import Message
from cluster.receiver_queue import NothingArrived
from cluster.workers.ages import Rows
from cluster.workers.handler_worker import Handler, HandlerWorker, key_of, row_of
from cluster.workers.options import WorkersOptions
from cluster.workers.schedule import KeySchedule


def is_stale(message: Message) -> bool:
    """Whether the message is no longer this consumer's: it comes again, here or elsewhere."""
    return message.batch.received.revoked or message.taken_back()


class KeyedWorker(HandlerWorker):
    """The plan, and what both kinds do with it."""

    def __init__(self, consumer: Consumer, handler: Handler, options: WorkersOptions) -> None:
        super().__init__(consumer, handler, options)
        self._plan: KeySchedule[Message] = KeySchedule(options.concurrency, is_stale)
        self._planning = threading.Condition()
        """Guards the plan and what is counted. Told when there is something to run, or room for more."""
        self._started_at: dict[bytes, float] = {}
        self._ended: BaseException | None = None
        """What ends the worker, in whichever thread or task it happened."""

    def _under_way(self) -> Iterable[tuple[bytes, float]]:
        with self._planning:
            return list(self._started_at.items())

    def _taken(self) -> Iterable[Rows]:
        with self._planning:
            firsts = {**dict(self._plan.first_waiting()), **self._plan.running}
        return [row_of(message) for message in firsts.values()]

    def _add(self, message: Message | None) -> None:
        """The message that came, and those that are here already."""
        messages = [message] if message is not None else None
        with self._planning:
            while messages:
                self._plan.add(key_of(messages[0]), messages[0])
                messages = self._consumer.receive_nowait(1) if self._has_room() else None
            self._planning.notify_all()

    def _has_room(self) -> bool:
        return self._plan.waiting < self._options.prefetch

    def _begun(self, most: int | None = None) -> list[tuple[bytes, Message]]:
        """What begins now. most: so many at the most."""
        started = self._plan.start(most)
        now = time.monotonic()
        self._started_at.update((key, now) for key, _ in started)
        return started

    def _done(self, key: bytes, *, handled: bool) -> None:
        with self._planning:
            self._handled += handled
            self._started_at.pop(key, None)
            self._plan.done(key)
            self._planning.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._planning:
            self._ended = self._ended or error
            self._planning.notify_all()
        self._consumer.wake()


class ThreadedWorker(KeyedWorker):
    """Functions in as many threads as keys may be handled at once; the worker's own thread receives."""

    def _serve(self, call: Handler) -> None:
        names = [f"{self._consumer.consumer_name()}-{number}" for number in range(self._options.concurrency)]
        threads = [threading.Thread(target=self._work, args=(call,), name=name, daemon=True) for name in names]
        for thread in threads:
            thread.start()
        while not self._over():
            with self._planning:
                self._planning.wait_for(lambda: self._has_room() or self._over())
            if not self._over():
                try:
                    self._add(self._consumer.receive())
                except NothingArrived:  # somebody woke it
                    pass
                except BaseException as error:
                    self._fail(error)
        with self._planning:
            self._plan.clear()
            self._planning.notify_all()
        for thread in threads:
            thread.join()
        if self._ended is not None:
            raise self._ended

    def stop(self) -> None:
        super().stop()
        with self._planning:
            self._planning.notify_all()

    def _over(self) -> bool:
        return self._stop_asked.is_set() or self._ended is not None

    def _work(self, call: Handler) -> None:
        try:
            while True:
                with self._planning:
                    while not (begun := self._begun(1)):
                        if self._over():
                            return
                        self._planning.wait()
                self._handle(*begun[0], call)
        except BaseException as error:  # it ends the worker, and the pool says why
            self._fail(error)

    def _handle(self, key: bytes, message: Message, call: Handler) -> None:
        if not self._is_ours(message):
            self._done(key, handled=False)
            return
        try:
            returned = call(message)
            if inspect.isawaitable(returned):
                asyncio.run(_awaited(returned))
        except Exception:  # the handler is the user's: whatever it raises gives the message back
            self._give_back(key, message, traceback.format_exc())
            self._done(key, handled=False)
        else:
            self._consumer.acknowledge(message)
            self._done(key, handled=True)


class LoopWorker(KeyedWorker):
    """Coroutine functions as tasks of one event loop."""

    def __init__(self, consumer: Consumer, handler: Handler, options: WorkersOptions) -> None:
        super().__init__(consumer, handler, options)
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: asyncio.AbstractEventLoop | None = None
        self._changed: asyncio.Event = asyncio.Event()

    def _serve(self, call: Handler) -> None:
        asyncio.run(self._receive(call))

    def stop(self) -> None:
        super().stop()
        self._tell()

    def _fail(self, error: BaseException) -> None:
        super()._fail(error)
        self._tell()

    def _tell(self) -> None:
        loop = self._running
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._changed.set)
            except RuntimeError:  # it has ended by itself
                return

    async def _receive(self, call: Handler) -> None:
        self._running = asyncio.get_running_loop()
        while not self._stop_asked.is_set() and self._ended is None:
            self._changed.clear()
            if not self._has_room():
                await self._changed.wait()
            elif (message := await self._next()) is not None:
                self._add(message)
                self._start(call)
        with self._planning:
            self._plan.clear()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        if self._ended is not None:
            raise self._ended

    async def _next(self) -> Message | None:
        """The next message, or nothing if it was woken."""
        try:
            if here := self._consumer.receive_nowait(1):
                return here[0]
            return await self._consumer.receive_async()
        except NothingArrived:
            return None

    def _start(self, call: Handler) -> None:
        with self._planning:
            started = self._begun()
        for key, message in started:
            task = asyncio.ensure_future(self._handle(key, message, call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _handle(self, key: bytes, message: Message, call: Handler) -> None:
        handled = False
        try:
            if message.batch.consumer.lease_over():
                await asyncio.to_thread(self._is_ours, message)
            if not is_stale(message):
                handled = await self._call(key, message, call)
        except BaseException as error:  # it ends the worker, and the pool says why
            self._fail(error)
            return
        self._done(key, handled=handled)
        self._start(call)
        self._changed.set()  # there may be room again

    async def _call(self, key: bytes, message: Message, call: Handler) -> bool:
        """Whether it was handled; else it was given back. Raises GaveUp."""
        try:
            await call(message)
        except Exception:  # the handler is the user's: whatever it raises gives the message back
            await asyncio.to_thread(self._give_back, key, message, traceback.format_exc())
            return False
        self._consumer.acknowledge(message)
        return True


async def _awaited(returned: Any) -> Any:
    return await returned

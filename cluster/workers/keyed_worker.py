"""Workers that handle several keys at once: functions in threads, coroutine functions on one event loop.

Messages are taken from the consumer into a plan (`schedule.py`), which says who may run. A message that ends makes
room for the next one of its key.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import traceback

from sluice.cluster.client.consumer import Consumer
from sluice.cluster.client.message import Message
from sluice.cluster.workers.handler_worker import Handler, awaited, key_of
from sluice.cluster.workers.options import WorkersOptions
from sluice.cluster.workers.planned_worker import EventLoopWorker, PlannedWorker, is_stale
from sluice.storage.errors import Timeout


class KeyedWorker(PlannedWorker):
    """A worker that lets a plan decide which keys run, for functions and for coroutine functions."""

    def __init__(self, consumer: Consumer, handler: Handler, options: WorkersOptions) -> None:
        super().__init__(consumer, handler, options)
        self._ended: BaseException | None = None
        """What ends the worker, in whichever thread or task it happened."""

    def _add(self, message: Message | None) -> None:
        """The message that came, and those that are here already."""
        messages = [message] if message is not None else None
        with self._planning:
            while messages:
                self._plan.add(key_of(messages[0]), messages[0])
                messages = self._consumer.receive_nowait(1) if self._has_room() else None
            self._planning.notify_all()

    def _begun(self, most: int | None = None) -> list[tuple[bytes, Message]]:
        """Start messages by the plan and return them with their keys. most: an upper limit."""
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
                except Timeout:  # somebody woke it
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
                asyncio.run(awaited(returned))
        except Exception:  # the handler is the user's: whatever it raises gives the message back
            self._nack(key, message, traceback.format_exc())
            self._done(key, handled=False)
        else:
            self._consumer.acknowledge(message)
            self._done(key, handled=True)


class LoopWorker(KeyedWorker, EventLoopWorker):
    """Coroutine functions as tasks of one event loop."""

    def _serve(self, call: Handler) -> None:
        asyncio.run(self._receive(call))

    def _fail(self, error: BaseException) -> None:
        super()._fail(error)
        self._tell()

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

    def _start(self, call: Handler) -> None:
        with self._planning:
            started = self._begun()
        for key, message in started:
            self._spawn(self._handle(key, message, call))

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
            await awaited(call(message))
        except Exception:  # the handler is the user's: whatever it raises gives the message back
            await asyncio.to_thread(self._nack, key, message, traceback.format_exc())
            return False
        self._consumer.acknowledge(message)
        return True

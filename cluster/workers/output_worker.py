"""A worker whose handler's results are published, before the message that they were made of is acknowledged.

What happens to a message is decided in `result_loop.py`. Here are the threads: one event loop for that and for
coroutine functions, and as many threads as keys may be handled at once for other functions. A few calls wait in line
for these, each of another key, so a thread goes from one to the next while the loop is busy. The iterators that
handlers return are read there too, because the handler's code runs while they are.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from cluster.consumer import Consumer
from cluster.message import Message
from cluster.workers.handler_worker import Handler, awaited, is_async, key_of
from cluster.workers.options import WorkersOptions
from cluster.workers.outputs import MOST_RESULTS, Result, results_of
from cluster.workers.planned_worker import EventLoopWorker, is_stale
from cluster.workers.result_loop import NotOurs, ResultLoop
from cluster.workers.result_sender import ResultSender
from cluster.workers.schedule import KeySchedule

AHEAD = 16
"""Calls that wait in line for a thread: else each thread would wait for the event loop between two of them."""


class OutputWorker(EventLoopWorker):
    """Its own steps are those of `ResultSteps`."""

    def __init__(self, consumer: Consumer, handler: Handler, options: WorkersOptions, sender: ResultSender) -> None:
        super().__init__(consumer, handler, options)
        self._sender = sender
        self._called: Handler = handler
        self._is_async = is_async(handler)
        if not self._is_async:
            self._plan = KeySchedule(options.concurrency + AHEAD, is_stale)
        self._threads: ThreadPoolExecutor | None = None

    # -- in the worker's thread -------------------------------------------------------------------------------------

    def _serve(self, call: Handler) -> None:
        self._called = call
        with ThreadPoolExecutor(self._options.concurrency, self._consumer.consumer_name()) as threads:
            self._threads = threads
            try:
                asyncio.run(self._receive())
            finally:
                self._sender.close()

    async def _receive(self) -> None:
        self._running = asyncio.get_running_loop()
        work = ResultLoop(self._plan, self, self._spawn, self._changed.set, self._planning)
        while not self._stop_asked.is_set() and work.error is None:
            self._changed.clear()
            if not self._has_room():
                await self._changed.wait()
                continue
            message = await self._next()
            messages = [message] if message is not None else None
            while messages:
                work.take(key_of(messages[0]), messages[0])
                messages = self._consumer.receive_nowait(1) if self._has_room() else None
            work.start()
        if work.error is None:
            await work.finish()
        if work.error is not None:
            raise work.error

    # -- the steps of a message -------------------------------------------------------------------------------------

    async def call(self, item: Message) -> list[Result]:
        """Call the handler, and read what it gives. Raises NotOurs, and what the handler raises."""
        if not self._is_async:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._results, item)
        if item.batch.consumer.lease_over():
            await asyncio.to_thread(self._is_ours, item)
        if is_stale(item):
            raise NotOurs
        with self._noted(item):
            return results_of(await self._called(item))

    def _results(self, message: Message) -> list[Result]:
        """In a thread, for which it may have waited in line. Once the worker is to stop nothing begins."""
        if self._stop_asked.is_set() or not self._is_ours(message):
            raise NotOurs
        with self._noted(message):
            returned = self._called(message)
            if inspect.isawaitable(returned):  # a coroutine function in a wrapper does not say that it is one
                return results_of(asyncio.run(awaited(returned)))
            if inspect.isasyncgen(returned):
                return results_of(asyncio.run(_collected(returned)))
            return results_of(returned)

    @contextmanager
    def _noted(self, message: Message) -> Iterator[None]:
        """Its key is under way."""
        key = key_of(message)
        with self._planning:
            self._started_at[key] = time.monotonic()
        try:
            yield
        finally:
            with self._planning:
                self._started_at.pop(key, None)

    def size(self, results: Any) -> int:
        """Bytes of what is to be published."""
        return sum(result.size for result in results)

    async def publish(self, item: Message, results: Any) -> None:
        """Publish the results, and wait until they are confirmed."""
        await self._sender.publish(item, results)

    def acknowledge(self, item: Message) -> None:
        """It is done."""
        self._consumer.acknowledge(item)
        self._handled += 1

    async def nack(self, item: Message, error: Exception) -> None:
        """It has failed. Raises GaveUp."""
        why = "".join(traceback.format_exception(error))
        await asyncio.to_thread(self._nack, key_of(item), item, why)

    async def settle(self) -> None:
        """What was acknowledged is durable."""
        await asyncio.to_thread(self._consumer.wait_acknowledged)


async def _collected(returned: Any) -> list[Any]:
    found: list[Any] = []
    async for one in returned:
        found.append(one)
        if len(found) > MOST_RESULTS:  # too many, which is told where they are looked at
            break
    return found

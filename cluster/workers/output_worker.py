"""A worker whose handler's results are published, before the message that they were made of is acknowledged.

What happens to a message is decided in `result_loop.py`. Here are the threads: one event loop for that and for
coroutine functions, and as many threads as keys may be handled at once for other functions. The iterators that
handlers return are read there too, because the handler's code runs while they are.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import traceback
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cluster.consumer import Consumer
from cluster.message import Message
from cluster.receiver_queue import NothingArrived
from cluster.workers.ages import Rows
from cluster.workers.handler_worker import Handler, HandlerWorker, is_async, key_of, row_of
from cluster.workers.keyed_worker import is_stale
from cluster.workers.options import WorkersOptions
from cluster.workers.outputs import MOST_RESULTS, Result, results_of
from cluster.workers.result_loop import NotOurs, ResultLoop
from cluster.workers.result_sender import ResultSender
from cluster.workers.schedule import KeySchedule


class OutputWorker(HandlerWorker):
    """Its own steps are those of `ResultSteps`."""

    def __init__(self, consumer: Consumer, handler: Handler, options: WorkersOptions, sender: ResultSender) -> None:
        super().__init__(consumer, handler, options)
        self._sender = sender
        self._plan: KeySchedule[Message] = KeySchedule(options.concurrency, is_stale)
        self._started_at: dict[bytes, float] = {}
        self._called: Handler = handler
        self._is_async = is_async(handler)
        self._threads: ThreadPoolExecutor | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()

    def stop(self) -> None:
        super().stop()
        loop = self._running
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._changed.set)
            except RuntimeError:  # it has ended by itself
                return

    def _under_way(self) -> Iterable[tuple[bytes, float]]:
        with self._lock:
            return list(self._started_at.items())

    def _taken(self) -> Iterable[Rows]:
        with self._lock:
            firsts = {**dict(self._plan.first_waiting()), **self._plan.running}
        return [row_of(message) for message in firsts.values()]

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
        work = ResultLoop(self._plan, self, self._spawn, self._changed.set, self._lock)
        while not self._stop_asked.is_set() and work.error is None:
            self._changed.clear()
            if self._plan.waiting >= self._options.prefetch:
                await self._changed.wait()
                continue
            message = await self._next()
            messages = [message] if message is not None else None
            while messages:
                work.take(key_of(messages[0]), messages[0])
                messages = self._consumer.receive_nowait(1) if self._plan.waiting < self._options.prefetch else None
            work.start()
        if work.error is None:
            await work.finish()
        if work.error is not None:
            raise work.error

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._consumer.wake()  # the loop looks at what went wrong

    async def _next(self) -> Message | None:
        """The next message, or nothing if it was woken."""
        try:
            if here := self._consumer.receive_nowait(1):
                return here[0]
            return await self._consumer.receive_async()
        except NothingArrived:
            return None

    # -- the steps of a message -------------------------------------------------------------------------------------

    async def call(self, item: Message) -> list[Result]:
        """Call the handler, and read what it gives. Raises NotOurs, and what the handler raises."""
        if item.batch.consumer.lease_over():
            await asyncio.to_thread(self._is_ours, item)
        if is_stale(item):
            raise NotOurs
        key = key_of(item)
        with self._lock:
            self._started_at[key] = time.monotonic()
        try:
            if self._is_async:
                return results_of(await self._called(item))
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._results, item)
        finally:
            with self._lock:
                self._started_at.pop(key, None)

    def _results(self, message: Message) -> list[Result]:
        """In a thread."""
        returned = self._called(message)
        if inspect.isawaitable(returned):  # a coroutine function in a wrapper does not say that it is one
            return results_of(asyncio.run(_awaited(returned)))
        if inspect.isasyncgen(returned):
            return results_of(asyncio.run(_collected(returned)))
        return results_of(returned)

    async def publish(self, item: Message, results: Any) -> None:
        """Publish the results, and wait until they are confirmed."""
        await self._sender.publish(item, results)

    def acknowledge(self, item: Message) -> None:
        """It is done."""
        self._consumer.acknowledge(item)
        self._handled += 1

    async def give_back(self, item: Message, error: Exception) -> None:
        """It has failed. Raises GaveUp."""
        why = "".join(traceback.format_exception(error))
        await asyncio.to_thread(self._give_back, key_of(item), item, why)

    async def settle(self) -> None:
        """What was acknowledged is durable."""
        await asyncio.to_thread(self._consumer.wait_acknowledged)


async def _awaited(returned: Any) -> Any:
    return await returned


async def _collected(returned: Any) -> list[Any]:
    found: list[Any] = []
    async for one in returned:
        found.append(one)
        if len(found) > MOST_RESULTS:  # too many, which is told where they are looked at
            break
    return found

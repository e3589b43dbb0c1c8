"""One worker: takes messages from a consumer, calls the user's handler, and acknowledges what it has finished.

It is a thread with an event loop. Coroutine functions run on that loop, other functions in as many threads as keys may
be handled at once. A message is acknowledged when its handler has returned. When the handler raises, the message is
given back with its place kept; only then the key goes on, so nothing of the key is handled meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cluster.consumer import Consumer
from cluster.message import Message
from cluster.workers.options import WorkersOptions
from cluster.workers.scaling import WorkerLoad
from cluster.workers.schedule import KeySchedule
from storage.errors import SluiceError

MOST_FAILURES = 20
"""So many keys that failed are remembered with their last traceback."""

Handler = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker tells its pool. failures: tracebacks by key. overdue: keys whose handler takes too long.

    error: why the worker has ended, if it did so by itself.
    """

    load: WorkerLoad
    handled: int
    failed: int
    failures: dict[str, str]
    overdue: list[str]
    ended: bool
    error: str


def retry_delay_ms(options: WorkersOptions, redeliveries: int) -> int:
    """How long a message waits that has failed and was given back so often before."""
    return min(options.retry_delay_ms << min(redeliveries, 32), options.max_retry_delay_ms)


def key_of(message: Message) -> bytes:
    """What the order of the message follows, as the subscription sees it; empty without a key."""
    ordering: bytes | None = message.batch.cell("ordering_key", message.row)
    return bytes(ordering or message.key() or b"")


def is_stale(message: Message) -> bool:
    """Whether the message is no longer this consumer's: it comes again, here or elsewhere."""
    return message.batch.received.revoked or message.taken_back()


class MessageWorker:
    """`begin`, then `stop` to finish what is under way and hand over the keys. Safe for threads."""

    def __init__(self, consumer: Consumer, handler: Handler, options: WorkersOptions) -> None:
        """handler: a function, a coroutine function, or a class that is made once here and whose objects are called."""
        self._consumer, self._options = consumer, options
        self._handler = handler
        self._plan: KeySchedule[Message] = KeySchedule(options.concurrency, is_stale)
        self._lock = threading.Lock()
        """Guards the plan and what is counted: the pool asks from its own thread."""
        self._started_at: dict[bytes, float] = {}
        self._failures: dict[str, str] = {}
        self._handled = self._failed = 0
        self._error = ""
        self._thread = threading.Thread(target=self._run, name=consumer.consumer_name(), daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._stop_asked = False

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more messages. What is under way is finished and acknowledged before `report` says `ended`."""
        with self._lock:
            self._stop_asked = True
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # it has ended by itself
                    self._loop.call_soon_threadsafe(self._stopping.set)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the thread has ended."""
        self._thread.join(timeout_s)

    def report(self) -> WorkerReport:
        """How it stands."""
        now, now_ms = time.monotonic(), time.time() * 1000
        with self._lock:
            overdue = [
                key.decode("utf-8", "replace")
                for key, since in self._started_at.items()
                if 0 < self._options.handler_timeout_ms < (now - since) * 1000
            ]
            firsts = {**dict(self._plan.first_waiting()), **self._plan.running}
            ages = {key: age_ms(message, now_ms) for key, message in firsts.items()}
            return WorkerReport(
                load=WorkerLoad(ages=ages),
                handled=self._handled,
                failed=self._failed,
                failures=dict(self._failures),
                overdue=overdue,
                ended=not self._thread.is_alive(),
                error=self._error,
            )

    # -- in the worker's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException:  # whatever it is, the pool replaces this worker and says why
            self._error = traceback.format_exc()
        finally:
            with contextlib.suppress(SluiceError):
                self._consumer.close(for_good=not self._error)

    async def _serve(self) -> None:
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self._stop_asked:
                self._stopping.set()
        handler: Any = self._handler() if inspect.isclass(self._handler) else self._handler
        called: Handler = handler if inspect.isroutine(handler) else handler.__call__
        stopping = asyncio.create_task(self._stopping.wait())
        receiving: asyncio.Task[Message] | None = None
        handling: set[asyncio.Task[None]] = set()
        with ThreadPoolExecutor(self._options.concurrency, self._consumer.consumer_name()) as threads:
            while not stopping.done():
                if receiving is None and self._plan.waiting < self._options.prefetch:
                    receiving = asyncio.create_task(self._consumer.receive_async())
                for key, message in self._begun():
                    handling.add(asyncio.create_task(self._handle(key, message, called, threads)))
                waited = {stopping, *handling} | ({receiving} if receiving else set())
                done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if receiving in done:
                    self._take(receiving.result())
                    receiving = None
                for task in handling & done:
                    task.result()
                handling -= done
            if receiving is not None:
                receiving.cancel()
            await asyncio.gather(*handling)
        with self._lock:
            self._plan.clear()
        await asyncio.to_thread(self._consumer.wait_acknowledged)

    def _take(self, first: Message) -> None:
        """The message that came, and those that are here already."""
        messages: list[Message] | None = [first]
        with self._lock:
            while messages:
                self._plan.add(key_of(messages[0]), messages[0])
                more = self._plan.waiting < self._options.prefetch
                messages = self._consumer.receive_nowait(1) if more else None

    def _begun(self) -> list[tuple[bytes, Message]]:
        with self._lock:
            started = self._plan.start()
            self._started_at.update((key, time.monotonic()) for key, _ in started)
            return started

    async def _handle(self, key: bytes, message: Message, handler: Handler, threads: ThreadPoolExecutor) -> None:
        try:
            if inspect.iscoroutinefunction(handler):
                await handler(message)
            else:
                returned = await asyncio.get_running_loop().run_in_executor(threads, handler, message)
                if inspect.isawaitable(returned):  # a coroutine function in a wrapper does not say that it is one
                    await returned
        except Exception:  # the handler is the user's: whatever it raises gives the message back
            await self._give_back(key, message, traceback.format_exc())
        else:
            self._consumer.acknowledge(message)
            with self._lock:
                self._handled += 1
        finally:
            with self._lock:
                self._started_at.pop(key, None)
                self._plan.done(key)

    async def _give_back(self, key: bytes, message: Message, why: str) -> None:
        shown = key.decode("utf-8", "replace")
        with self._lock:
            self._failed += 1
            self._failures.pop(shown, None)
            self._failures[shown] = why
            while len(self._failures) > MOST_FAILURES:
                del self._failures[next(iter(self._failures))]
        delay = retry_delay_ms(self._options, message.redelivery_count())
        await asyncio.to_thread(self._consumer.negative_acknowledge, message, delay_ms=delay)


def age_ms(message: Message, now_ms: float) -> int:
    """How long a message has waited for a worker. One that comes again waited because its handler failed: 0."""
    if message.redelivery_count():
        return 0
    return max(int(now_ms) - max(message.publish_timestamp(), message.deliver_at()), 0)

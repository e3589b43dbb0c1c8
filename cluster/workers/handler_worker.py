"""The base of every worker: a thread that receives, calls the user's handler, and acknowledges finished messages.

How messages reach the handler differs. A plain function that handles one message at a time is called in the worker's
thread itself, because a hop to another thread costs many times as much as the message (`serial_worker.py`). Several
keys at once need a plan of who may run (`keyed_worker.py`). A handler of columns gets what waits, as one record batch
(`column_worker.py`).

A handler that is an object may have `on_attached`, which is called with the consumer before the first message, and
`on_leaving`, which is called when all is acknowledged and before the consumer leaves; `on_ranges` is the consumer's.

A message is acknowledged when its handler has returned. When the handler raises, the message is given back with its
place kept; only then the key goes on, so nothing of the key is handled meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sluice.cluster.base.log_filter import FewOfEachKind
from sluice.cluster.base.tracing import traced
from sluice.cluster.client.blocking import Consumer
from sluice.cluster.client.message import Message
from sluice.cluster.workers.ages import Rows, keyless, waiting_ages
from sluice.cluster.workers.options import STOP, WorkersOptions
from sluice.cluster.workers.scaling import WorkerLoad
from sluice.cluster.workers.typed_handlers import by_value
from sluice.storage.errors import SluiceError

logger = logging.getLogger("sluice.pool")
logger.addFilter(FewOfEachKind())

MOST_FAILURES = 20
"""So many keys that failed are remembered with their last traceback."""
MOST_TRACEBACK = 4_000
"""Letters of a traceback that are kept, its end."""
MOST_NAMED = 5
"""Keys that a report names, and by which a batch is named."""
LOOK_S = 0.3
"""Between two looks at what waits."""
LATE_S = 0.02
"""Between two looks while it is not known whether a message is still this worker's."""

Handler = Callable[..., Any]


class GaveUp(Exception):
    """A message failed for the last time, and the pool is to stop for that."""


class HandlerCancelled(Exception):
    """An error of a handler that was cancelled, because an operation that it awaited was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """A worker's report to its pool. failures: tracebacks by key. overdue: keys whose handler takes too long.
    under_way: some of the keys that are being handled.

    handed_over: the worker that takes its place has all its keys. error: why the worker has ended, if it did so by
    itself; gave_up: it ended because a message failed for the last time, and the pool is to stop.
    """

    load: WorkerLoad
    handled: int
    failed: int
    failures: dict[str, str]
    overdue: list[str]
    ended: bool
    error: str
    under_way: list[str] = field(default_factory=list)
    handed_over: bool = False
    gave_up: bool = False


def retry_delay_ms(options: WorkersOptions, redeliveries: int) -> int:
    """How long a message waits that has failed and was given back so often before."""
    return min(options.retry_delay_ms << min(redeliveries, 32), options.max_retry_delay_ms)


def key_of(message: Message) -> bytes:
    """Return the key by which the message is ordered; see ages.ordering_of."""
    ordering: bytes | None = message.batch.cell("ordering_key", message.row)
    key = bytes(ordering) if ordering else message.key()
    return keyless(int(message.batch.positions[message.row])) if key is None else key


def shown_key(key: bytes) -> str:
    """A key as people read it."""
    return key.decode("utf-8", "replace")


def made(handler: Handler) -> Handler:
    """Return the callable for each message: the handler, or an object of it if it is a class."""
    kind: Any = handler
    called: Any = kind() if inspect.isclass(kind) else kind
    return called  # type: ignore[no-any-return]


def is_async(handler: Handler) -> bool:
    """Whether calling it, or an object of it if it is a class, makes a coroutine."""
    if inspect.isclass(handler) or not inspect.isroutine(handler):
        return inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
    return inspect.iscoroutinefunction(handler)


class HandlerWorker(ABC):
    """`start`, then `stop` to finish what is under way and hand over the keys. Safe for threads."""

    def __init__(self, consumer: Consumer, handler: Handler, options: WorkersOptions) -> None:
        """handler: a function, a coroutine function, a class that is made once here, or an object that is called."""
        self._consumer, self._handler, self._options = consumer, handler, options
        consumer.traces = False
        self._lock = threading.Lock()
        """Guards the failures, and what a subclass says it does: the pool asks from its own thread."""
        self._failures: dict[str, str] = {}
        self._handled = self._failed = 0
        self._error, self._gave_up = "", False
        self._stop_asked = threading.Event()
        self._handing_over = False
        self._load, self._looked_at = WorkerLoad(ages={}), float("-inf")
        self._thread = threading.Thread(target=self._run, name=consumer.consumer_name(), daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no more messages. What is under way is finished and acknowledged before `report` says `ended`."""
        self._stop_asked.set()
        self._consumer.wake()

    def hand_over(self) -> None:
        """Let the worker that begins next under this name take over the keys, each when it is finished here. Durable
        when it returns. Raises SluiceError.
        """
        self._consumer.hand_over()
        self._handing_over = True

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the thread has ended."""
        self._thread.join(timeout_s)

    def report(self) -> WorkerReport:
        """How it stands."""
        now, now_ms = time.monotonic(), round(time.time() * 1000)
        limit = self._options.handler_timeout_ms
        under_way = list(self._under_way())
        with self._lock:
            failures = dict(self._failures)
        return WorkerReport(
            load=self._load_of(now, now_ms),
            handled=self._handled,
            failed=self._failed,
            failures=failures,
            overdue=[shown_key(key) for key, since in under_way if 0 < limit < (now - since) * 1000],
            under_way=[shown_key(key) for key, _ in under_way[:MOST_NAMED]],
            ended=not self._thread.is_alive(),
            error=self._error,
            handed_over=self._handing_over and self._consumer.is_handed_over(),
            gave_up=self._gave_up,
        )

    def _load_of(self, now: float, now_ms: int) -> WorkerLoad:
        """Return the load as it was a moment ago: a look through the queue costs more than all else here."""
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._load = WorkerLoad(ages=waiting_ages(self._consumer, self._taken(), now_ms))
        return self._load

    # -- what differs -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _serve(self, call: Handler) -> None:
        """Receive and handle until `stop`; returns when all is acknowledged. In the worker's thread."""

    @abstractmethod
    def _under_way(self) -> Iterable[tuple[bytes, float]]:
        """Keys that are being handled, each with the time since when, of the monotonic clock."""

    @abstractmethod
    def _taken(self) -> Iterable[Rows]:
        """Return the messages that have left the consumer's queue and are not done; of each key the first one is
        enough.
        """

    # -- in the worker's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            call: Any = made(self._handler)
            if attached := getattr(call, "on_attached", None):
                attached(self._consumer)
            called = by_value(call, self._options)
            if not self._options.batch_size:
                called = traced(called, self._consumer.subscription_name(), self._thread.name)
            self._serve(called)
            self._consumer.wait_acknowledged()
            if leaving := getattr(call, "on_leaving", None):
                leaving()
        except GaveUp as error:
            self._error, self._gave_up = str(error), True
        except BaseException:  # whatever it is, the pool replaces this worker and says why
            self._error = traceback.format_exc()
        finally:
            if self._loop is not None:
                self._loop.close()
            with contextlib.suppress(SluiceError):
                self._consumer.close(for_good=not self._error and not self._handing_over)

    def _finish(self, returned: Any) -> None:
        """A coroutine function in a wrapper does not say that it is one; what it returned is awaited."""
        if inspect.isawaitable(returned):
            self._loop = self._loop or asyncio.new_event_loop()
            self._loop.run_until_complete(awaited(returned))

    def _is_ours(self, message: Message) -> bool:
        """Whether it may be handled now. It may not if it comes again, here or elsewhere; a process that stood still
        for longer than its lease waits until it knows.
        """
        received = message.batch.received
        while not received.revoked and message.batch.consumer.lease_over():
            time.sleep(LATE_S)  # the answer comes with the next poll, and nothing tells of it here
        return not received.revoked and not message.taken_back()

    def _note_failure(self, keys: Iterable[bytes], why: str, redeliveries: int) -> int:
        """A call has failed; returns how long the messages are to wait. Raises GaveUp if they failed for the last time
        and the pool is to stop.
        """
        kept = why[-MOST_TRACEBACK:]
        keys = list(keys)
        last = redeliveries >= self._options.max_redeliver_count
        if not redeliveries or last:
            named = ", ".join(shown_key(key) for key in keys[:MOST_NAMED])
            logger.warning("%s: the handler failed on key %s%s\n%s", self._thread.name, named, self._fate(last), kept)
        with self._lock:
            for key in keys:
                self._failed += 1
                self._failures.pop(shown_key(key), None)
                self._failures[shown_key(key)] = kept
            while len(self._failures) > MOST_FAILURES:
                del self._failures[next(iter(self._failures))]
        if self._options.dead_letter_policy == STOP and last:
            raise GaveUp(f"a message failed {redeliveries + 1} times: {kept}")
        return retry_delay_ms(self._options, redeliveries)

    def _fate(self, last: bool) -> str:
        """The message's further way, for a person."""
        if not last:
            return "; it comes again (later failures are not logged until the last one)"
        count = self._options.max_redeliver_count + 1
        fate = {STOP: "the pool stops", "skip": "its dead letter is written"}
        return f" {count} times; {fate.get(self._options.dead_letter_policy, 'the key is parked')}"

    def _nack(self, key: bytes, message: Message, why: str) -> None:
        """Give back a message whose handler has failed. Raises GaveUp."""
        delay = self._note_failure([key], why, message.redelivery_count())
        self._consumer.negative_acknowledge(message, delay_ms=delay)


async def awaited(returned: Any) -> Any:
    """A coroutine of anything that can be awaited, because an event loop runs only coroutines.

    Raises HandlerCancelled where a cancellation comes out of it and its own task was not cancelled: as any other error
    of the handler that gives the message back, and does not end the worker.
    """
    try:
        return await returned
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise HandlerCancelled("what the handler waited for was cancelled") from error

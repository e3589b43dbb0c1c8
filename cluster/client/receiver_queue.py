"""Messages that have arrived and were not received yet, and the threads and tasks that wait for them.

It is shared by all threads and event loops that receive, and changes hands only under one lock. A message leaves the
queue in the same step in which it counts as shown, so it comes to one of them only, and never after its partition took
it back.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.consumer.unacked_messages import Received
from sluice.cluster.base.loop import end_wait, wake_task
from sluice.cluster.client.message import Batch, Message, Values
from sluice.storage.errors import Invalid, SluiceError, Timeout

T = TypeVar("T")

LATE_S = 0.02
"""Seconds between two looks while it is not known whether the lease still stands."""
LOOK_S = 1.0
"""The longest wait of a thread between two looks, which lets Ctrl-C through on every platform."""
EARLY_S = 1e-6
"""A timer of an event loop may ring so much too early; waiting again for the rest would only spin."""
QUEUED_BYTES = 64 * 1024 * 1024
"""While messages of so many bytes wait here nothing more is fetched, unless somebody wants more of them at once."""
WANTED_S = 10.0
"""The time for which more is fetched for a caller who did not get that many at once, and who may never ask again."""


NothingArrived = Timeout
"""The earlier name."""


class ReceiverQueue:
    """Parts of all partitions, of one topic or of several, in the order of their arrival.

    took: told of each part that leaves the queue.
    """

    def __init__(
        self,
        took: Callable[[PartitionConsumer, Received], None],
        check_wait: Callable[[], object] = lambda: None,
        values: Values | None = None,
    ) -> None:
        """check_wait: called before a thread waits; raises for one that must not. values: of typed messages."""
        self._took, self._check_wait, self._values = took, check_wait, values
        self.lock = threading.RLock()
        """Guards everything here. A lock by itself costs half of what a condition costs to take."""
        self._arrived = threading.Condition(self.lock)
        self._waiters: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}
        """Tasks of event loops that wait for a message, in the order in which they came."""
        self._queue: deque[tuple[PartitionConsumer, Received, int]] = deque()
        """Parts with who received them, and how many bytes each of them had."""
        self._bytes = self._wanted = 0
        """Bytes of all these, and how many messages somebody wanted at once who did not get them."""
        self._wanted_until = 0.0
        self._current: list[Message[Any]] = []
        """What left the queue to be received one by one, the next one last."""
        self._ended: SluiceError | None = None
        self._failed: SluiceError | None = None
        """Why a partition brings nothing for now."""
        self._woken = False

    def add(self, consumer: PartitionConsumer, part: Received) -> None:
        size = part.size
        with self.lock:
            self._queue.append((consumer, part, size))
            self._bytes += size
            self._wake(len(part))

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be fetched for now."""
        if self._bytes < QUEUED_BYTES:
            return False
        with self.lock:
            if time.monotonic() >= self._wanted_until:
                self._wanted = 0
            return len(self._current) + sum(len(part) for _, part, _ in self._queue) >= self._wanted

    def end(self, error: SluiceError) -> None:
        """End the queue: waiting and later receivers that find nothing get the first such error."""
        with self.lock:
            self._ended = self._ended or error
            self._arrived.notify_all()
            self._wake(len(self._waiters))

    def fail(self, error: SluiceError | None) -> None:
        """Receivers that find nothing get this error from now on; None: they wait again."""
        with self.lock:
            self._failed = error
            if error is not None:
                self._arrived.notify_all()
                self._wake(len(self._waiters))

    def wake(self) -> None:
        """Let one receiver that waits, or the next one that would, return with nothing."""
        with self.lock:
            self._woken = True
            self._wake(1)

    def visit(self, seen: Callable[[Received, int], object]) -> None:
        """Call it with each part that waits here, and from which row on. Nothing changes meanwhile."""
        with self.lock:
            if self._current:
                seen(self._current[-1].batch.received, self._current[-1].row)
            for _, part, _ in self._queue:
                seen(part, 0)

    def clear(self) -> list[Received]:
        """Take out the parts that no user has seen anything of."""
        with self.lock:
            unseen = [part for _, part, _ in self._queue]
            self._queue.clear()
            self._bytes = 0
        return unseen

    def forget_current(self) -> None:
        """Drop the rest of a part that is received one by one, because it is about to be given back."""
        with self.lock:
            self._current = []

    def forget_given_back(self) -> None:
        """The same of what was given back already."""
        with self.lock:
            self._current = [message for message in self._current if message.batch.received.open[message.row]]

    # -- receiving ------------------------------------------------------------------------------------------------

    def receive_batch(self, timeout_ms: int | None) -> Batch[Any] | None:
        """The next batch, None after `timeout_ms`. Raises the error of `end`."""
        return self._wait_for(partial(self._next_batch, whole=True), timeout_ms)

    def receive(self, timeout_ms: int | None) -> Message[Any]:
        """The next message. Raises Timeout after `timeout_ms`, and the error of `end`."""
        with self.lock:
            message = self._next_message()
        if message is None:
            message = self._wait_for(self._next_message, timeout_ms)
        if message is None:
            raise _nothing_came(timeout_ms)
        return message

    def receive_several(self, most: int) -> list[Message[Any]]:
        """The next message and those that are here of its part, in order; none if it was woken. Raises the error of
        `end`.

        Only the first one counts as shown: the caller moves `shown` on, and checks whether each message is still here
        (`Received.revoked`, `taken_back`, the lease).
        """
        with self.lock:
            first = self._next_message() or self._wait_for(self._next_message, None)
            if first is None:
                return []
            taken = [first]
            while len(taken) < most and self._current:
                taken.append(self._current.pop())
            return taken

    def receive_here(self, most: int) -> list[Message[Any]]:
        """Return up to `most` messages that are here. Raises the error of `end` if there are none."""
        with self.lock:
            taken: list[Message[Any]] = []
            while len(taken) < most and (message := self._next_message()) is not None:
                taken.append(message)
            if not taken:
                self._check_open()
            return taken

    def receive_nowait(self, count: int) -> list[Message[Any]] | None:
        """This number of messages if all are here; else None, and all of them stay. Raises the error of `end`."""
        with self.lock:
            taken: list[Message[Any]] = []
            if self._has(count):
                while len(taken) < count and (message := self._next_message()) is not None:
                    taken.append(message)
            if len(taken) == count:
                self._wanted = 0
                return taken
            self._wanted, self._wanted_until = max(self._wanted, count), time.monotonic() + WANTED_S
            # A session ended since they were counted; what is left is for the next one who asks.
            for message in reversed(taken):
                message.batch.received.shown = message.row
                self._current.append(message)
            self._check_open()
            return None

    async def receive_async(self, timeout_ms: int | None) -> Message[Any]:
        """The same as `receive` in a running event loop. A wait that is cancelled takes no message."""
        with self.lock:
            message = self._next_message()
        if message is None:
            message = await self._wait_in_loop(self._next_message, timeout_ms)
        if message is None:
            raise _nothing_came(timeout_ms)
        return message

    async def receive_batch_async(self, timeout_ms: int | None) -> Batch[Any] | None:
        """The same as `receive_batch` in a running event loop. A wait that is cancelled takes no batch."""
        return await self._wait_in_loop(partial(self._next_batch, whole=True), timeout_ms)

    async def _wait_in_loop(self, take: Callable[[], T | None], timeout_ms: int | None) -> T | None:
        """The result of `take`; None after `timeout_ms`."""
        loop = asyncio.get_running_loop()
        deadline = _deadline(loop.time(), timeout_ms)
        while True:
            arrived: asyncio.Future[None] = loop.create_future()
            with self.lock:
                if (found := take()) is not None:
                    return found
                self._check_open()
                if self._was_woken() or (deadline is not None and loop.time() >= deadline - EARLY_S):
                    return None
                until = loop.time() + self._look_again_s()
                self._waiters[arrived] = loop
            timer = loop.call_at(until if deadline is None else min(until, deadline), end_wait, arrived)
            try:
                await arrived
            except asyncio.CancelledError:
                with self.lock:
                    if self._waiters.pop(arrived, None) is None:  # it was woken for a message: let another one look
                        self._wake(1)
                raise
            finally:
                timer.cancel()
                with self.lock:
                    self._waiters.pop(arrived, None)

    # -- under the lock -------------------------------------------------------------------------------------------

    def _wait_for(self, take: Callable[[], T | None], timeout_ms: int | None) -> T | None:
        """The result of `take`; None after `timeout_ms`."""
        deadline = _deadline(time.monotonic(), timeout_ms)
        with self.lock:
            while (found := take()) is None:
                self._check_open()
                left = None if deadline is None else deadline - time.monotonic()
                if self._was_woken() or (left is not None and left <= 0):
                    return None
                self._check_wait()
                most = self._look_again_s()
                self._arrived.wait(most if left is None else min(left, most))
        return found

    def _was_woken(self) -> bool:
        woken, self._woken = self._woken, False
        return woken

    def _check_open(self) -> None:
        if (error := self._ended or self._failed) is not None:
            raise error

    def _look_again_s(self) -> float:
        """Return the seconds until the next look: messages that are here and withheld wait for the next answer, which
        says whether they are still ours.
        """
        return LATE_S if self._current or self._queue else LOOK_S

    def _is_late(self, consumer: PartitionConsumer, part: Received) -> bool:
        """Whether others may have it by now."""
        return not part.revoked and consumer.lease_over()

    def _next_batch(self, *, whole: bool) -> Batch[Any] | None:
        """The next batch that is here and ours; whole: the user sees all of it now, and not only its first message."""
        while self._queue:
            consumer, part, size = self._queue[0]
            if self._is_late(consumer, part):
                return None
            self._queue.popleft()
            self._bytes -= size
            self._took(consumer, part)
            if not part.revoked and part.open.any():  # else it was given back with all the others
                part.shown = len(part) if whole else 1
                return Batch(consumer.topic, part, consumer, self._values)
        return None

    def _next_message(self) -> Message[Any] | None:
        """The next message that is here and ours."""
        while True:
            current = self._current
            while current:
                message = current[-1]
                batch = message.batch
                part = batch.received
                if part.revoked:
                    current.pop()
                    continue
                if batch.consumer.lease_over():
                    return None
                current.pop()
                if part.taken_back is None or not part.taken_back[message.row]:
                    part.shown = message.row + 1
                    return message
            following = self._next_batch(whole=False)
            if following is None:
                return None
            self._current = following.messages()[::-1]

    def _has(self, count: int) -> bool:
        """Whether this number of messages is here and still ours."""
        here = 0
        for message in reversed(self._current):
            part = message.batch.received
            if here >= count:
                return True
            if self._is_late(message.batch.consumer, part):
                return False
            here += bool(part.open[message.row])
        for consumer, part, _ in self._queue:
            if here >= count or self._is_late(consumer, part):
                break
            here += int(part.open.sum())
        return here >= count

    def _wake(self, count: int) -> None:
        """Let this number of the threads, and of the tasks, look again."""
        self._arrived.notify(count)
        for arrived in list(self._waiters)[:count]:
            wake_task(arrived, self._waiters.pop(arrived))


def _deadline(now: float, timeout_ms: float | None) -> float | None:
    """Return the end of the wait, in seconds; None: never. Raises Invalid."""
    if timeout_ms is None:
        return None
    if not isinstance(timeout_ms, int | float) or math.isnan(timeout_ms):
        raise Invalid(f"a time-out is a number of milliseconds, not {timeout_ms!r}")
    return now + timeout_ms / 1000


def _nothing_came(timeout_ms: float | None) -> Timeout:
    within = "" if timeout_ms is None else f" within {timeout_ms} ms"
    return Timeout(f"no message{within}")

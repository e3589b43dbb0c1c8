"""The life of messages of many keys: when each is handled, its results are published, and it is acknowledged.

A key is handled one message at a time. When its handler has returned its place is free for other keys, but the key
waits until the results are confirmed: results of one key are published one message at a time, because nothing but
that keeps them in order. Only then the message is acknowledged. Whatever fails, the message is given back, and its key
goes on when that is confirmed; so what comes next of the key is that message again.

Each step is taken with all messages that are ready for it: those whose handlers have returned are published together,
and those whose results are confirmed are acknowledged together. Nobody waits for others here; what becomes ready while
a thread is busy is what goes together.

The end of a worker begins with `stop`: what waits is left to others, what is under way goes to its end, and then it has
`finished`. Its acknowledgements are to be durable before it leaves.

No threads, no clock and no I/O: a `ResultSteps` does all of it, so the simulator plays this code. All calls come from
one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sluice.cluster.workers.schedule import KeySchedule

MOST_BYTES = 64 * 1024 * 1024
"""Results that may wait for their confirmation at a time. A handler that has more to give keeps its place meanwhile,
and no other one is called.
"""

T = TypeVar("T")


class NotOurs(Exception):
    """The message comes again, here or elsewhere, and was not handled."""


@dataclass(eq=False, slots=True)
class Call(Generic[T]):
    """A message that is handled. results: what its handler gave, of so many bytes; nothing if there is nothing to
    publish. error: why it has failed, in any of its steps.
    """

    key: bytes
    item: T
    results: Any = None
    size: int = 0
    error: BaseException | None = None


class ResultSteps(Protocol[T]):
    """The steps that a ResultLoop has taken for its messages. No step waits; its outcome comes back to the
    ResultLoop.
    """

    def call(self, calls: list[Call[T]]) -> None:
        """Call the handlers, of different keys; each of these comes back by `returned`."""

    def publish(self, calls: list[Call[T]]) -> None:
        """Publish the results; each of these comes back by `published` when all of its own are confirmed or refused."""

    def acknowledge(self, calls: list[Call[T]]) -> None:
        """Acknowledge calls that are done."""

    def give_back(self, call: Call[T]) -> None:
        """Give a failed message back, so that it comes again before later ones of its key. It comes back by
        `given_back`.
        """


class ResultLoop(Generic[T]):
    """Messages come by `submit`."""

    def __init__(
        self,
        plan: KeySchedule[T],
        steps: ResultSteps[T],
        on_change: Callable[[], object] = lambda: None,
        guard: AbstractContextManager[object] | None = None,
    ) -> None:
        """on_change: called when there may be room for more, or something went wrong, or it has finished. guard: held
        while the plan changes, for those who look at it from another thread.
        """
        self._plan, self._steps, self._on_change = plan, steps, on_change
        self._guard = guard or nullcontext()
        self._stopping = False
        self._bytes = 0
        self._for_room: deque[Call[T]] = deque()
        """Calls whose results have no room yet, in the order in which they came, so that none passes a large one."""
        self.handled = 0
        self.error: BaseException | None = None
        """Why the worker cannot go on."""

    @property
    def full(self) -> bool:
        """No handler is to be called, because results wait for room."""
        return bool(self._for_room)

    @property
    def finished(self) -> bool:
        """Tell whether the loop was stopped and has no message under way."""
        return self._stopping and not self._plan.running

    def submit(self, key: bytes, item: T) -> None:
        with self._guard:
            if not self._stopping:
                self._plan.add(key, item)

    def start(self) -> None:
        """Begin what may be handled now."""
        with self._guard:
            started = self._plan.start()
        if started:
            self._steps.call([Call(key, item) for key, item in started])

    def stop(self) -> None:
        """Begin nothing more."""
        with self._guard:
            self._stopping = True
            self._plan.clear()

    def returned(self, calls: Sequence[Call[T]]) -> None:
        """The handlers have returned, or raised; one whose error is NotOurs was not called."""
        over: list[Call[T]] = []
        for call in calls:
            if call.error is None:
                self._for_room.append(call)
            elif isinstance(call.error, NotOurs):
                over.append(call)
            else:
                self._failed(call)
        self._go_on(over)

    def published(self, calls: Sequence[Call[T]]) -> None:
        """The results are confirmed, or refused."""
        done = [call for call in calls if call.error is None]
        if done:
            self._steps.acknowledge(done)
            self.handled += len(done)
        for call in calls:
            self._bytes -= call.size
            if call.error is not None:
                self._failed(call)
        self._go_on(done)

    def given_back(self, call: Call[T]) -> None:
        """Go on after a hand-back that is confirmed."""
        self._go_on([call])

    def fail(self, error: BaseException) -> None:
        """The worker cannot go on: what is under way is neither acknowledged nor given back."""
        self.error = self.error or error
        self._on_change()

    def _failed(self, call: Call[T]) -> None:
        if isinstance(call.error, Exception):  # the handler is the user's: whatever it raises gives the message back
            self._steps.give_back(call)
        elif call.error is not None:
            self.fail(call.error)

    def _go_on(self, over: Sequence[Call[T]]) -> None:
        """Mark messages as ended, and let their keys go on."""
        with self._guard:
            for call in over:
                self._plan.done(call.key)
            admitted = self._admitted()
        if publishing := [call for call in admitted if call.results]:
            self._steps.publish(publishing)
        if nothing := [call for call in admitted if not call.results]:
            self.published(nothing)
        if self.error is None:
            self.start()
        self._on_change()

    def _admitted(self) -> list[Call[T]]:
        """Return the calls for whose results there is room now."""
        admitted = []
        while self._for_room:
            call = self._for_room[0]
            if self._bytes and self._bytes + call.size > MOST_BYTES:
                break
            self._for_room.popleft()
            self._bytes += call.size
            self._plan.returned(call.key)
            admitted.append(call)
        return admitted

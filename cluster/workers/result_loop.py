"""What a worker does with messages whose results are published: when each is handled, published and acknowledged.

A key is handled one message at a time. When its handler has returned its place is free for other keys, but the key
waits until the results are confirmed: results of one key are published one after the other, because nothing but that
keeps them in order. Only then the message is acknowledged. Whatever fails, the message is given back, and its key goes
on when that is confirmed; so what comes next of the key is that message again.

Whoever ends a worker lets it `finish`: what waits is left to others, what is under way goes to its end, and its
acknowledgements are durable before the worker leaves.

No threads, no clock and no I/O: a `ResultSteps` does all of it, so the simulator plays this code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Protocol, TypeVar

from cluster.workers.schedule import KeySchedule

MOST_BYTES = 64 * 1024 * 1024
"""Results that may wait for their confirmation at a time. A handler that has more to give keeps its place meanwhile, so
beside these there are at most those of as many calls as the plan has places.
"""

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class NotOurs(Exception):
    """The message comes again, here or elsewhere, and was not handled."""


class ResultSteps(Protocol[T_contra]):
    """What happens to one message."""

    async def call(self, item: T_contra) -> Any:
        """Call the handler; what comes of it is for `publish`. Raises NotOurs, and whatever the handler raises."""

    def size(self, results: Any) -> int:
        """Bytes of what `call` gave."""

    async def publish(self, item: T_contra, results: Any) -> None:
        """Publish the results, and wait until they are confirmed. Raises whatever keeps them from that."""

    def acknowledge(self, item: T_contra) -> None:
        """It is done."""

    async def nack(self, item: T_contra, error: Exception) -> None:
        """It has failed: let it come again, before later ones of its key."""

    async def settle(self) -> None:
        """Wait until what was acknowledged is durable."""


class ResultLoop(Generic[T]):
    """Messages come by `take`, and run as tasks."""

    def __init__(
        self,
        plan: KeySchedule[T],
        steps: ResultSteps[T],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        on_change: Callable[[], object] = lambda: None,
        guard: AbstractContextManager[object] | None = None,
    ) -> None:
        """spawn: starts a task. on_change: called when there may be room for more, or something went wrong. guard: held
        while the plan changes, for those who look at it from another thread.
        """
        self._plan, self._steps, self._spawn, self._on_change = plan, steps, spawn, on_change
        self._guard = guard or nullcontext()
        self._stopping = False
        self._idle: asyncio.Future[None] | None = None
        self._bytes = 0
        self._entry = asyncio.Lock()
        """One at a time waits for room, so that nobody passes one that has much."""
        self._room: asyncio.Future[None] | None = None
        self.handled = 0
        self.error: BaseException | None = None
        """What ended a task that must not end so: the worker cannot go on."""

    def take(self, key: bytes, item: T) -> None:
        """A message came."""
        with self._guard:
            if not self._stopping:
                self._plan.add(key, item)

    def start(self) -> None:
        """Begin what may be handled now."""
        with self._guard:
            started = self._plan.start()
        for key, item in started:
            self._spawn(self._handle(key, item))

    async def finish(self) -> None:
        """Begin nothing more; returns when what is under way is done, and durably so."""
        with self._guard:
            self._stopping = True
            self._plan.clear()
        while self._plan.running and self.error is None:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        await self._steps.settle()

    async def _handle(self, key: bytes, item: T) -> None:
        try:
            await self._step(key, item)
        except BaseException as error:
            self.error = self.error or error
            self._wake()
            raise
        with self._guard:
            self._plan.done(key)
        self.start()
        self._wake()

    async def _step(self, key: bytes, item: T) -> None:
        size = 0
        try:
            results = await self._steps.call(item)
            size = await self._hold(self._steps.size(results))
            with self._guard:
                self._plan.returned(key)
            self.start()
            await self._steps.publish(item, results)
        except NotOurs:
            return
        except Exception as error:  # the handler is the user's: whatever it raises gives the message back
            await self._steps.nack(item, error)
        else:
            self._steps.acknowledge(item)
            self.handled += 1
        finally:
            self._release(size)

    async def _hold(self, size: int) -> int:
        """Wait until there is room for so much; returns it."""
        async with self._entry:
            while self._bytes and self._bytes + size > MOST_BYTES:
                self._room = asyncio.get_running_loop().create_future()
                await self._room
            self._bytes += size
        return size

    def _release(self, size: int) -> None:
        self._bytes -= size
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _wake(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self._on_change()

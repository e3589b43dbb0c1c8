"""The base of workers that handle several keys at once: a plan of who may run (`schedule.py`), and an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from typing import Any

import numpy as np

from sluice.actors.consumer.unacked_messages import Received
from sluice.cluster.client.consumer import Consumer
from sluice.cluster.client.message import Message
from sluice.cluster.workers.ages import Rows
from sluice.cluster.workers.handler_worker import Handler, HandlerWorker
from sluice.cluster.workers.options import WorkersOptions
from sluice.cluster.workers.schedule import KeySchedule
from sluice.storage.errors import Timeout


def is_stale(message: Message) -> bool:
    """Whether the message is no longer this consumer's: it comes again, here or elsewhere."""
    return message.batch.received.revoked or message.taken_back()


class PlannedWorker(HandlerWorker):
    """The plan, which the pool looks at from its own thread."""

    def __init__(self, consumer: Consumer, handler: Handler, options: WorkersOptions) -> None:
        super().__init__(consumer, handler, options)
        self._plan: KeySchedule[Message] = KeySchedule(options.concurrency, is_stale)
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


class EventLoopWorker(PlannedWorker):
    """One whose thread runs an event loop. What comes from other threads sets `_changed`."""

    def __init__(self, consumer: Consumer, handler: Handler, options: WorkersOptions) -> None:
        super().__init__(consumer, handler, options)
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()

    def stop(self) -> None:
        super().stop()
        self._tell()

    def _tell(self) -> None:
        loop = self._running
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._changed.set)
            except RuntimeError:  # it has ended by itself
                return

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended_task)

    def _ended_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._consumer.wake()  # the loop looks at what went wrong

    async def _next(self) -> Message | None:
        """The next message, or nothing if it was woken."""
        try:
            if here := self._consumer.receive_nowait(1):
                return here[0]
            return await self._consumer.receive_async()
        except Timeout:
            return None

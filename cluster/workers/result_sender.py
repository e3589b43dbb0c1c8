"""Publishes what handlers give back, from the event loop of a worker, over the connection of its client.

What messages give in one round of the worker's loop becomes rows together, crosses to the client's thread in one step,
and what is confirmed there in one round comes back in one step: each of these costs more than all else of a small
result. Rows that were made together share memory until the last of them is confirmed, so it is GATHER_BYTES at most.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from actors.directory import Directory
from actors.names import check_name
from actors.ports import Ports
from actors.producer.results import ResultPublisher
from cluster.loop import LoopThread
from cluster.message import Message
from cluster.workers.outputs import Result, rows_of_results, rows_of_several
from storage.batch import StoredBatch
from storage.errors import Fenced, Invalid

SETTINGS_MS = 30_000
"""How long a controller that is being replaced is waited for."""
GATHER_BYTES = 64 * 1024
"""Results of several messages that become rows together. With the 1,000 keys that may wait for their confirmation in a
worker (`schedule.py`) that is as much memory as their results may have themselves.
"""


@dataclass(eq=False, slots=True)
class _Publishing:
    """The results of a message. done: settled in the loop of the worker."""

    message: Message
    results: Sequence[Result]
    done: asyncio.Future[None]
    rows: list[tuple[str, StoredBatch]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(result.size for result in self.results)

    def settle(self, error: BaseException | None) -> None:
        """In the worker's loop."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class ResultSender:
    """For one worker. outputs: the topics that its results may go to."""

    def __init__(
        self, loop: LoopThread, ports: Ports, directory: Directory, place: tuple[str, str], outputs: Sequence[str]
    ) -> None:
        """place: the topic and subscription whose messages are handled. Raises Invalid, NotFound, Unavailable."""
        self._loop, self._ports, self._subscription = loop, ports, place[1]
        self._outputs = [check_name("topic", topic) for topic in outputs]
        for topic in self._outputs:
            settings = loop.run(directory.settings_within(topic, SETTINGS_MS, now=True))
            if not settings.deduplication_enabled:
                raise Invalid(
                    f"output {topic!r} does not deduplicate, so a repeated result would be there twice: "
                    "make the topic with deduplication_enabled=True"
                )
        self._publisher = ResultPublisher(ports, directory, *place)
        self._waiting: list[_Publishing] = []
        """What came in this round of the worker's loop."""
        self._tasks: dict[asyncio.Task[None], _Publishing] = {}
        """What is being published, in the client's loop."""
        self._ended: deque[tuple[_Publishing, BaseException | None]] = deque()
        self._notified = False
        """Whether the worker's loop will look at what has ended."""

    async def publish(self, message: Message, results: Sequence[Result]) -> None:
        """Publish the results of a message, and wait until they are confirmed; always from the same event loop.

        Raises Invalid, NotFound, and Conflict for a message that was finished before.
        """
        if not results:
            return
        home = asyncio.get_running_loop()
        if not self._waiting:
            home.call_soon(self._hand_over, home)
        self._waiting.append(one := _Publishing(message, results, home.create_future()))
        await one.done

    def close(self) -> None:
        """What is not confirmed fails."""
        self._loop.soon(self._publisher.close)

    # -- in the worker's loop -----------------------------------------------------------------------------------------

    def _hand_over(self, home: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting = self._waiting, []
        ready = [one for group in _gathered(waiting) for one in self._made(group)]
        if self._loop.loop.is_closed():
            for one in ready:
                one.settle(Fenced("the client is closed"))
        elif ready:
            self._loop.soon(partial(self._begin, ready, home))

    def _made(self, group: list[_Publishing]) -> list[_Publishing]:
        """Those whose results are rows now; the others have failed."""
        try:
            self._make(group)
        except Exception as error:  # what is in a result is the user's
            if len(group) > 1:  # each by itself, so that none fails with another
                return [one for each in group for one in self._made([each])]
            group[0].settle(error)
            return []
        return group

    def _make(self, group: list[_Publishing]) -> None:
        """Raises Invalid."""
        now = self._ports.clock.now()
        if len(group) == 1:
            one = group[0]
            one.rows = rows_of_results(one.message, self._subscription, one.results, self._outputs, now)
            return
        pairs = [(one.message, one.results) for one in group]
        for one, rows in zip(group, rows_of_several(pairs, self._subscription, self._outputs, now), strict=True):
            one.rows = rows

    def _settle(self) -> None:
        self._notified = False  # whoever ends from here on notifies again
        while self._ended:
            one, error = self._ended.popleft()
            one.settle(error)

    # -- in the client's loop -----------------------------------------------------------------------------------------

    def _begin(self, ready: list[_Publishing], home: asyncio.AbstractEventLoop) -> None:
        for one in ready:
            at = one.message.message_id()
            work = self._publisher.publish(at.partition_index, at.position, one.rows)
            task = self._loop.loop.create_task(work)
            self._tasks[task] = one
            task.add_done_callback(partial(self._published, home))

    def _published(self, home: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        error = Fenced("the client is closed") if task.cancelled() else task.exception()
        self._ended.append((self._tasks.pop(task), error))
        if not self._notified:
            self._notified = True
            with contextlib.suppress(RuntimeError):  # the worker has ended
                home.call_soon_threadsafe(self._settle)


def _gathered(waiting: list[_Publishing]) -> list[list[_Publishing]]:
    """Those that become rows together."""
    groups: list[list[_Publishing]] = []
    room = 0
    for one in waiting:
        size = one.size
        if not groups or size > room:
            groups.append([])
            room = GATHER_BYTES
        groups[-1].append(one)
        room -= size
    return groups

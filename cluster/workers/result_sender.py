"""Publishes what handlers give back, from the thread of a worker, over the connection of its client.

What several messages give becomes rows together, crosses to the client's thread in one step, and what is confirmed
there meanwhile comes back in one step: each of these costs more than all else of a small result. Rows that were made
together share memory until the last of them is confirmed, so it is GATHER_BYTES at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from sluice.actors.lookup.directory import Directory
from sluice.actors.ownership.names import check_name
from sluice.actors.ports import Ports
from sluice.actors.producer.results import Publication, ResultPublisher, ResultRows
from sluice.cluster.base.loop import LoopThread
from sluice.cluster.client.client import Client
from sluice.cluster.client.message import Message
from sluice.cluster.workers.outputs import rows_of_several
from sluice.cluster.workers.result_loop import Call
from sluice.storage.errors import Fenced, Invalid

SETTINGS_MS = 30_000
"""How long a controller that is being replaced is waited for."""
GATHER_BYTES = 64 * 1024
"""Results of several messages that become rows together. With the 1,000 keys that may wait for their confirmation in a
worker (`schedule.py`) that is as much memory as their results may have themselves.
"""

Sent = Publication[Call[Message]]


class ResultSender:
    """A sender of one worker's results. outputs: the topics that the results may go to."""

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
        self.on_end: Callable[[], object] = lambda: None
        """Called, from any thread, when there is something for `ended`."""
        self._ended: deque[Call[Message]] = deque()
        self._told = False

    def publish(self, calls: Sequence[Call[Message]]) -> None:
        """Publish the results of messages; always from the same thread. A message is `ended` once all of its results
        are confirmed or refused. Errors are Invalid, NotFound, Fenced, and Conflict for a message that was finished
        before.
        """
        groups = [made for group in _gathered(calls) for made in self._made(group)]
        if not groups:
            return
        if self._loop.loop.is_closed():
            self._end([call for group, _ in groups for call in group], Fenced("the client is closed"))
        else:
            self._loop.soon(partial(self._begin, groups))

    def ended(self) -> list[Call[Message]]:
        """Return the messages that have ended since the last call."""
        self._told = False  # whoever ends from here on tells again
        found = []
        while self._ended:
            found.append(self._ended.popleft())
        return found

    @property
    def cut_off(self) -> bool:
        """The client is closed: nothing ends any more that has not yet."""
        return self._loop.loop.is_closed()

    def close(self) -> None:
        """Fail every result that is not confirmed."""
        self._loop.soon(self._publisher.close)

    # -- in the worker's thread ---------------------------------------------------------------------------------------

    def _made(self, group: list[Call[Message]]) -> list[tuple[list[Call[Message]], list[ResultRows]]]:
        """Make rows of results, and end the messages that fail at this."""
        made = [(call.item, call.results) for call in group]
        try:
            return [(group, rows_of_several(made, self._subscription, self._outputs, self._ports.clock.now()))]
        except Exception as error:  # what is in a result is the user's
            if len(group) > 1:  # each by itself, so that none fails with another
                return [one for each in group for one in self._made([each])]
            self._end(group, error)
            return []

    # -- in any thread ------------------------------------------------------------------------------------------------

    def _end(self, calls: Sequence[Call[Message]], error: BaseException | None) -> None:
        for call in calls:
            call.error = error
            self._ended.append(call)
        self._tell()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            self.on_end()

    # -- in the client's loop -----------------------------------------------------------------------------------------

    def _begin(self, groups: list[tuple[list[Call[Message]], list[ResultRows]]]) -> None:
        for calls, rows in groups:
            sent = [_publication(call) for call in calls]
            task = self._loop.loop.create_task(self._publisher.publish(sent, rows, self._published))
            task.add_done_callback(partial(self._begun, calls))

    def _begun(self, calls: list[Call[Message]], task: asyncio.Task[None]) -> None:
        """End the calls with an error if the task failed: then nothing of them was sent."""
        error = Fenced("the client is closed") if task.cancelled() else task.exception()
        if error is not None:
            self._end(calls, error)

    def _published(self, sent: list[Sent]) -> None:
        for one in sent:
            one.item.error = one.error
            self._ended.append(one.item)
        self._tell()


def _publication(call: Call[Message]) -> Sent:
    at = call.item.message_id()
    return Publication(call, at.partition_index, at.position)


def _gathered(calls: Sequence[Call[Message]]) -> list[list[Call[Message]]]:
    """Group messages into batches of at most GATHER_BYTES, unless one alone is larger."""
    groups: list[list[Call[Message]]] = []
    room = 0
    for call in calls:
        if not groups or call.size > room:
            groups.append([])
            room = GATHER_BYTES
        groups[-1].append(call)
        room -= call.size
    return groups


def open_results(client: Client, topic: str, subscription: str, outputs: Sequence[str]) -> ResultSender:
    """Return a sender of the results of a worker, which publishes once for each message of a subscription.

    Raises Invalid if an output does not deduplicate, NotFound if there is none of that name.
    """
    return ResultSender(*client.owners(), (topic, subscription), outputs)

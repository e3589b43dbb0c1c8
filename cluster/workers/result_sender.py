"""Publishes what handlers give back, from the threads of a worker, over the connection of its client."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from actors.directory import Directory
from actors.names import check_name
from actors.ports import Ports
from actors.producer.results import ResultPublisher
from cluster.loop import LoopThread
from cluster.message import Message
from cluster.workers.outputs import Result, rows_of_results
from storage.errors import Invalid

T = TypeVar("T")
SETTINGS_MS = 30_000
"""How long a controller that is being replaced is waited for."""


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

    async def publish(self, message: Message, results: Sequence[Result]) -> None:
        """Publish the results of a message, and wait until they are confirmed; from any event loop.

        Raises Invalid, NotFound, and Conflict for a message that was finished before.
        """
        if not results:
            return
        rows = rows_of_results(message, self._subscription, results, self._outputs, self._ports.clock.now())
        at = message.message_id()
        await self._there(self._publisher.publish(at.partition_index, at.position, rows))

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop.loop))

    def close(self) -> None:
        """What is not confirmed fails."""
        self._loop.soon(self._publisher.close)

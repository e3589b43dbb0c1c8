"""Joins the chunks that a consumer gets: messages in chunks are received as one, and incomplete ones expire.

`actors.consumer.chunks` has the rules. An incomplete message that gets no chunk for so long as the consumer's
`expire_time_of_incomplete_chunked_message_ms` is dropped only when the subscription has no message that nobody holds,
and none is on its way to this consumer: until then its rest may be among those, for a consumer that is paused or full
gets nothing either. So it is given back, and comes again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from sluice.actors.consumer.chunks import IncompleteMessages, MessageAt, MessageChunk
from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.ports import Clock
from sluice.cluster.base.loop import Home
from sluice.cluster.client.message import MessageId
from sluice.cluster.client.options import ConsumerOptions
from sluice.storage.errors import Invalid, SluiceError

logger = logging.getLogger("sluice.client")

AGAIN_MS = 5_000
"""The oldest of too many incomplete messages comes again so late: others become complete meanwhile."""

ON_SHARED = (
    "this subscription is shared, and deals out the chunks of a message to several consumers: "
    "use type key_shared, failover or exclusive for messages in chunks"
)


class KnowsBacklog(Protocol):
    """A client, as far as the joiner asks it."""

    async def stats(self, topic: str, subscription: str) -> list[dict[str, Any]]: ...


def divide(part: Received) -> Sequence[Received]:
    """Return a part as it is, or with each chunk as a part of its own."""
    if "pulsar" not in part.schema.names:
        return (part,)
    from sluice.actors.pulsar.codec import chunked

    return chunked.divide(part)


class ChunkJoiner:
    """The incomplete messages of one consumer. Runs on the loop."""

    def __init__(
        self,
        loop: Home,
        options: ConsumerOptions,
        client: Callable[[], KnowsBacklog],
        end: Callable[[SluiceError], None],
    ) -> None:
        """client: raises Fenced once the consumer is closed. end: ends the consumer's queue with an error."""
        self._loop, self._options, self._client, self._end = loop, options, client, end
        self._expire_ms = options.expire_time_of_incomplete_chunked_message_ms
        self._incomplete = IncompleteMessages(options.max_pending_chunked_message, self._expire_ms)
        self._tasks: set[asyncio.Future[Any]] = set()
        self._looks = False

    def add(self, consumer: PartitionConsumer, chunk: MessageChunk) -> Received | None:
        """Take a chunk. Return its message if that is complete now."""
        if self._options.shared:
            self._end(Invalid(ON_SHARED))
        clock = consumer.clock
        decision = self._incomplete.add(consumer, chunk, clock.monotonic())
        for done in decision.done:
            consumer.acknowledge(done)
        for source, chunks in decision.back:
            self._soon(_give_back(source, chunks, AGAIN_MS))
        self._look_later(clock)
        if decision.whole is None:
            consumer.taken(chunk)  # that of the last one is free when the message is received
            return None
        from sluice.actors.pulsar.codec import chunked

        whole = chunked.whole(decision.whole)
        whole.on_broken = lambda chunks: self._soon(_give_back(consumer, chunks, 0))
        return whole

    def clear(self) -> list[MessageChunk]:
        """Take out all chunks of incomplete messages."""
        return self._incomplete.clear()

    def _soon(self, work: Coroutine[Any, Any, object]) -> None:
        self._tasks.add(task := asyncio.ensure_future(work))
        task.add_done_callback(self._tasks.discard)

    def _look_later(self, clock: Clock) -> None:
        if self._incomplete and not self._looks:
            self._looks = True
            self._loop.later(self._expire_ms, partial(self._look, clock))

    def _look(self, clock: Clock) -> None:
        self._looks = False
        for at in self._incomplete.overdue(clock.monotonic()):
            self._soon(self._expire(at))
        self._look_later(clock)

    async def _expire(self, at: MessageAt) -> None:
        consumer, *_ = at
        try:
            row = (await self._client().stats(consumer.topic, self._options.subscription))[consumer.partition]
        except SluiceError:
            row = {"type": "", "msgBacklog": 1, "unackedMessages": 0}
        if row["type"] == "Shared":
            self._end(Invalid(ON_SHARED))
        # No await from here on: no chunk comes in between.
        if not (chunks := self._incomplete.take_overdue(at, consumer.clock.monotonic())):
            return
        if row["msgBacklog"] > row["unackedMessages"] or not consumer.has_come(row):
            await _give_back(consumer, chunks, 0)  # at once: nothing of their key goes before them
            return
        place = MessageId(consumer.partition, int(chunks[0].positions[0]))
        story = "%s of %s begins a message in chunks that has %d of %d after %d ms: it is dropped"
        logger.warning(story, place, consumer.topic, len(chunks), chunks[0].of.count, self._expire_ms)
        for chunk in chunks:
            consumer.acknowledge(chunk)


async def _give_back(consumer: PartitionConsumer, chunks: Sequence[MessageChunk], delay_ms: int) -> None:
    if held := [(chunk, None) for chunk in chunks if chunk.open[0]]:
        await consumer.nack(held, delay_ms)

"""Joins the chunks that a consumer gets: messages in chunks are received as one, and incomplete ones expire.

`actors.consumer.chunks` has the rules. An incomplete message that gets no chunk for `chunks_expire_ms` is dropped only
when the subscription has no message that nobody holds: until then its rest may be among those, for a consumer that is
paused or full gets nothing either. So it is given back, and comes again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from sluice.actors.consumer.chunks import IncompleteMessages, MessageChunk
from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.consumer.unacked_messages import Received
from sluice.cluster.base.loop import Home
from sluice.cluster.client.message import MessageId
from sluice.cluster.client.options import ConsumerOptions
from sluice.storage.errors import Invalid, SluiceError

logger = logging.getLogger("sluice.client")

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
        self._incomplete = IncompleteMessages(options.most_pending_chunked, options.chunks_expire_ms)
        self._tasks: set[asyncio.Future[Any]] = set()
        self._looks = False

    def add(self, consumer: PartitionConsumer, chunk: MessageChunk) -> Received | None:
        """Take a chunk. Return its message if that is complete now."""
        if self._options.shared:
            self._end(Invalid(ON_SHARED))
        decision = self._incomplete.add(consumer, chunk, now=_monotonic_ms(), wall=time.time_ns() // 1_000_000)
        for done in decision.done:
            consumer.acknowledge(done)
        for source, chunks in decision.back:
            self._soon(self._return(source, chunks))
        self._look_later()
        if decision.whole is None:
            consumer.taken(chunk)  # that of the last one is free when the message is received
            return None
        from sluice.actors.pulsar.codec import chunked

        return chunked.whole(decision.whole)

    def clear(self) -> list[MessageChunk]:
        """Take out all chunks of incomplete messages."""
        return self._incomplete.clear()

    def _return(self, consumer: PartitionConsumer, chunks: Sequence[MessageChunk]) -> Coroutine[Any, Any, object]:
        return consumer.nack([(chunk, None) for chunk in chunks], self._options.chunks_expire_ms)

    def _soon(self, work: Coroutine[Any, Any, object]) -> None:
        self._tasks.add(task := asyncio.ensure_future(work))
        task.add_done_callback(self._tasks.discard)

    def _look_later(self) -> None:
        if self._incomplete and not self._looks:
            self._looks = True
            self._loop.later(self._options.chunks_expire_ms, self._look)

    def _look(self) -> None:
        self._looks = False
        for consumer, chunks in self._incomplete.overdue(_monotonic_ms()):
            self._soon(self._expire(consumer, chunks))
        self._look_later()

    async def _expire(self, consumer: PartitionConsumer, chunks: Sequence[MessageChunk]) -> None:
        try:
            row = (await self._client().stats(consumer.topic, self._options.subscription))[consumer.partition]
        except SluiceError:
            row = {"type": "", "msgBacklog": 1, "unackedMessages": 0}
        if row["type"] == "Shared":
            self._end(Invalid(ON_SHARED))
        if row["msgBacklog"] > row["unackedMessages"]:
            await self._return(consumer, chunks)
            return
        place = MessageId(consumer.partition, int(chunks[0].positions[0]))
        story = "%s of %s begins a message in chunks that has %d of %d after %d ms: it is dropped"
        logger.warning(story, place, consumer.topic, len(chunks), chunks[0].of.count, self._options.chunks_expire_ms)
        for chunk in chunks:
            consumer.acknowledge(chunk)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000

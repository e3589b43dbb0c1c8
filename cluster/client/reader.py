"""Readers: the messages of a topic from a place on, without a subscription that stays.

A reader is a consumer of a subscription of its own, exclusive and not durable, that acknowledges what it hands out.
So it reads the tail of a topic like every consumer, and nothing of it is left when it is closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Generic

from sluice.actors.ports import Ports
from sluice.cluster.base.own_process import OfThisProcess
from sluice.cluster.client.async_consumer import AsyncConsumer
from sluice.cluster.client.blocking import Consumer
from sluice.cluster.client.consumer_core import ConsumerCore
from sluice.cluster.client.message import Message, MessageId
from sluice.cluster.client.typed_settings import ConsumerSettings
from sluice.cluster.typed.variables import V
from sluice.storage.errors import Fenced, Invalid, SluiceError


def reader_name(ports: Ports) -> str:
    """Make a name for a reader: that of its subscription, and of the consumer on it."""
    return f"reader-{ports.rng.randrange(1 << 64):016x}"


def reading(start: object, queue_size: int, name: str) -> ConsumerSettings:
    """The settings with which a reader subscribes. Raises Invalid for a start that is no message id."""
    if not isinstance(start, MessageId):
        raise Invalid(f"a reader starts at a MessageId, or MessageId.earliest or latest, not {start!r}")
    return {
        "consumer_name": name,
        "type": "exclusive",
        "durable": False,
        "initial_position": "latest" if start == MessageId.latest else "earliest",
        "receiver_queue_size": queue_size,
    }


class ReaderCore(OfThisProcess, Generic[V]):
    """The place that a reader has reached in each partition."""

    elsewhere = "another one connects and opens its own"
    inner = OfThisProcess.inner | {"consumer"}
    consumer: ConsumerCore[V]

    def _begin(self, start: MessageId, last: list[MessageId], *, inclusive: bool) -> None:
        """start: where the reader begins. last: the last message of each partition by then."""
        at_end = start == MessageId.latest
        self._reached = {one.partition_index: one.position for one in last} if at_end else {}
        self._skipped = None if inclusive else start
        if start.is_stored():
            self._reached[start.partition_index] = start.position - inclusive

    def _sought(self) -> None:
        """The reader goes on where its consumer does; partitions that did not move stay where they are."""
        self._reached |= {number: at - 1 for number, at in self.consumer.goes_on.items()}
        self._skipped = None

    def _takes(self, message: Message[V]) -> bool:
        """Note a message as read. Return whether its reader gets it: not the one that it begins behind."""
        at = message.message_id()
        self._reached[at.partition_index] = at.position
        return at != self._skipped

    def _has_more(self, last: list[MessageId]) -> bool:
        begin = MessageId.earliest.position
        return any(one.position > self._reached.get(one.partition_index, begin) for one in last)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic()})"

    def topic(self) -> str:
        return self.consumer.topic()

    def is_connected(self) -> bool:
        """Whether every partition has a session."""
        return self.consumer.is_connected()


class Reader(ReaderCore[V]):
    """Reads a topic from a place on. `for` brings messages for ever, as they come."""

    consumer: Consumer[V]

    def __init__(self, consumer: Consumer[V], start: MessageId, last: list[MessageId], *, inclusive: bool) -> None:
        self.consumer = consumer
        self._begin(start, last, inclusive=inclusive)

    def read_next(self, timeout_millis: int | None = None) -> Message[V]:
        """Return the next message. Raises Timeout if none came in time."""
        while True:
            message = self.consumer.receive(timeout_millis)
            self.consumer.acknowledge(message)
            if self._takes(message):
                return message

    def has_message_available(self) -> bool:
        """Whether the topic has a message that this reader has not read; a delayed one counts before it is due."""
        return self._has_more(self.consumer.get_last_message_ids())

    def seek(self, to: MessageId | int) -> None:
        """Go on from a message, or from a time in ms since 1970; see Consumer.seek."""
        self.consumer.seek(to)
        self._sought()

    def close(self) -> None:
        """Leave, and delete the subscription; where that fails it goes by itself."""
        with contextlib.suppress(SluiceError):
            self.consumer.unsubscribe()

    def __iter__(self) -> Iterator[Message[V]]:
        while True:
            yield self.read_next()

    def __enter__(self) -> Reader[V]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncReader(ReaderCore[V]):
    """The reader of an asyncio program. `async for` brings messages as they come, until it is closed."""

    consumer: AsyncConsumer[V]

    def __init__(self, consumer: AsyncConsumer[V], start: MessageId, last: list[MessageId], *, inclusive: bool) -> None:
        self.consumer = consumer
        self._begin(start, last, inclusive=inclusive)

    async def read_next(self, timeout_millis: int | None = None) -> Message[V]:
        """Wait for the next message. Raises Timeout if none came in time. A call that is cancelled reads nothing."""
        while True:
            message = await self.consumer.receive(timeout_millis)
            await self.consumer.acknowledge(message)
            if self._takes(message):
                return message

    async def has_message_available(self) -> bool:
        """Whether the topic has a message that this reader has not read; a delayed one counts before it is due."""
        return self._has_more(await self.consumer.get_last_message_ids())

    async def seek(self, to: MessageId | int) -> None:
        """Go on from a message, or from a time in ms since 1970; see AsyncConsumer.seek."""
        await self.consumer.seek(to)
        self._sought()

    async def close(self) -> None:
        """Leave, and delete the subscription; where that fails, or is cancelled, it goes by itself."""
        with contextlib.suppress(SluiceError):
            await self.consumer.unsubscribe()

    def __aiter__(self) -> AsyncReader[V]:
        return self

    async def __anext__(self) -> Message[V]:
        try:
            return await self.read_next()
        except Fenced:
            if self.is_connected():
                raise
            raise StopAsyncIteration from None

    async def __aenter__(self) -> AsyncReader[V]:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

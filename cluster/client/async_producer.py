"""The producer of an asyncio program: the same containers, sequences and receipts, awaited in its caller's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pyarrow as pa

from sluice.cluster.base.loop import CallersLoop, within
from sluice.cluster.client.message import MessageId
from sluice.cluster.client.producer_core import ProducerCore
from sluice.cluster.client.receipts import Receipt, SentMessage, unconfirmed
from sluice.cluster.client.settings_input import check_columns, check_timeout
from sluice.cluster.typed.variables import S
from sluice.storage.format.batch import MAX_MESSAGE_BYTES


class AsyncProducer(ProducerCore[S]):
    """Sends to all partitions of a topic. Belongs to one event loop; order per key is the order of the calls.

    A call that is cancelled while it waits for room sends nothing. A message that was added goes out, whatever becomes
    of the call, and its outcome is then unknown to the caller.
    """

    _loop: CallersLoop

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._line, self._in_line = asyncio.Lock(), 0
        """Calls for which there was no room wait for each other, in order."""
        self._has_freed = asyncio.Event()

    async def send(
        self,
        content: S,
        properties: dict[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | bytes | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        delay_id: str | None = None,
    ) -> MessageId:
        """Send one message and wait until it is confirmed.

        deliver_at: ms since 1970. deliver_after: from now. delay_id: a name of your own by which the client can cancel
        or reschedule it; it becomes a property, and the ordering key if there is no key. Raises SluiceErrors.
        """
        sent = await self.send_async(
            content,
            properties,
            partition_key,
            ordering_key,
            event_timestamp,
            deliver_at,
            deliver_after,
            delay_id,
        )
        try:
            async with asyncio.timeout(self._options.send_timeout_s) as limit:
                return await sent
        except TimeoutError:
            if not limit.expired():
                raise
            raise unconfirmed(self._options.send_timeout_s) from None

    async def send_async(
        self,
        content: S,
        properties: dict[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | bytes | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        delay_id: str | None = None,
    ) -> SentMessage:
        """Send one message and return its receipt, which can be awaited: it returns the message's place, or raises.

        Waits only for room. Arguments: as of `send`.
        """
        payload = self._payload(content)
        message = (
            payload,
            None,
            properties,
            partition_key,
            ordering_key,
            event_timestamp,
            deliver_at,
            deliver_after,
            delay_id,
        )
        count = _messages_of(payload)
        if not (self._in_line or self._lacks_room(count, len(payload))):
            return self._add(*message)
        async with self._turn(count, len(payload)):
            return self._add(*message)

    async def send_batch(self, data: pa.RecordBatch | pa.Table) -> Receipt:
        """Send many messages as columns and return their receipt, which can be awaited. Waits only for room.

        See Producer.send_batch.
        """
        check_columns(data)
        async with self._turn(data.num_rows, data.nbytes):
            return self._add_columns(data)

    @asynccontextmanager
    async def _turn(self, messages: int, size: int) -> AsyncIterator[None]:
        """Wait in line for room. A call that came later adds nothing before this one does, or gives up."""
        self._loop.check_process()
        self._in_line += 1
        try:
            async with self._line:
                self._check_open()
                while self._lacks_room(messages, size):
                    self._has_freed.clear()
                    await self._has_freed.wait()
                    self._check_open()
                yield
        finally:
            self._in_line -= 1

    def _freed(self) -> None:
        self._has_freed.set()

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent so far is confirmed or has failed. Raises Unavailable."""
        check_timeout("timeout_s", timeout_s)
        self._loop.check_process()
        await within(self._flush(), timeout_s)

    async def close(self, timeout_s: float | None = 30) -> None:
        """Wait for messages on their way, then refuse further sends, also when this call is cancelled."""
        if self._closed or not self._loop.is_here:
            return
        try:
            await self.flush(timeout_s)
        finally:
            self._end()
            if self._options.access != "shared":
                await self._leave()

    async def __aenter__(self) -> AsyncProducer[S]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _messages_of(payload: bytes) -> int:
    """Return how many messages a payload is stored as: one, or its chunks."""
    if len(payload) <= MAX_MESSAGE_BYTES:
        return 1
    from sluice.actors.pulsar.codec import chunked

    return chunked.count_of(len(payload))

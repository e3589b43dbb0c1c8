"""The consumer of an asyncio program: the same queue, acknowledgements and sessions, awaited in its caller's loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from sluice.cluster.base.loop import CallersLoop, within
from sluice.cluster.client.consumer_core import ChosenRows, ConsumerCore, refuse_cumulative, single
from sluice.cluster.client.message import Batch, Message, MessageId
from sluice.cluster.client.settings_input import check_timeout
from sluice.cluster.typed.variables import V
from sluice.storage.errors import Fenced


class AsyncConsumer(ConsumerCore[V]):
    """Receives from every partition. Belongs to one event loop. `async for` brings messages until it is closed.

    A receive that is cancelled takes no message. An acknowledgement or a return that is cancelled is carried out.

    Messages stay this consumer's until they are acknowledged, given back, or its lease runs out (a process that is
    stopped for longer must assume that others have them; their acknowledgements are then ignored).
    """

    _loop: CallersLoop

    async def receive(self, timeout_millis: int | None = None) -> Message[V]:
        """Wait for one message. Raises Timeout if none came in time."""
        self._loop.check_process()
        return self._traced(await self._receiving.receive_async(timeout_millis))

    def __aiter__(self) -> AsyncConsumer[V]:
        return self

    async def __anext__(self) -> Message[V]:
        try:
            return await self.receive()
        except Fenced:
            if self._closed:
                raise StopAsyncIteration from None
            raise

    async def receive_batch(self, timeout_ms: int | None = None) -> Batch[V] | None:
        """Wait for the next batch (messages of one run); return None after `timeout_ms`. See Consumer.receive_batch."""
        self._loop.check_process()
        return await self._receiving.receive_batch_async(timeout_ms)

    async def batches(self, timeout_ms: int | None = None) -> AsyncIterator[Batch[V]]:
        """Batches, for ever; with `timeout_ms` until none came for so long."""
        while (batch := await self.receive_batch(timeout_ms)) is not None:
            yield batch

    async def acknowledge(
        self,
        what: Batch[Any] | Message[Any] | MessageId,
        *,
        ack_receipt: bool = False,
        rows: ChosenRows | None = None,
    ) -> None:
        """Done with it, for good. See Consumer.acknowledge."""
        consumer = self._note_done(what, ack_receipt=ack_receipt, rows=rows)
        if ack_receipt:
            await self._confirm([consumer])

    async def acknowledge_cumulative(self, what: Message[Any] | MessageId) -> None:
        """Refused: see Consumer.acknowledge_cumulative."""
        refuse_cumulative()

    async def negative_acknowledge(
        self,
        what: Batch[Any] | Message[Any] | MessageId,
        *,
        delay_ms: int | None = None,
        rows: ChosenRows | None = None,
    ) -> None:
        """Give it back; it comes again after `delay_ms`. A call that is cancelled gives it back too, as one that is
        interrupted does. See Consumer.negative_acknowledge.
        """
        await self._giving_back(what, delay_ms, rows)

    async def redeliver_unacknowledged_messages(self) -> None:
        """Give back everything that is not acknowledged."""
        self._loop.check_process()
        await self._give_everything_back()

    async def wait_acknowledged(self, timeout_ms: int | None = None) -> None:
        """Wait until every acknowledgement so far is durable. See Consumer.wait_acknowledged."""
        check_timeout("timeout_ms", timeout_ms)
        self._loop.check_process()
        await within(self._confirm(self.parts), None if timeout_ms is None else timeout_ms / 1000)

    def held(self) -> int:
        """Messages that this consumer has and has not finished."""
        return self._held()

    async def hand_over(self, to: str | None = None) -> None:
        """Let the consumer that subscribes next under the name `to` take over all hashes. See Consumer.hand_over."""
        self._loop.check_process()
        await self._offering(to)

    async def seek(self, to: MessageId | int) -> None:
        """Start the subscription over from a message, or from a time (ms since 1970). See Consumer.seek."""
        self._loop.check_process()
        await self._seek(to)

    async def get_last_message_ids(self) -> list[MessageId]:
        """Return the last stored message of each partition; its position is -1 where there is none."""
        return await self._last_message_ids()

    async def get_last_message_id(self) -> MessageId:
        """Return the last stored message of a topic of one partition. Raises Invalid if it has several."""
        return single(await self.get_last_message_ids())

    async def unsubscribe(self) -> None:
        """Close, and delete the subscription with what it remembers. Raises Invalid while others are connected."""
        client = self._client
        await self.close(for_good=True)
        await self._delete_subscription(client)

    async def close(self, drain_timeout_ms: int = 0, *, for_good: bool = False) -> None:
        """Leave. A close that is cancelled goes on in the background. See Consumer.close."""
        if self._closed or not self._loop.is_here:
            return
        self._loop.check_process()
        try:
            await self._drain(drain_timeout_ms, for_good=for_good)
        finally:
            self._left(for_good=for_good)

    async def __aenter__(self) -> AsyncConsumer[V]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

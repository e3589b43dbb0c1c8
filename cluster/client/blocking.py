"""The producer and the consumer that block their caller.

The producer takes single messages and whole batches, and waits when too much is under way. The consumer gives batches
or single messages from all partitions of a subscription.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa

from sluice.cluster.base.loop import LoopThread
from sluice.cluster.client.consumer_core import ChosenRows, ConsumerCore, refuse_cumulative, single
from sluice.cluster.client.message import Batch, Message, MessageId
from sluice.cluster.client.producer_core import ProducerCore
from sluice.cluster.client.receipts import Receipt, SendCallback, SentMessage
from sluice.cluster.client.settings_input import check_timeout
from sluice.cluster.typed.variables import S, V


class Producer(ProducerCore[S]):
    """Sends to all partitions of a topic. Safe for threads; order per key is the order of the calls."""

    _loop: LoopThread

    def send_batch(self, data: pa.RecordBatch | pa.Table) -> Receipt:
        """Send many messages as columns (see storage.format.batch.make_batch); returns at once, blocks only for room.

        It may have any size: of what goes to one partition, 65,536 messages or 64 MiB at the most are stored at once,
        and the receipt is that of all of them. A piece that is refused leaves those behind it as they are.

        Rows of one key go to one partition and keep their order. Every partition numbers its rows consecutively from
        the producer's first sequence, so an identical repetition under the same producer name stores nothing twice.
        """
        return self._add_columns(data)

    def send(
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
        self._loop.check_thread()
        sent = self._add(
            self._payload(content),
            None,
            properties,
            partition_key,
            ordering_key,
            event_timestamp,
            deliver_at,
            deliver_after,
            delay_id,
        )
        return sent.result(self._options.send_timeout_s).message_id()

    def send_async(
        self,
        content: S,
        callback: SendCallback | None = None,
        properties: dict[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | bytes | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        delay_id: str | None = None,
    ) -> SentMessage:
        """Send one message without waiting; `callback(error, message_id)` is called when the outcome is known.

        Blocks only for room.
        """
        return self._add(
            self._payload(content),
            callback,
            properties,
            partition_key,
            ordering_key,
            event_timestamp,
            deliver_at,
            deliver_after,
            delay_id,
        )

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent so far is confirmed or has failed."""
        check_timeout("timeout_s", timeout_s)
        self._loop.run(self._flush(), timeout_s)

    def close(self, timeout_s: float | None = 30) -> None:
        """Wait for messages on their way, then refuse further sends. A forked child leaves it to its parent."""
        if self._closed or not self._loop.is_here:
            return
        self._loop.check_thread()
        try:
            self.flush(timeout_s)
        finally:
            self._end()
            if self._options.access != "shared":
                self._loop.run(self._leave(), timeout_s)

    def __enter__(self) -> Producer[S]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Consumer(ConsumerCore[V]):
    """Receives from every partition. Safe for threads.

    Messages stay this consumer's until they are acknowledged, given back, or its lease runs out (a process that is
    stopped for longer must assume that others have them; their acknowledgements are then ignored).
    """

    _loop: LoopThread

    def receive_batch(self, timeout_ms: int | None = None) -> Batch[V] | None:
        """Return the next batch (messages of one run), or None after `timeout_ms`. Raises Fenced once closed.

        Receive batches or single messages: after `receive` took a message of a batch, the rest stays for `receive`.
        """
        self._loop.check_process()
        return self._receiving.receive_batch(timeout_ms)

    def batches(self, timeout_ms: int | None = None) -> Iterator[Batch[V]]:
        """Batches, for ever; with `timeout_ms` until none came for so long."""
        while (batch := self.receive_batch(timeout_ms)) is not None:
            yield batch

    def receive(self, timeout_millis: int | None = None) -> Message[V]:
        """Return one message. Raises Timeout if none came in time."""
        self._loop.check_process()
        return self._traced(self._receiving.receive(timeout_millis))

    def receive_several(self, most: int) -> list[Message[V]]:
        """Take several messages for a caller that handles them one at a time; see ReceiverQueue.receive_several."""
        self._loop.check_process()
        return self._receiving.receive_several(most)

    def receive_here(self, most: int) -> list[Message[V]]:
        """Return up to `most` messages that are here already."""
        self._loop.check_process()
        return self._receiving.receive_here(most)

    def receive_nowait(self, count: int) -> list[Message[V]] | None:
        """This number of messages if all are here already; else None, and all of them stay here."""
        self._loop.check_process()
        found = self._receiving.receive_nowait(count)
        if found is None and self._full:
            self._loop.soon(self._hold_if_full)
        return found

    async def receive_async(self, timeout_millis: int | None = None) -> Message[V]:
        """The same as `receive` for a running event loop: its other tasks go on meanwhile. A wait that is cancelled
        takes no message. Raises Timeout if none came in time.
        """
        self._loop.check_process()
        return self._traced(await self._receiving.receive_async(timeout_millis))

    def acknowledge(
        self,
        what: Batch[Any] | Message[Any] | MessageId,
        *,
        ack_receipt: bool = False,
        rows: ChosenRows | None = None,
    ) -> None:
        """Done with it, for good. ack_receipt: wait until that is durable. rows: of a batch, only these.

        Raises NotFound for what was not received here, or is done; Invalid for rows that the batch does not have.
        """
        consumer = self._note_done(what, ack_receipt=ack_receipt, rows=rows)
        if ack_receipt:
            self._loop.run(self._confirm([consumer]))  # which asks for what is done, and sends it

    def acknowledge_cumulative(self, what: Message[Any] | MessageId) -> None:
        """Refused: a cumulative acknowledgement has no meaning when several consumers share a subscription (KS-56)."""
        refuse_cumulative()

    def negative_acknowledge(
        self,
        what: Batch[Any] | Message[Any] | MessageId,
        *,
        delay_ms: int | None = None,
        rows: ChosenRows | None = None,
    ) -> None:
        """Give it back; it comes again after `delay_ms` (default: negative_ack_redelivery_delay_ms, 60 s).

        rows: of a batch, only these. With `nack_order=key` its key waits for that long, and later messages of the key
        that are here are taken back before this returns: those that were received say so (`taken_back`), and come again
        too, behind it. An interrupted call gives it back too, but some of the later messages may be received before it.
        """
        giving = self._giving_back(what, delay_ms, rows)
        self._loop.run(giving)

    def redeliver_unacknowledged_messages(self) -> None:
        """Give back everything that is not acknowledged."""
        self._loop.run(self._give_everything_back())

    def wait_acknowledged(self, timeout_ms: int | None = None) -> None:
        """Wait until every acknowledgement so far is durable.

        Raises Unavailable (time-out), and Fenced, once, if a session was lost before its acknowledgements were: those
        messages come again.
        """
        check_timeout("timeout_ms", timeout_ms)
        self._loop.run(self._confirm(self.parts), None if timeout_ms is None else timeout_ms / 1000)

    def held(self) -> int:
        """Messages that this consumer has and has not finished."""
        return 0 if self._closed else self._loop.ask(self._held)

    def hand_over(self, to: str | None = None) -> None:
        """Let the consumer that subscribes next under the name `to` (default: this one's own) take over all hashes, so
        that a restart moves nobody's keys (`grace_ms`). Call it before that one subscribes; durable when it returns.

        From then on this one goes on until it `is_handed_over`, and should then be closed: each key passes over when
        what it holds of it is acknowledged. Raises Invalid, and Conflict if one of that name has hashes already.
        """
        self._loop.run(self._offering(to))

    def seek(self, to: MessageId | int) -> None:
        """Start the subscription over from a message, MessageId.earliest or latest, or from a time (ms since 1970).

        A message id moves its own partition alone, of the topic that has it. When this returns nothing from before is
        received any more; what was received and not acknowledged belongs to nobody, and acknowledging it has no effect.
        """
        self._loop.run(self._seek(to))

    def get_last_message_ids(self) -> list[MessageId]:
        """Return the last stored message of each partition; its position is -1 where there is none."""
        return self._loop.run(self._last_message_ids())

    def get_last_message_id(self) -> MessageId:
        """Return the last stored message of a topic of one partition. Raises Invalid if it has several."""
        return single(self.get_last_message_ids())

    def unsubscribe(self) -> None:
        """Close, and delete the subscription with what it remembers. Raises Invalid while others are connected."""
        client = self._client
        self.close(for_good=True)
        self._loop.run(self._delete_subscription(client))

    def close(self, drain_timeout_ms: int = 0, *, for_good: bool = False) -> None:
        """Leave. With a drain time-out first wait so long for what is held to be acknowledged (from other threads);
        the rest goes to the others in order, without counting as a redelivery. With `grace_ms` it waits for one of this
        name instead, with the hashes; for_good: nobody will come back, and all goes to the others at once. In a forked
        child it is its parent's, and stays.
        """
        if self._closed or not self._loop.is_here:
            return
        self._loop.check_thread()
        try:
            self._loop.run(self._drain(drain_timeout_ms, for_good=for_good))
        finally:
            self._left(for_good=for_good)

    def __enter__(self) -> Consumer[V]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""The producer that blocks: single messages and whole batches; it waits when too much is under way."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa

from sluice.cluster.base.loop import LoopThread
from sluice.cluster.client.message import MessageId
from sluice.cluster.client.producer_core import ProducerCore
from sluice.cluster.client.receipts import Receipt, SendCallback, SentMessage
from sluice.cluster.client.settings_input import check_timeout
from sluice.cluster.typed.variables import S


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

"""The producer that users hold: single messages and whole batches, blocking when too much is on its way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actors.ports import Ports
from actors.producer.producer import Outgoing, PartitionProducer, split
from cluster.loop import LoopThread
from cluster.message import MessageId
from storage.batch import Batch, make_batch
from storage.errors import Fenced, Invalid, SluiceError, Unavailable
from storage.position import Positions

MAX_PENDING_BYTES = 128 * 1024 * 1024
MAX_PENDING_MESSAGES = 500_000


class Receipt:
    """The outcome of one batch, message by message.

    partitions: uint16 (n,). positions: int64 (n,), -1 until confirmed (and for duplicates whose place is forgotten).
    confirmed_at: int64 (n,), microseconds since 1970 when the confirmation arrived.
    """

    def __init__(self, count: int, clock: Callable[[], int]) -> None:
        self.partitions: npt.NDArray[np.uint16] = np.zeros(count, np.uint16)
        self.positions: Positions = np.full(count, -1, np.int64)
        self.confirmed_at: npt.NDArray[np.int64] = np.zeros(count, np.int64)
        self.error: SluiceError | None = None
        self._clock = clock
        self._open = count
        self._done = threading.Event()
        self._callbacks: list[Callable[[Receipt], None]] = []

    def _settle(self, rows: npt.NDArray[np.int64], first: int, error: SluiceError | None) -> None:
        if error is None:
            self.confirmed_at[rows] = self._clock()
            if first >= 0:
                self.positions[rows] = np.arange(first, first + len(rows))
        else:
            self.error = self.error or error
        self._open -= len(rows)
        if self._open == 0:
            self._done.set()
            for callback in self._callbacks:
                callback(self)

    def done(self) -> bool:
        """Whether every message has its outcome."""
        return self._done.is_set()

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for all confirmations. Raises the first error, or Unavailable after `timeout_s`."""
        if not self._done.wait(timeout_s):
            raise Unavailable(
                f"{self._open} messages were not confirmed within {timeout_s} s; their outcome is unknown"
            )
        if self.error is not None:
            raise self.error
        return self


class Producer:
    """Sends to all partitions of a topic. Safe for threads; order per key is the order of the calls."""

    def __init__(
        self,
        loop: LoopThread,
        ports: Ports,
        topic: str,
        name: str,
        parts: list[PartitionProducer],
        *,
        initial_sequence_id: int | None,
        max_delay_ms: int,
        close: Callable[[Producer], None],
    ) -> None:
        self._loop, self._ports, self._topic, self._name = loop, ports, topic, name
        self._parts = parts
        self._max_delay_ms = max_delay_ms
        self._on_close = close
        self._lock = threading.Lock()
        first = None if initial_sequence_id is None else initial_sequence_id
        self._next = [part.last_sequence + 1 if first is None else first for part in parts]
        self._row = 0
        self._room = threading.Condition()
        self._pending_bytes = self._pending_messages = 0
        self._closed = False

    @property
    def partitions(self) -> int:
        """Number of partitions of the topic."""
        return len(self._parts)

    def producer_name(self) -> str:
        """The name under which sequences are remembered."""
        return self._name

    def topic(self) -> str:
        """The topic."""
        return self._topic

    def last_sequence_id(self) -> int:
        """The highest confirmed sequence over all partitions, -1 for none."""
        return max(part.last_sequence for part in self._parts)

    def send_batch(self, data: pa.RecordBatch | pa.Table, sequences: None = None) -> Receipt:
        """Send many messages as columns (see storage.batch.make_batch); returns at once, blocks only for room.

        Rows of one key go to one partition and keep their order. Every partition numbers its rows consecutively from
        the producer's first sequence, so an identical repetition under the same producer name stores nothing twice.
        """
        if sequences is not None:
            raise Invalid("sequences are given by the producer; leave them out")
        now = self._ports.clock.now()
        with self._lock:
            batch = make_batch(data, now=now, producer=self._name, first_sequence=self._row)
            self._check(batch, now)
            self._take_room(len(batch), batch.rows.nbytes)
            self._row += len(batch)
            receipt = Receipt(len(batch), _microseconds)
            outgoing = []
            for partition, part, rows in split(batch, len(self._parts)):
                receipt.partitions[rows] = partition
                outgoing.append((partition, Outgoing(part, self._next[partition], rows, self._settler(receipt, part))))
                self._next[partition] += len(part)
            self._loop.soon(self._enqueue, outgoing)
        return receipt

    def send(
        self,
        content: bytes | str,
        properties: dict[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | bytes | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """Send one message and wait until it is confirmed.

        deliver_at: ms since 1970. deliver_after: from now. Raises SluiceErrors.
        """
        receipt = self.send_async(
            content,
            None,
            properties=properties,
            partition_key=partition_key,
            ordering_key=ordering_key,
            event_timestamp=event_timestamp,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
        ).result(30)
        return MessageId(int(receipt.partitions[0]), int(receipt.positions[0]))

    def send_async(
        self,
        content: bytes | str,
        callback: Callable[[SluiceError | None, MessageId | None], None] | None = None,
        properties: dict[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | bytes | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> Receipt:
        """Send one message without waiting; `callback(error, message_id)` is called when the outcome is known."""
        if not isinstance(content, bytes | str):
            raise Invalid(f"a payload is bytes or text, not {type(content).__name__}")
        if deliver_after is not None:
            deliver_at = self._ports.clock.now() + int(deliver_after.total_seconds() * 1000)
        columns: dict[str, Any] = {
            "key": pa.array([_bytes(partition_key)], pa.binary()),
            "payload": pa.array([_bytes(content)], pa.binary()),
        }
        if ordering_key is not None:
            columns["ordering_key"] = pa.array([_bytes(ordering_key)], pa.binary())
        if properties:
            columns["properties"] = pa.array([list(properties.items())], pa.map_(pa.string(), pa.string()))
        if event_timestamp is not None:
            columns["event_time"] = pa.array([event_timestamp], pa.int64())
        if deliver_at is not None:
            columns["deliver_at"] = pa.array([deliver_at], pa.int64())
        receipt = self.send_batch(pa.record_batch(columns))
        if callback is not None:
            receipt._callbacks.append(lambda done: callback(done.error, None if done.error else _id_of(done)))
            if receipt.done():
                callback(receipt.error, None if receipt.error else _id_of(receipt))
        return receipt

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent so far has its outcome."""
        for part in self._parts:
            self._loop.run(part.flush(), timeout_s)

    def close(self, timeout_s: float | None = 30) -> None:
        """Wait for what is on its way, then refuse further sends."""
        if self._closed:
            return
        try:
            self.flush(timeout_s)
        finally:
            self._closed = True
            for part in self._parts:
                self._loop.soon(part.close)
            self._on_close(self)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, batch: Batch, now: int) -> None:
        if self._closed:
            raise Fenced("the producer is closed")
        if self._max_delay_ms and batch.deliver_at is not None:
            longest = int(batch.deliver_at.max()) - now
            if longest > self._max_delay_ms:
                raise Invalid(f"a delay of {longest} ms is beyond the topic's limit of {self._max_delay_ms} ms")

    def _enqueue(self, outgoing: list[tuple[int, Outgoing]]) -> None:
        for partition, part in outgoing:
            self._parts[partition].send(part)

    def _settler(self, receipt: Receipt, part: Batch) -> Callable[..., None]:
        messages, size = len(part), part.rows.nbytes

        def settle(rows: npt.NDArray[np.int64], first: int, error: SluiceError | None) -> None:
            receipt._settle(rows, first, error)
            with self._room:
                self._pending_messages -= messages
                self._pending_bytes -= size
                self._room.notify_all()

        return settle

    def _take_room(self, messages: int, size: int) -> None:
        with self._room:
            self._room.wait_for(
                lambda: (
                    self._pending_messages == 0
                    or (
                        self._pending_messages + messages <= MAX_PENDING_MESSAGES
                        and self._pending_bytes + size <= MAX_PENDING_BYTES
                    )
                )
            )
            self._pending_messages += messages
            self._pending_bytes += size


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _id_of(receipt: Receipt) -> MessageId:
    return MessageId(int(receipt.partitions[0]), int(receipt.positions[0]))


def _microseconds() -> int:
    return time.time_ns() // 1000

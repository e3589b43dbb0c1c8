"""The part that both faces of a producer share: single messages become batches, batches go out, receipts are settled.

Producer blocks its caller, AsyncProducer lets the other tasks of its loop go on. Both add messages to the same
containers by the same calls; they differ in how a caller waits for room, for an outcome and for the end.

**Single messages become columns by accumulation.** `send_async` adds a message to the open container and returns. The
container is closed, and goes out as one batch, at once when nothing of this producer is in flight, else as soon as
anything in flight was confirmed, and at the latest after `batching_max_publish_delay_ms`, at `batching_max_messages` or
`batching_max_allowed_size_in_bytes` (Pulsar's names and defaults). So a lone message does not wait; many share a cost.

**Order** is that of the calls: what goes out is queued under the lock, and sequences are given on the loop's thread in
the order of that queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.actors.consumer.chunks import MOST_BYTES
from sluice.actors.ports import Ports
from sluice.actors.producer.batches import Outgoing, cut, split
from sluice.actors.producer.producer import PartitionProducer, Repartitioned
from sluice.actors.runtime.waiting import Signal
from sluice.cluster.base import tracing
from sluice.cluster.base.loop import Home, call_user
from sluice.cluster.base.own_process import OfThisProcess
from sluice.cluster.client.delayed import due_after
from sluice.cluster.client.options import ProducerOptions
from sluice.cluster.client.receipts import GatheredMessages, Pieces, Receipt, SendCallback, SentMessage
from sluice.cluster.client.settings_input import as_bytes, as_payload, check_callback, check_columns, named
from sluice.cluster.typed.variables import S
from sluice.storage.errors import Fenced, Invalid, SluiceError, Unavailable
from sluice.storage.format.batch import MAX_MESSAGE_BYTES, StoredBatch, bytes_of, make_batch

MAX_PENDING_BYTES = 128 * 1024 * 1024
MAX_PENDING_MESSAGES = 500_000
Parts = list[tuple[int, StoredBatch, npt.NDArray[np.int64]]]
"""What goes to which partition, and where its rows stand in the caller's batch."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """A whole batch of the user's, divided by a number of partitions."""

    receipt: Receipt
    parts: Parts
    partitions: int
    size: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """Messages for one partition, or from one that has not stored them. rows: their places in the caller's batch."""

    receipt: Receipt
    batch: StoredBatch
    rows: npt.NDArray[np.int64]
    size: int
    callbacks: dict[int, SendCallback]
    single: bool


class ProducerCore(OfThisProcess, Generic[S]):
    """A producer without the calls that wait. Safe for threads on a LoopThread."""

    inner = OfThisProcess.inner | {"abandon"}

    elsewhere = "another one connects and opens its own"

    def __init__(
        self,
        loop: Home,
        ports: Ports,
        options: ProducerOptions,
        parts: list[PartitionProducer],
        *,
        max_delay_ms: int,
        on_close: Callable[[ProducerCore[Any]], None],
        count_again: Callable[[], Awaitable[int]],
    ) -> None:
        """max_delay_ms: the longest delay that the topic takes; 0 = any. count_again: lets `parts` be those of all
        partitions by now, and returns the longest delay. Raises SluiceErrors.
        """
        self._loop, self._ports, self._options, self._parts = loop, ports, options, parts
        self._count_again = count_again
        self._batching = options.batching
        self._max_delay_ms = max_delay_ms
        self._on_close = on_close
        self._next = [self._first_of(part) for part in parts]
        self._row = 0
        self._room = threading.Condition()
        """Guards everything below; waited on for room."""
        self._pending_bytes = self._pending_messages = 0
        self._open: GatheredMessages | None = None
        self._queue: deque[GatheredMessages | _Columns] = deque()
        self._send_scheduled = self._timer_set = self._send_scheduled_by_settle = False
        """Calls to the loop's thread that did not run yet: by the user's thread, for a container that was opened or is
        full; by the timer of an open container; by a settled append that finds one open. Each ends in `_send_all`.
        """
        self._in_flight = 0
        self._moved: list[_Piece] = []
        """What partitions of an earlier topic have not stored: it is divided once more when nothing else is in flight,
        and before anything that was sent later.
        """
        self._dividing, self._divided = False, Signal()
        self._unsettled: dict[Receipt, dict[int, SendCallback]] = {}
        """What was handed to the partitions and has no outcome yet, with the callbacks that wait for it."""
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic()}, {self.producer_name()})"

    @property
    def partitions(self) -> int:
        """Number of partitions of the topic."""
        return len(self._parts)

    def producer_name(self) -> str:
        """The name under which sequences are remembered."""
        return self._options.name

    def topic(self) -> str:
        return self._options.topic

    def last_sequence_id(self) -> int:
        """The highest confirmed sequence over all partitions, -1 for none."""
        return max(part.last_sequence for part in self._parts)

    def _add_columns(self, data: pa.RecordBatch | pa.Table) -> Receipt:
        """Queue many messages as columns. Block for room, unless there is some."""
        check_columns(data)
        now = self._begin()
        with self._room:
            self._check_open()
            self._take_room(data.num_rows, data.nbytes)
            first_row, self._row = self._row, self._row + data.num_rows
        try:
            batch = make_batch(data, now=now, producer=self._options.name, first_sequence=first_row)
            if batch.deliver_at is not None:
                self._check_delay(int(batch.deliver_at.max()), now)
            receipt, partitions = Receipt(len(batch), self._loop.check_thread), len(self._parts)
            columns = _Columns(receipt, self._split(batch, partitions), partitions, bytes_of(batch.rows))
        except BaseException:
            with self._room:
                self._give_room(data.num_rows, data.nbytes)
            raise
        with self._room:
            self._pending_bytes += columns.size - data.nbytes  # a dictionary takes less than the messages that name it
            self._close_container()
            self._queue.append(columns)
            self._call_loop(self._send_all)
        return columns.receipt

    def _add(
        self,
        payload: bytes,
        callback: SendCallback | None = None,
        properties: dict[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | bytes | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        delay_id: str | None = None,
    ) -> SentMessage:
        """Add one message to the open container. Block for room, unless there is some."""
        now = self._begin(callback)
        deliver_at = deliver_at if deliver_after is None else due_after(now, deliver_after)
        properties, ordering_key = named(delay_id, properties, partition_key, ordering_key)
        pieces = self._pieces(payload, deliver_at)
        if tracing.ACTIVE is not None:
            properties, callback = tracing.ACTIVE.publishing(self, payload, properties, callback)
        with self._room:
            self._check_open()
            if deliver_at is not None:
                self._check_delay(deliver_at, now)
            self._take_room(len(pieces), len(payload))
            gathered = self._open
            if gathered is None:
                gathered = self._open = self._new_container()
            container, before = gathered.container, gathered.container.size
            try:
                sent = gathered.add(
                    pieces,
                    as_bytes(partition_key),
                    now,
                    callback,
                    ordering_key=as_bytes(ordering_key),
                    properties=properties,
                    event_time=event_timestamp,
                    deliver_at=deliver_at,
                )
            except BaseException:
                self._give_room(len(pieces), len(payload))
                raise
            self._pending_bytes += container.size - before - len(payload)
            self._row += len(pieces)
            if container.count >= self._batching.max_messages or container.size >= self._batching.max_bytes:
                self._close_container()
                self._call_loop(self._send_all)
            elif not self._send_scheduled:
                self._call_loop(self._on_container_opened)
        return sent

    async def _flush(self) -> None:
        """Wait for all partitions at once, which share the time-out."""
        while True:
            self._send_all()
            await asyncio.gather(*(part.flush() for part in self._parts))
            if not self._moved:
                return
            await self._divided.wait(self._ports)

    def _end(self) -> None:
        """Refuse further messages, and those that were added meanwhile."""
        with self._room:
            self._closed = True
            self._room.notify_all()
            self._freed()
        for part in self._parts:
            self._loop.soon(part.close)
        self._loop.soon(self._send_all)
        self._on_close(self)

    async def _leave(self) -> None:
        """Let another producer have what this one had to itself."""
        await asyncio.gather(*(part.leave() for part in self._parts))

    def _freed(self) -> None:
        """Tell tasks that wait for room, under the lock."""

    def _new_container(self) -> GatheredMessages:
        return GatheredMessages.empty(self._row, self._options.pulsar, self._loop.check_thread, self._ports.clock)

    def _payload(self, content: object) -> bytes:
        """The payload of a message: of a producer with a schema that of a value. Raises Invalid."""
        if (values := self._options.values) is not None:
            payload = values.encode(content)
        else:
            payload = content if type(content) is bytes else as_payload(content)
        if len(payload) > MAX_MESSAGE_BYTES and not self._options.chunking:
            raise Invalid(
                f"a message has at most {MAX_MESSAGE_BYTES} bytes, and this one {len(payload)}: "
                "chunking_enabled=True of the producer sends it in chunks"
            )
        if len(payload) > MOST_BYTES:
            raise Invalid(
                f"a message in chunks has at most {MOST_BYTES} bytes, and this one {len(payload)}: "
                "keep it in a store of your own, and send its place"
            )
        return payload

    def _pieces(self, payload: bytes, deliver_at: int | None) -> Pieces:
        """The payload, or its chunks. Raises Invalid."""
        if len(payload) <= MAX_MESSAGE_BYTES:
            return [(payload, None)]
        if deliver_at:
            raise Invalid(f"a message in chunks cannot be delayed; one of at most {MAX_MESSAGE_BYTES} bytes can")
        from sluice.actors.pulsar.codec import chunked

        uuid = f"{self._ports.rng.randrange(1 << 128):032x}".encode()
        return [*chunked.cut(payload, uuid, self._options.pulsar)]

    def _split(self, batch: StoredBatch, partitions: int) -> Parts:
        return split(batch, partitions, self._options.hashing_scheme)

    def _split_again(self, batch: StoredBatch, rows: npt.NDArray[np.int64]) -> Parts:
        """Divide what is a part of a caller's batch."""
        return [(number, part, rows[at]) for number, part, at in self._split(batch, len(self._parts))]

    def _first_of(self, part: PartitionProducer) -> int:
        """The sequence of the first message that goes to a partition from here."""
        first = self._options.initial_sequence_id
        return part.last_sequence + 1 if first is None else first

    def _begin(self, callback: object = None) -> int:
        """The time. Raises Invalid in a forked child, where a thread that is not there may hold the lock, and for a
        callback that is no function of two arguments.
        """
        check_callback("callback", callback, 2)
        self._loop.check_process()
        return self._ports.clock.now()

    def _check_open(self) -> None:
        if self._closed:
            raise Fenced("the producer is closed")

    def _check_delay(self, latest: int, now: int) -> None:
        if self._max_delay_ms and latest - now > self._max_delay_ms:
            raise Invalid(f"a delay of {latest - now} ms is beyond the topic's limit of {self._max_delay_ms} ms")

    def _lacks_room(self, messages: int, size: int) -> bool:
        """Whether so much more is too much while something is on its way."""
        return self._pending_messages > 0 and (
            self._pending_messages + messages > MAX_PENDING_MESSAGES or self._pending_bytes + size > MAX_PENDING_BYTES
        )

    def _take_room(self, messages: int, size: int) -> None:
        while self._lacks_room(messages, size):
            self._loop.check_thread()
            self._room.wait()
            self._check_open()
        self._pending_messages += messages
        self._pending_bytes += size

    def _give_room(self, messages: int, size: int) -> None:
        self._pending_messages -= messages
        self._pending_bytes -= size
        self._room.notify_all()
        self._freed()

    def _close_container(self) -> None:
        if self._open is not None:
            if self._open.container.count:  # else what it was opened for was refused
                self._queue.append(self._open)
            self._open = None

    def _call_loop(self, call: Callable[[], None]) -> None:
        self._send_scheduled = True
        self._loop.soon(call)

    # -- on the loop's thread -------------------------------------------------------------------------------------

    def abandon(self, why: str) -> None:
        """Settle all open messages as the client ends, so that every waiting call returns with an error."""
        error = Unavailable(f"{why}; its outcome is unknown")
        self._moved.clear()
        self._divided.set()
        for receipt, callbacks in list(self._unsettled.items()):
            self._settle(receipt, receipt.open_rows(), -1, error, callbacks)

    def _on_container_opened(self) -> None:
        """A container was opened. What gathers in it waits while others are in flight, and not longer than it may."""
        if not self._in_flight:
            self._send_all()
        elif not self._timer_set:
            self._timer_set = True
            self._loop.later(self._batching.max_delay_ms, self._on_time)

    def _on_time(self) -> None:
        self._timer_set = False
        self._send_all()

    def _send_all(self) -> None:
        """Close the container and hand everything to the partitions, in order."""
        with self._room:
            self._send_scheduled = False
            if self._moved:
                return
            self._close_container()
            waiting = list(self._queue)
            self._queue.clear()
        for one in waiting:
            if isinstance(one, _Columns):
                parts = one.parts
                if one.partitions != len(self._parts):
                    parts = [again for _, batch, rows in parts for again in self._split_again(batch, rows)]
                self._send_parts(one.receipt, parts, one.size)
            else:
                self._send_gathered(one)

    def _send_gathered(self, gathered: GatheredMessages) -> None:
        receipt, container = gathered.receipt, gathered.container
        receipt.grow(container.count)
        self._unsettled[receipt] = gathered.callbacks
        try:
            parts = self._split(container.build(self._options.name, gathered.first_row), len(self._parts))
        except SluiceError as error:
            with self._room:
                self._give_room(container.count, container.size)
            self._settle(receipt, np.arange(container.count), -1, error, gathered.callbacks)
            return
        self._send_parts(receipt, parts, container.size, gathered.callbacks, single=True)

    def _send_parts(
        self,
        receipt: Receipt,
        parts: Parts,
        size: int,
        callbacks: dict[int, SendCallback] | None = None,
        *,
        single: bool = False,
    ) -> None:
        """Give sequences and queue each partition's share; the last share takes what is left of the bytes."""
        count, left, callbacks = sum([len(batch) for _, batch, _ in parts]), size, callbacks or {}
        self._unsettled[receipt] = callbacks
        pieces = [(partition, *piece) for partition, batch, rows in parts for piece in cut(batch, rows)]
        for number, (partition, batch, rows) in enumerate(pieces, 1):
            share = left if number == len(pieces) else size * len(batch) // count
            left -= share
            receipt.partitions[rows] = partition
            first, self._next[partition] = self._next[partition], self._next[partition] + len(batch)
            self._in_flight += 1
            done = self._settler(_Piece(receipt, batch, rows, share, callbacks, single))
            # The rows of a user's batch may differ much, and the producer chooses by bytes what goes together.
            self._parts[partition].send(Outgoing(batch, first, rows, done, share if single else None, single=single))

    def _settler(self, piece: _Piece) -> Callable[[npt.NDArray[np.int64], int, SluiceError | None], None]:
        """Return a function that settles the messages of a piece, some of them or all at a time."""
        open_messages, open_bytes = len(piece.batch), piece.size

        def settle(rows: npt.NDArray[np.int64], first: int, error: SluiceError | None) -> None:
            nonlocal open_messages, open_bytes
            share = open_bytes * len(rows) // open_messages
            open_messages, open_bytes = open_messages - len(rows), open_bytes - share
            self._in_flight -= not open_messages
            if isinstance(error, Repartitioned):
                batch = (
                    piece.batch if len(rows) == len(piece.batch) else piece.batch.take(piece.rows.searchsorted(rows))
                )
                self._moved.append(replace(piece, batch=batch, rows=rows, size=share))
                self._divided.clear()
            else:
                with self._room:
                    self._give_room(len(rows), share)
                    if self._open is not None and not self._send_scheduled_by_settle:
                        self._send_scheduled_by_settle = True
                        self._loop.soon(self._on_settled)
                self._settle(piece.receipt, rows, first, error, piece.callbacks)
            if self._moved and not self._in_flight and not self._dividing:
                self._dividing = True
                self._ports.spawn(self._divide_again(), f"partitions-{self._options.topic}")

        return settle

    async def _divide_again(self) -> None:
        """Send what came back by the partitions that the topic has by now."""
        while self._moved and not self._in_flight:
            refused = await self._learn_partitions()
            moved, self._moved = self._moved, []
            for piece in moved:
                if refused is None:
                    parts = self._split_again(piece.batch, piece.rows)
                    self._send_parts(piece.receipt, parts, piece.size, piece.callbacks, single=piece.single)
                else:
                    self._in_flight += 1
                    self._settler(piece)(piece.rows, 0, refused)
        self._dividing = False
        if not self._moved:
            self._send_all()
            self._divided.set()

    async def _learn_partitions(self) -> SluiceError | None:
        """Open what is missing; return the reason if that cannot be done."""
        refused: SluiceError | None = None
        try:
            while True:
                with contextlib.suppress(Unavailable):
                    self._max_delay_ms = await self._count_again()
                    break
                self._check_open()
        except SluiceError as error:
            refused = error
            for part in self._parts[len(self._next) :]:
                part.close()
            del self._parts[len(self._next) :]
        self._next = self._next[: len(self._parts)]
        self._next += [self._first_of(part) for part in self._parts[len(self._next) :]]
        if self._closed:  # meanwhile
            for part in self._parts:
                part.close()
        return refused

    def _settle(
        self,
        receipt: Receipt,
        rows: npt.NDArray[np.int64],
        first: int,
        error: SluiceError | None,
        callbacks: dict[int, SendCallback],
    ) -> None:
        """Tell the outcome of some messages to their receipt and to their callbacks."""
        if receipt not in self._unsettled:
            return  # the client has ended before, see `abandon`
        receipt.settle(rows, first, error, self._ports.clock.monotonic())
        if receipt.done():
            self._unsettled.pop(receipt, None)
        for row in rows.tolist() if callbacks else ():
            if (callback := callbacks.pop(row, None)) is not None:
                told = None if error else receipt.message_id(row)
                call_user("a callback of send_async", callback, error, told)

    def _on_settled(self) -> None:
        self._send_scheduled_by_settle = False
        self._send_all()

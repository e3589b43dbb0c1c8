"""Messages that are sent one by one: how they gather into columns, and the receipts of their outcome.

**The container.** A producer that is given one message at a time must not pay for a record batch each. Here a message
costs a few list appends, and what gathered becomes a `storage.format.batch.StoredBatch` at once: Pulsar's client calls
this a batch message container. The result is the same, value for value, as that of `make_batch` on the same rows; the
tests hold the two against each other.

**A receipt** knows the outcome row by row, of a batch or of one message.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.actors.consumer.chunks import CHUNKS_MS
from sluice.actors.ports import Clock
from sluice.cluster.base.loop import wake_task
from sluice.cluster.client.message import MessageId
from sluice.cluster.client.settings_input import check_timeout
from sluice.storage.errors import Invalid, SluiceError, Unavailable
from sluice.storage.format.batch import LAST_TIME, MAX_KEY_BYTES, MAX_MESSAGE_BYTES, StoredBatch, UnbuiltBatch
from sluice.storage.format.hashing import Hashes, hash_column, masked_hash
from sluice.storage.format.position import Positions

OVERHEAD = 64
"""Bytes that a message is taken to need beside its key, payload and properties."""
SCALAR = 64
"""Up to so many keys are hashed one by one: below that the fixed cost of whole columns is the larger part."""


class MessageContainer:
    """Messages in the order in which they were added. count: how many. size: about how many bytes."""

    __slots__ = (
        "_deliver_at", "_event", "_key", "_of_chunks", "_order", "_payload", "_properties", "_publish", "_pulsar",
        "count", "size"
    )  # fmt: skip

    def __init__(self, pulsar: bytes | None = None) -> None:
        """pulsar: what stands in this column of each message, such as the version of the schema."""
        self.count = self.size = 0
        self._pulsar = pulsar
        self._of_chunks: dict[int, tuple[bytes, int]] = {}
        """Of chunks: what stands in the column `pulsar` instead, and the row of their first one."""
        self._key: list[bytes | None] = []
        self._payload: list[bytes] = []
        self._publish: list[int] = []
        self._order: dict[int, bytes] = {}
        self._properties: dict[int, list[tuple[str, str]]] = {}
        self._event: dict[int, int] = {}
        self._deliver_at: dict[int, int] = {}

    def add(
        self,
        payload: bytes,
        key: bytes | None,
        publish_time: int,
        *,
        ordering_key: bytes | None = None,
        properties: dict[str, str] | None = None,
        event_time: int | None = None,
        deliver_at: int | None = None,
        chunk: tuple[bytes, int] | None = None,
    ) -> int:
        """Add one message; returns its row. Times are milliseconds since 1970. Raises Invalid and adds nothing.

        chunk: of a chunk what stands in the column `pulsar`, and the row of the first one of its message.
        """
        size = len(payload)
        if size > MAX_MESSAGE_BYTES:
            raise Invalid(f"column 'payload' holds {size} bytes in one message, the limit is {MAX_MESSAGE_BYTES}")
        if key is not None:
            _check_key("key", key)
            size += len(key)
        if ordering_key is not None:
            _check_key("ordering_key", ordering_key)
        if event_time is not None:
            _check_time("event_timestamp", event_time)
        if deliver_at is not None:
            _check_time("deliver_at", deliver_at, LAST_TIME)
        pairs = _pairs(properties) if properties else None
        # Nothing is refused from here on: a row is added as a whole.
        row = self.count
        if ordering_key is not None:
            self._order[row] = ordering_key
        if pairs is not None:
            size += sum(len(name) + len(value) for name, value in pairs)
            self._properties[row] = pairs
        if event_time is not None:
            self._event[row] = event_time
        if deliver_at:
            self._deliver_at[row] = deliver_at
        if chunk is not None:
            self._of_chunks[row] = chunk
        self._key.append(key)
        self._payload.append(payload)
        self._publish.append(publish_time)
        self.count = row + 1
        self.size += size + OVERHEAD
        return row

    def build(self, producer: str, first_row: int) -> StoredBatch:
        """The batch. A message without key gets the sticky key `producer-row`, rows counted from `first_row` (KS-4)."""
        columns: dict[str, Sequence[Any]] = {
            "key": self._key, "payload": self._payload, "publish_time": self._publish
        }  # fmt: skip
        sparse: dict[str, Mapping[int, Any]] = {
            "ordering_key": self._order, "properties": self._properties, "event_time": self._event
        }  # fmt: skip
        if self._of_chunks:  # the number by which a message without key hashes, one for all chunks
            sparse["sequence_id"] = {row: first_row + first for row, (_, first) in self._of_chunks.items()}
        columns |= {name: [*map(values.get, range(self.count))] for name, values in sparse.items() if values}
        if self._pulsar is not None or self._of_chunks:
            columns["pulsar"] = [self._of_chunks.get(row, (self._pulsar,))[0] for row in range(self.count)]
        deliver_at = None
        if self._deliver_at:
            deliver_at = np.zeros(self.count, np.int64)
            deliver_at[list(self._deliver_at)] = list(self._deliver_at.values())
        return UnbuiltBatch(columns, tuple([*columns][3:]), deliver_at, self._hashes(producer, first_row))

    def _hashes(self, producer: str, first_row: int) -> Hashes:
        keys = list(self._key)
        for row, key in self._order.items():
            keys[row] = key
        numbers = list(range(first_row, first_row + self.count))
        for row, (_, first) in self._of_chunks.items():
            numbers[row] = first_row + first
        known = [
            key if key is not None else b"%b-%d" % (producer.encode(), number)
            for key, number in zip(keys, numbers, strict=True)
        ]
        if self.count <= SCALAR:
            return np.array([masked_hash(key) for key in known], np.uint32)
        return hash_column(pa.array(known, pa.binary()))


def _check_key(name: str, key: object) -> None:
    if not isinstance(key, bytes):
        raise Invalid(f"column {name!r} holds bytes or text, not {type(key).__name__}")
    if len(key) > MAX_KEY_BYTES:
        raise Invalid(f"column {name!r} holds {len(key)} bytes in one message, the limit is {MAX_KEY_BYTES}")


def _check_time(name: str, value: int, latest: int = (1 << 63) - 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= latest:
        raise Invalid(f"{name} = {value}: times are milliseconds since 1970")


def _pairs(properties: object) -> list[tuple[str, str]]:
    pairs = list(properties.items()) if isinstance(properties, Mapping) else None
    if pairs is None or not all(isinstance(text, str) for pair in pairs for text in pair):
        raise Invalid("column 'properties' maps text to text")
    try:
        "".join(text for pair in pairs for text in pair).encode()
    except UnicodeEncodeError:
        raise Invalid("column 'properties' holds text that is not Unicode") from None
    return pairs


SendCallback = Callable[[SluiceError | None, MessageId | None], None]
"""Called with (error, None) or (None, message id), on the client's own thread: it must not block."""

Pieces = list[tuple[bytes, bytes | None]]
"""Payloads of a message, several if it goes in chunks, each with what stands in its column `pulsar`."""

_OPEN, _CONFIRMED, _FAILED = 0, 1, 2
_NO_PARTITIONS: npt.NDArray[np.uint16] = np.empty(0, np.uint16)
_NO_STATES: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
_NO_NUMBERS: npt.NDArray[np.int64] = np.empty(0, np.int64)
_NO_ROWS: dict[int, int] = {}
_LATE = (
    f"the chunks of the message took more than {CHUNKS_MS // 1000} s; its outcome is unknown, for a consumer may have "
    "dropped the first ones"
)


class Receipt:
    """The outcome of one batch, message by message.

    partitions: uint16 (n,). positions: int64 (n,), -1 until confirmed (and for duplicates whose place is forgotten).
    confirmed_at: int64 (n,), microseconds since 1970 when the confirmation arrived.
    """

    def __init__(self, count: int = 0, check_wait: Callable[[], object] = lambda: None) -> None:
        """check_wait: called before a thread waits; raises for one that must not."""
        self._check_wait = check_wait
        self.error: SluiceError | None = None
        self._changed = threading.Condition()
        self._tasks: dict[asyncio.Future[None], tuple[asyncio.AbstractEventLoop, int | None]] | None = None
        """Tasks that wait, each for one row or for all. None while no task waits: most receipts never have one."""
        self.until: dict[int, int] = _NO_ROWS
        """Of messages in chunks: the rows of their last ones, and until when (monotonic ms) these are to be stored."""
        self.grow(count)

    def grow(self, count: int) -> None:
        """Set the number of messages if it was not known at first; before any of them is settled."""
        self.partitions: npt.NDArray[np.uint16] = np.zeros(count, np.uint16) if count else _NO_PARTITIONS
        self.positions: Positions = np.empty(count, np.int64) if count else _NO_NUMBERS
        self.positions.fill(-1)
        self.confirmed_at: npt.NDArray[np.int64] = np.zeros(count, np.int64) if count else _NO_NUMBERS
        self._states: npt.NDArray[np.uint8] = np.zeros(count, np.uint8) if count else _NO_STATES
        self._open = count

    def settle(self, rows: npt.NDArray[np.int64], first: int, error: SluiceError | None, now: int = 0) -> None:
        """Note the outcome of some rows, and wake their waiters.

        first: position of the first of these rows, the others follow it; -1 if it is not known. now: monotonic ms.
        """
        alone = len(rows) == 1
        places = int(rows[0]) if alone else rows  # one number is found in a tenth of the time of an array of one
        with self._changed:
            if error is None:
                self.confirmed_at[places] = time.time_ns() // 1000
                if first >= 0:
                    self.positions[places] = first if alone else np.arange(first, first + len(rows))
            else:
                self.error = self.error or error
            self._states[places] = _CONFIRMED if error is None else _FAILED
            if late := [row for row in rows.tolist() if self.until.get(row, now) < now] if self.until else None:
                self.error = self.error or Unavailable(_LATE)
                self._states[late] = _FAILED
            self._open -= len(rows)
            self._changed.notify_all()
            if self._tasks:
                self._wake_tasks(self._tasks)

    def _wake_tasks(self, tasks: dict[asyncio.Future[None], tuple[asyncio.AbstractEventLoop, int | None]]) -> None:
        for outcome, (loop, row) in list(tasks.items()):
            if self.done() if row is None else self.is_settled(row):
                del tasks[outcome]
                wake_task(outcome, loop)

    def __repr__(self) -> str:
        return f"Receipt({len(self._states)} messages, {self._open} on their way)"

    def done(self) -> bool:
        """Tell whether every message is confirmed or has failed."""
        return self._open == 0

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for all confirmations. Raises the first error, or Unavailable after `timeout_s`."""
        with self._changed:
            if not self._wait_for(self.done, timeout_s):
                raise Unavailable(
                    f"{self._open} messages were not confirmed within {timeout_s} s; their outcome is unknown"
                )
        if self.error is not None:
            raise self.error
        return self

    def _wait_for(self, settled: Callable[[], bool], timeout_s: float | None) -> bool:
        check_timeout("timeout_s", timeout_s)
        if not settled() and (timeout_s is None or timeout_s > 0):
            self._check_wait()
        return self._changed.wait_for(settled, timeout_s)

    def is_settled(self, row: int) -> bool:
        """Tell whether this message is confirmed or has failed."""
        return row < len(self._states) and self._states[row] != _OPEN

    def open_rows(self) -> npt.NDArray[np.int64]:
        """Which messages have no outcome yet."""
        return np.flatnonzero(self._states == _OPEN)

    def error_of(self, row: int) -> SluiceError | None:
        """Why this message was refused; None if it was not."""
        return self.error if self.is_settled(row) and self._states[row] == _FAILED else None

    def wait_row(self, row: int, timeout_s: float | None) -> None:
        """Wait for one message. Raises its error, or Unavailable after `timeout_s`."""
        if not self.is_settled(row):  # else there is nothing to wait for, and the lock costs more than the look
            with self._changed:
                if not self._wait_for(lambda: self.is_settled(row), timeout_s):
                    raise unconfirmed(timeout_s)
        error = self.error_of(row)
        if error is not None:
            raise error

    def message_id(self, row: int) -> MessageId:
        """Return the place of a stored message."""
        return MessageId(int(self.partitions[row]), int(self.positions[row]))

    def __await__(self) -> Generator[Any, None, Receipt]:
        """Wait for all confirmations in any running event loop. Raises the first error."""
        yield from self.until_settled(None).__await__()
        return self.result(0)

    async def until_settled(self, row: int | None) -> None:
        """Wait for one message, or for all, in any running event loop. A wait that is cancelled leaves nothing here."""
        with self._changed:
            if self.done() if row is None else self.is_settled(row):
                return
            loop = asyncio.get_running_loop()
            outcome: asyncio.Future[None] = loop.create_future()
            tasks = self._tasks = {} if self._tasks is None else self._tasks
            tasks[outcome] = (loop, row)
        try:
            await outcome
        finally:
            with self._changed:
                tasks.pop(outcome, None)


class SentMessage:
    """The outcome of one message."""

    __slots__ = ("_receipt", "_row")

    def __init__(self, receipt: Receipt, row: int) -> None:
        self._receipt, self._row = receipt, row

    def __repr__(self) -> str:
        outcome = "on its way" if not self.done() else self.error or self.message_id()
        return f"{type(self).__name__}({outcome})"

    def done(self) -> bool:
        """Tell whether the message is confirmed or has failed."""
        return self._receipt.is_settled(self._row)

    @property
    def error(self) -> SluiceError | None:
        """Why it was refused; None if it was not, or is not decided."""
        return self._receipt.error_of(self._row)

    def result(self, timeout_s: float | None = None) -> SentMessage:
        """Wait for the confirmation. Raises the message's error, or Unavailable after `timeout_s`."""
        self._receipt.wait_row(self._row, timeout_s)
        return self

    def message_id(self) -> MessageId:
        """Return the place of the stored message. Raises its error; Unavailable while it is not confirmed."""
        self.result(0)
        return self._receipt.message_id(self._row)

    def __await__(self) -> Generator[Any, None, MessageId]:
        """Wait for the confirmation in any running event loop, and return the message's place. Raises its error."""
        if not self.done():
            yield from self._settled().__await__()
        return self.message_id()

    def _settled(self) -> Coroutine[Any, Any, None]:
        return self._receipt.until_settled(self._row)

    def callbacks(self, callback: SendCallback) -> dict[int, SendCallback]:
        """Return the rows whose outcome is reported, each with its function, so that this one is called once."""
        return {self._row: callback}


class SentInChunks(SentMessage):
    """The outcome of a message in chunks: stored when all chunks are, at the place of the last one."""

    __slots__ = ("_first",)

    def __init__(self, receipt: Receipt, first: int, row: int) -> None:
        super().__init__(receipt, row)
        self._first = first

    @property
    def _rows(self) -> range:
        return range(self._first, self._row + 1)

    def done(self) -> bool:
        return all(self._receipt.is_settled(row) for row in self._rows)

    @property
    def error(self) -> SluiceError | None:
        """Why a chunk was refused; None if none was, or one is not decided."""
        errors = map(self._receipt.error_of, self._rows)
        return next((error for error in errors if error is not None), None)

    def result(self, timeout_s: float | None = None) -> SentMessage:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for row in self._rows:
            self._receipt.wait_row(row, None if until is None else max(until - time.monotonic(), 0))
        return self

    async def _settled(self) -> None:
        for row in self._rows:
            await self._receipt.until_settled(row)

    def callbacks(self, callback: SendCallback) -> dict[int, SendCallback]:
        def on_chunk(error: SluiceError | None, place: MessageId | None) -> None:
            if self.done() and not told:
                told.append(True)
                callback(self.error, None if self.error else self._receipt.message_id(self._row))

        told: list[bool] = []
        return dict.fromkeys(self._rows, on_chunk)


def sent_message(receipt: Receipt, first: int, count: int) -> SentMessage:
    """The outcome of a message of `count` rows."""
    return SentMessage(receipt, first) if count == 1 else SentInChunks(receipt, first, first + count - 1)


def unconfirmed(timeout_s: float | None) -> Unavailable:
    """The error of a message whose confirmation did not come in time."""
    return Unavailable(f"the message was not confirmed within {timeout_s} s; its outcome is unknown")


@dataclass(eq=False, slots=True)
class GatheredMessages:
    """Single messages that go out together. first_row: of the producer's messages without key, which are numbered."""

    first_row: int
    receipt: Receipt
    container: MessageContainer
    clock: Clock
    callbacks: dict[int, SendCallback] = field(default_factory=dict)

    @classmethod
    def empty(
        cls, first_row: int, pulsar: bytes | None, check_wait: Callable[[], object], clock: Clock
    ) -> GatheredMessages:
        """None yet. pulsar: see MessageContainer. check_wait: see Receipt."""
        return cls(first_row, Receipt(check_wait=check_wait), MessageContainer(pulsar), clock)

    def add(
        self, pieces: Pieces, key: bytes | None, now: int, callback: SendCallback | None, **details: Any
    ) -> SentMessage:
        """Add one message. Raises Invalid and adds nothing."""
        first = self.container.count
        for piece, chunk in pieces:
            self.container.add(piece, key, now, chunk=None if chunk is None else (chunk, first), **details)
        if len(pieces) > 1:
            last = self.container.count - 1
            self.receipt.until = {**self.receipt.until, last: self.clock.monotonic() + CHUNKS_MS}
        sent = sent_message(self.receipt, first, len(pieces))
        if callback is not None:
            self.callbacks |= sent.callbacks(callback)
        return sent

"""One message and a batch as users see them, with Pulsar's shapes: methods where Pulsar has methods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.actors.consumer.unacked_messages import Received
from sluice.cluster.base.own_process import OfThisProcess
from sluice.cluster.typed.variables import V
from sluice.storage.errors import Invalid
from sluice.storage.format.position import (
    EARLIEST,
    MAX_ENTRY,
    MAX_LEDGER,
    Positions,
    entry_of,
    ledger_of,
    parse,
    position,
    show,
)

if TYPE_CHECKING:
    from sluice.actors.consumer.partition import PartitionConsumer

CONVERT_BYTES = 1024 * 1024
"""Columns of up to so many bytes become Python objects as a whole when one value is asked for."""


@dataclass(frozen=True, slots=True, order=True)
class MessageId:
    """The place of a stored message: partition, ledger, entry. Comparable within a partition, and printable."""

    partition_index: int
    position: int
    earliest: ClassVar[MessageId]
    """Before every message."""
    latest: ClassVar[MessageId]
    """Behind every message."""

    def ledger_id(self) -> int:
        """The ledger, -1 for earliest."""
        return -1 if self.position < 0 else ledger_of(self.position)

    def entry_id(self) -> int:
        """The entry within the ledger, -1 for earliest."""
        return -1 if self.position < 0 else entry_of(self.position)

    def partition(self) -> int:
        """The partition of the topic."""
        return self.partition_index

    def batch_index(self) -> int:
        """Always -1: an entry is one message."""
        return -1

    def is_stored(self) -> bool:
        """Whether it is the place of a message, and not one of the ends."""
        return self not in (MessageId.earliest, MessageId.latest)

    def serialize(self) -> bytes:
        return str(self).encode()

    @staticmethod
    def deserialize(data: bytes) -> MessageId:
        """The id back. Raises Invalid."""
        return MessageId.parse(data.decode("utf-8", "replace"))

    @staticmethod
    def parse(text: str) -> MessageId:
        """Read `ledger:entry` or `ledger:entry:partition`. Raises Invalid with the expected form."""
        has_partition = text.count(":") == 2 or text.startswith("earliest:")
        position, _, partition = text.rpartition(":") if has_partition else (text, "", "0")
        if not partition.isdecimal():
            raise Invalid(f"a message id is LEDGER:ENTRY:PARTITION, not {text!r}")
        return MessageId(int(partition), parse(position))

    def __str__(self) -> str:
        if self is MessageId.earliest or self is MessageId.latest:
            return "earliest" if self.partition_index < 0 else "latest"
        return f"{show(self.position)}:{self.partition_index}"


MessageId.earliest = MessageId(-1, EARLIEST)
MessageId.latest = MessageId((1 << 31) - 1, position(MAX_LEDGER, MAX_ENTRY))


class Values(Protocol):
    """A decoder of the payloads of a consumer with a schema."""

    def value_of(self, message: Message[Any]) -> Any:
        """Return the value of a message. Raises Invalid."""


@dataclass(eq=False, slots=True, repr=False)
class Batch(OfThisProcess, Generic[V]):
    """Messages of one partition for this consumer, as columns, in the order in which they were sent; n rows.

    rows: pyarrow record batch with key, payload, publish_time and, where used, ordering_key, properties, event_time.
    positions, dispatch, deliver_at: int64 (n,). redeliveries: uint8 (n,). pandas and polars read `rows` directly.
    """

    elsewhere = "send what it carries, as its rows"
    inner = OfThisProcess.inner | {"cell", "consumer", "received", "values"}

    topic: str
    received: Received
    consumer: PartitionConsumer
    values: Values | None = None
    """None: the value of a message is its payload."""
    _cells: dict[str, list[Any] | pa.Array | None] = field(default_factory=dict)

    @property
    def rows(self) -> pa.RecordBatch:
        """The stored columns."""
        return self.received.rows

    @property
    def partition(self) -> int:
        """The partition that all messages of the batch come from."""
        return self.received.partition

    @property
    def positions(self) -> Positions:
        """Packed positions."""
        return self.received.positions

    @property
    def dispatch(self) -> npt.NDArray[np.int64]:
        """The dispatcher's number of each message: the order in which it sent them, within an epoch."""
        return self.received.dispatch

    @property
    def redeliveries(self) -> npt.NDArray[np.uint8]:
        """How often each message was given back before."""
        return self.received.redeliveries

    @property
    def overtook(self) -> npt.NDArray[np.bool_]:
        """Which of them the application had before an earlier message of their key came again (`nack_order=key`)."""
        return self.received.overtook

    @property
    def taken_back(self) -> npt.NDArray[np.bool_]:
        """Which of them were taken back by now, since an earlier message of their key was given back
        (`nack_order=key`): acknowledging these has no effect, and they come again behind it.
        """
        taken = self.received.taken_back
        return np.zeros(len(self), np.bool_) if taken is None else taken

    @property
    def deliver_at(self) -> npt.NDArray[np.int64]:
        """Due times in ms, 0 = at once."""
        return self.received.deliver_at

    @property
    def epoch(self) -> int:
        """The dispatcher's epoch."""
        return self.received.epoch

    @property
    def session(self) -> int:
        """The consumer's session at the dispatcher."""
        return self.received.session

    def __len__(self) -> int:
        return len(self.received)

    def __repr__(self) -> str:
        first = MessageId(self.partition, int(self.positions[0])) if len(self) else "nowhere"
        return f"Batch({self.topic}, {len(self)} messages from {first} on)"

    def cell(self, column: str, row: int) -> Any:
        """One value of a stored column as a Python object; None where the batch has no such column.

        A column is converted at once when its first value is asked for: one by one costs forty times as much. Large
        ones are not, because their messages would be in memory twice for as long as the batch lives.
        """
        if column not in self._cells:
            found = self.rows.column(column) if column in self.rows.schema.names else None
            small = found is not None and found.nbytes <= CONVERT_BYTES
            self._cells[column] = found.to_pylist() if found is not None and small else found
        cells = self._cells[column]
        if cells is None:
            return None
        value = cells[row]
        return value.as_py() if isinstance(value, pa.Scalar) else value

    def messages(self) -> list[Message[V]]:
        """One object a message, for code that wants that."""
        return [Message(self, row) for row in range(len(self))]


@dataclass(eq=False, slots=True, repr=False)
class Message(OfThisProcess, Generic[V]):
    """One message. `value` is what the consumer's schema says, by default the payload."""

    elsewhere = "send what it carries, as data() and message_id()"
    inner = OfThisProcess.inner | {"batch", "row"}

    batch: Batch[V]
    row: int

    def __repr__(self) -> str:
        return f"Message({self.topic_name()} {self.message_id()}, key={self.key()!r}, {len(self.data())} bytes)"

    def _value(self, column: str) -> Any:
        return self.batch.cell(column, self.row)

    def data(self) -> bytes:
        return bytes(self._value("payload"))

    def value(self) -> V:
        """The payload, or with a schema the value that it stands for. Raises Invalid for a payload that is none."""
        values = self.batch.values
        found: Any = self.data() if values is None else values.value_of(self)
        return found  # type: ignore[no-any-return]

    def partition_key(self) -> str:
        """The key as text, empty if there is none; bytes that are no UTF-8 are replaced (see key)."""
        return (self._value("key") or b"").decode("utf-8", "replace")

    def key(self) -> bytes | None:
        """The key as it was sent."""
        key = self._value("key")
        return None if key is None else bytes(key)

    def ordering_key(self) -> str:
        """The ordering key as text, empty if there is none."""
        return (self._value("ordering_key") or b"").decode("utf-8", "replace")

    def properties(self) -> dict[str, str]:
        return dict(self._value("properties") or ())

    def publish_timestamp(self) -> int:
        """The time when the producer sent the message, ms since 1970."""
        return int(self._value("publish_time"))

    def event_timestamp(self) -> int:
        """The application's own time in ms, 0 if there is none."""
        return int(self._value("event_time") or 0)

    def deliver_at(self) -> int:
        """The time when the message was due, ms since 1970; 0 = at once."""
        return int(self.batch.deliver_at[self.row])

    def message_id(self) -> MessageId:
        return MessageId(self.batch.partition, int(self.batch.positions[self.row]))

    def redelivery_count(self) -> int:
        """How often it was given back before."""
        return int(self.batch.redeliveries[self.row])

    def overtook(self) -> bool:
        """Whether the application had this message before an earlier one of its key came again (`nack_order=key`).

        The earlier one was given back and came again, and now this one comes behind it.
        """
        return bool(self.batch.overtook[self.row])

    def taken_back(self) -> bool:
        """Tell whether the message was taken back: an earlier message of its key was given back (`nack_order=key`)."""
        taken = self.batch.received.taken_back
        return taken is not None and bool(taken[self.row])

    def topic_name(self) -> str:
        return self.batch.topic

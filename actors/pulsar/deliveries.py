"""Rows as MESSAGE frames: what was delivered is cut into pieces, and each piece is one frame.

A piece is a run of neighbouring rows of one client's batch with one redelivery count, because both clients count the
holes of a batch as messages that were not acknowledged. Its entry id is that of its first row; where a whole batch
goes to one consumer, that is the id in the producer's receipt. A row that came alone goes alone, and so does one of
Sluice's own producers: its id is then the same whenever it is delivered.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actors.consumer.held import Received
from actors.pulsar.bodies import bodies_of
from actors.pulsar.fields import Metadata, Single, command
from actors.pulsar.frames import U32, encode_message
from actors.pulsar.sends import OF_ONE
from storage.position import entry_of, ledger_of

NATIVE = b"sluice"
"""The producer's name that clients see of messages that came through no gateway: the protocol wants one."""
UNSIGNED = (1 << 64) - 1
ABREAST = 32
"""Rows that are worth being encoded abreast: for fewer the loop is faster."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows first .. first+count-1 of a part, in one frame. position: of its first row, as a packed position."""

    part: Received
    first: int
    count: int
    position: int
    frame: bytes

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """Where its messages stand in the part."""
        return np.arange(self.first, self.first + self.count)


def first_rows(part: Received) -> npt.NDArray[np.int64]:
    """Where the pieces of a part begin, int64, ascending."""
    count = len(part)
    if "batch_index" not in part.rows.schema.names:
        return np.arange(count)
    column = part.rows.column("batch_index")
    index = column.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    follows = (np.diff(part.positions) == 1) & (np.diff(index) == 1) & (index[:-1] >= 0)
    follows &= np.diff(part.redeliveries.astype(np.int64)) == 0
    follows &= np.diff(part.deliver_at) == 0
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(~follows) + 1])


def encode_part(part: Received, *, consumer_id: int, partition: int, consumer_epoch: int | None) -> list[Piece]:
    """The frames of a part. partition: as clients number it, -1 for a topic without partitions."""
    starts = first_rows(part)
    bodies = bodies_of(part.rows) if len(part) >= ABREAST and len(starts) * 2 <= len(part) else None
    cells = _Cells(part, columns=bodies is not None)
    ends = np.append(starts[1:], len(part))
    pieces = []
    for first, end in zip(starts.tolist(), ends.tolist(), strict=True):
        position = int(part.positions[first])
        told = command(
            "message",
            consumer_id=consumer_id,
            message_id={"ledger": ledger_of(position), "entry": entry_of(position), "partition": partition},
        )
        if count := int(part.redeliveries[first]):
            told.message.redelivery_count = count
        if consumer_epoch is not None:
            told.message.consumer_epoch = consumer_epoch
        if cells.cell("batch_index", first) is None:
            metadata, payload = cells.single(first)
        elif bodies is not None and not bodies.odd[first:end].any():
            metadata, payload = cells.head(first, end), bodies.slice(first, end)
        else:
            metadata, payload = cells.batch(first, end)
        frame = encode_message(told.SerializeToString(), metadata.SerializeToString(), payload)
        pieces.append(Piece(part, first, end - first, position, frame))
    return pieces


class _Cells:
    """The columns of a part as Python objects, and what frames are made of. columns: only a few cells are wanted."""

    def __init__(self, part: Received, *, columns: bool) -> None:
        self._cells: dict[str, Any] = {
            name: part.rows.column(name) if columns else part.rows.column(name).to_pylist()
            for name in part.rows.schema.names
        }
        self._due = part.deliver_at
        self._positions = part.positions

    def cell(self, name: str, row: int) -> Any:
        """One value; None where there is no such column."""
        column = self._cells.get(name)
        if column is None:
            return None
        value = column[row]
        return value.as_py() if isinstance(value, pa.Scalar) else value

    def _metadata(self, row: int) -> Any:
        """What a client said of a message, as far as no column holds it."""
        rest = self.cell("pulsar", row)
        metadata = Metadata() if rest is None else Metadata.FromString(rest)
        if not metadata.HasField("producer_name"):
            metadata.producer_name = NATIVE
        number = self.cell("sequence_id", row)
        metadata.sequence_id = entry_of(int(self._positions[row])) if number is None else number & UNSIGNED
        metadata.publish_time = self.cell("publish_time", row)
        if self._due[row]:
            metadata.deliver_at_time = int(self._due[row])
        return metadata

    def single(self, row: int) -> tuple[Any, bytes]:
        """A message that travels alone."""
        metadata = self._metadata(row)
        self._fill(metadata, metadata, row)
        return metadata, self.cell("payload", row)

    def head(self, first: int, end: int) -> Any:
        """The metadata of neighbours that travel as a batch."""
        metadata = self._metadata(first)
        metadata.num_messages = end - first
        key = self.cell("key", first)
        flagged = metadata.key_is_base64
        for name in OF_ONE:
            metadata.ClearField(name)
        if key is not None:
            metadata.partition_key = _key(key, metadata, flagged=flagged)
        return metadata

    def batch(self, first: int, end: int) -> tuple[Any, bytes]:
        """Neighbours that travel as a batch, message by message."""
        parts = []
        for row in range(first, end):
            flags = self._metadata(row)
            payload = self.cell("payload", row)
            single = Single(payload_size=len(payload), **{name: True for name in OF_ONE if getattr(flags, name)})
            number = self.cell("sequence_id", row)
            if number is not None:
                single.sequence_id = number & UNSIGNED
            self._fill(single, flags, row)
            encoded = single.SerializeToString()
            parts += [U32.pack(len(encoded)), encoded, payload]
        return self.head(first, end), b"".join(parts)

    def _fill(self, one: Any, flags: Any, row: int) -> None:
        """The fields that a single message and one of a batch have alike."""
        key, order, event = (self.cell(name, row) for name in ("key", "ordering_key", "event_time"))
        if key is not None:
            one.partition_key = _key(key, one, flagged=flags.key_is_base64)
        if order is not None:
            one.ordering_key = order
        if event:
            one.event_time = event & UNSIGNED
        for name, value in self.cell("properties", row) or ():
            one.properties.add(key=name.encode(), value=value.encode())


def _key(key: bytes, one: Any, *, flagged: bool) -> bytes:
    """The key as it travels: base64 if it came so, or is no text and therefore must."""
    if not flagged:
        try:
            key.decode()
        except UnicodeDecodeError:
            flagged = True
    if flagged:
        one.key_is_base64 = True
        return base64.b64encode(key)
    return key

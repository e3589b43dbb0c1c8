"""Gathers single messages that become columns: Pulsar's client calls this a batch message container.

A producer that is given one message at a time must not pay for a record batch each. Here a message costs a few list
appends, and what gathered becomes a `storage.format.batch.StoredBatch` at once. The result is the same, value for
value, as that of `make_batch` on the same rows; the tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.storage.errors import Invalid
from sluice.storage.format.batch import LAST_TIME, MAX_KEY_BYTES, MAX_MESSAGE_BYTES, StoredBatch, UnbuiltBatch
from sluice.storage.format.hashing import Hashes, hash_column, masked_hash

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

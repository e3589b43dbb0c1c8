"""Encodes messages of batches in columns, with Arrow's kernels: metadata and payload of each row.

Rare cases are left to a loop: null values, and keys that are or must be base64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.actors.pulsar.codec.batch_decoder import EVENT_TIME, KEY, ORDERING_KEY, PROPERTIES, SEQUENCE, SIZE
from sluice.actors.pulsar.codec.fields import Field, Some, encode_fields, join, lengths_of
from sluice.actors.pulsar.codec.properties import encode_pairs, plain
from sluice.actors.pulsar.codec.protocol import Metadata
from sluice.actors.pulsar.codec.send_decoder import OF_ONE
from sluice.actors.pulsar.codec.varints import Ints, of_u32

MOST_BYTES = 512 * 1024 * 1024
"""Arrow's offsets have 31 bits."""


@dataclass(frozen=True, slots=True)
class EncodedBodies:
    """Encoded rows, one behind the other. odd: the rows that are not encoded, bool (n,)."""

    data: memoryview
    offsets: Ints
    odd: npt.NDArray[np.bool_]

    def slice(self, first: int, end: int) -> bytes:
        """Return the payload of a batch of these rows."""
        return bytes(self.data[int(self.offsets[first]) : int(self.offsets[end])])


def bodies_of(rows: pa.RecordBatch) -> EncodedBodies | None:
    """Return the rows of clients' batches; None if none of them can be encoded in columns."""
    names = rows.schema.names
    key, payload = rows.column("key"), rows.column("payload")
    if rows.nbytes > MOST_BYTES or "pulsar" not in names or not is_text(key):
        return None
    if "properties" in names and not plain(rows.column("properties")):
        return None
    fields: list[Field] = [(KEY, key), (SIZE, lengths_of(payload))]
    if "event_time" in names:
        fields += _numbers(rows.column("event_time"), EVENT_TIME)
    if "ordering_key" in names:
        fields.append((ORDERING_KEY, rows.column("ordering_key")))
    if "sequence_id" in names:
        fields += _numbers(rows.column("sequence_id"), SEQUENCE, zero=True)
    columns, size = encode_fields(rows.num_rows, fields)
    if "properties" in names and rows.column("properties").null_count < rows.num_rows:
        columns.insert(0, encode_pairs(rows.column("properties"), PROPERTIES))
        size = size + lengths_of(columns[0])
    joined = join(of_u32(size).column(), *columns, payload)
    offsets = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset : joined.offset + len(joined) + 1]
    data = joined.buffers()[2]
    return EncodedBodies(memoryview(b"" if data is None else data).cast("B"), offsets.astype(np.int64), _odd(rows))


def is_text(key: pa.Array) -> bool:
    """Return whether keys can travel unchanged; those that are not UTF-8 travel as base64."""
    try:
        key.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _odd(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return rows with a flag of their own."""
    rest = rows.column("pulsar").dictionary_encode()
    kinds = [Metadata.FromString(kind or b"") for kind in rest.dictionary.to_pylist()]
    flagged = np.array([any(getattr(kind, name) for name in OF_ONE) for kind in kinds] + [True])
    odd: npt.NDArray[np.bool_] = flagged[rest.indices.fill_null(len(kinds)).to_numpy(zero_copy_only=False)]
    return odd


def _numbers(column: pa.Array, tag: int, *, zero: bool = False) -> list[Field]:
    """Return a field of a number where it is not null, and not 0 unless `zero` is one too."""
    if column.null_count == len(column):
        return []
    values = column.fill_null(0).to_numpy().view(np.uint64)
    there = column.is_valid().to_numpy(zero_copy_only=False) if zero else values != 0
    return [(tag, Some(values, there))]

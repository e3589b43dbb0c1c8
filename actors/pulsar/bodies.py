"""Messages of batches on their way out, encoded abreast with Arrow's kernels: for each row its metadata and payload.

What is seldom is left to a loop: rows with properties, null values, and keys that are or must be base64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from actors.pulsar.columns import Ints, encode_u32, encode_varints, lengths_of, sliced
from actors.pulsar.fields import Metadata
from actors.pulsar.sends import OF_ONE

MOST_BYTES = 512 * 1024 * 1024
"""Arrow's offsets have 31 bits."""
_NOTHING = pa.scalar(b"", pa.binary())


@dataclass(frozen=True, slots=True)
class Bodies:
    """Encoded rows, one behind the other. odd: the rows that are not encoded, bool (n,)."""

    data: memoryview
    offsets: Ints
    odd: npt.NDArray[np.bool_]

    def slice(self, first: int, end: int) -> bytes:
        """The payload of a batch of these rows."""
        return bytes(self.data[int(self.offsets[first]) : int(self.offsets[end])])


def bodies_of(rows: pa.RecordBatch) -> Bodies | None:
    """The rows of clients' batches; None if none of them can be encoded abreast."""
    names = rows.schema.names
    key, payload = rows.column("key"), rows.column("payload")
    if rows.nbytes > MOST_BYTES or "pulsar" not in names or not is_text(key):
        return None
    fields = [*sliced(key, b"\x12"), encode_varints(lengths_of(payload), b"\x18")]
    if "event_time" in names:
        fields += _numbers(rows.column("event_time"), b"\x28")
    if "ordering_key" in names:
        fields += sliced(rows.column("ordering_key"), b"\x3a")
    if "sequence_id" in names:
        fields += _numbers(rows.column("sequence_id"), b"\x40", zero=True)
    size = np.sum([lengths_of(field) for field in fields], axis=0)
    joined = pc.binary_join_element_wise(encode_u32(size), *fields, payload, _NOTHING)
    offsets = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset : joined.offset + len(joined) + 1]
    data = joined.buffers()[2]
    return Bodies(memoryview(b"" if data is None else data).cast("B"), offsets.astype(np.int64), _odd(rows))


def is_text(key: pa.Array) -> bool:
    """Whether keys can travel as they are: those that are no UTF-8 travel as base64."""
    try:
        key.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _odd(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Rows with properties, or with a flag of their own."""
    rest = rows.column("pulsar").dictionary_encode()
    kinds = [Metadata.FromString(kind or b"") for kind in rest.dictionary.to_pylist()]
    flagged = np.array([any(getattr(kind, name) for name in OF_ONE) for kind in kinds] + [True])
    odd: npt.NDArray[np.bool_] = flagged[rest.indices.fill_null(len(kinds)).to_numpy(zero_copy_only=False)]
    if "properties" in rows.schema.names:
        odd = odd | rows.column("properties").is_valid().to_numpy(zero_copy_only=False)
    return odd


def _numbers(column: pa.Array, tag: bytes, *, zero: bool = False) -> list[pa.Array]:
    """A field of a number where it is not null, and not 0 unless `zero` is one too."""
    if column.null_count == len(column):
        return []
    values = column.fill_null(0).to_numpy().view(np.uint64)
    there = column.is_valid() if zero else pa.array(values != 0)
    return [pc.if_else(there, encode_varints(values, tag), _NOTHING)]

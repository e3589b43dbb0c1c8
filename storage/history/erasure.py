"""Messages of a key that must be forgotten: what is left of them in a row of the history.

A ledger's entries are numbered without gaps, and cursors, consumers and readers know messages by these numbers. So a
message that is erased leaves an empty one at its place: without key, payload, ordering key, properties and whatever
else a client said of it. What stays is when it was published and is due, who sent it, and its numbers. Its sticky hash
becomes that of a message without key (storage.format.batch), so that nobody can find out that there was one of this
key.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sluice.storage.format.batch import keys_of_keyless
from sluice.storage.format.hashing import hash_column

_GONE = ("key", "ordering_key", "properties", "pulsar")


def holds(rows: pa.Table | pa.RecordBatch, keys: Sequence[bytes]) -> bool:
    """Whether any row has one of these keys. rows: with a column `key`."""
    return bool(pc.any(_mask(rows, keys)).as_py())


def without(rows: pa.RecordBatch, keys: Sequence[bytes]) -> tuple[pa.RecordBatch, list[int]]:
    """The rows (with SCHEMA of storage.history.part) without what these keys' messages were, and how many each key
    had."""
    counts = [int(pc.sum(_mask(rows, [key])).as_py() or 0) for key in keys]
    if not any(counts):
        return rows, counts
    mask = _mask(rows, keys)
    columns = []
    for field in rows.schema:
        column = rows.column(field.name)
        if field.name in _GONE:
            column = pc.if_else(mask, pa.scalar(None, field.type), column)
        elif field.name == "payload":
            column = pc.if_else(mask, pa.scalar(b"", field.type), column)
        elif field.name == "masked_hash":
            column = pc.if_else(mask, _keyless(rows).cast(field.type), column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names), counts


def _mask(rows: pa.Table | pa.RecordBatch, keys: Sequence[bytes]) -> pa.Array:
    return pc.is_in(rows.column("key"), pa.array(list(keys), pa.binary()))


def _keyless(rows: pa.RecordBatch) -> pa.Array:
    """The sticky hashes that the rows would have without keys."""
    given = rows.column("sequence_id") if "sequence_id" in rows.schema.names else None
    names = rows.column("producer").cast(pa.string())
    return pa.array(hash_column(keys_of_keyless(names, rows.column("sequence"), given)))

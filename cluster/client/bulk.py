"""Bulk access to topics for batch jobs of Spark and Ray: read ranges as columns, and publish whole batches.

A job's task may run again, in another process, so both halves are the same when they are repeated: a range never
changes, and a producer that numbers its rows from 0 under the task's name stores nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.cluster.client.log_reader import StoredRange
from sluice.storage.errors import Invalid, NotFound
from sluice.storage.format.batch import stored_schema
from sluice.storage.format.position import entries_of, ledgers_of, positions_of
from sluice.storage.history.column_reader import Selection
from sluice.storage.history.part import milliseconds

BATCH_ROWS = 10_000
"""Rows of an Arrow batch between Spark and Python; larger ones were measured to be slower."""

RESULT_S = 120.0
"""How long the last rows of a batch may take to be confirmed."""

ROWS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("payload", pa.binary()),
        pa.field("publish_time", pa.int64()),
        pa.field("deliver_at", pa.int64()),
        pa.field("partition", pa.int32()),
        pa.field("position", pa.int64()),
        pa.field("redelivery", pa.int32()),
    ]
)
"""What a read gives by default; times in milliseconds, position packed (storage.format.position)."""

TIMES = ("publish_time", "deliver_at")
"""What a read gives as a timestamp too, if it is asked for so."""

READABLE = {
    **{field.name: field.type for field in stored_schema(("ordering_key", "properties", "event_time"))},
    **{field.name: field.type for field in stored_schema(("sequence_id", "batch_index"))},
    **{field.name: field.type for field in ROWS},
    "ledger": pa.int64(),
    "entry": pa.int64(),
}
"""Every column that a read can give."""


def check_readable(schema: pa.Schema) -> pa.Schema:
    """The schema itself. Raises Invalid if a read cannot give a column of it."""
    for field in schema:
        kind = READABLE.get(field.name)
        if kind is None:
            raise Invalid(f"there is no column {field.name!r} to read; there are {', '.join(READABLE)}")
        # The fields of a map may have other names.
        alike = pa.types.is_map(kind) and pa.types.is_map(field.type)
        timestamp = field.name in TIMES and pa.types.is_timestamp(field.type)
        if field.type != kind and not alike and not timestamp:
            raise Invalid(f"the column {field.name!r} is read as {kind}, not as {field.type}")
    return schema


def rows_of(batch: Any, schema: pa.Schema = ROWS) -> pa.RecordBatch:
    """A received batch as rows of a schema (check_readable)."""
    rows, count = batch.rows, batch.rows.num_rows
    places = np.asarray(batch.positions, np.int64)
    made = {
        "deliver_at": np.asarray(batch.deliver_at, np.int64),
        "position": places,
        "ledger": ledgers_of(places),
        "entry": entries_of(places).astype(np.int64),
        "redelivery": np.asarray(batch.redeliveries, np.int32),
    }
    given = {field.name for field in schema} & set(rows.schema.names)
    columns = {name: rows.column(name) for name in given}
    columns |= {name: pa.array(values) for name, values in made.items() if name in schema.names}
    return _shaped(columns, count, batch.partition, schema)


def rows_of_history(table: pa.Table, where: StoredRange, schema: pa.Schema = ROWS) -> pa.RecordBatch:
    """Messages from a file of the history (storage.history.part) as rows of a schema; where: a range that holds
    them."""
    made: dict[str, Any] = {"ledger": np.full(table.num_rows, where.ledger, np.int64)}
    if "position" in schema.names:
        made["position"] = positions_of(where.ledger, table.column("entry").to_numpy())
    if "redelivery" in schema.names:
        made["redelivery"] = np.zeros(table.num_rows, np.int32)
    columns = {name: table.column(name).combine_chunks() for name in table.schema.names}
    return _shaped(
        columns | {name: pa.array(value) for name, value in made.items()}, table.num_rows, where.partition, schema
    )


def columns_in_history(schema: pa.Schema) -> list[str]:
    """The columns of a file of the history that rows of a schema are made of."""
    named = {"entry" if name == "position" else name for name in schema.names}
    return sorted(named - {"partition", "redelivery", "ledger"})


def _shaped(columns: dict[str, Any], count: int, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of a schema; a column that is not there is null."""
    columns["partition"] = pa.array(np.full(count, partition, np.int32))
    made = [
        _cast(field.name, columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(made, schema=schema)


def _cast(name: str, values: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column as the type in which it is wanted. A message that was not delayed has no time, or 0 as a number."""
    if name in TIMES and values.type != kind:
        if pa.types.is_timestamp(kind):
            values = (
                values
                if pa.types.is_timestamp(values.type)
                else _no_zeros(name, values).cast(pa.timestamp("ms", "UTC"))
            )
        else:
            values = pc.fill_null(milliseconds(values), 0)
    return values if values.type == kind else values.cast(kind)


def _no_zeros(name: str, times: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(times, 0), None, times) if name == "deliver_at" else times


def rows_in(
    client: Any, topic: str, where: StoredRange, schema: pa.Schema = ROWS, wanted: Selection | None = None
) -> Iterator[pa.RecordBatch]:
    """The wanted messages of one range, in order.

    Raises NotFound that says what to do if they were trimmed meanwhile.
    """
    try:
        for part in client.read(topic, where):
            rows = rows_of(part, schema)
            mask = None if wanted is None else wanted.mask(part.rows)
            yield rows if mask is None else rows.filter(mask)
    except NotFound as error:
        raise NotFound(
            f"messages of {topic!r} were trimmed while they were read ({error}); "
            "a subscription or a retention keeps them"
        ) from None


def publish_all(client: Any, topic: str, batches: Iterable[pa.RecordBatch], producer_name: str) -> int:
    """Send all batches as one producer that counts from 0, and wait until they are durable; the number of rows."""
    count = 0
    producer = client.create_producer(topic, producer_name, initial_sequence_id=0)
    try:
        receipts = [producer.send_batch(batch) for batch in batches if batch.num_rows]
        for receipt in receipts:
            count += len(receipt.result(RESULT_S).positions)
    finally:
        producer.close()
    return count

"""What batch jobs do with topics, Spark's and Ray's alike: read ranges of them as columns, and publish whole batches.

A job's task may run again, in another process, so both halves are the same when they are repeated: a range never
changes, and a producer that numbers its rows from 0 under the task's name stores nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from cluster.log_reader import StoredRange
from storage.errors import NotFound

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
"""What a read gives; times in milliseconds, position packed (storage.position)."""


def rows_of(batch: Any) -> pa.RecordBatch:
    """A received batch as rows of ROWS."""
    rows, count = batch.rows, batch.rows.num_rows
    columns = [
        rows.column("key"),
        rows.column("payload"),
        rows.column("publish_time"),
        pa.array(np.asarray(batch.deliver_at, np.int64)),
        pa.array(np.full(count, batch.partition, np.int32)),
        pa.array(np.asarray(batch.positions, np.int64)),
        pa.array(np.asarray(batch.redeliveries, np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def rows_in(client: Any, topic: str, wanted: StoredRange) -> Iterator[pa.RecordBatch]:
    """The messages of one range, in order. Raises NotFound that says what to do if they were trimmed meanwhile."""
    try:
        for part in client.read(topic, wanted):
            yield rows_of(part)
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

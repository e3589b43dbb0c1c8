"""Ray Data: a topic as a dataset of Arrow blocks, and a dataset that is published to a topic.

    dataset = sluice.read_dataset("orders", start=yesterday, end=today)
    dataset.write_datasink(sluice.SluiceSink("totals", key_column="customer"))

**Reading** takes what the topic stores when the dataset is made, past all subscriptions: delayed messages too, and what
others have acknowledged already, until it is trimmed. Each range of a ledger is one read task, and long ones are cut.
A task gives its messages in the order of the partition, and gives the same again when Ray repeats it.

**Writing** stores nothing twice. Each write task is one producer, named after the sink and the number of the task, and
its rows are numbered from 0: a task that Ray tries again sends the same numbers, and the broker knows them. This needs
blocks that come in the same order again, which Ray gives unless what makes them is random. What good tasks have sent
stays when another fails; the same sink over the same blocks completes it. Rows of a key are in order within a task.

Tasks run in processes of their own, and each connects for itself.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from ray.data import Dataset, read_datasource
from ray.data.block import BlockAccessor, BlockMetadata
from ray.data.datasource import Datasink, Datasource, ReadTask

from sluice.actors.ownership.names import check_name
from sluice.cluster.client.bulk import ROWS, publish_all, rows_in
from sluice.cluster.client.log_reader import StoredRange
from sluice.cluster.launch.connecting import connect as connect_to
from sluice.storage.errors import Invalid

if TYPE_CHECKING:
    from sluice.cluster.client.client import Client

__all__ = ["SluiceSink", "read_dataset"]

MESSAGES_PER_TASK = 200_000
"""A longer range is read by several tasks."""
PASSED_ON = ("ordering_key", "properties", "event_time", "deliver_at")
"""Columns that a sink publishes if the dataset has them, beside key and payload."""

Time = datetime | int | None


def read_dataset(
    topic: str,
    start: Time = None,
    end: Time = None,
    *,
    client: Client | None = None,
    connect: dict[str, Any] | None = None,
    messages_per_task: int = MESSAGES_PER_TASK,
    **options: Any,
) -> Dataset:
    """Return the stored messages of a topic, or those published at or after `start` and before `end` (a datetime with
    its zone, or ms since 1970), as a Ray Data dataset with the columns of cluster.client.bulk.ROWS.

    client: asked which ranges there are; by default one that is made for that. connect: how each task connects, in the
    words of `sluice.connect`. options: of ray.data.read_datasource. Raises Invalid, NotFound, Unavailable.
    """
    topic = check_name("topic", topic)
    if messages_per_task < 1:
        raise Invalid(f"messages_per_task is at least 1, not {messages_per_task}")
    begin, stop = _milliseconds("start", start), _milliseconds("end", end)
    if client is not None:
        found = client.stored(topic, begin, stop)
    else:
        with connect_to(**(connect or {})) as own:
            found = own.stored(topic, begin, stop)
    pieces = [piece for part in found for piece in part.split(messages_per_task)]
    return read_datasource(_Ranges(topic, pieces, connect or {}), **options)


def _milliseconds(what: str, time: Time) -> int | None:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise Invalid(f"{what} has no time zone: give one, as datetime.now(UTC) has, or ms since 1970")
        return int(time.timestamp() * 1000)
    if time is None or (isinstance(time, int) and not isinstance(time, bool)):
        return time
    raise Invalid(f"{what} is a datetime or ms since 1970, not {type(time).__name__}")


class _Ranges(Datasource):  # type: ignore[misc]
    """Ranges that never change, each a read task."""

    def __init__(self, topic: str, pieces: list[StoredRange], connect: dict[str, Any]) -> None:
        super().__init__()
        self._topic, self._pieces, self._connect = topic, pieces, connect

    def get_name(self) -> str:
        """Return the name that Ray shows for the read."""
        return f"Sluice({self._topic})"

    def estimate_inmemory_data_size(self) -> int | None:
        """Return None: the size is not known before the data is read."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """One a range, however many Ray would like; one that gives no rows for a topic without messages."""
        tasks = [
            ReadTask(partial(_read, self._topic, piece, self._connect), _metadata(len(piece)), ROWS, per_task_row_limit)
            for piece in self._pieces
        ]
        return tasks or [ReadTask(_nothing, _metadata(0), ROWS)]


def _metadata(rows: int) -> BlockMetadata:
    return BlockMetadata(num_rows=rows, size_bytes=None, exec_stats=None, input_files=None)


def _read(topic: str, wanted: StoredRange, connect: dict[str, Any]) -> Iterator[pa.Table]:
    """Read a range in a task."""
    with connect_to(**connect) as client:
        for batch in rows_in(client, topic, wanted):
            yield pa.Table.from_batches([batch], ROWS)


def _nothing() -> list[pa.Table]:
    return [ROWS.empty_table()]


class SluiceSink(Datasink[int]):  # type: ignore[misc]
    """Publishes a dataset: `dataset.write_datasink(sluice.SluiceSink("orders", key_column="customer"))`.

    Of the other columns ordering_key, properties, event_time and deliver_at are published if they are there.
    """

    def __init__(
        self,
        topic: str,
        *,
        key_column: str | None = None,
        payload_column: str = "payload",
        name: str | None = None,
        connect: dict[str, Any] | None = None,
    ) -> None:
        """key_column: whose text, bytes or whole numbers are the keys; None: messages have none. name: by which the
        write is known, so that the same one, made again with it, stores nothing twice. connect: how each task connects,
        in the words of `sluice.connect`. Raises Invalid.
        """
        self._topic = check_name("topic", topic)
        self._key, self._payload = key_column, payload_column
        self._name = check_name("producer", name or f"ray-{secrets.token_hex(6)}")
        self._connect = connect or {}

    def get_name(self) -> str:
        """Return the name that Ray shows for the write."""
        return f"Sluice({self._topic})"

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """Publish the blocks of one task; returns how many rows. In a task."""
        tables = (BlockAccessor.for_block(block).to_arrow() for block in blocks)
        # Blocks without rows often have no columns either.
        full = (self._messages(table) for table in tables if table.num_rows)
        first = next(full, None)
        if first is None:
            return 0
        with connect_to(**self._connect) as client:
            batches = (batch for table in chain([first], full) for batch in table.to_batches())
            return publish_all(client, self._topic, batches, f"{self._name}-{ctx.task_idx}")

    def _messages(self, table: pa.Table) -> pa.Table:
        """A block with the columns of messages. Raises Invalid naming a column that is missing."""
        for column in filter(None, (self._key, self._payload)):
            if column not in table.schema.names:
                raise Invalid(f"the dataset has no column {column!r}; it has {', '.join(table.schema.names)}")
        columns = {"payload": table.column(self._payload)}
        if self._key is not None:
            keys = table.column(self._key)
            columns["key"] = pc.cast(keys, pa.string()) if pa.types.is_integer(keys.type) else keys
        taken = (self._key, self._payload)
        columns |= {name: table.column(name) for name in PASSED_ON if name in table.schema.names and name not in taken}
        return pa.table(columns)

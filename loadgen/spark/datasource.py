"""`format("sluice")`: Sluice as a Spark data source, Arrow both ways.

    spark.dataSource.register(SluiceDataSource)
    frame.write.format("sluice").option("topic", "orders").mode("append").save()
    spark.read.format("sluice").option("topic", "orders").load()
    spark.readStream.format("sluice").option("topic", "orders").load()
    spark.readStream.format("sluice").option("topic", ...).option("subscription", ...).option("spool", folder).load()
    stream.writeStream.format("sluice").option("topic", ...).option("checkpointLocation", folder).start()

The options of each use stand in loadgen.spark.options and in docs/history.md.

**Writing** stores nothing twice. Each Spark partition is one producer, named after the write (and the micro-batch),
whose rows are numbered from 0: a task that is tried again sends the same numbers, and the broker knows them. This
needs rows that come in the same order again, which Spark gives unless the plan itself is random. Spark's commit is
not a transaction: what good partitions sent stays when another fails.

**Reading a batch** takes everything that the topic stores when the query is planned, past all subscriptions: delayed
messages too (`deliver_at` says when they are due), and what others have acknowledged already, until it is trimmed.
Ranges of ledgers are divided over the tasks, and each gives its messages in the order of the partition. Those in the
object store are read there (cluster.history.log_read).

Only options narrow a read, not the filters of a query, which Spark would hand to the reader. Spark plans a frame once
for all of its queries: in 4.3 the next one would get what the filters of the one before have left.

**Reading a stream** without a subscription is the same, from one position to the next (loadgen.spark.log_stream).

**Reading a stream with a subscription** is a consumer of it. Messages are acknowledged when Spark has committed the
micro-batch that holds them, and must come again, unchanged, if it has not. The broker promises the first half only:
after a restart it may deliver in other portions. So the reader spools: what it receives is written to files, one an
offset, before Spark hears of the offset; a file is deleted when its acknowledgements are durable. After a restart
spooled messages are delivered again by the broker and recognised by their positions. The spool must survive what the
checkpoint survives, and be readable by the workers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

from sluice.cluster.client.bulk import ROWS, check_readable, publish_all, rows_of
from sluice.cluster.history.log_read import LogRead, Offsets, given, parse_offsets
from sluice.loadgen.base.broker import ClusterConnect, Connect
from sluice.loadgen.spark.log_stream import LogStreamReader
from sluice.loadgen.spark.options import (
    CONSUMER,
    OPTIONS,
    READ,
    SINK,
    STREAM,
    WRITE,
    check_options,
    is_true,
    number_of,
)
from sluice.loadgen.spark.session import use_own_python
from sluice.loadgen.spark.spool import Spool
from sluice.storage.errors import Invalid, SluiceError, Unavailable

SCHEMA = "key binary, payload binary, publish_time long, deliver_at long, partition int, position long, redelivery int"
_WRITABLE = ("key", "payload", "ordering_key", "publish_time", "event_time", "deliver_at", "properties")
_QUIET_MS = 200


class SluiceDataSource(DataSource):  # type: ignore[misc]
    """The data source; each of Spark's planner processes makes its own, so it holds options only."""

    @classmethod
    def name(cls) -> str:
        """The word after `format`. Spark asks for it when the source is registered, before it says what workers run."""
        use_own_python()
        return "sluice"

    def schema(self) -> str:
        """The columns of a read."""
        return SCHEMA

    def writer(self, schema: Any, overwrite: bool) -> SluiceWriter:
        if overwrite:
            raise Invalid('a topic is not overwritten; use mode("append")')
        _check_columns(schema)
        return SluiceWriter(_Target.from_options(self.options, WRITE))

    def streamWriter(self, schema: Any, overwrite: bool) -> SluiceStreamWriter:  # noqa: N802 (Spark's name)
        """The sink of a streaming query."""
        _check_columns(schema)
        return SluiceStreamWriter(_Target.from_options(self.options, SINK))

    def reader(self, schema: Any) -> SluiceReader:
        starts, stops = (
            parse_offsets(self.options, name, OPTIONS[READ][name]) for name in ("startingOffsets", "endingOffsets")
        )
        return SluiceReader(self.log_read(), _arrow(schema), starts, stops)

    def log_read(self) -> LogRead:
        """Return the read of the log that a batch makes, without its offsets. Raises Invalid."""
        target = _Target.from_options(self.options, READ)
        most = number_of(self.options, READ, "maxMessagesPerTask")
        return LogRead.from_options(self.options, target.topic, target.client, most)

    def streamReader(self, schema: Any) -> SluiceStreamReader | LogStreamReader:  # noqa: N802 (Spark's name)
        """The source of a streaming query: a subscription's consumer, or without one a reader of the log."""
        subscription, spool = given(self.options, "subscription"), given(self.options, "spool")
        use = CONSUMER if subscription or spool else STREAM
        target = _Target.from_options(self.options, use)
        limit = number_of(self.options, use, "maxMessagesPerTrigger")
        if use == STREAM:
            log = LogRead.from_options(self.options, target.topic, target.client, limit)
            starts = parse_offsets(self.options, "startingOffsets", OPTIONS[STREAM]["startingOffsets"])
            fails = is_true(self.options, STREAM, "failOnDataLoss")
            return LogStreamReader(log, _arrow(schema), starts, limit, fail_on_data_loss=fails)
        if not subscription or not spool:
            missing = "spool" if subscription else "subscription"
            raise Invalid(f"reading a stream as a consumer needs the option {missing!r}")
        return SluiceStreamReader(target, subscription, Path(spool), limit)


@dataclass(frozen=True)
class _Target:
    """A topic of a cluster; pickled to the workers."""

    topic: str
    client: Connect
    producer: str

    @classmethod
    def from_options(cls, options: Any, use: str) -> _Target:
        check_options(options, use)
        if not options.get("topic"):
            raise Invalid("the option 'topic' is missing")
        name = options.get("producer") or f"spark-{secrets.token_hex(6)}"
        address, token_file = given(options, "address") or None, given(options, "tokenFile")
        return cls(options["topic"], ClusterConnect(address, token_file, given(options, "dataDir")), name)

    def publish(self, batches: Iterator[pa.RecordBatch], producer_name: str) -> int:
        """Send all batches as one producer and wait until they are durable; the number of rows."""
        with self.client() as client:
            return publish_all(client, self.topic, batches, producer_name)


@dataclass
class TaskPublished(WriterCommitMessage):  # type: ignore[misc]
    """The result of one publishing task."""

    partition: int
    rows: int


class SluiceWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Each task publishes its partition."""

    def __init__(self, target: _Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskPublished:
        """Publish one partition; in a worker."""
        partition = _task_number()
        return TaskPublished(partition, self._target.publish(iterator, f"{self._target.producer}-{partition}"))

    def commit(self, messages: Sequence[Any]) -> None:
        """Everything is durable already."""

    def abort(self, messages: Sequence[Any]) -> None:
        """Keep the messages that were sent: the same write under the same producer name completes them."""


class SluiceStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Each task publishes its partition of a micro-batch under a name that a repeated micro-batch has again.

    A producer's numbers have no gaps, and micro-batches have no fixed size: so each has producers of its own.
    """

    def __init__(self, target: _Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskPublished:
        """Publish one partition of one micro-batch; in a worker."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise Unavailable("Spark does not give the number of the micro-batch, so a repetition would go unnoticed")
        name = f"stream-{query}-{batch}-{_task_number()}"
        return TaskPublished(_task_number(), self._target.publish(iterator, name))

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Everything is durable already."""

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """The repeated micro-batch completes what is missing."""


class SluiceReader(DataSourceReader):  # type: ignore[misc]
    """Reads what is stored when the query is planned: ranges that never change, some thousand messages to a task."""

    def __init__(self, log: LogRead, schema: pa.Schema, starts: Offsets, stops: Offsets) -> None:
        self._log, self._schema = log, schema
        self._starts, self._stops = starts, stops

    def partitions(self) -> list[InputPartition]:
        """One task an object in the object store, or a range of a ledger, long ones cut; in the planning process."""
        present = self._log.present()
        ranges = present.within(self._starts, self._stops)
        return [InputPartition(task) for task in self._log.tasks(present, ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a task, in order; in a worker. A repeated attempt reads the same again."""
        yield from self._log.read(partition.value, self._schema)


class SluiceStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Receives in the process that plans the query, which lives as long as the query; workers read the spool."""

    def __init__(self, target: _Target, subscription: str, spool: Path, limit: int) -> None:
        self._target, self._subscription, self._limit = target, subscription, limit
        self._folder = spool
        self._session: _Session | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 (Spark's name)
        """Offsets count spooled files; a new query begins behind what is spooled and committed."""
        return {"file": Spool(self._folder).floor()}

    def latestOffset(self, start: dict[str, int], limit: Any = None) -> dict[str, int]:  # noqa: N802
        """Receive what is there, spool it, and say how far the spool reaches."""
        if self._session is None:
            self._session = _Session(self._target, self._subscription, self._folder)
        return {"file": self._session.receive(start["file"], self._limit)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch, one for each partition of the topic: all its files, and its number.

        The messages of a key are in one task, so a sink stores them in order.
        """
        spool = Spool(self._folder)
        files: dict[int, list[str]] = {}
        for number in range(start["file"], end["file"]):
            path = spool.path(number)
            for partition in pc.unique(spool.read(path).column("partition")).to_pylist():
                files.setdefault(partition, []).append(str(path))
        return [InputPartition(task) for task in sorted(files.items())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the spooled messages of a task; in a worker."""
        number, files = partition.value
        for file in files:
            rows = Spool.read(Path(file))
            yield from rows.filter(pc.equal(rows.column("partition"), number)).to_batches()

    def commit(self, end: dict[str, int]) -> None:
        """Spark is done with everything before `end`: acknowledge it, and forget it when that is durable."""
        if self._session is not None:
            self._session.commit(end["file"])

    def stop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class _Session:
    """A connected stream reader: its consumer, and which batches await which file's commit."""

    def __init__(self, target: _Target, subscription: str, folder: Path) -> None:
        self._spool = Spool(folder)
        self._waiting: list[tuple[set[int], Any]] = []
        self._unsettled: set[int] = set()
        # Whether the files of an earlier life were acknowledged for good is not known.
        self._doubtful: set[int] = self._spool.numbers()
        self._topic, self._subscription = target.topic, subscription
        self._client = target.client().__enter__()
        self._consumer = self._client.subscribe(
            target.topic,
            subscription,
            initial_position="earliest",
            receiver_queue_size=20_000,
            on_ranges=self._on_ranges,
        )

    def _on_ranges(self, _partition: int, kind: str, _ranges: Any) -> None:
        """A session was lost: acknowledgements that were not durable yet, or are still to come, are void; files stay.

        What comes again is recognised by them and acknowledged again; what does not come again was durable.
        """
        if kind == "lost":
            self._doubtful |= self._unsettled.union(*(files for files, _ in self._waiting))

    def receive(self, start: int, limit: int) -> int:
        """Spool what has come, up to about `limit` messages; the number behind the last file."""
        self._settle(start)
        count = 0
        while count < limit:
            batch = self._consumer.receive_batch(timeout_ms=0 if count else _QUIET_MS)
            if batch is None:
                break
            count += batch.rows.num_rows
            self._keep(batch, start)
        return self._spool.end()

    def _keep(self, batch: Any, start: int) -> None:
        """Spool what is new in a batch, and note which files it awaits; after a restart parts of it may be known."""
        table = pa.Table.from_batches([rows_of(batch)], ROWS)
        owners = self._spool.owners(table)
        files = set(np.unique(owners[owners >= 0]).tolist())
        fresh = np.flatnonzero(owners < 0)
        if len(fresh):
            files.add(self._spool.append(table.take(pa.array(fresh))))
        if max(files) < start:
            self._acknowledge(files, batch)
        else:
            self._waiting.append((files, batch))

    def commit(self, end: int) -> None:
        """Acknowledge the batches that lie wholly in the files before `end`."""
        done = [entry for entry in self._waiting if max(entry[0]) < end]
        self._waiting = [entry for entry in self._waiting if max(entry[0]) >= end]
        for files, batch in done:
            self._acknowledge(files, batch)
        self._settle(end)

    def _acknowledge(self, files: set[int], batch: Any) -> None:
        self._unsettled |= files
        self._consumer.acknowledge(batch)

    def _settle(self, done: int) -> None:
        """Forget the files before `done` if everything acknowledged so far is durable."""
        try:
            self._consumer.wait_acknowledged(timeout_ms=5_000)
        except SluiceError:
            return
        if self._doubtful and self._nothing_left():
            self._doubtful = set()
        self._spool.delete_below(done, keep=self._doubtful.union(*(files for files, _ in self._waiting)))
        self._unsettled = set()

    def _nothing_left(self) -> bool:
        """Return whether all messages are acknowledged, so that no spooled one can come again. False if unknown."""
        try:
            told = self._client.stats(self._topic, self._subscription)
        except SluiceError:
            return False
        return all(row["msgBacklog"] == 0 for row in told)

    def close(self) -> None:
        """Leave; messages that are spooled and not committed come again to the next consumer."""
        self._consumer.close()
        self._client.__exit__(None, None, None)


def _check_columns(schema: Any) -> None:
    names = list(schema.fieldNames())
    unknown = [name for name in names if name not in _WRITABLE]
    if unknown:
        raise Invalid(f"cannot write the column {unknown[0]!r}; there are {', '.join(_WRITABLE)}")
    if "payload" not in names:
        raise Invalid("the column 'payload' is missing")


def _arrow(schema: Any) -> pa.Schema:
    """The columns that Spark wants, as Arrow's. Raises Invalid if they cannot be read."""
    return ROWS if schema is None else check_readable(to_arrow_schema(schema, timezone="UTC"))


def _task_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())

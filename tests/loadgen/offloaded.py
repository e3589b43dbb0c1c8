"""A topic whose ledgers leave for the object store, of a cluster in this process, and what Spark does with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sluice.cluster.client.client import Client
from sluice.loadgen.spark.datasource import SluiceDataSource, SluiceReader
from sluice.loadgen.spark.log_stream import LogStreamReader
from tests.cluster.helpers import eventually

HOUR = 3_600_000
EACH = 50
"""Messages of a ledger."""


class OffloadedTopic:
    """A topic whose closed ledgers of 50 messages each leave when they are told to. Messages are numbered from 0."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client, self.folder, self.next = client, folder, 0
        client.create_topic("t", 1, roll_entries=EACH, offload_deletion_lag_ms=0)
        self.producer = client.create_producer("t", "p")

    def again(self, partitions: int = 1) -> None:
        """The topic is deleted, and made again."""
        self.producer.close()
        self.client.delete_topic("t", force=True)
        self.client.create_topic("t", partitions, roll_entries=EACH, offload_deletion_lag_ms=0)
        self.producer = self.client.create_producer("t", "p")

    def publish(self, ledgers: int = 1) -> None:
        """Some ledgers full, each an hour later than the one before."""
        for _ in range(ledgers):
            numbers = np.arange(self.next, self.next + EACH)
            columns = {
                "key": [b"k%d" % (number % 7) for number in numbers],
                "payload": [b"%d" % number for number in numbers],
                "publish_time": numbers // EACH * HOUR + numbers % EACH,
                "deliver_at": np.where(numbers % 10 == 0, 5, 0),
                "properties": pa.array([[("n", str(number))] for number in numbers], pa.map_(pa.string(), pa.string())),
            }
            self.producer.send_batch(pa.table(columns)).result(60)
            self.next += EACH

    def offload(self) -> None:
        """Let every closed ledger leave, and the bookies forget them."""
        self.client.offload("t")
        eventually(lambda: not self.status["asked"] and not self.status["bookie_bytes"], lambda: str(self.status))

    def trimmed(self, count: int) -> None:
        """Wait until so many messages are gone."""
        eventually(lambda: self.kept() <= self.next - count, lambda: f"{self.kept()} of {self.next} are kept")

    def kept(self) -> int:
        """How many messages there are."""
        return sum(len(part) for part in self.client.stored("t"))

    @property
    def status(self) -> dict[str, Any]:
        """How the offloading stands."""
        return self.client.offload_status("t")[0]

    def reader(self, schema: Any = None, connect: Any = None, **options: str) -> SluiceReader:
        """A batch read; with history=only of the stores alone."""
        given = {"topic": "t", "dataDir": str(self.folder)} | options
        reader = SluiceDataSource(given).reader(schema)
        reader._log = replace(reader._log, client=connect or self.connected)
        return reader

    def stream(self, connect: Any = None, **options: str) -> LogStreamReader:
        """A reader of the log as a stream."""
        reader = SluiceDataSource({"topic": "t", "dataDir": str(self.folder)} | options).streamReader(None)
        assert isinstance(reader, LogStreamReader)
        reader._log = replace(reader._log, client=connect or self.connected)
        return reader

    def connected(self) -> Any:
        """The connection of a task."""
        return contextlib.nullcontext(self.client)


def unreachable() -> Any:
    """A connection of a task that must not need one."""
    raise AssertionError("a broker was asked")


def read(reader: SluiceReader, between: Callable[[], object] = lambda: None) -> pa.Table:
    """Return the rows of all tasks. between: runs after the plan was made."""
    tasks = reader.partitions()
    between()
    return given_by(reader, tasks)


def given_by(reader: SluiceReader | LogStreamReader, tasks: list[InputPartition]) -> pa.Table:
    """The rows of some tasks."""
    batches = [batch for task in tasks for batch in reader.read(task)]
    return pa.Table.from_batches(batches) if batches else pa.table({"payload": pa.array([], pa.binary())})


def numbers_in(table: pa.Table) -> list[int]:
    """Which messages these are."""
    return [int(payload) for payload in table.column("payload").to_pylist()]

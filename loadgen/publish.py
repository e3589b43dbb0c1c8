"""Publishing from Spark tasks: each task is one producer with a name of its own.

A task that is retried opens the same producer name and sends the same rows in the same order, so the broker knows
them again by their sequences and stores nothing twice. Each attempt writes what it saw as one Parquet file (schema
SENT); a file that an attempt did not live to finish never appears, and the retry sends and reports the same rows.

With a rate, every message has the time at which it should have been sent, and that time counts: a broker that holds
the producer up is charged for the wait (no coordinated omission).
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.broker import Connect, Producer, Receipt
from loadgen.generate import Chunk, Workload, generate, number_properties, number_rows, running_count
from loadgen.history import FAIL, INFO, OK, SENT, UNKNOWN_POSITION, Clock, Int64s, bucket_hashes, constant
from storage.errors import Invalid, SluiceError

SUMMARY = "task int, attempt int, sent long, confirmed long, bytes long"
"""Spark's schema of what a task returns."""

IN_FLIGHT = 32
"""Batches whose receipts are not looked at yet; the client's own limit on bytes is what slows a task down."""
_RESULT_TIMEOUT_S = 120.0
_ROW_GROUP = 200_000
_PROGRESS = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class PublishJob:
    """What every publishing task needs to know; it is pickled to the workers.

    rate: messages per second of the whole job, 0 = as fast as it goes. tasks: how many share it. lasts_us:
    how long a task sends, from its own beginning, 0 = until it has sent everything.
    """

    connect: Connect
    topic: str
    producer: str
    clock: Clock
    folder: Path
    rate: float = 0.0
    tasks: int = 1
    lasts_us: int = 0

    @property
    def sends(self) -> Path:
        """The folder of the send histories."""
        return self.folder / "sends"

    @property
    def enough(self) -> Path:
        """A file that ends the publishing, early and in order, once it is there."""
        return self.folder / "enough"

    def prepare(self) -> None:
        """Make the folders that tasks write into."""
        self.sends.mkdir(parents=True, exist_ok=True)
        (self.folder / "progress").mkdir(exist_ok=True)


def publish_generated(job: PublishJob, workload: Workload) -> Any:
    """The function for `mapInArrow` over rows (id = task): generates and publishes the task's messages."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shares = workload.shares()
        for batch in batches:
            for task in batch.column(0).to_pylist():
                rate = job.rate * float(shares[task]) / workload.messages
                yield _publish(job, task, generate(_paced(workload, rate), task), rate)

    return run


def publish_rows(job: PublishJob) -> Any:
    """The function for `mapInArrow` over rows (key, payload[, event_time]): publishes them in the order they come."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        yield _publish(job, task, chunks_of(batches, task), job.rate / job.tasks)

    return run


def warm_up(job: PublishJob) -> Any:
    """The function for `mapInArrow` that makes every worker connect once, so that the flood does not begin with it."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with job.connect():
            yield from batches

    return run


def chunks_of(batches: Iterator[pa.RecordBatch], task: int) -> Iterator[Chunk]:
    """Number the rows of a user's data within their keys; a row without key gets a number of the whole run."""
    counts: dict[bytes, int] = {}
    start = 0
    for batch in batches:
        count = batch.num_rows
        if count == 0:
            continue
        keys = batch.column("key").cast(pa.binary())
        encoded = keys.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        names = encoded.dictionary.to_pylist()
        before = np.array([counts.get(name, 0) for name in names] or [0], np.int64)
        key_seq = before[codes] + running_count(codes)
        rows_of_key = np.bincount(codes[codes >= 0], minlength=len(names))
        counts.update(zip(names, (before[: len(names)] + rows_of_key).tolist(), strict=True))
        key_seq = np.where(codes < 0, number_rows(task, start, count), key_seq)
        columns = {"key": keys, "payload": batch.column("payload").cast(pa.binary())}
        columns["properties"] = number_properties(key_seq)
        if "event_time" in batch.schema.names:
            columns["event_time"] = batch.column("event_time")
        rows = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        yield Chunk(rows, key_seq, np.zeros(count, np.int64), start)
        start += count


def read_progress(folder: Path) -> tuple[int, int]:
    """(sent, confirmed) of all tasks so far, as they last told."""
    sent = confirmed = 0
    for path in (folder / "progress").glob("task-*"):
        data = path.read_bytes()
        if len(data) == _PROGRESS.size:
            one = _PROGRESS.unpack(data)
            sent, confirmed = sent + one[0], confirmed + one[1]
    return sent, confirmed


def _paced(workload: Workload, rate: float) -> Workload:
    """Smaller chunks at a fixed rate: one lasts at most a twentieth of a second."""
    if rate <= 0:
        return workload
    from dataclasses import replace

    return replace(workload, batch=int(min(workload.batch, max(1, rate // 20))))


def _publish(job: PublishJob, task: int, chunks: Iterator[Chunk], rate: float) -> pa.RecordBatch:
    """Publish a task's chunks, write the history, and tell the sums."""
    attempt = _attempt()
    with job.connect() as client:
        producer = client.create_producer(job.topic, producer_name=f"{job.producer}-{task}", initial_sequence_id=0)
        try:
            sender = _Sender(job, producer, task, attempt)
            try:
                for chunk in chunks:
                    if sender.late() or job.enough.exists():
                        break
                    sender.send(chunk, rate)
                sender.finish()
            finally:
                sender.close()
        finally:
            producer.close()
    return pa.RecordBatch.from_pydict(
        {
            "task": pa.array([task], pa.int32()),
            "attempt": pa.array([attempt], pa.int32()),
            "sent": [sender.sent],
            "confirmed": [sender.confirmed],
            "bytes": [sender.bytes],
        }
    )


def _attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.attemptNumber())


class _Sender:
    """One attempt of one task: what is in flight, and the history of what came of it."""

    def __init__(self, job: PublishJob, producer: Producer, task: int, attempt: int) -> None:
        self._job = job
        self._producer = producer
        self._name = f"{job.producer}-{task}"
        self._flying: deque[tuple[Receipt, Chunk, Int64s, Int64s]] = deque()
        self._rows: list[pa.RecordBatch] = []
        self._waiting = 0
        self._target = job.sends / f"task-{task:04d}-attempt-{attempt}.parquet"
        self._partial = self._target.with_name(f".{self._target.name}.partial")
        self._writer = pq.ParquetWriter(self._partial, SENT, compression="zstd", use_dictionary=["producer", "status"])
        self._progress = os.open(job.folder / "progress" / f"task-{task}", os.O_CREAT | os.O_WRONLY, 0o600)
        self._started = job.clock.now()
        self.sent = self.confirmed = self.bytes = 0

    def late(self) -> bool:
        """Has the task sent for as long as it should?"""
        return 0 < self._job.lasts_us <= self._job.clock.now() - self._started

    def send(self, chunk: Chunk, rate: float) -> None:
        """Send one chunk, at its time if there is a rate."""
        count = chunk.rows.num_rows
        if rate > 0:
            intended = self._started + ((chunk.first_row + np.arange(count)) * (1e6 / rate)).astype(np.int64)
            # The chunk leaves when its last row should: no row leaves before its own time.
            time.sleep(max(0, int(intended[-1]) - self._job.clock.now()) / 1e6)
        else:
            intended = np.full(count, self._job.clock.now())
        rows = chunk.rows
        deliver_at = np.where(chunk.delay_ms > 0, self._job.clock.now() // 1000 + chunk.delay_ms, 0)
        if deliver_at.any():
            rows = rows.append_column("deliver_at", pa.array(deliver_at))
        try:
            receipt = self._producer.send_batch(rows)
        except Invalid:
            self._note(chunk, intended, deliver_at, FAIL, None)
            raise
        self._flying.append((receipt, chunk, intended, deliver_at))
        self.sent += count
        self.bytes += int(chunk.rows.column("payload").nbytes)
        while len(self._flying) > IN_FLIGHT:
            self._settle()

    def finish(self) -> None:
        """Wait for everything that is in flight."""
        self._producer.flush()
        while self._flying:
            self._settle()

    def close(self) -> None:
        """Write what is known, with `info` for what is still in flight, and make the history file appear."""
        while self._flying:
            _, chunk, sent_at, deliver_at = self._flying.popleft()
            self._note(chunk, sent_at, deliver_at, INFO, None)
        self._write()
        self._writer.close()
        self._partial.replace(self._target)
        self._tell()
        os.close(self._progress)

    def _settle(self) -> None:
        receipt, chunk, sent_at, deliver_at = self._flying.popleft()
        try:
            receipt.result(_RESULT_TIMEOUT_S)
        except SluiceError:
            # The outcome is not known. Spark runs the task again, and the same sequences settle it.
            self._note(chunk, sent_at, deliver_at, INFO, None)
            raise
        self._note(chunk, sent_at, deliver_at, OK, receipt)
        self.confirmed += chunk.rows.num_rows
        self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self._progress, _PROGRESS.pack(self.sent, self.confirmed), 0)

    def _note(self, chunk: Chunk, sent_at: Int64s, deliver_at: Int64s, status: str, receipt: Receipt | None) -> None:
        count = chunk.rows.num_rows
        partition = np.full(count, -1, np.int32)
        position = np.full(count, UNKNOWN_POSITION, np.int64)
        confirmed = np.zeros(count, np.int64)
        if receipt is not None:
            partition = np.asarray(receipt.partitions, np.int32)
            position = np.asarray(receipt.positions, np.int64)
            confirmed = np.asarray(receipt.confirmed_at, np.int64)
        key = chunk.rows.column("key")
        columns = [
            constant(self._name, count),
            pa.array(partition),
            key,
            pa.array(chunk.key_seq),
            pa.array(np.arange(chunk.first_row, chunk.first_row + count)),
            pa.array(position),
            constant(status, count),
            pa.array(sent_at),
            pa.array(confirmed),
            pa.array(deliver_at),
            pa.array(bucket_hashes(key, chunk.key_seq)),
        ]
        self._rows.append(pa.RecordBatch.from_arrays(columns, schema=SENT))
        self._waiting += count
        if self._waiting >= _ROW_GROUP:
            self._write()

    def _write(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_batches(self._rows, SENT))
        self._rows, self._waiting = [], 0

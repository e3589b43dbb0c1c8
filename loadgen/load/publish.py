"""Publishes from Spark tasks: each task is one producer with a name of its own.

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

from sluice.loadgen.base.acts import Pace
from sluice.loadgen.base.broker import BrokerProducer, BrokerReceipt, Connect
from sluice.loadgen.base.generate import Chunk, Workload, generate, number_properties, number_rows, running_count
from sluice.loadgen.base.history import (
    FAIL,
    INFO,
    OK,
    SENT,
    UNKNOWN_POSITION,
    HistoryClock,
    Int64s,
    bucket_hashes,
    constant,
)
from sluice.storage.errors import Invalid, SluiceError

SUMMARY = "task int, attempt int, sent long, confirmed long, bytes long"
"""Spark's schema of what a task returns."""

IN_FLIGHT = 32
"""Batches whose receipts are not looked at yet; the client's own limit on bytes is what slows a task down."""
_RESULT_TIMEOUT_S = 120.0
_ROW_GROUP = 200_000
PIECE_S = 0.05
"""A piece leaves when its last row should: its rows wait for half as long on average, which counts as latency.

Each piece is an append of its own for every partition, and a delivery for every consumer there. With pieces of 20 ms
those alone fill two processors at 22,000 messages/s, and the latency would be that of a full machine.
"""
_PACE_EVERY_S = 0.01
_PROGRESS = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class PublishJob:
    """The description of a publishing task; it is pickled to the workers.

    rate: messages per second of the whole job, 0 = as fast as it goes. tasks: how many share it. lasts_us: how long a
    task sends, from its own beginning, 0 = until it has sent everything. first_part: part of each task's messages after
    which it waits until it gets the pace of the others (loadgen.base.acts), 0 = none. total: messages of the whole job,
    where the task cannot know it.
    """

    connect: Connect
    topic: str
    producer: str
    clock: HistoryClock
    folder: Path
    rate: float = 0.0
    tasks: int = 1
    lasts_us: int = 0
    first_part: float = 0.0
    total: int = 0

    @property
    def pace(self) -> Path:
        """The file that tells the pace of the second act."""
        return self.folder / "pace"

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
                share = float(shares[task]) / workload.messages
                chunks = generate(_paced(workload, job.rate * share), task)
                yield _publish(job, task, chunks, share, int(shares[task] * job.first_part))

    return run


def spread(context: Any, task: Any, tasks: int) -> Any:
    """Return a runner of a `mapInArrow` function over rows (id = task), in `tasks` tasks; the rows come as dicts.

    The runner needs no session, no plan and no generated code, which take Spark's Java process seconds to make.
    """

    def run(ids: Iterator[int]) -> Iterator[dict[str, Any]]:
        for batch in task(iter([pa.RecordBatch.from_pydict({"id": pa.array(list(ids), pa.int64())})])):
            yield from batch.to_pylist()

    return context.parallelize(range(tasks), tasks).mapPartitions(run)


def publish_rows(job: PublishJob) -> Any:
    """The function for `mapInArrow` over rows (key, payload[, event_time]): publishes them in the order they come."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        first = int(job.total * job.first_part / job.tasks)
        yield _publish(job, task, chunks_of(batches, task), 1 / job.tasks, first)

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


def cut(chunk: Chunk, at: int) -> tuple[Chunk | None, Chunk | None]:
    """The first `at` rows of a chunk, and the rest; None for a part without rows."""
    count = chunk.rows.num_rows
    if at >= count or at <= 0:
        return (chunk, None) if at >= count else (None, chunk)
    return (
        Chunk(chunk.rows.slice(0, at), chunk.key_seq[:at], chunk.delay_ms[:at], chunk.first_row),
        Chunk(chunk.rows.slice(at), chunk.key_seq[at:], chunk.delay_ms[at:], chunk.first_row + at),
    )


def read_progress(folder: Path) -> tuple[int, int]:
    """(sent, confirmed) of all tasks so far, as they last told."""
    sent = confirmed = 0
    for path in (folder / "progress").glob("task-*"):
        data = path.read_bytes()
        if len(data) == _PROGRESS.size:
            one = _PROGRESS.unpack(data)
            sent, confirmed = sent + one[0], confirmed + one[1]
    return sent, confirmed


def _piece_rows(rate: float) -> int:
    """Messages that a task sends in one piece at a fixed rate."""
    return max(1, int(rate * PIECE_S))


def _paced(workload: Workload, rate: float) -> Workload:
    """Return the workload, in chunks of at most a piece if the rate is fixed."""
    if rate <= 0:
        return workload
    from dataclasses import replace

    return replace(workload, batch=min(workload.batch, _piece_rows(rate)))


def _publish(job: PublishJob, task: int, chunks: Iterator[Chunk], share: float, first: int) -> pa.RecordBatch:
    """Publish a task's chunks, write the history, and tell the sums. share: part of all messages, and of the rate.

    first: rows of the first act, 0 if there is none.
    """
    attempt = _attempt()
    with job.connect() as client:
        producer = client.create_producer(job.topic, producer_name=f"{job.producer}-{task}", initial_sequence_id=0)
        try:
            sender = _Sender(job, producer, task, attempt)
            try:
                sender.send_all(chunks, share, first)
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
    """One attempt of one task: the messages in flight, and the history of their outcomes."""

    def __init__(self, job: PublishJob, producer: BrokerProducer, task: int, attempt: int) -> None:
        self._job = job
        self._producer = producer
        self._name = f"{job.producer}-{task}"
        self._flying: deque[tuple[BrokerReceipt, Chunk, Int64s, Int64s]] = deque()
        self._rows: list[pa.RecordBatch] = []
        self._waiting = 0
        self._target = job.sends / f"task-{task:04d}-attempt-{attempt}.parquet"
        self._partial = self._target.with_name(f".{self._target.name}.partial")
        self._writer = pq.ParquetWriter(self._partial, SENT, compression="zstd", use_dictionary=["producer", "status"])
        self._progress = os.open(job.folder / "progress" / f"task-{task}", os.O_CREAT | os.O_WRONLY, 0o600)
        self._started, self._base = job.clock.now(), 0
        self._rate, self._share = 0.0, 1.0
        self._pace_read: Pace | None = None
        self.sent = self.confirmed = self.bytes = 0

    def late(self) -> bool:
        """Return whether the task has sent for as long as it should."""
        return 0 < self._job.lasts_us <= self._job.clock.now() - self._started

    def send_all(self, chunks: Iterator[Chunk], share: float, first: int) -> None:
        """Send everything, in one act or in two. The first one measures throughput, so nothing in it is delayed."""
        self._share, self._rate, waits = share, self._job.rate * share, first > 0
        for chunk in chunks:
            head, rest = cut(chunk, first - chunk.first_row) if waits else (None, chunk)
            if head is not None and not self._send_pieces(head.at_once(), follow=False):
                return
            if rest is None:
                continue
            if waits:
                waits = False
                self.finish()
                if self._await_pace() is None:
                    return
            if not self._send_pieces(rest):
                return

    def _send_pieces(self, chunk: Chunk, *, follow: bool = True) -> bool:
        """Send a chunk in pieces, of at most PIECE_S at a fixed rate. Return False if it is time to stop."""
        rest: Chunk | None = chunk
        while rest is not None:
            if self.late() or self._job.enough.exists():
                return False
            if follow:
                self._follow(rest.first_row)
            head, rest = cut(rest, _piece_rows(self._rate) if self._rate else rest.rows.num_rows)
            if head is not None:
                self.send(head, self._rate)
        return True

    def _follow(self, row: int) -> None:
        """Take up the pace that was set, from this row on. Its intended time never goes back."""
        pace = Pace.read(self._job.pace)
        if pace is None or pace == self._pace_read:
            return
        due = self._started + int((row - self._base) * (1e6 / self._rate)) if self._rate else 0
        self._pace_read, self._rate = pace, pace.rate * self._share
        self._started, self._base = max(due, pace.at), row

    def _await_pace(self) -> Pace | None:
        """Wait at the border between two acts; None if it is time to stop."""
        while True:
            pace = Pace.read(self._job.pace)
            if pace is not None or self.late() or self._job.enough.exists():
                return pace
            time.sleep(_PACE_EVERY_S)

    def send(self, chunk: Chunk, rate: float) -> None:
        """Send one chunk, at its time if there is a rate."""
        count = chunk.rows.num_rows
        if rate > 0:
            rows_before = chunk.first_row - self._base
            intended = self._started + ((rows_before + np.arange(count)) * (1e6 / rate)).astype(np.int64)
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
        # Confirmed rows are reported now: at a low rate, waiting for a full pipeline would report them much later.
        while self._flying and (len(self._flying) > IN_FLIGHT or self._flying[0][0].done()):
            self._settle()
        self._tell()

    def finish(self) -> None:
        """Wait for everything that is in flight."""
        self._producer.flush()
        while self._flying:
            self._settle()
        self._tell()

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

    def _tell(self) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self._progress, _PROGRESS.pack(self.sent, self.confirmed), 0)

    def _note(
        self, chunk: Chunk, sent_at: Int64s, deliver_at: Int64s, status: str, receipt: BrokerReceipt | None
    ) -> None:
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

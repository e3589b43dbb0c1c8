"""A consumer of the flood: it receives, works a little, records the messages, and acknowledges.

The order within `_work_through` is what makes the history honest: rows are in the kernel's hands before the
acknowledgement leaves, so a consumer that is killed loses only rows that it had not acknowledged. `received_at` is
taken after the batch arrived and `acked_at` before the acknowledgement leaves; both err on the side of a shorter
hold, so an overlap that the judge sees was one.

Whether an acknowledgement is durable is learned by a second thread, which notes `confirmed` events: everything that
was acknowledged before the question was asked is durable when the answer comes.

It runs in a process of its own (`loadgen.load.fork_server` forks them, `loadgen.faults.faults` says when) and knows
nothing of Ray.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa

from sluice.loadgen.base.broker import BrokerBatch, BrokerClient, BrokerConsumer, Connect
from sluice.loadgen.base.generate import read_key_seq
from sluice.loadgen.base.history import (
    ATTACH,
    CONFIRMED,
    DELIVERIES,
    DETACH,
    EVENTS,
    EXPIRED,
    HistoryClock,
    Int64s,
    Journal,
    bucket_hashes,
    constant,
    seal,
)
from sluice.storage.errors import SluiceError

_POLL_MS = 200
_CONFIRM_MS = 5_000
CONFIRM_EVERY_S = 0.2
"""Each question costs a request a partition: with a dozen consumers, asking more often is most of the traffic."""
TELL_EVERY_S = 0.2
_PROGRESS = struct.Struct("<?qq")


@dataclass(frozen=True, slots=True)
class ConsumeJob:
    """The description of a consumer's work, equal for all consumers of a flood.

    work_us: simulated work per message, microseconds. receiver_queue_size: of those who join first. nack: share of the
    messages that are given back once. nack_order: as the subscription is set.
    """

    connect: Connect
    topic: str
    subscription: str
    clock: HistoryClock
    folder: Path
    policy: str = "draining_hashes"
    work_us: float = 0.0
    receiver_queue_size: int = 20_000
    nack: float = 0.0
    nack_order: str = "none"

    @property
    def deliveries(self) -> Path:
        """The folder of the delivery histories."""
        return self.folder / "deliveries"

    @property
    def events(self) -> Path:
        """The folder of the consumers' events."""
        return self.folder / "events"

    @property
    def journals(self) -> Path:
        """The folder of the journals that are still being written."""
        return self.folder / "journals"

    @property
    def progress(self) -> Path:
        """The folder in which each consumer says how far it is."""
        return self.folder / "consuming"

    def prepare(self) -> None:
        """Make the folders that consumers write into."""
        for folder in (self.deliveries, self.events, self.journals, self.progress):
            folder.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True, slots=True)
class ConsumerProgress:
    """The progress of a consumer. error: what stopped it, if anything did."""

    joined: bool = False
    received: int = 0
    redelivered: int = 0
    error: str = ""

    def write(self, path: Path) -> None:
        """Write it; a reader sees all of it or the earlier version."""
        partial = path.with_name(f".{path.name}")
        partial.write_bytes(_PROGRESS.pack(self.joined, self.received, self.redelivered) + self.error.encode())
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> ConsumerProgress:
        """The last written progress; none if there is no file yet."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return cls()
        joined, received, redelivered = _PROGRESS.unpack(data[: _PROGRESS.size])
        return cls(joined, received, redelivered, data[_PROGRESS.size :].decode())


class FloodConsumer:
    """One consumer process. `start` returns at once; a thread works until `stop`, or until the process is killed."""

    def __init__(self, job: ConsumeJob) -> None:
        self._job = job
        self._incarnation = self._name = ""
        self._queue = 0
        self._client: BrokerClient | None = None
        self._opened = contextlib.ExitStack()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._error = ""
        self._joined = False
        self._told_last, self._told_at = ConsumerProgress(), 0.0
        self._received = self._redelivered = self._handed_over = 0
        self._sessions: dict[int, tuple[int, int]] = {}

    def ready(self) -> int:
        """Return the process id, once the process is up, connected, and knows the actors that it asks when it joins.

        On a busy machine that takes seconds, for which a join must not wait. Raises SluiceError.
        """
        self._client = self._opened.enter_context(self._job.connect())
        with contextlib.suppress(SluiceError):  # the first one makes the subscription
            self._client.stats(self._job.topic, self._job.subscription)
        return os.getpid()

    def start(self, incarnation: str, consumer_name: str, receiver_queue_size: int) -> None:
        """Join the subscription and begin to work; again after `stop`, under another incarnation.

        incarnation is the name in the history and is never used again; consumer_name is what the broker hears.
        """
        assert self._thread is None or not self._thread.is_alive(), f"{self._incarnation} has not left"
        self._incarnation, self._name, self._queue = incarnation, consumer_name, receiver_queue_size
        self._stopping.clear()
        self._error, self._joined = "", False
        self._told_last = ConsumerProgress()
        self._received = self._redelivered = self._handed_over = 0
        self._sessions = {}
        self._thread = threading.Thread(target=self._run, name="consumer", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Finish the batch in hand, wait until its acknowledgements are durable, leave, seal the history."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _tell(self) -> None:
        """Write the progress into a file: asking would disturb a busy process, and a killed one does not answer."""
        told = ConsumerProgress(self._joined, self._received, self._redelivered, self._error)
        if told != self._told_last:
            self._told_last, self._told_at = told, time.monotonic()
            told.write(self._job.progress / self._incarnation)

    def _tell_at_times(self, *, idle: bool) -> None:
        """A file costs more than a small batch: written now and then, and when there is nothing else to do."""
        if idle or time.monotonic() - self._told_at > TELL_EVERY_S:
            self._tell()

    def _run(self) -> None:
        try:
            with (
                Journal(self._job.journals / f"deliveries-{self._incarnation}", DELIVERIES) as deliveries,
                Journal(self._job.journals / f"events-{self._incarnation}", EVENTS) as events,
            ):
                self._consume(deliveries, events)
            seal_journals(self._job, self._incarnation)
        except Exception as error:
            # This thread is the consumer's whole life: the reason of its end is reported to the fleet.
            self._error = f"{type(error).__name__}: {error}"
            self._tell()

    def _consume(self, deliveries: Journal, events: Journal) -> None:
        job = self._job
        client = self._client or self._opened.enter_context(job.connect())
        self._client = None
        with self._opened.pop_all():
            consumer: BrokerConsumer = client.subscribe(
                job.topic,
                job.subscription,
                consumer_name=self._name,
                initial_position="earliest",
                receiver_queue_size=self._queue,
                policy=job.policy,
                nack_order=job.nack_order,
                on_ranges=lambda partition, kind, _: self._on_ranges(events, partition, kind),
            )
            self._event(events, ATTACH, job.clock.now())
            self._joined = True
            self._tell()
            quiet = threading.Event()
            confirmer = threading.Thread(target=self._confirm, args=(consumer, events, quiet), daemon=True)
            confirmer.start()
            try:
                while not self._stopping.is_set():
                    batch = consumer.receive_batch(timeout_ms=_POLL_MS)
                    if batch is not None:
                        self._work_through(consumer, batch, deliveries)
                    self._tell_at_times(idle=batch is None)
            finally:
                self._tell()
                quiet.set()
                confirmer.join()
                self._ask(consumer, events)
                # The hold ends for the judge before it ends for the broker, never the other way round.
                self._event(events, DETACH, job.clock.now())
                # Messages in the queue were never looked at: they go to the others, in order.
                consumer.close()

    def _work_through(self, consumer: BrokerConsumer, batch: BrokerBatch, deliveries: Journal) -> None:
        received_at = self._job.clock.now()
        self._sessions[batch.partition] = (batch.session, received_at)
        rows = batch.rows
        count = rows.num_rows
        payload = rows.column("payload")
        # A little real work on every byte, and the rest of the time that was asked for.
        google_crc32c.value(np.frombuffer(payload.buffers()[2] or b"", np.uint8))
        if self._job.work_us:
            time.sleep(count * self._job.work_us / 1e6)
        released_at = self._nack(consumer, batch)
        released_at[released_at == 0] = self._job.clock.now()
        deliveries.append(self._record(batch, received_at, released_at))
        consumer.acknowledge(batch)
        self._handed_over = max(int(released_at.max()), self._handed_over)
        self._received += count
        self._redelivered += int(np.count_nonzero(batch.redeliveries))

    def _nack(self, consumer: BrokerConsumer, batch: BrokerBatch) -> Int64s:
        """Give back some messages that came for the first time; what was taken back with them is let go as well.

        Returns when, as the negative of microseconds, 0 for the rows that stay.
        """
        released_at = np.zeros(len(batch.positions), np.int64)
        if not self._job.nack:
            return released_at
        # By position, so that it is the same at every consumer; a consumer that is killed changes nothing.
        mixed = (batch.positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
        chosen = np.flatnonzero((mixed < self._job.nack * (1 << 24)) & (batch.redeliveries == 0))
        if len(chosen):
            now = self._job.clock.now()
            consumer.negative_acknowledge(batch, rows=chosen, delay_ms=0)
            released_at[chosen] = -now
            released_at[batch.taken_back] = -now
        return released_at

    def _record(self, batch: BrokerBatch, received_at: int, released_at: Int64s) -> pa.RecordBatch:
        """One row a message. released_at: when it was acknowledged; negative: when it was given back, or taken back."""
        rows = batch.rows
        count = rows.num_rows
        key, payload, key_seq = rows.column("key"), rows.column("payload"), read_key_seq(rows)
        columns = [
            constant(self._incarnation, count),
            pa.array(np.full(count, batch.session, np.int64)),
            pa.array(np.full(count, batch.partition, np.int32)),
            pa.array(np.asarray(batch.positions, np.int64)),
            key,
            pa.array(key_seq),
            pa.array(np.asarray(batch.redeliveries, np.int32)),
            pa.array(np.full(count, batch.epoch, np.int64)),
            pa.array(np.asarray(batch.dispatch, np.int64)),
            pa.array(np.full(count, received_at, np.int64)),
            pa.array(np.abs(released_at)),
            pa.array(released_at < 0),
            pa.compute.binary_length(payload),
            pa.array(bucket_hashes(key, key_seq)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=DELIVERIES)

    def _on_ranges(self, events: Journal, partition: int, kind: str) -> None:
        """A session is over: for the judge the holds of it ended with its last batch, and what was confirmed by now."""
        if kind != "lost":
            return
        session, last = self._sessions.get(partition, (0, 0))
        if session:
            now = self._job.clock.now()
            self._event(events, EXPIRED, last, session=session, partition=partition, upto=now)

    def _confirm(self, consumer: BrokerConsumer, events: Journal, quiet: threading.Event) -> None:
        while not quiet.wait(CONFIRM_EVERY_S):
            self._ask(consumer, events)

    def _ask(self, consumer: BrokerConsumer, events: Journal) -> None:
        # Not the time of asking: what is written down by then may still have to be handed to the client.
        upto = self._handed_over
        try:
            consumer.wait_acknowledged(timeout_ms=_CONFIRM_MS)
        except SluiceError:
            return  # not in time, or void with a session that was lost
        if upto:
            self._event(events, CONFIRMED, self._job.clock.now(), upto=upto)

    def _event(
        self, events: Journal, event: str, at: int, *, session: int = -1, partition: int = -1, upto: int = 0
    ) -> None:
        row = {
            "consumer": self._incarnation,
            "session": session,
            "partition": partition,
            "event": event,
            "at": at,
            "upto": upto,
        }
        events.append(pa.RecordBatch.from_pylist([row], EVENTS))


def seal_journals(job: ConsumeJob, incarnation: str) -> None:
    """Turn what a consumer wrote into Parquet; also for one that was killed. Safe to repeat."""
    for kind, schema, folder in (("deliveries", DELIVERIES, job.deliveries), ("events", EVENTS, job.events)):
        journal = job.journals / f"{kind}-{incarnation}"
        if journal.exists():
            seal(journal, schema, folder / f"{incarnation}.parquet")

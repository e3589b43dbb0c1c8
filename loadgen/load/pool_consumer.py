"""A consumer of the flood that is a worker of a pool: its handler records what it is given, as `loadgen.load.consume`
does.

The worker receives, acknowledges and leaves; the handler only writes down. Rows are in the kernel's hands before the
handler returns, and the worker acknowledges after that. So the history is honest in the same way.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from types import SimpleNamespace
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

from sluice.loadgen.base.history import ATTACH, DELIVERIES, DETACH, EVENTS, Journal
from sluice.loadgen.load.consume import CONFIRM_EVERY_S, ConsumeJob, FloodConsumer, seal_journals


class FloodHandler(FloodConsumer):
    """The handler that each worker of the pool calls; it is sent to the worker without anything open."""

    with_dispatch = True

    def __init__(self, job: ConsumeJob) -> None:
        self._job = job

    def on_attached(self, consumer: Any) -> None:
        """The worker has its consumer: begin the history of this incarnation."""
        super().__init__(self._job)
        self._name = consumer.consumer_name()
        self._incarnation = f"{self._name}.{os.getpid()}"
        self._consumer = consumer
        self._journal = Journal(self._job.journals / f"deliveries-{self._incarnation}", DELIVERIES)
        self._events = Journal(self._job.journals / f"events-{self._incarnation}", EVENTS)
        self._event(self._events, ATTACH, self._job.clock.now())
        self._joined = True
        self._let_go = 0
        """When the last rows were let go. The worker acknowledges them then, and has when it calls again."""
        self._tell()
        self._quiet = threading.Event()
        arguments = (consumer, self._events, self._quiet)
        self._confirmer = threading.Thread(target=self._confirm, args=arguments, daemon=True)
        self._confirmer.start()

    def on_ranges(self, partition: int, kind: str, _: Any) -> None:
        """A session was lost."""
        if getattr(self, "_events", None) is not None:
            self._on_ranges(self._events, partition, kind)

    def __call__(self, rows: pa.RecordBatch) -> None:
        """Work on every byte, and write down what came."""
        self._handed_over, received_at = self._let_go, self._job.clock.now()
        google_crc32c.value(np.frombuffer(rows.column("payload").buffers()[2] or b"", np.uint8))
        if self._job.work_us:
            time.sleep(len(rows) * self._job.work_us / 1e6)
        self._let_go = self._job.clock.now()
        for part in _by_session(rows):
            self._sessions[part.partition] = (part.session, received_at)
            count = len(part.positions)
            self._journal.append(self._record(part, received_at, np.full(count, self._let_go, np.int64)))
            self._received += count
            self._redelivered += int(np.count_nonzero(part.redeliveries))

    def _confirm(self, consumer: Any, events: Journal, quiet: threading.Event) -> None:
        """Confirm, and also report the progress: the handler is not called when no message comes."""
        while not quiet.wait(CONFIRM_EVERY_S):
            self._tell()
            self._ask(consumer, events)

    def on_leaving(self) -> None:
        """All is acknowledged, and the worker is about to leave."""
        self._quiet.set()
        self._confirmer.join()
        self._handed_over = self._let_go
        self._ask(self._consumer, self._events)
        # The hold ends for the judge before it ends for the broker, never the other way round.
        self._event(self._events, DETACH, self._job.clock.now())
        self._tell()
        self._journal.close()
        self._events.close()
        seal_journals(self._job, self._incarnation)


def _by_session(rows: pa.RecordBatch) -> list[Any]:
    """The rows of each partition and session that stand together, in the shape of a batch of the client."""
    partitions, sessions = rows.column("partition").to_numpy(), rows.column("session").to_numpy()
    changes = np.flatnonzero((np.diff(partitions) != 0) | (np.diff(sessions) != 0)) + 1
    starts = [0, *changes.tolist(), len(rows)]
    return [
        SimpleNamespace(
            rows=part,
            partition=int(partitions[first]),
            session=int(sessions[first]),
            epoch=part.column("epoch")[0].as_py(),
            positions=part.column("position").to_numpy(),
            redeliveries=part.column("redelivery_count").to_numpy(),
            dispatch=part.column("dispatch").to_numpy(),
        )
        for first, end in itertools.pairwise(starts)
        for part in [rows.slice(first, end - first)]
    ]

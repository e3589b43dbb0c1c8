"""Stand-ins for the broker's client: a topic that is a folder of files, and a subscription that is a list.

The folder works from any process, so Spark's tasks can publish into it. A message's position is made from the
producer's name and its sequence, so a repeated send lands where the first one did, as in the broker.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.storage.errors import Invalid, NotFound, Unavailable
from sluice.storage.format.hashing import hash_column
from sluice.storage.format.position import position


@dataclass
class FolderReceipt:
    """Confirmed at once, or never."""

    partitions: npt.NDArray[np.uint16]
    positions: npt.NDArray[np.int64]
    confirmed_at: npt.NDArray[np.int64]
    error: Exception | None = None
    late: bool = False

    def done(self) -> bool:
        """At once, unless it is to be late."""
        return not self.late

    def result(self, timeout_s: float | None = None) -> FolderReceipt:
        """Itself, or the error."""
        if self.error is not None:
            raise self.error
        return self


class FolderProducer:
    """Writes each batch as one file per partition, named by what it holds: a repetition writes the same name."""

    def __init__(self, folder: Path, topic: str, name: str, first: int, fail_after: int) -> None:
        self._folder, self._name, self._fail_after = folder / topic, name, fail_after
        if not self._folder.exists():
            raise NotFound(f"no topic {topic}")
        self.partitions = int((self._folder / "partitions").read_text())
        self._next = [first] * self.partitions
        self._sent = 0
        self._broken = False

    def send_batch(self, batch: pa.RecordBatch) -> FolderReceipt:
        """Store the rows."""
        count = batch.num_rows
        if count == 0:
            raise Invalid("the batch is empty")
        self._sent += 1
        broken = self._folder / f"broke-{self._name}"
        if self._broken or (self._fail_after and self._sent > self._fail_after and not broken.exists()):
            # A batch behind one whose outcome is unknown must not be stored in its place.
            self._broken = True
            broken.touch()
            return FolderReceipt(np.zeros(count), np.zeros(count), np.zeros(count), Unavailable("planted"), late=True)
        keys = batch.column("key").fill_null(b"")
        partition = (hash_column(keys) % self.partitions).astype(np.uint16)
        ledger = 1 + zlib.crc32(self._name.encode()) % 1000
        positions = np.zeros(count, np.int64)
        for number in range(self.partitions):
            rows = np.flatnonzero(partition == number)
            if len(rows) == 0:
                continue
            first = self._next[number]
            self._next[number] += len(rows)
            positions[rows] = position(ledger, first) + np.arange(len(rows))
            stored = batch.take(pa.array(rows)).append_column("position", pa.array(positions[rows]))
            pq.write_table(pa.Table.from_batches([stored]), self._folder / f"{number}-{self._name}-{first:09d}.parquet")
        return FolderReceipt(partition, positions, np.full(count, time.time_ns() // 1000))

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Nothing to end."""


@dataclass(frozen=True)
class FolderClient:
    """A client, and the function that makes one: small enough to be pickled.

    fail_after: each producer's batch after this many is answered with Unavailable, once in the topic's life.
    """

    folder: Path
    fail_after: int = 0

    def __call__(self) -> FolderClient:
        """Connect."""
        return self

    def __enter__(self) -> FolderClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def create_topic(self, topic: str, partitions: int = 1, **settings: Any) -> None:
        """Make the topic's folder."""
        (self.folder / topic).mkdir(parents=True)
        (self.folder / topic / "partitions").write_text(str(partitions))

    def create_producer(
        self, topic: str, producer_name: str | None = None, *, initial_sequence_id: int | None = None
    ) -> FolderProducer:
        """Open a producer."""
        return FolderProducer(self.folder, topic, producer_name or "p", initial_sequence_id or 0, self.fail_after)

    def stats(self, topic: str, subscription: str | None = None) -> list[dict[str, Any]]:
        """Raise NotFound: a folder has no subscriptions."""
        raise NotFound(f"no subscription {subscription}")

    def stored(self, topic: str) -> pa.Table:
        """Every stored message, with its partition and position."""
        tables = []
        for file in sorted((self.folder / topic).glob("*.parquet")):
            table = pq.read_table(file)
            tables.append(table.append_column("partition", pa.array([int(file.name.split("-")[0])] * table.num_rows)))
        return pa.concat_tables(tables)


@dataclass
class ListBatch:
    """Messages as a consumer gets them."""

    rows: pa.RecordBatch
    partition: int
    positions: npt.NDArray[np.int64]
    redeliveries: npt.NDArray[np.uint8]
    dispatch: npt.NDArray[np.int64]
    epoch: int = 1
    session: int = 7
    deliver_at: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass
class ListConsumer:
    """Hands out prepared batches, and remembers what was acknowledged and what was on disk by then."""

    batches: deque[ListBatch]
    on_ranges: Any = None
    acknowledged: list[ListBatch] = field(default_factory=list)
    closed: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    seen_on_acknowledge: list[int] = field(default_factory=list)
    look: Any = None
    lose_after: int = 0
    empty: threading.Event = field(default_factory=threading.Event)

    def receive_batch(self, timeout_ms: int | None = None) -> ListBatch | None:
        """The next one."""
        if self.batches:
            return self.batches.popleft()
        self.empty.set()
        time.sleep(0.001)
        return None

    def acknowledge(self, batch: ListBatch) -> None:
        """Note it."""
        if self.look is not None:
            self.seen_on_acknowledge.append(self.look())
        self.acknowledged.append(batch)
        if self.lose_after and len(self.acknowledged) == self.lose_after:
            self.on_ranges(batch.partition, "lost", [])

    def wait_acknowledged(self, timeout_ms: int | None = None) -> None:
        """All is durable at once."""

    def close(self, drain_timeout_ms: int = 0) -> None:
        """Leave."""
        self.closed = True


class ListClient:
    """A client that gives its one consumer to every caller that subscribes."""

    def __init__(self, consumer: ListConsumer) -> None:
        self.consumer = consumer
        self.backlog: int | None = 1
        self.opened = 0

    def __call__(self) -> ListClient:
        """Connect."""
        self.opened += 1
        return self

    def __enter__(self) -> ListClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def stats(self, topic: str, subscription: str | None = None) -> list[dict[str, Any]]:
        """One partition, with the backlog that the test wants; None: its owner cannot be asked."""
        if self.backlog is None:
            raise Unavailable("the owner does not answer")
        return [{"partition": 0, "msgBacklog": self.backlog, "epoch": 1}]

    def admin(self, topic: str, subscription: str, verb: str, **arguments: Any) -> list[Any]:
        """No assignment ever changed."""
        return [[]]

    def subscribe(self, topic: str, subscription: str, **settings: Any) -> ListConsumer:
        """The consumer."""
        self.consumer.on_ranges = settings.pop("on_ranges")
        self.consumer.settings = settings | {"topic": topic, "subscription": subscription}
        return self.consumer

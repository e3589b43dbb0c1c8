"""Makes the flood's messages from a seed: columns of skewed keys and numbered payloads.

Keys are drawn from a Zipf law: the key of rank r (from 1) has weight r ** -skew. Skew 0 draws all keys alike. Each
key belongs to one task, so that its messages are published in order by one producer; tasks get keys like players
get cards (0 1 2 2 1 0 ...), and as many messages as their keys weigh. The same seed and sizes give the same
messages, whatever is retried and in whatever order tasks run.

A payload of SIZE bytes:

    0   8   number of the message within its key, from 0, little-endian
    8   8   task << 40 | row within the task
    16  ..  bytes that do not compress
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.loadgen.base.history import Int64s
from sluice.storage.errors import Invalid

HEADER_BYTES = 16
ROW_BITS = 40
SEQUENCE_PROPERTY = "sluice.key_seq"
"""The property with a message's number within its key, if the payload is the user's own."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The messages to publish: counts, bytes of each, the delayed share and the range of delays in ms."""

    messages: int
    size: int
    keys: int
    skew: float
    tasks: int
    seed: int
    delayed: float = 0.0
    delay_min_ms: int = 1_000
    delay_max_ms: int = 60_000
    batch: int = 10_000

    def check(self) -> None:
        """Raises Invalid naming the number that cannot be."""
        if self.messages < 1:
            raise Invalid(f"the number of messages must be at least 1, not {self.messages}")
        if self.keys < 1:
            raise Invalid(f"the number of keys must be at least 1, not {self.keys}")
        if self.size < HEADER_BYTES:
            raise Invalid(f"a message needs {HEADER_BYTES} bytes for its numbers, {self.size} is too small")
        if self.skew < 0:
            raise Invalid(f"the skew must not be negative, not {self.skew}")
        if not 0 <= self.delayed <= 1:
            raise Invalid(f"the delayed fraction is between 0 and 1, not {self.delayed}")

    def shares(self) -> Int64s:
        """Messages of each task, shape (tasks,), int64; they add up to `messages`."""
        weights = np.bincount(self.owners(), weights=self._weights(), minlength=self.tasks)
        exact = weights / weights.sum() * self.messages
        counts: Int64s = np.floor(exact).astype(np.int64)
        # The rest goes to the largest remainders, ties to the lower task.
        rest = np.argsort(counts - exact, kind="stable")[: self.messages - int(counts.sum())]
        counts[rest] += 1
        return counts

    def owners(self) -> npt.NDArray[np.int64]:
        """The task of each key, by rank, shape (keys,)."""
        turn = np.arange(self.keys) % (2 * self.tasks)
        return np.asarray(np.where(turn < self.tasks, turn, 2 * self.tasks - 1 - turn), np.int64)

    def _weights(self) -> npt.NDArray[np.float64]:
        return np.asarray(np.arange(1, self.keys + 1, dtype=np.float64) ** -self.skew, np.float64)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a task's messages, ready to send. key_seq and delay_ms: int64, shape (n,); delay 0 = at once."""

    rows: pa.RecordBatch
    key_seq: Int64s
    delay_ms: Int64s
    first_row: int

    def at_once(self) -> Chunk:
        """The same messages without their delays."""
        return Chunk(self.rows, self.key_seq, np.zeros(len(self.delay_ms), np.int64), self.first_row)


def generate(workload: Workload, task: int) -> Iterator[Chunk]:
    """The messages of one task, in order, in chunks of `workload.batch`."""
    ranks = np.flatnonzero(workload.owners() == task)
    total = int(workload.shares()[task])
    if total == 0:
        return
    cumulative = np.cumsum(workload._weights()[ranks])
    cumulative /= cumulative[-1]
    width = len(str(workload.keys - 1))
    names = pa.array([b"key-%0*d" % (width, rank) for rank in ranks], pa.binary())
    rng = np.random.default_rng([workload.seed, task])
    counts = np.zeros(len(ranks), np.int64)
    for start in range(0, total, workload.batch):
        count = min(workload.batch, total - start)
        drawn = np.searchsorted(cumulative, rng.random(count), side="right").clip(max=len(ranks) - 1)
        key_seq = counts[drawn] + running_count(drawn)
        counts += np.bincount(drawn, minlength=len(ranks))
        payload = payloads(key_seq, number_rows(task, start, count), workload.size, rng)
        delay = np.zeros(count, np.int64)
        if workload.delayed:
            late = rng.random(count) < workload.delayed
            delay[late] = rng.integers(workload.delay_min_ms, workload.delay_max_ms, int(late.sum()), endpoint=True)
        rows = pa.RecordBatch.from_arrays([names.take(pa.array(drawn)), payload], ["key", "payload"])
        yield Chunk(rows, key_seq, delay, start)


def running_count(values: Int64s) -> Int64s:
    """How often each value occurred before in the same array: [7, 3, 7, 7] gives [0, 0, 1, 2]."""
    order = np.argsort(values, kind="stable")
    grouped = values[order]
    starts = np.ones(len(values), np.bool_)
    starts[1:] = grouped[1:] != grouped[:-1]
    spots = np.arange(len(values))
    result = np.empty(len(values), np.int64)
    result[order] = spots - np.maximum.accumulate(np.where(starts, spots, 0))
    return result


def number_rows(task: int, start: int, count: int) -> Int64s:
    """Numbers of a task's rows that are unique in the whole run, shape (count,)."""
    return np.arange(start, start + count, dtype=np.int64) + (task << ROW_BITS)


def payloads(key_seq: Int64s, row: Int64s, size: int, rng: np.random.Generator) -> pa.Array:
    """A binary column of equal-sized payloads that begin with the two numbers of each row."""
    count = len(key_seq)
    data = np.frombuffer(rng.bytes(count * size), np.uint8).reshape(count, size).copy()
    head = np.column_stack([key_seq, row]).astype("<i8")
    data[:, :HEADER_BYTES] = head.view(np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def read_key_seq(rows: pa.RecordBatch) -> Int64s:
    """The number within its key of each received row, shape (n,).

    From the property that `number_properties` wrote if the rows have properties, else from the payload's head.
    Raises Invalid if a payload is too short to hold one.
    """
    if "properties" in rows.schema.names:
        numbers = pc.map_lookup(rows.column("properties"), SEQUENCE_PROPERTY, "first").cast(pa.int64())
        if numbers.null_count:
            raise Invalid("a message carries no number; was the topic used by something else?")
        return np.asarray(numbers.to_numpy(zero_copy_only=False), np.int64)
    column = rows.column("payload")
    buffers = column.buffers()
    offsets = np.frombuffer(buffers[1], np.int32)[column.offset : column.offset + len(column) + 1]
    if len(column) and int(np.diff(offsets).min()) < HEADER_BYTES:
        raise Invalid("a payload is too short to begin with its numbers; was the topic used by something else?")
    data = np.frombuffer(buffers[2], np.uint8)
    return np.asarray(data[offsets[:-1, None] + np.arange(8)].view("<i8").reshape(-1), np.int64)


def number_properties(key_seq: Int64s) -> pa.Array:
    """A properties column with the number of each row within its key, for payloads that are the user's own."""
    count = len(key_seq)
    names = pa.repeat(pa.scalar(SEQUENCE_PROPERTY), count)
    return pa.MapArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), names, pa.array(key_seq).cast("str"))

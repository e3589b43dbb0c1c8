"""Histories: producers and consumers record what they do, so that a judge can check it afterwards.

A history is columns. Four tables with fixed schemas hold all that is ever said about a run:

    SENDS      one row per attempt to publish one message; `status` is ok, info or fail
    RECEIVES   one row per delivery of one message
    ACKS       one row per acknowledgement (or negative acknowledgement) of one message
    EVENTS     one row per thing that happened to a consumer: attach, detach, death, expired, owner_change, confirmed

A message is known by `(key, key_seq)`: the generator gives each key's messages consecutive numbers, and a message
without key a number that is unique in the run. Its place is `(partition, position)`. `consumer` is one incarnation:
a consumer that was killed and replaced has another name here, so intervals of two lives never blend.

Times are int64 microseconds of one clock, `HistoryClock`: the machine's monotonic clock, shifted once to wall time. All
processes of a run on one machine get the same shift, so that their times can be compared and no step of the wall
clock reorders them. Only `deliver_at` is in milliseconds, because that is what a producer asks for.

A consumer may be killed at any moment, so what it writes must survive it: a `Journal` appends Arrow batches to a
file and hands them to the kernel before the call returns. `seal` turns a journal into Parquet afterwards, with a
torn last batch left out. A delivery is journalled together with the acknowledgement that is about to be sent
(table DELIVERIES), so a killed consumer loses only rows that it had not acknowledged.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.storage.format.hashing import hash_column, reduce_hash

Int64s = npt.NDArray[np.int64]

OK, INFO, FAIL = "ok", "info", "fail"
ATTACH, DETACH, DEATH, EXPIRED, OWNER_CHANGE, CONFIRMED = (
    "attach",
    "detach",
    "death",
    "expired",
    "owner_change",
    "confirmed",
)
UNKNOWN_POSITION = -1
"""Position of a message whose place was never told. Positions of ledger 0 count as unknown as well."""

SENDS = pa.schema(
    [
        pa.field("producer", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("key_seq", pa.int64()),
        pa.field("sequence", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("status", pa.string()),
        pa.field("sent_at", pa.int64()),
        pa.field("confirmed_at", pa.int64()),
        pa.field("deliver_at", pa.int64()),
    ]
)
"""sent_at: when it was handed to the producer (or should have been, at a fixed rate). confirmed_at: 0 = never."""

RECEIVES = pa.schema(
    [
        pa.field("consumer", pa.string()),
        pa.field("session", pa.int64()),
        pa.field("partition", pa.int32()),
        pa.field("position", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("key_seq", pa.int64()),
        pa.field("redelivery", pa.int32()),
        pa.field("epoch", pa.int64()),
        pa.field("dispatch", pa.int64()),
        pa.field("received_at", pa.int64()),
    ]
)
"""(epoch, dispatch) is the dispatcher's own stamp and orders the deliveries of one partition without any clock."""

ACKS = pa.schema(
    [
        pa.field("consumer", pa.string()),
        pa.field("session", pa.int64()),
        pa.field("partition", pa.int32()),
        pa.field("position", pa.int64()),
        pa.field("acked_at", pa.int64()),
        pa.field("confirmed_at", pa.int64()),
        pa.field("negative", pa.bool_()),
    ]
)
"""acked_at: when the consumer let go. confirmed_at: when it learned that the broker has it durably; 0 = never."""

EVENTS = pa.schema(
    [
        pa.field("consumer", pa.string()),
        pa.field("session", pa.int64()),
        pa.field("partition", pa.int32()),
        pa.field("event", pa.string()),
        pa.field("at", pa.int64()),
        pa.field("upto", pa.int64()),
    ]
)
"""session and partition are -1 for "all". upto: with `confirmed`, every acknowledgement of this consumer with
acked_at <= upto was durable at `at`, but for those of sessions that were lost before; with `expired`, the moment when
the loss of this session was noticed (0: not known), while `at` is when its holds may have ended."""

DELIVERIES = pa.schema(
    [
        *RECEIVES,
        pa.field("acked_at", pa.int64()),
        pa.field("negative", pa.bool_()),
        pa.field("bytes", pa.int32()),
        pa.field("hash", pa.int32()),
    ]
)
"""The journal of a flood consumer: a receive and, if acked_at > 0, the acknowledgement that follows it."""

SENT = pa.schema([*SENDS, pa.field("hash", pa.int32())])
"""The history of a flood producer: SENDS and the column that the judge is spread by."""

STATS = pa.schema(
    [
        pa.field("at", pa.int64()),
        pa.field("partition", pa.int32()),
        pa.field("epoch", pa.int64()),
        pa.field("backlog", pa.int64()),
        pa.field("unacked", pa.int64()),
        pa.field("replay", pa.int64()),
        pa.field("draining", pa.int64()),
        pa.field("cleared", pa.int64()),
        pa.field("draining_peak", pa.int64()),
        pa.field("begun", pa.int64()),
        pa.field("blocked", pa.int64()),
        pa.field("held_back", pa.int64()),
        pa.field("order_checked", pa.int64()),
        pa.field("order_violations", pa.int64()),
    ]
)
"""Samples of the dispatchers' statistics, one row a partition and moment."""


@dataclass(frozen=True, slots=True)
class HistoryClock:
    """Microseconds since 1970 that never go back; equal in every process that is given the same shift."""

    shift_ns: int

    @classmethod
    def start(cls) -> HistoryClock:
        """A clock that agrees with the wall clock now."""
        return cls(time.time_ns() - time.monotonic_ns())

    def now(self) -> int:
        return (time.monotonic_ns() + self.shift_ns) // 1000


class Journal:
    """Append-only Arrow file that keeps every batch whose `append` has returned, even if the process is killed."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        """Create the file at `path`; its folder must exist."""
        self.path = path
        self._file = open(path, "wb", buffering=1 << 20)  # noqa: SIM115 - closed by close()
        self._writer = pa.ipc.new_stream(self._file, schema)
        self._file.flush()
        self._lock = threading.Lock()

    def append(self, rows: pa.RecordBatch) -> None:
        """Write one batch and hand it to the operating system. May be called from several threads."""
        with self._lock:
            self._writer.write_batch(rows)
            self._file.flush()

    def close(self) -> None:
        """End the stream. Safe to repeat."""
        if not self._file.closed:
            self._writer.close()
            self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_journal(path: Path, schema: pa.Schema) -> pa.Table:
    """All whole batches of a journal. A torn tail, or a torn beginning, which a killed writer leaves, is dropped."""
    batches: list[pa.RecordBatch] = []
    with pa.OSFile(str(path), "rb") as source:
        try:
            stream = pa.ipc.open_stream(source)
            while True:
                batches.append(stream.read_next_batch())
        except (StopIteration, OSError, pa.ArrowInvalid):
            pass
        return pa.Table.from_batches(batches, schema)


def seal(journal: Path, schema: pa.Schema, target: Path) -> int:
    """Turn a journal into one Parquet file and remove it. Returns the number of rows."""
    rows = read_journal(journal, schema)
    write_parquet(rows, target)
    journal.unlink()
    return int(rows.num_rows)


def write_parquet(rows: pa.Table, target: Path) -> None:
    """Write a Parquet file so that it appears whole or not at all."""
    partial = target.with_name(f".{target.name}.partial")
    pq.write_table(rows, partial, compression="zstd", use_dictionary=_REPEATING, write_statistics=False)
    partial.replace(target)


_REPEATING = ["producer", "consumer", "status", "event"]


def bucket_hashes(keys: pa.Array, key_seq: Int64s) -> npt.NDArray[np.int32]:
    """The sticky hash 1..65535 of each row (KS-2), shape (n,), by which the judge is spread over Spark tasks.

    A message without key has none; it is spread by its number instead.
    """
    hashes = np.asarray(key_seq % 65535 + 1, np.int32)
    if keys.null_count == len(keys):
        return hashes
    filled = keys.fill_null(b"") if keys.null_count else keys
    sticky = reduce_hash(hash_column(filled)).astype(np.int32)
    if keys.null_count:
        valid = keys.is_valid().to_numpy(zero_copy_only=False)
        return np.where(valid, sticky, hashes)
    return sticky


def constant(value: str, count: int) -> pa.Array:
    """A string column that says the same in every row."""
    return pa.repeat(pa.scalar(value), count)


def _void_from(acks: pa.Table, events: pa.Table) -> Int64s:
    """Return when the session of each acknowledgement was known to be lost: an unconfirmed one was lost then.

    After a change of the owner an acknowledgement of an earlier session was repeated under this one, and lost with it.
    """
    void = np.full(acks.num_rows, np.iinfo(np.int64).max)
    session, partition = acks.column("session").to_numpy(), acks.column("partition").to_numpy()
    lost = events.filter(pa.compute.equal(events.column("event"), EXPIRED))
    for row in lost.filter(pa.compute.greater(lost.column("upto"), 0)).to_pylist():
        whose = pa.compute.equal(acks.column("consumer"), row["consumer"]).to_numpy()
        mine = whose & (session <= row["session"]) & (partition == row["partition"])
        np.minimum(void, row["upto"], out=void, where=mine)
    return void


def confirm_acks(acks: pa.Table, events: pa.Table) -> pa.Table:
    """Fill `confirmed_at` of ACKS from the `confirmed` events: the first that covers each acknowledgement."""
    when = acks.column("acked_at").to_numpy()
    confirmed = acks.column("confirmed_at").to_numpy().copy()
    who = acks.column("consumer").combine_chunks().dictionary_encode()
    codes = who.indices.to_numpy(zero_copy_only=False)
    confirmations = events.filter(pa.compute.equal(events.column("event"), CONFIRMED))
    for code, name in enumerate(who.dictionary.to_pylist()):
        mine = confirmations.filter(pa.compute.equal(confirmations.column("consumer"), name)).sort_by("upto")
        if mine.num_rows == 0:
            continue
        upto, at = mine.column("upto").to_numpy(), mine.column("at").to_numpy()
        # A later confirmation covers earlier acknowledgements as well: the earliest `at` of all that follow counts.
        at = np.minimum.accumulate(at[::-1])[::-1]
        rows = np.flatnonzero((codes == code) & (confirmed == 0))
        first = np.searchsorted(upto, when[rows], side="left")
        covered = first < len(upto)
        confirmed[rows[covered]] = at[first[covered]]
    confirmed[confirmed >= _void_from(acks, events)] = 0
    return acks.set_column(acks.schema.get_field_index("confirmed_at"), "confirmed_at", pa.array(confirmed))

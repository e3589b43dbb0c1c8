"""Batches that a producer has for one partition, and how they are divided.

`split` is the columnar half of a producer: it runs in the caller's thread and gives each partition its rows in their
order. `cut` divides what is too large for one run, and `halves` what was refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from sluice.storage.errors import SluiceError
from sluice.storage.format.batch import MAX_RUN_BYTES, MAX_RUN_MESSAGES, StoredBatch, bytes_of
from sluice.storage.format.hashing import Hashes, java_hash_column

RUN_MESSAGES = MAX_RUN_MESSAGES
"""Messages that one append gathers at the most: what waits behind a slow broker goes in as few calls as possible."""
RUN_BYTES = 8 * 1024 * 1024
BODY_BYTES = MAX_RUN_BYTES - 64 * 1024
"""The most bytes of the columns of a run, so that it keeps its limit with the bytes that Arrow adds."""
COLUMN_BYTES = 12
"""Bytes of each message for its hash and due time."""
MURMUR3, JAVA_STRING = "murmur3_32_hash", "java_string_hash"
HASHING_SCHEMES = (MURMUR3, JAVA_STRING)
"""By which hash of its key a message finds its partition: Pulsar's names."""


_PLACES = np.arange(256)
_PLACES.flags.writeable = False


@dataclass(slots=True)
class Outgoing:
    """One batch on its way to one partition.

    rows: where its messages stand in the caller's batch, int64, shape (messages,).
    done: called once with (rows, first position, None), or with (rows, any, error). A first position of -1 means that
    the messages are stored and their place is forgotten.
    size: bytes of the batch, an estimate; None where the sender has not counted them.
    single: the caller sent the messages one by one, so the refusal of one says nothing about the others. `done` is then
    called for some of the rows at a time, in order.
    divide: returns the batch as two, in order, where the caller sent it in several pieces; None where it sent one.
    only_end: only the last of its sequences counts, and the MAX_RUN_MESSAGES sequences up to that are its own. Such
    batches that are queued before it may be stored under the sequences right before its own.
    """

    batch: StoredBatch
    first_sequence: int
    rows: npt.NDArray[np.int64]
    done: Callable[[npt.NDArray[np.int64], int, SluiceError | None], None]
    size: int | None = None
    only_end: bool = False
    single: bool = False
    divide: Callable[[], list[Outgoing]] | None = None

    @property
    def bytes(self) -> int:
        """About how many bytes the batch takes."""
        if self.size is None:
            self.size = bytes_of(self.batch.rows)
        return self.size


def places(count: int) -> npt.NDArray[np.int64]:
    """Return the places of the rows of a whole batch: 0 to count - 1, read-only."""
    return _PLACES[:count] if count <= len(_PLACES) else np.arange(count)


def split(
    batch: StoredBatch, partitions: int, hashing_scheme: str = MURMUR3
) -> list[tuple[int, StoredBatch, npt.NDArray[np.int64]]]:
    """Divide a batch by `hash mod partitions`: (partition, its rows in order, their places in the batch)."""
    if partitions == 1:
        return [(0, batch, places(len(batch)))]
    hashes = batch.hashes if hashing_scheme == MURMUR3 else _java_hashes(batch)
    if len(batch) == 1:
        return [(int(hashes[0]) % partitions, batch, places(1))]
    home = (hashes % np.uint32(partitions)).astype(np.uint16)
    order = np.argsort(home, kind="stable")
    ends = np.cumsum(np.bincount(home, minlength=partitions))
    sorted_batch = batch.take(order)
    parts = []
    start = 0
    for partition, end in enumerate(ends.tolist()):
        if end > start:
            parts.append((partition, sorted_batch.slice(start, end), order[start:end]))
        start = end
    return parts


def cut(batch: StoredBatch, rows: npt.NDArray[np.int64]) -> list[tuple[StoredBatch, npt.NDArray[np.int64]]]:
    """The batch in pieces that each fit into a run, in order and without copies, with the places of their rows.

    A message that is larger than a run is a piece of its own, which is refused.
    """
    pieces, waiting = [], [(0, len(batch))]
    while waiting:
        start, stop = waiting.pop()
        count = stop - start
        piece = batch if count == len(batch) else batch.slice(start, stop)
        if count > MAX_RUN_MESSAGES:
            middle = start + MAX_RUN_MESSAGES
        elif count > 1 and piece.rows.nbytes + count * COLUMN_BYTES > BODY_BYTES:
            middle = start + count // 2
        else:
            pieces.append((piece, rows[start:stop]))
            continue
        waiting += [(middle, stop), (start, middle)]
    return pieces


def halves(group: list[Outgoing]) -> list[list[Outgoing]]:
    """The parts that may be published as two runs, in order; none if it cannot be divided."""
    if len(group) > 1:
        middle = len(group) // 2
        return [group[:middle], group[middle:]]
    whole = group[0]
    if whole.divide is not None:
        return [[half] for half in whole.divide()]
    count = len(whole.batch)
    if not whole.single or count < 2:
        return []
    middle = count // 2
    return [
        [
            replace(
                whole,
                batch=whole.batch.slice(start, stop),
                rows=whole.rows[start:stop],
                first_sequence=whole.first_sequence + start,
                size=whole.bytes * (stop - start) // count,
            )
        ]
        for start, stop in ((0, middle), (middle, count))
    ]


def _java_hashes(batch: StoredBatch) -> Hashes:
    """By the keys, as Pulsar's Java client does; messages without one are dealt out as always."""
    keys = batch.rows.column("key")
    hashes = java_hash_column(pc.fill_null(keys, b""))
    return np.where(keys.is_null().to_numpy(zero_copy_only=False), batch.hashes, hashes)

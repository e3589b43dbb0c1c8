"""How long messages have waited at a worker, by key: what the size of a pool is decided by.

A message that comes again waited because its handler failed, and counts as no wait.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.actors.consumer.unacked_messages import Received
from sluice.cluster.client.blocking import Consumer
from sluice.storage.format.position import show

Rows = tuple[Received, npt.NDArray[np.int64]]
"""Some rows of a part."""
MOST_KEYS = 1_000
"""Of a worker with more keys, those whose messages have waited the longest."""


def waiting_ages(consumer: Consumer, taken: Iterable[Rows], now_ms: int) -> dict[bytes, int]:
    """Ages in ms by key, of what waits in the consumer's queue and of what was taken from it already."""
    found: list[tuple[pa.Array, npt.NDArray[np.int64]]] = []

    def look(part: Received, first: int) -> None:
        found.append(_since(part, np.arange(first, len(part))[part.open[first:]]))

    consumer.visit(look)
    found += [_since(part, rows) for part, rows in taken]
    if not found:
        return {}
    keys = pa.chunked_array([keys for keys, _ in found], pa.binary())
    since = np.concatenate([since for _, since in found])
    oldest = pa.table({"key": keys, "since": since}).group_by("key").aggregate([("since", "min")])
    if len(oldest) > MOST_KEYS:
        oldest = oldest.sort_by("since_min").slice(0, MOST_KEYS)
    ages = np.maximum(now_ms - oldest.column("since_min").to_numpy(), 0)
    return dict(zip(oldest.column("key").to_pylist(), ages.tolist(), strict=True))


def _since(part: Received, rows: npt.NDArray[np.int64]) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """The keys (binary) of the rows that came for the first time, and since when each waits (ms)."""
    rows = rows[part.redeliveries[rows] == 0]
    since = np.maximum(part.column("publish_time").to_numpy()[rows], part.deliver_at[rows])
    return ordering_of(part, rows), since.astype(np.int64)


def ordering_of(part: Received, rows: npt.NDArray[np.int64]) -> pa.Array:
    """Return the key of each row by which the subscription orders it, binary; of a message without one, `keyless`."""
    taken = pa.array(rows)
    found = [part.column(name).take(taken) for name in ("ordering_key", "key") if name in part.schema.names]
    if not found:
        return _ids(part, rows)
    if len(found) == 2:
        found = [pa.compute.if_else(pa.compute.equal(found[0], b""), None, found[0]), found[1]]
    keys = pa.compute.coalesce(*(one.cast(pa.binary()) for one in found))
    return pa.compute.coalesce(keys, _ids(part, rows)) if keys.null_count else keys


def _ids(part: Received, rows: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array([keyless(position) for position in part.positions[rows].tolist()], pa.binary())


def keyless(position: int) -> bytes:
    """Return the id of a message without a key: it is ordered with no other."""
    return show(position).encode()

"""A worker whose handler is called with Arrow columns: rows of many keys, of each key in order.

A batch that fails does not name the guilty rows. All its rows are given back and come again in smaller batches: a
SMALLER-th of the size each time, and alone in the end. So a row that always fails is parked with its own key and with
no other, and that takes few calls. A handler that knows the guilty rows names them (`FailedRows`): the others are
acknowledged.

When a row is given back, later rows of its key that are here are taken back with it. They are left out of the batches
that follow, and come again behind it.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.cluster.client.message import Batch
from sluice.cluster.workers.ages import Rows, ordering_of
from sluice.cluster.workers.failed_rows import FailedRows
from sluice.cluster.workers.handler_worker import LATE_S, MOST_NAMED, Handler, HandlerWorker

SMALLER = 16
ALONE_AFTER = 3
"""Rows that were given back so often come alone."""

Numbers = npt.NDArray[np.int64]
Piece = tuple[Batch, Numbers]
"""Rows of one part."""


class ColumnWorker(HandlerWorker):
    """One batch is under way at a time."""

    _now: tuple[Piece, ...] = ()
    """What is being handled."""
    _since = 0.0
    _waiting: deque[Piece]
    """What was received and did not fit into a batch."""

    def _serve(self, call: Handler) -> None:
        self._with_dispatch = bool(getattr(call, "with_dispatch", False))
        self._waiting = deque()
        while not self._stop_asked.is_set():
            if gathered := self._gathered():
                for group in groups(gathered, self._options.batch_size, self._options.max_redeliver_count):
                    if self._stop_asked.is_set():
                        break
                    self._handle(group, call)

    def _gathered(self) -> list[Piece]:
        """Gather up to batch_size rows, for batch_wait_ms after the first one; nothing if the worker was woken."""
        found: list[Piece] = []
        missing, until = self._options.batch_size, 0.0
        while missing and not self._stop_asked.is_set():
            if not self._waiting:
                left = None if not found else max(round((until - time.monotonic()) * 1000), 0)
                batch = self._consumer.receive_batch(left)
                if batch is None:
                    break
                self._waiting.append((batch, np.arange(len(batch))))
            if not found:
                until = time.monotonic() + self._options.batch_wait_ms / 1000
            batch, rows = self._waiting.popleft()
            found.append((batch, rows[:missing]))
            if len(rows) > missing:
                self._waiting.appendleft((batch, rows[missing:]))
            missing -= min(len(rows), missing)
        return found

    def _handle(self, group: list[Piece], call: Handler) -> None:
        ours = [(batch, kept) for batch, rows in group if len(kept := self._ours(batch, rows))]
        if not ours:
            return
        self._since, self._now = time.monotonic(), tuple(ours)
        try:
            returned = call(columns(ours, with_dispatch=self._with_dispatch))
            if returned is not None:
                self._finish(returned)
        except FailedRows as error:
            self._settle(ours, error.rows, traceback.format_exc())
        except Exception:  # the handler is the user's: whatever it raises gives the rows back
            self._settle(ours, None, traceback.format_exc())
        else:
            for batch, rows in ours:
                self._consumer.acknowledge(batch, rows=rows)
                self._handled += len(rows)
        self._now = ()

    def _ours(self, batch: Batch, rows: Numbers) -> Numbers:
        """Return the rows that may be handled now; see HandlerWorker._is_ours."""
        received = batch.received
        while not received.revoked and batch.consumer.lease_over():
            time.sleep(LATE_S)  # the answer comes with the next poll, and nothing tells of it here
        return rows[:0] if received.revoked else rows[received.open[rows]]

    def _settle(self, group: list[Piece], failed: Numbers | None, why: str) -> None:
        """Acknowledge what is done and give back what has failed; None: all of it. Raises GaveUp."""
        keys = pa.chunked_array([ordering_of(batch.received, rows) for batch, rows in group])
        codes = keys.combine_chunks().dictionary_encode().indices.to_numpy()
        if failed is None:
            failed = np.arange(len(codes))
        failed = failed[(failed >= 0) & (failed < len(codes))]
        behind = np.full(len(codes), len(codes))
        np.minimum.at(behind, codes[failed], failed)
        done = np.arange(len(codes)) < behind[codes]
        start = 0
        for batch, rows in group:
            self._consumer.acknowledge(batch, rows=rows[done[start : start + len(rows)]])
            start += len(rows)
        self._handled += int(done.sum())
        self._give_rows_back(group, failed, keys.take(pa.array(failed[:MOST_NAMED])).to_pylist(), why)

    def _give_rows_back(self, group: list[Piece], failed: Numbers, named: list[bytes], why: str) -> None:
        counts = np.concatenate([batch.redeliveries[rows] for batch, rows in group])[failed]
        delay = self._note_failure(named, why, int(counts.max(initial=0)))
        self._failed += len(failed) - len(named)
        start = 0
        for batch, rows in group:
            mine = failed[(failed >= start) & (failed < start + len(rows))] - start
            if len(mine):
                self._consumer.negative_acknowledge(batch, rows=rows[mine], delay_ms=delay)
            start += len(rows)

    def _under_way(self) -> Iterable[tuple[bytes, float]]:
        now, since = self._now, self._since
        keys = [key for batch, rows in now[:MOST_NAMED] for key in _some_keys(batch, rows)]
        return [(key, since) for key in dict.fromkeys(keys[:MOST_NAMED])]

    def _taken(self) -> Iterable[Rows]:
        return [(batch.received, rows) for batch, rows in [*self._now, *list(getattr(self, "_waiting", ()))]]


def _some_keys(batch: Batch, rows: Numbers) -> list[bytes]:
    keys: list[bytes] = ordering_of(batch.received, rows[:MOST_NAMED]).to_pylist()
    return keys


def groups(pieces: list[Piece], size: int, max_redeliver_count: int) -> Iterator[list[Piece]]:
    """Batches, in order: as large as may be of rows that come for the first time, smaller ones of others."""
    group: list[Piece] = []
    for batch, rows in pieces:
        counts = batch.redeliveries[rows]
        for part in np.split(rows, np.flatnonzero(np.diff(counts)) + 1):
            count = int(batch.redeliveries[part[0]])
            if not count:
                group.append((batch, part))
                continue
            if group:
                yield group
                group = []
            most = 1 if count >= min(ALONE_AFTER, max_redeliver_count) else max(size // SMALLER**count, 1)
            yield from ([(batch, part[start : start + most])] for start in range(0, len(part), most))
    if group:
        yield group


def columns(group: list[Piece], *, with_dispatch: bool = False) -> pa.RecordBatch:
    """The stored columns of the rows, with partition (int32), position (int64) and redelivery_count (uint8).

    with_dispatch: also who sent each, epoch and session, and its number there, dispatch (int64).
    """
    batches = []
    for batch, rows in group:
        stored = batch.rows
        if len(rows) < len(batch):
            apart = len(rows) != rows[-1] - rows[0] + 1
            stored = stored.take(pa.array(rows)) if apart else stored.slice(int(rows[0]), len(rows))
        more = {
            "partition": pa.array(np.full(len(rows), batch.partition, np.int32)),
            "position": pa.array(batch.positions[rows]),
            "redelivery_count": pa.array(batch.redeliveries[rows].astype(np.uint8)),
        }
        if with_dispatch:
            more |= {
                "epoch": pa.array(np.full(len(rows), batch.epoch, np.int64)),
                "session": pa.array(np.full(len(rows), batch.session, np.int64)),
                "dispatch": pa.array(batch.dispatch[rows]),
            }
        names = [*stored.schema.names, *more]
        batches.append(pa.RecordBatch.from_arrays([*stored.columns, *more.values()], names=names))
    if len(batches) == 1:
        return batches[0]
    tables = [pa.Table.from_batches([one]) for one in batches]
    return pa.concat_tables(tables, promote_options="default").combine_chunks().to_batches()[0]

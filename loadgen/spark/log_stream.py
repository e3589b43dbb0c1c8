"""Reads a stream from the log itself, by position: it begins in the object store and passes over to the brokers.

An offset is the position of the next message of each partition. Between two offsets lie the same messages for ever, so
Spark's checkpoint alone makes the read exact, and nothing is acknowledged. Each micro-batch is planned as a batch is
(cluster.history.log_read): what lies in the object store at that moment is read there.

No subscription keeps the messages of such a stream. If some that it has not read were trimmed, it ends with NotFound
rather than leave them out; with `failOnDataLoss=false` it goes on with those that are there. The same holds if the
topic was deleted and made again: numbers of ledgers go on, so an offset of the earlier topic lies before all of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from sluice.cluster.client.log_reader import StoredRange
from sluice.cluster.history.log_read import ONLY, LogRead, Offsets, Present, offset_of
from sluice.cluster.history.scan import is_of_earlier_topic, trimmed_up_to
from sluice.storage.errors import NotFound, SluiceError
from sluice.storage.format.position import EARLIEST, ledger_of, parse, position, show


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Looks in the process that plans the query, which lives as long as the query; workers read."""

    def __init__(
        self, log: LogRead, schema: pa.Schema, starts: Offsets, limit: int, *, fail_on_data_loss: bool = True
    ) -> None:
        """limit: messages of a micro-batch."""
        self._log, self._schema, self._starts, self._limit = log, schema, starts, limit
        self._fails = fail_on_data_loss
        self._target: Offsets | None = None
        self._open = contextlib.ExitStack()
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what workers do not need: they only read."""
        return vars(self) | {"_open": None, "_client": None}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """Return the limit that the option sets."""
        return ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """End the query at the current ends of the partitions."""
        self._target = _ends(self._present().ranges)

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 (Spark's name)
        """Return the offsets at which a new query begins."""
        present = self._present()
        first, ends, starts = _starts(present.ranges), _ends(present.ranges), self._starts
        if self._log.wanted.since is not None and self._log.history != ONLY:
            starts = self._log.first_at(self._log.wanted.since)
        return _shown(
            {number: max(first[number], min(offset_of(starts, number, EARLIEST), end)) for number, end in ends.items()}
        )

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802 (Spark's name)
        """How far the next micro-batch goes; partitions share its messages equally, as far as they have some."""
        starts = _parsed(start)
        found = self._present().within(starts, self._target or {})
        waiting: dict[int, list[StoredRange]] = {}
        for part in found:
            waiting.setdefault(part.partition, []).append(part)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else sum(len(part) for part in found)
        ends = dict(starts)
        shortest_first = sorted(waiting, key=lambda number: sum(len(part) for part in waiting[number]))
        for place, number in enumerate(shortest_first):
            share = -(-most // (len(shortest_first) - place))
            taken = _first_of(waiting[number], share)
            most -= sum(len(part) for part in taken)
            ends |= _ends(taken)
        return _shown(ends)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Return the tasks of a micro-batch, one a partition. Raises NotFound if messages of it were trimmed."""
        starts, ends = _parsed(start), _parsed(end)
        present = self._present()
        if self._fails:
            for number, at in starts.items():
                self._check_loss(present, number, at)
        return [InputPartition(task) for task in self._log.partition_tasks(present, present.within(starts, ends))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a task; in a worker."""
        for part in partition.value:
            yield from self._log.read(part, self._schema)

    def commit(self, end: dict[str, str]) -> None:
        """Do nothing: no position is remembered here."""

    def stop(self) -> None:
        self._open.close()
        self._client = None

    def _check_loss(self, present: Present, number: int, start: int) -> None:
        """Raises NotFound if messages of a partition from `start` on were trimmed or deleted, or may have been."""
        if start < 0:
            return
        if present.records is not None:
            lost = trimmed_up_to(present.records, number) >= start
            if not lost and is_of_earlier_topic(present.records, number, start):
                raise self._made_again(number, start)
        else:  # nobody here can say whether the ledger had more messages
            kept = [part.ledger for part in present.ranges if part.partition == number]
            lost = bool(kept) and ledger_of(start) < kept[0]
            if not kept and self._client is not None and self._last(number) < start - 1:
                raise self._made_again(number, start)
        if lost:
            raise NotFound(
                f"messages of partition {number} from {show(start)} on were trimmed before the stream read them; a "
                "retention keeps them longer, and with failOnDataLoss=false the stream goes on without them"
            )

    def _last(self, number: int) -> int:
        """The position of the last message that a partition ever had, as its owner says it; EARLIEST without one."""
        rows = self._client.stats(self._log.topic)
        return parse(rows[number]["lastConfirmedEntry"]) if number < len(rows) else EARLIEST

    def _made_again(self, number: int, start: int) -> NotFound:
        return NotFound(
            f"the topic {self._log.topic!r} was deleted and made again: {show(start)} of partition {number} is of the "
            "earlier one. Use a new checkpointLocation; with failOnDataLoss=false the stream goes on with the new topic"
        )

    def _present(self) -> Present:
        """Return the content of the topic now, by a client that stays open until a call of it fails."""
        if self._log.history == ONLY:
            return self._log.present(unbroken=True)
        if self._client is None:
            self._client = self._open.enter_context(self._log.client())
        try:
            return self._log.present(self._client)
        except SluiceError:
            self.stop()
            raise


def _first_of(ranges: list[StoredRange], most: int) -> list[StoredRange]:
    """The first messages of some ranges."""
    taken: list[StoredRange] = []
    for part in ranges:
        if most > 0:
            taken += part.split(most)[:1]
            most -= len(taken[-1])
    return taken


def _ends(ranges: list[StoredRange]) -> Offsets:
    """Return for each partition the position behind its last message."""
    return {part.partition: position(part.ledger, part.last + 1) for part in ranges}


def _starts(ranges: list[StoredRange]) -> Offsets:
    """Return for each partition the position of its first message."""
    return {part.partition: position(part.ledger, part.first) for part in reversed(ranges)}


def _shown(offsets: Offsets) -> dict[str, str]:
    return {str(number): show(at) for number, at in offsets.items()}


def _parsed(offsets: dict[str, str]) -> Offsets:
    return {int(number): parse(at) for number, at in offsets.items()}

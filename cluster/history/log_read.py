"""A read of a topic's log past the subscriptions, for SQL and Spark: options become ranges, and ranges become tasks.

Ledgers in the object store are read there, without a broker, and the others by the owners of their partitions
(cluster.history.scan says why no message is read twice or missed at the seam). The option `history` decides:

    auto   the brokers list the ledgers, and give those that are not in the object store
    only   only the ledgers in the object store; no broker is asked for anything
    off    the brokers give everything

The cluster names its stores, or the options do: `dataDir`, or `metadata` and `objects` as URLs with `s3EndpointUrl`. A
data folder that this process does not see is read by the brokers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

import pyarrow as pa

from sluice.cluster.client.bulk import BATCH_ROWS, columns_in_history, rows_in, rows_of_history
from sluice.cluster.client.log_reader import StoredRange
from sluice.cluster.history.scan import HistoryScan, StoredPiece, StoreUrls, in_tasks, stored_ranges
from sluice.storage.errors import Invalid
from sluice.storage.format.position import EARLIEST, MAX_ENTRY, MAX_LEDGER, ledger_of, parse, position
from sluice.storage.history.column_reader import EVERYTHING, Selection

LATEST = position(MAX_LEDGER, MAX_ENTRY)
"""As an offset: behind everything."""

AUTO, ONLY, OFF = "auto", "only", "off"
ALL_PARTITIONS = -1

FOLDER = "sluice-sql-"
"""Temporary folders of SQL begin so. One of a query that was killed is removed by the next query."""
ATTEMPTS = 3
"""The most attempts at a query whose objects go away meanwhile."""

Connect = Callable[[], AbstractContextManager[Any]]
"""Opens a connection to the brokers; pickled where tasks run elsewhere."""

Offsets = dict[int, int]
"""A position for each partition; that under ALL_PARTITIONS is for those that are not named."""


@dataclass(frozen=True)
class Present:
    """The content of a topic at a moment: ranges by partition, in order.

    records: at least as new as the ranges; None if they were not read. scan: reads the ledgers in the object store;
    None if everything is read by brokers.
    """

    ranges: list[StoredRange]
    scan: HistoryScan | None = None
    records: Any = None

    def within(self, starts: Offsets, stops: Offsets) -> list[StoredRange]:
        """The ranges at or behind some offsets and before others. Raises Invalid for one offset of many partitions."""
        numbers = {part.partition for part in self.ranges}
        for given in (starts, stops):
            if len(numbers) > 1 and ledger_of(given.get(ALL_PARTITIONS, EARLIEST)) not in (-1, MAX_LEDGER):
                raise Invalid('the topic has partitions: give an offset for each, as {"0": "LEDGER:ENTRY"}')
        found = [
            part.within(offset_of(starts, part.partition, EARLIEST), offset_of(stops, part.partition, LATEST))
            for part in self.ranges
        ]
        return [part for part in found if part is not None]


@dataclass(frozen=True)
class HistoryTask:
    """A task that reads pieces of the object store."""

    scan: HistoryScan
    pieces: list[StoredPiece]


Task = StoredRange | HistoryTask


@dataclass(frozen=True)
class LogRead:
    """A read of a topic, pickled to the workers. most: messages of a task."""

    topic: str
    client: Connect
    most: int = 1_000_000
    history: str = AUTO
    urls: StoreUrls | None = None
    wanted: Selection = EVERYTHING

    @classmethod
    def from_options(cls, options: Any, topic: str, client: Connect, most: int = 1_000_000) -> LogRead:
        """Make a read by its options. Raises Invalid."""
        history = given(options, "history") or AUTO
        if history not in (AUTO, ONLY, OFF):
            raise Invalid(f"the option 'history' is auto, only or off, not {history!r}")
        urls = _urls(options)
        if history == ONLY and urls is None:
            raise Invalid("to read without a broker, name the stores: 'dataDir', or 'metadata' and 'objects'")
        since, until = _time(options, "startingTimestamp"), _time(options, "endingTimestamp")
        key = given(options, "key")
        return cls(topic, client, most, history, urls, Selection(since, until, (key.encode(),) if key else None))

    # -- in the planning process -------------------------------------------------------------------------------------

    def present(self, client: Any = None, *, unbroken: bool = False) -> Present:
        """Return the content of the topic now. Raises NotFound, Unavailable.

        client: one that is open already. unbroken: without brokers, only the ranges before the first message that is
        not in the object store.
        """
        if self.history == ONLY:
            assert self.urls is not None
            scan = HistoryScan(self.urls, self.topic)
            records = scan.records()
            return Present(stored_ranges(records, unbroken=unbroken), scan, records)
        if client is None:
            with self.client() as client:
                return self.present(client)
        ranges = client.stored(self.topic)
        urls = None if self.history == OFF else self.urls or StoreUrls.from_status(client.status().get("storage", {}))
        if urls is None:
            return Present(ranges)
        scan = HistoryScan(urls, self.topic)
        return Present(ranges, scan, scan.records())

    def tasks(self, present: Present, ranges: list[StoredRange]) -> list[Task]:
        """Divide ranges into tasks: pieces of the object store, and ranges that brokers give."""
        stored: list[Task] = []
        if present.scan is not None:
            pieces, ranges = present.scan.divide(ranges, present.records)
            pieces = present.scan.pruned(pieces, self.wanted)
            stored += [HistoryTask(present.scan, few) for few in in_tasks(pieces, self.most)]
        if ranges and (self.wanted.since is not None or self.wanted.until is not None):
            ranges = self._in_time(ranges)
        return [*stored, *(cut for one in ranges for cut in one.split(self.most))]

    def partition_tasks(self, present: Present, ranges: list[StoredRange]) -> list[list[Task]]:
        """Divide ranges into tasks, one a partition, so that the messages of a key stay in order.

        A task is a list of reads, in the order of positions.
        """
        reads: dict[int, list[tuple[int, Task]]] = {}
        for task in self.tasks(present, ranges):
            parts: list[tuple[StoredRange, Task]]
            if isinstance(task, StoredRange):
                parts = [(task, task)]
            else:
                parts = [(piece.range, HistoryTask(task.scan, [piece])) for piece in task.pieces]
            for read, part in parts:
                reads.setdefault(read.partition, []).append((position(read.ledger, read.first), part))
        return [[part for _, part in sorted(found, key=itemgetter(0))] for _, found in sorted(reads.items())]

    def first_at(self, since: int) -> Offsets:
        """Return the first position of each partition that has messages published at `since` (ms) or later."""
        with self.client() as client:
            found = client.stored(self.topic, since, None)
        # All later messages of the other partitions are newer.
        return {ALL_PARTITIONS: LATEST} | {
            part.partition: position(part.ledger, part.first) for part in reversed(found)
        }

    def _in_time(self, ranges: list[StoredRange]) -> list[StoredRange]:
        """Cut ranges to the wanted time of publishing, as far as the clocks of the producers agree."""
        with self.client() as client:
            timely = client.stored(self.topic, self.wanted.since, self.wanted.until)
        known = {(part.partition, part.ledger): part for part in timely}
        found = []
        for one in ranges:
            part = known.get((one.partition, one.ledger))
            if part is not None:
                found.append(one.within(position(part.ledger, part.first), position(part.ledger, part.last) + 1))
        return [part for part in found if part is not None]

    # -- in the workers ----------------------------------------------------------------------------------------------

    def read(self, task: Task | None, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The wanted messages of a task as rows of a schema, in order. Raises NotFound if they were trimmed."""
        if isinstance(task, StoredRange):
            wanted = None if self.wanted.everything else self.wanted
            with self.client() as client:
                yield from rows_in(client, self.topic, task, schema, wanted)
        elif task is not None:  # Spark's word for a read without tasks
            columns = columns_in_history(schema)
            for piece in task.pieces:
                for where, table in task.scan.read(piece, columns, self.wanted):
                    rows = rows_of_history(table, where, schema)
                    yield from (rows.slice(start, BATCH_ROWS) for start in range(0, rows.num_rows, BATCH_ROWS))


def offset_of(offsets: Offsets, partition: int, otherwise: int) -> int:
    return offsets.get(partition, offsets.get(ALL_PARTITIONS, otherwise))


def given(options: Any, name: str) -> str:
    """An option, empty if there is none. Spark writes names small."""
    return str(options.get(name) or options.get(name.lower()) or "")


def parse_offsets(options: Any, name: str, default: str) -> Offsets:
    """`earliest`, `latest`, LEDGER:ENTRY, or one of these for each partition, as a JSON object. Raises Invalid."""
    text = given(options, name) or default
    if not text.startswith("{"):
        return {ALL_PARTITIONS: _offset(name, text)}
    try:
        return {int(partition): _offset(name, offset) for partition, offset in json.loads(text).items()}
    except (ValueError, TypeError) as error:
        raise Invalid(f'the option {name!r} is a JSON object as {{"0": "3:17", "1": "latest"}}: {error}') from None


def _offset(name: str, text: Any) -> int:
    if text == "latest":
        return LATEST
    try:
        return parse(str(text))
    except Invalid:
        raise Invalid(f"the option {name!r} has earliest, latest or LEDGER:ENTRY, not {text!r}") from None


def _time(options: Any, name: str) -> int | None:
    """A time among the options, ms since 1970. Raises Invalid."""
    text = given(options, name)
    if not text or text.isdecimal():
        return int(text) if text else None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"the option {name!r} is 2026-11-24T12:00:00Z or ms since 1970, not {text!r}") from None
    if time.tzinfo is None:
        raise Invalid(f"the option {name!r} has no time zone: write {text}Z for UTC")
    return round(time.timestamp() * 1000)


def _urls(options: Any) -> StoreUrls | None:
    """The stores that the options name, if they do. Raises Invalid."""
    folder, metadata, objects = (given(options, name) for name in ("dataDir", "metadata", "objects"))
    known = StoreUrls.in_folder(folder) if folder else StoreUrls("", "")
    urls = StoreUrls(metadata or known.metadata, objects or known.objects, given(options, "s3EndpointUrl") or None)
    if not urls.metadata and not urls.objects:
        return None
    if not urls.metadata or not urls.objects:
        raise Invalid("the options 'metadata' and 'objects' name the stores together, or 'dataDir' both")
    return urls

"""Reads what a topic has in the object store without a broker: by its records and its objects alone.

Which messages there are, and where they lie, are two questions. A range of a ledger never changes once it is confirmed
(cluster.client.log_reader), and whether it is read from the object store or from its partition's owner is decided for
whole ledgers. So the plan of a read asks the first question once, of the owners or of the records, and then looks at
the newest records for the second one: each message is in exactly one range, wherever it goes meanwhile.

What moves between the plan and the read does this:

* a ledger that was planned from its owner has left for the object store: its owner reads it there;
* the objects of a ledger are others now, because its messages were written again: the record names the new ones, and
  the read goes on in them at the entry that it has come to;
* a ledger was trimmed: NotFound, as with a read from its owner. Nothing is left out in silence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from sluice.actors.ledger.record import (
    HistoryPart,
    LedgerRecord,
    LedgerState,
    PartitionRecord,
    record_key,
    unpack_record,
)
from sluice.actors.ownership.names import check_name
from sluice.cluster.client.log_reader import StoredRange
from sluice.cluster.host.stores import is_visible, object_url, read_metadata, read_objects
from sluice.cluster.settings.options import ClusterOptions
from sluice.storage.errors import Corrupt, NotFound
from sluice.storage.format.position import EARLIEST, ledger_of, position
from sluice.storage.history.column_reader import PartColumns, Selection
from sluice.storage.history.part import decode_footer
from sluice.storage.stores.objects import ObjectStore

T = TypeVar("T")

AT_ONCE = 16
"""Footers that are asked for at a time."""
AHEAD = 2
"""Row groups that are on their way while one is used."""
TASK_BYTES = 32 * 1024 * 1024
"""Of objects that one task reads; at least one object."""


@dataclass(frozen=True, slots=True)
class StoreUrls:
    """The URLs of a cluster's records and objects (cluster.host.stores), and of the S3 server."""

    metadata: str
    objects: str
    endpoint: str | None = None

    @classmethod
    def from_status(cls, storage: Mapping[str, str]) -> StoreUrls | None:
        """Read the URLs from a cluster's status (`client.status()["storage"]`); None if this process does not see the
        stores.
        """
        if not storage.get("metadata") or not storage.get("objects"):
            return None
        urls = cls(storage["metadata"], storage["objects"], storage.get("s3_endpoint_url") or None)
        return urls if is_visible(urls.metadata) and is_visible(urls.objects) else None

    @classmethod
    def in_folder(cls, data_dir: str | Path) -> StoreUrls:
        """Return the URLs of a cluster that keeps everything in its data folder."""
        settings = ClusterOptions(Path(data_dir)).settings()
        return cls(settings["metadata"], settings["objects"])


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A range of a ledger that lies in one object."""

    range: StoredRange
    part: HistoryPart


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of a ledger. url: where other programs find it."""

    partition: int
    ledger: int
    part: HistoryPart
    url: str


@dataclass(frozen=True, slots=True)
class Described:
    """The content of an object's footer. days: of its first and its last message, since 1970. columns: of what payloads
    say.

    in_milliseconds: whether its times are those of an earlier format (storage.history.part).
    """

    days: tuple[int, int]
    columns: pa.Schema
    in_milliseconds: bool


class HistoryScan:
    """Reads a topic's ledgers in the object store. Small enough to be pickled; every process opens its own stores."""

    def __init__(self, urls: StoreUrls, topic: str) -> None:
        self.topic = check_name("topic", topic)
        self._urls = urls
        self.bytes_read = 0
        """Of objects, by this one."""

    def __getstate__(self) -> Any:
        return self.topic, self._urls

    def __setstate__(self, state: Any) -> None:
        self.topic, self._urls = state
        self.bytes_read = 0

    # -- planning ----------------------------------------------------------------------------------------------------

    def records(self) -> dict[int, PartitionRecord]:
        """The newest record of each partition. Raises NotFound if the topic is not known; Unavailable, Corrupt."""
        prefix = record_key(self.topic, 0).removesuffix("0")
        found = {}
        with read_metadata(self._urls.metadata, self._urls.endpoint) as store:
            for key in store.keys(prefix):
                version = store.read(key)
                record = None if version is None else unpack_record(version.value)
                if record is not None and not record.deleted:
                    found[record.partition] = record
        if not found:
            raise NotFound(f"there are no records of a topic {self.topic!r} in {self._urls.metadata}")
        return dict(sorted(found.items()))

    def divide(
        self, ranges: Iterable[StoredRange], records: dict[int, PartitionRecord]
    ) -> tuple[list[StoredPiece], list[StoredRange]]:
        """Divide ranges into pieces in the object store and ranges that only owners can give. records: newer than the
        ranges.

        A ledger that was trimmed in between is in neither.
        """
        pieces: list[StoredPiece] = []
        others: list[StoredRange] = []
        for wanted in ranges:
            record = records.get(wanted.partition)
            ledger = None if record is None else record.ledger(wanted.ledger)
            if record is None or (ledger is None and position(wanted.ledger, 0) >= record.trimmed_before):
                others.append(wanted)
            elif ledger is not None:
                found = _pieces(ledger, wanted)
                pieces += found
                others += [] if found else [wanted]
        return pieces, others

    def pruned(self, pieces: Sequence[StoredPiece], wanted: Selection) -> list[StoredPiece]:
        """The pieces that may hold wanted messages, by the statistics in the footers. Raises Unavailable, Corrupt."""
        if wanted.everything or not pieces:
            return list(pieces)
        store = read_objects(self._urls.objects, self._urls.endpoint)

        def may_hold(piece: StoredPiece) -> bool:
            try:
                columns = _columns(store, piece.part)
            except NotFound:
                return True  # whoever reads it finds out where it is now
            return bool(columns.groups(piece.range.first, piece.range.last, wanted))

        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="footers") as pool:
            kept = list(pool.map(may_hold, pieces))
        return [piece for piece, keep in zip(pieces, kept, strict=True) if keep]

    def objects(self, records: dict[int, PartitionRecord] | None = None) -> list[StoredObject]:
        """Every object that the records name, in order. records: None is the newest. Raises as `records` does."""
        store = read_objects(self._urls.objects, self._urls.endpoint)
        return [
            StoredObject(number, ledger.id, part, object_url(store, part.name))
            for number, record in (self.records() if records is None else records).items()
            for ledger in record.ledgers
            if ledger.offloaded is not None
            for part in ledger.offloaded.parts
        ]

    def described(self, one: StoredObject) -> Described:
        """Read an object's footer. Raises NotFound, Unavailable, Corrupt."""
        columns = _columns(read_objects(self._urls.objects, self._urls.endpoint), one.part)
        return Described(columns.days(), columns.of_payloads(), columns.in_milliseconds)

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(
        self, piece: StoredPiece, columns: Sequence[str], wanted: Selection
    ) -> Iterator[tuple[StoredRange, pa.Table]]:
        """The wanted messages of a piece in order, a row group at a time, each with the range that it lies in.

        columns: of storage.history.part. Raises NotFound if they were trimmed meanwhile; Unavailable, Corrupt.
        """
        store = read_objects(self._urls.objects, self._urls.endpoint)
        left: list[StoredPiece] = [piece]
        while left:
            now = left.pop(0)
            at = now.range
            entry = at.first
            try:
                part = _columns(store, now.part)
                numbers = part.groups(at.first, at.last, wanted)
                read = partial(part.read, columns=columns, first=at.first, last=at.last, wanted=wanted)
                for number, rows in zip(numbers, _ahead(read, numbers), strict=True):
                    if rows is not None:
                        yield at, rows
                    entry = part.stop_entry(number, at.last)
                self.bytes_read += part.bytes_read
            except NotFound:
                rest = StoredRange(at.partition, at.ledger, entry, at.last)
                left[:0] = self._moved(rest, now.part)

    def _moved(self, rest: StoredRange, gone: HistoryPart) -> list[StoredPiece]:
        """Find the rest of a range after one of its objects is gone. Raises NotFound if it was trimmed, Corrupt."""
        record = self.records().get(rest.partition)
        ledger = None if record is None else record.ledger(rest.ledger)
        if ledger is None:
            raise NotFound(
                f"messages of {self.topic!r} were trimmed while they were read (ledger {rest.ledger}); "
                "a subscription or a retention keeps them"
            )
        found = _pieces(ledger, rest)
        if not found or any(piece.part.name == gone.name for piece in found):
            raise Corrupt(f"object {gone.name} is gone, and the partition's record still names it")
        return found


def _columns(store: ObjectStore, part: HistoryPart) -> PartColumns:
    """The columns of an object. Raises NotFound, Unavailable, Corrupt."""
    tail = store.get(part.name, part.size - part.footer_bytes, part.footer_bytes)
    try:
        footer = decode_footer(tail, part.size, part.footer_crc)
    except Corrupt as error:
        raise Corrupt(f"object {part.name}: {error}") from error
    return PartColumns(footer, lambda start, length: store.get(part.name, start, length))


def _ahead(read: Callable[[int], T], numbers: Sequence[int]) -> Iterator[T]:
    """Yield the result of `read` for each number, in order. While one is used, the next ones are on their way."""
    with ThreadPoolExecutor(AHEAD, thread_name_prefix="columns") as pool:
        coming: deque[Future[T]] = deque()
        try:
            for number in numbers:
                coming.append(pool.submit(read, number))
                if len(coming) > AHEAD:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for one in coming:
                one.cancel()


def stored_topics(urls: StoreUrls) -> list[str]:
    """Every topic that the records know and that was not deleted, sorted. Raises NotFound, Unavailable, Corrupt."""
    with read_metadata(urls.metadata, urls.endpoint) as store:
        first = {key.split("/")[1]: key for key in sorted(store.keys("partition/"), reverse=True)}
        versions = {topic: store.read(key) for topic, key in sorted(first.items())}
    return [topic for topic, one in versions.items() if one is not None and not unpack_record(one.value).deleted]


def stored_ranges(records: dict[int, PartitionRecord], *, unbroken: bool = False) -> list[StoredRange]:
    """Return the ranges in the object store, by partition, in order; empty ledgers are left out.

    unbroken: of each partition only what comes before the first message that is on bookies alone.
    """
    found = []
    for number, record in records.items():
        for ledger in record.ledgers:
            if ledger.offloaded is not None:
                found.append(StoredRange(number, ledger.id, 0, ledger.last_entry))
            elif unbroken and not (ledger.state is LedgerState.CLOSED and ledger.last_run < 0):
                break
    return found


def trimmed_up_to(records: dict[int, PartitionRecord], partition: int) -> int:
    """The position of the last message of a partition that was trimmed; EARLIEST if none was."""
    return records[partition].last_trimmed if partition in records else EARLIEST


def is_of_earlier_topic(records: dict[int, PartitionRecord], partition: int, offset: int) -> bool:
    """Whether an offset that a reader has reached is of a topic of this name that was deleted.

    The ledger in front of such an offset had messages: the present topic has it, or has trimmed it.
    """
    record = records.get(partition)
    if record is None:
        return True
    known = {ledger.id for ledger in record.ledgers} | {ledger_of(record.last_trimmed)}
    return record.first_epoch > 0 and offset > record.last_trimmed and ledger_of(offset) not in known


def in_tasks(pieces: Sequence[StoredPiece], most: int) -> list[list[StoredPiece]]:
    """Pieces, each task's together: at most so many messages, TASK_BYTES and one partition, in order.

    A piece with more messages is cut.
    """
    tasks: list[list[StoredPiece]] = []
    count = size = 0
    for piece in pieces:
        for cut in piece.range.split(most):
            one = StoredPiece(cut, piece.part)
            count, size = count + len(cut), size + piece.part.size
            if not tasks or count > most or size > TASK_BYTES or tasks[-1][0].range.partition != cut.partition:
                tasks.append([])
                count, size = len(cut), piece.part.size
            tasks[-1].append(one)
    return tasks


def _pieces(ledger: LedgerRecord, wanted: StoredRange) -> list[StoredPiece]:
    """A range by the objects that it lies in; empty if it lies in none."""
    parts = ledger.offloaded.parts if ledger.offloaded is not None else ()
    ends = [*(part.first_entry for part in parts[1:]), ledger.last_entry + 1]
    cut = [
        (max(wanted.first, part.first_entry), min(wanted.last, end - 1), part)
        for part, end in zip(parts, ends, strict=False)
    ]
    return [
        StoredPiece(StoredRange(wanted.partition, wanted.ledger, first, last), part)
        for first, last, part in cut
        if first <= last
    ]

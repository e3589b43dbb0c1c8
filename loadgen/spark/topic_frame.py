"""A topic as a frame of Spark: Spark itself reads the ledgers in the object store.

Rows that come from Python cost Spark much more than those that it reads from Parquet by itself. A ledger in the object
store is Parquet. So of each partition the oldest ledgers, up to the first that is on bookies alone, are read by Spark
where they are, with its own pruning of columns and row groups by what a query asks for, and the rest by the data source
`sluice` from there on. No message is in both, and none in neither, because a range of a ledger never changes
(cluster.history.scan).

Spark must reach the objects as files, else all of it is left to the data source. An object that is trimmed or written
again between the plan and the read ends the query, where the data source would go on: ask again (`is_gone`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlparse

from sluice.cluster.history.log_read import ONLY, LogRead, Offsets, Present, given
from sluice.cluster.history.scan import StoredPiece
from sluice.loadgen.spark.datasource import SluiceDataSource
from sluice.storage.format.position import ENTRY_BITS, position, show

_COLUMNS = (
    "ledger long, entry long, key binary, payload binary, ordering_key binary, properties map<string, string>, "
    "publish_time timestamp, event_time long, sequence_id long, batch_index int, deliver_at timestamp"
)
"""The schema of a history file, in Spark's words: so Spark need not look into one to know."""
_LISTS = "spark.sql.sources.parallelPartitionDiscovery.threshold"
"""The number of files above which Spark starts a job to look for them, which takes longer than to look."""
_MADE = {
    "position": f"shiftleft(ledger, {ENTRY_BITS}) | entry",
    "partition": "cast(regexp_extract(_metadata.file_path, '/([0-9]+)([+]|%2B)?/[^/]+$', 1) as int)",
    "redelivery": "0",
}
"""Columns that are not in a file."""


def topic_frame(spark: Any, schema: Mapping[str, str], options: Mapping[str, str]) -> Any:
    """All messages that a topic has now. schema: types of columns by name, times as timestamps. options: of a read;
    with offsets among them the data source reads it all.

    Raises Invalid, NotFound, Unavailable.
    """
    wanted = ", ".join(f"`{name}` {kind}" for name, kind in schema.items())
    source = spark.read.format(SluiceDataSource.name()).schema(wanted).options(**options)
    if given(options, "startingOffsets") or given(options, "endingOffsets"):
        return source.load()
    log = SluiceDataSource(dict(options)).log_read()
    present = log.present()
    pieces, rest = divided(present, log.history == ONLY)
    paths = _paths(present, pieces)
    if paths is None:
        return source.load()
    stored = _stored(spark, log, paths, list(schema))
    if log.history == ONLY:
        return stored
    starts = {str(partition): show(start) for partition, start in rest.items()}
    return stored.unionByName(source.option("startingOffsets", json.dumps(starts)).load())


def is_gone(error: Exception) -> bool:
    """Whether a query failed because an object went away after it was planned."""
    return "FILE_NOT_EXIST" in str(error)


def divided(present: Present, only: bool) -> tuple[list[StoredPiece], Offsets]:
    """Return the whole ledgers that the store has from the first message on, and where each partition goes on behind
    them.

    only: all that the store has, and nothing else.
    """
    pieces: list[StoredPiece] = []
    rest: Offsets = {}
    left: dict[int, None] = {}
    for one in present.ranges if present.scan is not None else ():
        if one.partition in left:
            continue
        found, others = present.scan.divide([one], present.records)  # type: ignore[union-attr]
        if only or (found and not others and not one.first):
            pieces += found
            rest[one.partition] = position(one.ledger, one.last + 1)
        else:
            rest[one.partition], left[one.partition] = position(one.ledger, one.first), None
    return pieces, rest


def _paths(present: Present, pieces: Sequence[StoredPiece]) -> list[str] | None:
    """The files of some pieces; None if there are none, or Spark does not reach them as files."""
    if present.scan is None or not pieces:
        return None
    urls = {one.part.name: urlparse(one.url) for one in present.scan.objects(present.records)}
    found = [urls[piece.part.name] for piece in pieces]
    return [unquote(url.path) for url in found] if all(url.scheme == "file" for url in found) else None


def _stored(spark: Any, log: LogRead, paths: list[str], columns: Sequence[str]) -> Any:
    """The wanted messages of some files, with these columns."""
    reader = spark.read.schema(_COLUMNS).option("recursiveFileLookup", "true").option("__globPaths__", "false")
    before = spark.conf.get(_LISTS)
    spark.conf.set(_LISTS, max(int(before), len(paths)))
    try:
        rows = reader.parquet(*paths)
    finally:
        spark.conf.set(_LISTS, before)
    if log.wanted.since is not None:
        rows = rows.where(f"publish_time >= timestamp_millis({log.wanted.since})")
    if log.wanted.until is not None:
        rows = rows.where(f"publish_time < timestamp_millis({log.wanted.until})")
    for key in log.wanted.keys or ():
        rows = rows.where(f"key = X'{key.hex()}'")
    return rows.selectExpr(*(f"{_MADE.get(name, name)} as `{name}`" for name in columns))

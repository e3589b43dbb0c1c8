"""The log as Spark's tasks read it: part of it in the object store, part of it on bookies, while it moves.

A cluster in this process, and what each of Spark's processes does, called directly.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType, TimestampType

import sluice
from sluice.cluster.history.log_read import HistoryTask
from sluice.loadgen.spark.datasource import SluiceDataSource
from sluice.storage.errors import Invalid, NotFound
from sluice.storage.format.position import show
from tests.cluster.helpers import unpacked
from tests.loadgen.offloaded import EACH, HOUR, OffloadedTopic, given_by, numbers_in, read, unreachable


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[OffloadedTopic]:
    with sluice.connect(embedded=True, data_dir=tmp_path / "data") as client:
        yield OffloadedTopic(client, tmp_path / "data")


def test_both_sides_of_the_seam_give_the_same_columns(topic: OffloadedTopic) -> None:
    topic.publish(4)
    by_brokers = read(topic.reader(history="off"))
    topic.offload()
    topic.publish(2)
    tasks = topic.reader().partitions()
    assert [type(task.value) for task in tasks].count(HistoryTask) == 1, "small objects are one task"
    assert len(tasks) >= 2
    both = given_by(topic.reader(), tasks)
    assert numbers_in(both) == list(range(topic.next))
    assert both.slice(0, by_brokers.num_rows).equals(by_brokers)
    assert both.column("deliver_at").to_pylist()[:11] == [5] + [0] * 9 + [5]


def test_the_store_alone_is_read_without_a_broker(topic: OffloadedTopic) -> None:
    topic.publish(3)
    topic.offload()
    left = topic.next - EACH  # the newest ledger is still open
    table = read(topic.reader(history="only", connect=unreachable))
    assert left <= table.num_rows <= topic.next
    assert numbers_in(table) == list(range(table.num_rows))


def test_messages_moved_between_plan_and_read_come_once(topic: OffloadedTopic) -> None:
    topic.publish(2)
    topic.offload()
    topic.publish(3)
    before = topic.next

    def moves() -> None:
        topic.offload()
        topic.publish(2)

    reader = topic.reader()
    tasks = reader.partitions()
    moves()
    assert numbers_in(given_by(reader, tasks)) == list(range(before))
    assert numbers_in(given_by(reader, tasks)) == list(range(before)), "a task that is tried again"
    assert numbers_in(read(topic.reader())) == list(range(topic.next))


def test_ledgers_that_move_while_the_plan_is_made(topic: OffloadedTopic) -> None:
    """Between the brokers' answer and the look at the records."""
    topic.publish(3)

    class Moving:
        def __getattr__(self, name: str) -> Any:
            return getattr(topic.client, name)

        def stored(self, *arguments: Any) -> Any:
            found = topic.client.stored(*arguments)
            topic.offload()
            return found

    reader = topic.reader(connect=lambda: contextlib.nullcontext(Moving()))
    tasks = reader.partitions()
    assert any(isinstance(task.value, HistoryTask) for task in tasks)
    assert numbers_in(given_by(reader, tasks)) == list(range(topic.next))


def test_read_of_trimmed_messages_raises(topic: OffloadedTopic) -> None:
    topic.publish(3)
    topic.offload()
    reader = topic.reader()
    tasks = reader.partitions()
    (task,) = [task for task in tasks if isinstance(task.value, HistoryTask)]
    topic.client.delete_topic("t", force=True)
    with pytest.raises(NotFound, match=r"were trimmed while they were read|no records of a topic"):
        given_by(reader, [task])


def test_a_read_goes_on_in_the_objects_that_the_record_names(topic: OffloadedTopic) -> None:
    """A ledger's objects were written again under other names after the plan was made."""
    topic.publish(3)
    topic.offload()
    reader = topic.reader(history="only")
    tasks = reader.partitions()
    (task,) = tasks
    scan, pieces = task.value.scan, task.value.pieces
    expected = numbers_in(given_by(reader, tasks))
    gone = "history/t/0/000000000001-000000000000-000000.parquet"
    renamed = [replace(piece, part=msgspec.structs.replace(piece.part, name=gone)) for piece in pieces]
    moved = InputPartition(HistoryTask(scan, renamed))
    assert numbers_in(given_by(reader, [moved])) == expected


def test_objects_with_times_in_milliseconds_are_read_by_time(tmp_path: Path) -> None:
    """An earlier version wrote them: message by message an hour later, those with a 7 at their end delayed."""
    folder = unpacked("history-in-milliseconds.tar.gz", tmp_path)
    options = {"topic": "orders", "dataDir": str(folder), "history": "only"}
    reader = SluiceDataSource(options).reader(None)
    rows = read(reader)
    assert rows.num_rows == 37, "three are still on bookies"
    for row in rows.to_pylist():
        time = int(row["payload"]) * HOUR
        assert (row["publish_time"], row["deliver_at"]) == (time, time + 1 if row["payload"].endswith(b"7") else 0)
    between = {"startingTimestamp": str(8 * HOUR), "endingTimestamp": "1970-01-01T09:00:00Z"}
    hour = SluiceDataSource(options | between).reader(None)
    assert numbers_in(read(hour)) == [8]
    pieces, all_pieces = (sum(len(task.value.pieces) for task in one.partitions()) for one in (hour, reader))
    assert 1 <= pieces < all_pieces / 2


def _renamed(part: Any) -> tuple[Any, ...]:
    return (
        "history/t/0/000000000001-000000000000-000000.parquet",
        *(getattr(part, name) for name in part.__struct_fields__[1:]),
    )


def test_columns_are_those_that_are_asked_for(topic: OffloadedTopic) -> None:
    topic.publish(2)
    topic.offload()
    topic.publish(1)
    schema = StructType(
        [
            StructField("publish_time", TimestampType()),
            StructField("key", BinaryType()),
            StructField("entry", LongType()),
            StructField("deliver_at", TimestampType()),
            StructField("partition", IntegerType()),
            StructField("position", LongType()),
        ]
    )
    table = read(topic.reader(schema))
    assert table.schema.names == schema.fieldNames()
    assert table.num_rows == topic.next
    assert [time.timestamp() * 1000 for time in table.column("publish_time").to_pylist()[:2]] == [0, 1]
    assert table.column("key").to_pylist() == [b"k%d" % (number % 7) for number in range(topic.next)]
    assert table.column("deliver_at").null_count == topic.next * 9 // 10
    assert table.column("position").to_pylist() == sorted(table.column("position").to_pylist())
    with pytest.raises(Invalid, match="no column 'colour' to read"):
        topic.reader(StructType([StructField("colour", BinaryType())]))
    with pytest.raises(Invalid, match="'payload' is read as binary"):
        topic.reader(StructType([StructField("payload", LongType())]))


def test_offsets_and_times_bound_a_read(topic: OffloadedTopic) -> None:
    topic.publish(3)
    topic.offload()
    topic.publish(3)
    whole = read(topic.reader())
    positions = whole.column("position").to_pylist()
    low, high = positions[30], positions[270]
    stop = json.dumps({"0": show(high)})
    assert numbers_in(read(topic.reader(startingOffsets=show(low), endingOffsets=stop))) == list(range(30, 270))
    hours = read(topic.reader(startingTimestamp=str(HOUR + 10), endingTimestamp="1970-01-01T04:00:00Z"))
    assert numbers_in(hours) == list(range(EACH + 10, 4 * EACH))
    assert numbers_in(read(topic.reader(startingOffsets="latest"))) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"history": "maybe"}, "'history' is auto, only or off"),
        ({"history": "only", "dataDir": ""}, "name the stores"),
        ({"startingOffsets": "7"}, "earliest, latest or LEDGER:ENTRY"),
        ({"endingOffsets": "{0: 3}"}, "is a JSON object as"),
        ({"startingTimestamp": "yesterday"}, "is 2026-11-24T12:00:00Z or ms"),
        ({"startingTimestamp": "2026-11-24T12:00:00"}, "has no time zone"),
        ({"metadata": "s3://b/m", "dataDir": ""}, "name the stores together"),
    ],
)
def test_options_of_a_read_are_checked(options: dict[str, str], told: str) -> None:
    with pytest.raises(Invalid, match=told):
        SluiceDataSource({"topic": "t", "dataDir": "/nowhere"} | options).reader(None)


def test_filtered_out_objects_are_not_read(topic: OffloadedTopic) -> None:
    topic.publish(6)
    topic.offload()
    topic.publish(2)

    def told(**options: str) -> tuple[list[int], int, int]:
        """Messages, bytes of objects, tasks for brokers."""
        reader = topic.reader(**options)
        tasks = reader.partitions()
        numbers = numbers_in(given_by(reader, tasks))
        stored = [task.value for task in tasks if isinstance(task.value, HistoryTask)]
        return numbers, sum(task.scan.bytes_read for task in stored), len(tasks) - len(stored)

    everything, all_bytes, _ = told()
    assert everything == list(range(topic.next))
    hour, some_bytes, brokers = told(startingTimestamp=str(2 * HOUR), endingTimestamp=str(3 * HOUR))
    assert hour == list(range(2 * EACH, 3 * EACH))
    assert some_bytes < all_bytes / 3
    assert brokers == 0
    assert told(key="k3")[0] == list(range(3, topic.next, 7))
    assert told(key="zebra")[:2] == ([], 0), "statistics exclude it everywhere"
    assert told(key="k3", startingTimestamp=str(7 * HOUR), history="auto")[0] == [
        number for number in range(3, topic.next, 7) if number >= 7 * EACH
    ]

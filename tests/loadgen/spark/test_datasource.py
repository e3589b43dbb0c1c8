"""The data source's parts without Spark: what a write sends, what a stream spools, and when it acknowledges."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from sluice.cluster.client.bulk import ROWS
from sluice.cluster.client.log_reader import StoredRange
from sluice.cluster.history.log_read import ALL_PARTITIONS, LogRead
from sluice.loadgen.spark.datasource import SluiceDataSource, SluiceReader, SluiceStreamReader, SluiceWriter, _Target
from sluice.loadgen.spark.options import OPTIONS, READ, STREAM
from sluice.loadgen.spark.spool import Spool
from sluice.storage.errors import Invalid, NotFound
from sluice.storage.format.position import position
from tests.loadgen.fakes import FolderClient, ListBatch, ListClient, ListConsumer


def message_batch(first: int, count: int, partition: int = 0) -> ListBatch:
    rows = pa.record_batch(
        {
            "key": pa.array([b"k"] * count),
            "payload": pa.array([b"%d" % at for at in range(first, first + count)]),
            "publish_time": pa.array(np.full(count, 1)),
        }
    )
    at = np.arange(first, first + count)
    batch = ListBatch(rows, partition, position(1, 0) + at, np.zeros(count, np.uint8), at)
    batch.deliver_at = np.zeros(count, np.int64)
    return batch


def stream(folder: Path, consumer: ListConsumer) -> SluiceStreamReader:
    target = _Target("t", ListClient(consumer), "p")
    return SluiceStreamReader(target, "s", folder, limit=5)


def payloads(reader: SluiceStreamReader, start: int, end: int) -> list[int]:
    parts = reader.partitions({"file": start}, {"file": end})
    return [int(v) for part in parts for b in reader.read(part) for v in b.column("payload").to_pylist()]


def test_micro_batch_reads_each_partition_in_one_task(tmp_path: Path) -> None:
    """A sink publishes tasks side by side, so a key whose messages were in two of them would lose its order."""
    batches = [message_batch(0, 2), message_batch(2, 1, 1), message_batch(3, 2)]
    reader = stream(tmp_path, ListConsumer(deque(batches)))
    end = reader.latestOffset({"file": 0})
    tasks = reader.partitions({"file": 0}, end)
    found = [[int(v) for b in reader.read(task) for v in b.column("payload").to_pylist()] for task in tasks]
    assert found == [[0, 1, 3, 4], [2]]
    reader.stop()


def test_stream_acknowledges_on_commit_only(tmp_path: Path) -> None:
    consumer = ListConsumer(deque([message_batch(0, 3), message_batch(3, 3), message_batch(6, 3)]))
    reader = stream(tmp_path, consumer)
    assert reader.initialOffset() == {"file": 0}
    end = reader.latestOffset({"file": 0})
    assert end == {"file": 2}  # the limit of five messages was passed with the second batch
    assert payloads(reader, 0, 2) == list(range(6))
    assert consumer.acknowledged == []
    assert reader.latestOffset(end) == {"file": 3}
    reader.commit(end)
    assert [batch.rows.num_rows for batch in consumer.acknowledged] == [3, 3]
    assert payloads(reader, 2, 3) == [6, 7, 8]
    assert not Spool(tmp_path).path(0).exists()
    reader.stop()
    assert consumer.closed


def test_uncommitted_messages_are_read_again_after_a_restart(tmp_path: Path) -> None:
    first = stream(tmp_path, ListConsumer(deque([message_batch(0, 3), message_batch(3, 2)])))
    first.latestOffset({"file": 0})
    first.commit({"file": 1})
    # The process dies; the broker delivers what was not acknowledged again, in another portion, with news behind it.
    consumer = ListConsumer(deque([message_batch(3, 4)]))
    second = stream(tmp_path, consumer)
    assert payloads(second, 1, 2) == [3, 4]
    assert second.latestOffset({"file": 2}) == {"file": 3}
    assert payloads(second, 2, 3) == [5, 6]
    assert consumer.acknowledged == []
    second.commit({"file": 3})
    assert len(consumer.acknowledged) == 1


def test_committed_unacknowledged_messages_are_not_read_twice(tmp_path: Path) -> None:
    first = stream(tmp_path, ListConsumer(deque([message_batch(0, 3)])))
    first.latestOffset({"file": 0})
    consumer = ListConsumer(deque([message_batch(0, 3)]))
    second = stream(tmp_path, consumer)
    # Spark's checkpoint says that file 0 was committed before the process died.
    assert second.latestOffset({"file": 1}) == {"file": 1}
    assert len(consumer.acknowledged) == 1


def test_files_of_an_earlier_life_go_when_nothing_is_left(tmp_path: Path) -> None:
    stream(tmp_path, ListConsumer(deque([message_batch(0, 3)]))).latestOffset({"file": 0})
    client = ListClient(ListConsumer(deque()))
    reader = SluiceStreamReader(_Target("t", client, "p"), "s", tmp_path, limit=5)
    reader.latestOffset({"file": 1})
    assert Spool(tmp_path).path(0).exists()
    client.backlog = None
    assert reader.latestOffset({"file": 1}) == {"file": 1}, "the query goes on"
    assert Spool(tmp_path).path(0).exists()
    client.backlog = 0
    reader.latestOffset({"file": 1})
    assert not Spool(tmp_path).path(0).exists()


def test_files_stay_when_a_lost_session_voids_their_acks(tmp_path: Path) -> None:
    consumer = ListConsumer(deque([message_batch(0, 3)]), lose_after=1)
    reader = stream(tmp_path, consumer)
    reader.latestOffset({"file": 0})
    reader.commit({"file": 1})
    assert Spool(tmp_path).path(0).exists()
    consumer.batches.append(message_batch(0, 3))
    assert reader.latestOffset({"file": 1}) == {"file": 1}
    assert len(consumer.acknowledged) == 2


def test_write_publishes_and_a_repetition_stores_nothing_twice(tmp_path: Path) -> None:
    client = FolderClient(tmp_path)
    client.create_topic("t", partitions=2)
    writer = SluiceWriter(_Target("t", client, "job"))
    rows = [pa.record_batch({"key": pa.array([b"a", b"b"]), "payload": pa.array([b"1", b"2"])})] * 3
    for _ in range(2):
        assert writer.write(iter(rows)).rows == 6
    assert client.stored("t").num_rows == 6


class StoredClient(ListClient):
    """A topic of two partitions that stores 25 and 10 messages; the second was trimmed after it was listed."""

    def status(self) -> dict[str, Any]:
        """Return the status of a cluster whose folders are on another machine."""
        return {"storage": {"metadata": "sqlite:///not/here.db", "objects": "file:///not/here"}}

    def stored(self, topic: str) -> list[StoredRange]:
        return [StoredRange(0, 1, 0, 24), StoredRange(1, 2, 0, 9)]

    def read(self, topic: str, wanted: StoredRange) -> Iterator[ListBatch]:
        if wanted.partition:
            raise NotFound("ledger 2 was trimmed")
        yield message_batch(wanted.first, len(wanted))


def test_batch_read_divides_over_tasks_and_repeats_exactly() -> None:
    reader = SluiceReader(LogRead("t", StoredClient(ListConsumer(deque())), most=10), ROWS, {}, {})
    tasks = [cast(StoredRange, task.value) for task in reader.partitions()]
    assert [(task.partition, task.first, task.last) for task in tasks] == [
        (0, 0, 9), (0, 10, 19), (0, 20, 24), (1, 0, 9),
    ]  # fmt: skip
    for _ in range(2):
        got = [batch.column("payload").to_pylist() for batch in reader.read(InputPartition(tasks[1]))]
        assert got == [[b"%d" % at for at in range(10, 20)]]
    with pytest.raises(NotFound, match="were trimmed while they were read"):
        list(reader.read(InputPartition(tasks[3])))
    assert list(reader.read(InputPartition(None))) == []  # a topic without messages


def test_one_offset_for_many_partitions_is_refused() -> None:
    log = LogRead("t", StoredClient(ListConsumer(deque())))
    with pytest.raises(Invalid, match="give an offset for each"):
        SluiceReader(log, ROWS, {ALL_PARTITIONS: position(1, 3)}, {}).partitions()
    reader = SluiceReader(log, ROWS, {0: position(1, 20)}, {1: position(2, 5)})
    assert [len(cast(StoredRange, task.value)) for task in reader.partitions()] == [5, 5]


@pytest.mark.parametrize("given", ["0", "-3", "many", "1.5"])
def test_numbers_among_the_options_are_checked(given: str) -> None:
    with pytest.raises(Invalid, match="'maxMessagesPerTask' is a whole number of at least 1, not"):
        SluiceDataSource({"topic": "t", "maxmessagespertask": given}).reader(None)
    place = {"topic": "t", "subscription": "s", "spool": "/nowhere"}
    with pytest.raises(Invalid, match="'maxMessagesPerTrigger' is a whole number"):
        SluiceDataSource(place | {"maxmessagespertrigger": given}).streamReader(None)


def test_options_and_columns_are_checked() -> None:
    with pytest.raises(Invalid, match="'topic' is missing"):
        SluiceDataSource({}).reader(None)
    with pytest.raises(Invalid, match="needs the option 'subscription'"):
        SluiceDataSource({"topic": "t", "spool": "/nowhere"}).streamReader(None)
    with pytest.raises(Invalid, match="needs the option 'spool'"):
        SluiceDataSource({"topic": "t", "subscription": "s"}).streamReader(None)
    source = SluiceDataSource({"topic": "t"})
    with pytest.raises(Invalid, match="not overwritten"):
        source.writer(columns("payload"), overwrite=True)
    with pytest.raises(Invalid, match="cannot write the column 'colour'"):
        source.writer(columns("payload", "colour"), overwrite=False)
    with pytest.raises(Invalid, match="'payload' is missing"):
        source.streamWriter(columns("key"), overwrite=False)


def test_an_unknown_option_is_refused_with_a_suggestion() -> None:
    place = {"topic": "t", "subscription": "s", "spool": "/nowhere"}
    typo = {"startingofsets": "latest"}
    for use in (
        lambda: SluiceDataSource({"topic": "t"} | typo).reader(None),
        lambda: SluiceDataSource({"topic": "t"} | typo).streamReader(None),
        lambda: SluiceDataSource(place | typo).streamReader(None),
        lambda: SluiceDataSource({"topic": "t"} | typo).writer(columns("payload"), overwrite=False),
        lambda: SluiceDataSource({"topic": "t"} | typo).streamWriter(columns("payload"), overwrite=False),
    ):
        with pytest.raises(Invalid, match=r"'startingofsets' is not an option .* did you mean 'startingOffsets'"):
            use()
    with pytest.raises(Invalid, match="'colour' is not an option of format sluice; there are topic"):
        SluiceDataSource({"topic": "t", "colour": "red"}).reader(None)
    SluiceDataSource({"topic": "t", "checkpointlocation": "/nowhere", "path": "x"}).reader(None)


def test_an_option_of_another_use_is_refused() -> None:
    with pytest.raises(Invalid, match="'endingOffsets' is an option of read, not of readStream"):
        SluiceDataSource({"topic": "t", "endingoffsets": "latest"}).streamReader(None)
    with pytest.raises(Invalid, match="'producer' is an option of write, not of writeStream"):
        SluiceDataSource({"topic": "t", "producer": "p"}).streamWriter(columns("payload"), overwrite=False)


def test_the_page_has_the_options_that_the_code_reads() -> None:
    page = (Path(__file__).parents[3] / "docs" / "history.md").read_text(encoding="utf-8")
    section = page[page.index("| option | for |") :].partition("\n\n")[0]
    told: dict[str, dict[str, str]] = {use: {} for use in OPTIONS}
    for line in section.splitlines()[2:]:
        names, uses, _, default = (cell.strip() for cell in line.strip("|").split("|"))
        for use in OPTIONS if uses == "all" else uses.split(", "):
            told[use] |= dict.fromkeys(re.findall(r"`(\w+)`", names), default.strip("`").replace(",", ""))
    assert told == OPTIONS


@pytest.mark.parametrize("use", ["reader", "streamReader"])
def test_a_default_that_is_given_changes_nothing(use: str) -> None:
    place = {"topic": "t", "dataDir": "/nowhere"}
    given = {name: value for name, value in OPTIONS[READ if use == "reader" else STREAM].items() if value}
    plain, told = (vars(getattr(SluiceDataSource(options), use)(None)) for options in (place, place | given))
    for one in (plain, told):
        one["_log"] = replace(one["_log"], client=ListClient)
        one.pop("_open", None)
    assert plain == told


def columns(*names: str) -> Any:
    schema = StructType()
    for name in names:
        schema.add(name, "binary")
    return schema

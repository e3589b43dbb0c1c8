"""A topic's history as an Iceberg table: the same files, once each, also after an interruption or with two writers."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

import sluice
from sluice.actors.topic.background import offloading
from sluice.cluster.client.client import Client
from sluice.cluster.history import iceberg
from sluice.cluster.history.scan import HistoryScan, StoreUrls
from sluice.cluster.launch import embedded
from sluice.storage.errors import Conflict, Invalid, NotFound
from tests.cluster.helpers import eventually

DAY = 86_400_000
EACH = 40
"""Messages of a ledger."""
RUN = 10
"""And of a run."""


class Days:
    """A topic of ledgers of 40 messages, each of one day unless it is told otherwise, and its table."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client, self.folder, self.ledgers = client, folder, 0
        self.times: list[list[int]] = []
        """When the messages of each ledger were published."""
        self.urls = StoreUrls.in_folder(folder)
        self.warehouse = f"file://{folder}/iceberg"
        self.catalog = f"sqlite:///{folder}/iceberg/catalog.db"
        client.create_topic("orders", 1, roll_entries=EACH, offload_deletion_lag_ms=0)
        self.producer = client.create_producer("orders", "p")

    def publish(self, *, over_midnight: bool = False, half_hours: bool = False) -> None:
        """A ledger in runs of 10 messages, which leaves for the object store.

        half_hours: between two messages; a millisecond otherwise.
        """
        numbers = np.arange(self.ledgers * EACH, (self.ledgers + 1) * EACH)
        times = np.full(EACH, self.ledgers * DAY) + np.arange(EACH) * (DAY // 48 if half_hours else 1)
        if over_midnight:
            times[EACH // 2 :] += DAY
        columns = {
            "key": [b"k%d" % (number % 4) for number in numbers],
            "payload": [b"%d" % number for number in numbers],
            "publish_time": times,
            "deliver_at": np.where(numbers % 10 == 7, times + 1, 0),
            "properties": pa.array([[("n", str(number))] for number in numbers], pa.map_(pa.string(), pa.string())),
        }
        for start in range(0, EACH, RUN):
            self.producer.send_batch(pa.table(columns).slice(start, RUN)).result(60)
        self.times.append(times.tolist())
        self.ledgers += 1
        self.client.offload("orders")
        eventually(self.has_left, lambda: str(self.status()))

    def trim(self) -> None:
        """Everything is acknowledged, and goes."""
        consumer = self.client.subscribe("orders", "s", initial_position="earliest")
        for batch in iter(lambda: consumer.receive_batch(timeout_ms=2_000), None):
            consumer.acknowledge(batch)
        consumer.wait_acknowledged(30_000)
        eventually(lambda: not self.client.stored("orders"), "nothing was trimmed")

    def has_left(self) -> bool:
        """Whether nothing is on bookies any more."""
        status = self.status()
        return not status["asked"] and not status["bookie_bytes"]

    def status(self) -> dict[str, Any]:
        """How the offloading stands."""
        return self.client.offload_status("orders")[0]

    def table(self) -> Any:
        """Open the table again, as another process would."""
        return iceberg.IcebergTable(iceberg.open_catalog(self.catalog, self.warehouse), self.urls, "orders")

    def numbers(self, **how: Any) -> list[int]:
        """The messages of the table, sorted."""
        rows = self.table().table().scan(**how).to_arrow()
        return sorted(int(payload) for payload in rows.column("payload").to_pylist())


@pytest.fixture
def days(tmp_path: Path) -> Iterator[Days]:
    with sluice.connect(embedded=True, data_dir=tmp_path / "data") as client:
        yield Days(client, tmp_path / "data")


def test_each_offload_is_a_snapshot_that_names_its_ledger(days: Days) -> None:
    seen = []
    for _ in range(3):
        days.publish()
        change = days.table().follow()
        assert len(change.added) == 1
        seen.append(change)
    assert days.table().follow() == iceberg.TableChange(), "nothing new is no snapshot"
    assert days.numbers() == list(range(3 * EACH))
    table = days.table().table()
    snapshots = table.snapshots()
    assert [one.summary["sluice.ledgers"] for one in snapshots] == [change.added[0] for change in seen]
    assert days.numbers(snapshot_id=seen[1].snapshot) == list(range(2 * EACH)), "time travel"
    files = table.inspect.files()
    stored = {f"file://{path}" for path in (days.folder / "objects").rglob("*.parquet")}
    assert set(files.column("file_path").to_pylist()) == stored, "the objects are the files"
    rows = table.scan(row_filter="publish_time >= '1970-01-02T00:00:00+00:00'").to_arrow()
    assert rows.num_rows == 2 * EACH
    assert dict(rows.column("properties")[0].as_py()) == {"n": str(int(rows.column("payload")[0].as_py()))}
    assert table.spec().fields[0].name == "publish_day"
    assert len(list(table.scan(row_filter="publish_time < '1970-01-02T00:00:00+00:00'").plan_files())) == 1
    assert days.table().expire(timedelta(0)) == 2
    assert days.numbers() == list(range(3 * EACH))


def test_an_object_of_two_days_is_a_file_for_each(days: Days) -> None:
    days.publish(over_midnight=True)
    days.publish()
    assert len(days.table().follow().added) == 2
    table = days.table().table()
    assert days.numbers() == list(range(2 * EACH))
    partitions = table.inspect.files().column("file_path").to_pylist()
    assert len(partitions) == 3
    early = table.scan(row_filter="publish_time < '1970-01-02T00:00:00+00:00'").to_arrow()
    assert early.num_rows == EACH // 2
    assert days.table().follow() == iceberg.TableChange()


@pytest.mark.parametrize("durable", [False, True])
def test_a_commit_that_was_interrupted_is_done_once(days: Days, durable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the catalog has it, or behind."""
    days.publish(over_midnight=True)
    days.publish()
    commit = SqlCatalog.commit_table

    def dies(self: Any, *arguments: Any) -> Any:
        if durable:
            commit(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", dies)
        with pytest.raises(KeyboardInterrupt):
            days.table().follow()
    change = days.table().follow()
    assert len(change.added) == (0 if durable else 2)
    assert days.numbers() == list(range(2 * EACH))
    assert len(days.table().table().snapshots()) == 1


def test_one_of_two_followers_commits(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    days.publish()
    first, second = days.table(), days.table()
    commit = type(first._catalog).commit_table
    overtaken: list[Any] = []

    def late(self: Any, *arguments: Any) -> Any:
        if not overtaken:
            overtaken.append(True)
            overtaken.append(second.follow())
        return commit(self, *arguments)

    first.table()
    monkeypatch.setattr(type(first._catalog), "commit_table", late)
    assert first.follow() == iceberg.TableChange()
    assert overtaken[1].added == ["0:1"]
    assert days.numbers() == list(range(EACH))

    def never(self: Any, *arguments: Any) -> Any:
        raise CommitFailedException("planted")

    days.publish()
    monkeypatch.setattr(type(first._catalog), "commit_table", never)
    with pytest.raises(Conflict, match="others commit"):
        first.follow()


def test_trimmed_messages_leave_the_table(days: Days) -> None:
    days.publish(over_midnight=True)
    days.publish()
    days.table().follow()
    days.trim()
    days.publish()
    change = days.table().follow()
    assert (change.added, change.gone) == (["0:3"], ["0:1", "0:2"])
    assert days.numbers() == list(range(2 * EACH, 3 * EACH))
    copies = list((days.folder / "iceberg").rglob("data/*.parquet"))
    assert copies == [], "what is erased is not kept in copies"


def interrupted(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt a follow of the table before the catalog has the commit."""

    def dies(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", dies)
        with pytest.raises(KeyboardInterrupt):
            days.table().follow()


def test_copies_that_somebody_has_deleted_hold_nothing_up(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    days.publish(over_midnight=True)
    days.table().follow()
    days.trim()
    interrupted(days, monkeypatch)
    assert days.table().follow().gone == ["0:1"]
    assert days.numbers() == []


@pytest.mark.parametrize("late", [False, True], ids=["followed", "interrupted"])
def test_an_erased_key_leaves_the_table(days: Days, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what somebody has copied who was interrupted then: no snapshot names it."""
    monkeypatch.setattr("sluice.actors.topic.background.erasing.FORGOTTEN_MS", 0)
    days.publish(over_midnight=True)
    days.publish()
    if late:
        interrupted(days, monkeypatch)
    else:
        days.table().follow()
    assert days.client.erase("orders", "k1")[0]["keys"] == 1
    eventually(
        lambda: not days.client.erase_status("orders")[0]["keys"], lambda: str(days.client.erase_status("orders"))
    )
    assert days.client.erase_status("orders")[0]["done_messages"] == 2 * EACH // 4
    change = days.table().follow()
    assert (change.added, change.gone) == (["0:1", "0:2"], [] if late else ["0:1", "0:2"])
    rows = days.table().table().scan().to_arrow()
    assert rows.num_rows == 2 * EACH
    assert set(rows.column("key").to_pylist()) == {b"k0", None, b"k2", b"k3"}
    assert rows.column("payload").to_pylist().count(b"") == 2 * EACH // 4
    assert len(list((days.folder / "iceberg").rglob("data/*.parquet"))) == 2, "copies of what was erased are deleted"


def test_missing_catalog_and_topic_are_told(days: Days, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="is no catalog"):
        iceberg.open_catalog("nothing", f"file://{tmp_path}")
    catalog = iceberg.open_catalog(f"sqlite:///{tmp_path}/c.db", f"file://{tmp_path}")
    with pytest.raises(NotFound, match="no records of a topic"):
        iceberg.IcebergTable(catalog, StoreUrls.in_folder(days.folder), "unknown").follow()


def test_several_may_open_a_new_catalog_at_once(tmp_path: Path) -> None:
    """As the processes of a cluster do: a database's tables are made by one of them, and all have the catalog."""
    for attempt in range(3):
        together = Barrier(8)

        def opened(path: Path, together: Barrier = together) -> bool:
            together.wait()
            catalog = iceberg.open_catalog(f"sqlite:///{path}/c.db", f"file://{path}")
            return bool(catalog.namespace_exists(iceberg.NAMESPACE))

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(opened, [tmp_path / str(attempt)] * 8))


def test_offloaded_ledger_is_committed_by_itself(tmp_path: Path) -> None:
    """With a catalog in the settings: offloaded, trimmed, deleted, and the table is what it should be."""
    url = f"sqlite:///{tmp_path}/catalog/c.db"
    with embedded.connect(tmp_path / "data", iceberg_catalog=url) as client:
        days = Days(client, tmp_path / "data")
        days.warehouse = days.urls.objects + "-iceberg"
        days.catalog = url
        days.publish()
        days.publish()
        wanted = list(range(2 * EACH))
        eventually(lambda: days.table().is_there and days.numbers() == wanted, lambda: str(days.status()))
        assert days.status()["error"] == ""
        days.producer.close()
        client.delete_topic("orders", force=True)
        assert days.numbers() == []


def test_a_catalog_that_is_away_holds_nothing_up(tmp_path: Path) -> None:
    """Every user who may see the topic can read the error, so it must not name the password of the catalog."""
    catalog = "http://till:hidden@127.0.0.1:9"
    with embedded.connect(tmp_path / "data", iceberg_catalog=catalog) as client:
        days = Days(client, tmp_path / "data")
        days.publish()
        wanted = "the table: the catalog http://127.0.0.1:9 does not answer"
        eventually(lambda: wanted in days.status()["error"], lambda: str(days.status()))
        assert "hidden" not in str(days.status())


def test_a_damaged_catalog_ends_no_owner_of_a_topic(tmp_path: Path) -> None:
    (tmp_path / "c.db").write_bytes(b"no database" * 1_000)
    with embedded.connect(tmp_path / "data", iceberg_catalog=f"sqlite:///{tmp_path}/c.db") as client:
        days = Days(client, tmp_path / "data")
        days.publish()
        eventually(lambda: "does not answer: " in days.status()["error"], lambda: str(days.status()))
        epoch = HistoryScan(days.urls, "orders").records()[0].epoch
        days.publish()
        assert HistoryScan(days.urls, "orders").records()[0].epoch == epoch


def test_a_catalog_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match="nowhere is no catalog"):
        embedded.connect(tmp_path / "data", iceberg_catalog="nowhere")
    monkeypatch.setattr("sluice.cluster.base.extras.find_spec", lambda name: None)
    with pytest.raises(Invalid, match="needs pyiceberg, fastavro, sqlalchemy: pip install"):
        embedded.connect(tmp_path / "data", iceberg_catalog="sqlite:///c.db")


def test_a_catalog_that_somebody_else_makes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = iceberg.open_catalog(f"sqlite:///{tmp_path}/c.db", f"file://{tmp_path}/tables")
    answers = iter([False])
    there = type(opened).namespace_exists
    monkeypatch.setattr(type(opened), "namespace_exists", lambda self, name: next(answers, there(self, name)))
    again = iceberg.open_catalog(f"sqlite:///{tmp_path}/c.db", f"file://{tmp_path}/tables")
    assert list(answers) == []
    assert again.list_namespaces() == [(iceberg.NAMESPACE,)]


@pytest.mark.spark
@pytest.mark.skipif(not os.environ.get("ICEBERG_SPARK_JAR"), reason="ICEBERG_SPARK_JAR names no runtime of Iceberg")
def test_spark_reads_the_table_by_its_own_runtime(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows with their times, an earlier snapshot, and of an hour no file and no row group that is outside of it."""
    monkeypatch.setattr(offloading, "GROUP_ROWS", RUN)
    monkeypatch.setattr(offloading, "READ_AT_ONCE", 1)
    days.publish(over_midnight=True)
    first = days.table().follow()
    days.publish(half_hours=True)
    days.publish()
    days.table().follow()
    rows = [
        [number, time, time + 1 if number % 10 == 7 else None]
        for number, time in enumerate(itertools.chain.from_iterable(days.times))
    ]
    assert in_spark(days, first.snapshot, "true") == {"rows": rows, "skipped": 0, "earlier": EACH}
    noon, wanted = DAY + DAY // 2, EACH + EACH // 2 + 4
    assert rows[wanted][1] == noon
    damage_row_groups(days.folder, but=noon)
    hour = f"publish_time >= timestamp_millis({noon}) AND publish_time < timestamp_millis({noon + DAY // 24})"
    assert in_spark(days, first.snapshot, hour) == {"rows": rows[wanted : wanted + 2], "skipped": 3, "earlier": EACH}


def in_spark(days: Days, snapshot: int, where: str) -> Any:
    """Run the Spark program on the table and return its output."""
    program = Path(__file__).with_name("iceberg_in_spark.py")
    asked = [os.environ["ICEBERG_SPARK_JAR"], days.table().table().metadata_location, str(snapshot), where]
    said = subprocess.run(
        [os.environ.get("ICEBERG_SPARK_PYTHON", sys.executable), str(program), *asked],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert said.returncode == 0, said.stderr[-3000:]
    return json.loads(said.stdout.splitlines()[-1])


def damage_row_groups(folder: Path, but: int) -> None:
    """Zeros for all row groups of the second ledger, but for that which holds a time (ms)."""
    (file,) = (path for path in (folder / "objects").rglob("*.parquet") if path.name.startswith("000000000002"))
    metadata, data = parquet.ParquetFile(file).metadata, bytearray(file.read_bytes())
    place = metadata.schema.to_arrow_schema().names.index("publish_time")
    assert metadata.num_row_groups == EACH // RUN
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(each) for each in range(group.num_columns)]
        times = columns[place].statistics
        if times.min_raw <= but * 1000 <= times.max_raw:
            continue
        start = min(one.dictionary_page_offset or one.data_page_offset for one in columns)
        length = sum(one.total_compressed_size for one in columns)
        data[start : start + length] = bytes(length)
    file.write_bytes(data)

"""Folders that earlier versions left are opened.

`tests/formats` has one of each version whose formats were others, packed. One process made it, with a topic `orders` of
two partitions and 40 messages, "0" to "39", of five keys in turn. A subscription `billing` received all of them and
acknowledged those below 20.

In `history-in-milliseconds` all but three messages have left for the object store, in objects whose times are
milliseconds, and the topic was compacted. Each message was published an hour after the one before, from 1970 on; that
with a 7 at its end was delayed by a millisecond.

`tools.release.formats` writes those that are named by a version. They also have a cursor with holes, delayed messages
in buckets, a typed value, the record of a pool of workers, a recording, and the history of a load test.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import sluice
from sluice.actors.controller.pools import pool_in
from sluice.actors.recorder.flight_file import unpack
from sluice.actors.recorder.replay import replay
from sluice.cluster import inspect
from sluice.cluster.client.client import Client
from sluice.cluster.history import iceberg
from sluice.cluster.history.iceberg import IcebergTable
from sluice.cluster.history.scan import StoreUrls
from sluice.cluster.host.stores import read_metadata
from sluice.cluster.settings.config import load
from sluice.loadgen.base.history import DELIVERIES, EVENTS, SENT
from sluice.loadgen.judge.verdict import judge_part, read_table, span_of
from sluice.storage.history.column_reader import PartColumns
from tests.cluster.helpers import PATIENCE_MS, ROOT, eventually, unpacked
from tools.release.formats import ACKNOWLEDGED, DELAYED, KEYS, MESSAGES, Order

FOLDERS = sorted(path.name for path in (ROOT / "tests" / "formats").glob("*.tar.gz"))
RELEASES = [name for name in FOLDERS if name[0].isdigit()]
IN_MILLISECONDS = "history-in-milliseconds.tar.gz"
HOUR = 3_600_000


@pytest.mark.parametrize("packed", FOLDERS)
def test_a_folder_of_an_earlier_version_is_opened(packed: str, tmp_path: Path) -> None:
    """Acknowledged messages stay acknowledged; the rest comes in order of each key, and new messages after it."""
    with sluice.connect(embedded=True, data_dir=unpacked(packed, tmp_path)) as client:
        producer = client.create_producer("orders")
        for number in range(40, 45):
            producer.send(str(number).encode(), partition_key=f"key-{number % 5}")
        consumer = client.subscribe("orders", "billing", consumer_name="c")
        received: dict[str, list[int]] = {}
        for _ in range(25):
            message = consumer.receive(timeout_millis=30_000)
            received.setdefault(message.partition_key(), []).append(int(message.data()))
            consumer.acknowledge(message)
    assert received == {f"key-{rest}": list(range(20 + rest, 45, 5)) for rest in range(5)}


@pytest.mark.parametrize("packed", RELEASES)
class TestWholeRelease:
    """Everything else that a release left is read: no message is lost, and none comes twice."""

    def test_cursor_with_holes_goes_on(self, packed: str, tmp_path: Path) -> None:
        with sluice.connect(embedded=True, data_dir=unpacked(packed, tmp_path)) as client:
            consumer = client.subscribe("orders", "holes", type="shared")
            messages = [consumer.receive(timeout_millis=PATIENCE_MS) for _ in range(20)]
            assert sorted(int(message.data()) for message in messages) == list(range(1, 40, 2))
            assert client.stats("orders", "billing") != []
            (given_back,) = [message for message in messages if message.data() == b"1"]
            assert given_back.redelivery_count() > 0

    def test_delayed_messages_wait_in_their_buckets(self, packed: str, tmp_path: Path) -> None:
        with sluice.connect(embedded=True, data_dir=unpacked(packed, tmp_path)) as client:
            client.subscribe("reminders", "dunning").close()
            (row,) = client.cancel_delayed("reminders", "dunning", delay_id="invoice-0")
            assert [message["answer"] for message in row["messages"]] == ["cancelled"]
            (left,) = client.cancel_delayed("reminders", "dunning", everything=True, dry_run=True)
            assert left["cancelled"] == DELAYED - 1, "one was cancelled"
            soon = timedelta(milliseconds=1)
            client.reschedule_delayed("reminders", "dunning", everything=True, deliver_after=soon)
            with client.subscribe("reminders", "dunning") as consumer:
                came = [consumer.receive(timeout_millis=PATIENCE_MS).data() for _ in range(DELAYED - 1)]
            assert sorted(map(int, came)) == list(range(1, DELAYED))

    def test_last_messages_of_keys_are_those_it_compacted(self, packed: str, tmp_path: Path) -> None:
        with sluice.connect(embedded=True, data_dir=unpacked(packed, tmp_path)) as client:
            how = {"type": "exclusive", "initial_position": "earliest", "read_compacted": True}
            consumer = client.subscribe("orders", "last", **how)  # type: ignore[arg-type]
            last: dict[str, int] = {}
            while len(last) < KEYS or min(last.values()) < MESSAGES - KEYS:
                message = consumer.receive(timeout_millis=PATIENCE_MS)
                last[message.partition_key()] = int(message.data())
        assert sorted(last.values()) == list(range(MESSAGES - KEYS, MESSAGES))

    def test_typed_value_has_its_schema(self, packed: str, tmp_path: Path) -> None:
        with sluice.connect(embedded=True, data_dir=unpacked(packed, tmp_path)) as client:
            consumer = client.subscribe("typed", "s", initial_position="earliest", schema=Order)
            assert consumer.receive(timeout_millis=PATIENCE_MS).value() == Order("c", 995)

    def test_pool_of_workers_is_known(self, packed: str, tmp_path: Path) -> None:
        with read_metadata(f"sqlite://{unpacked(packed, tmp_path) / 'metadata.db'}") as store:
            record = store.read("workers/resizers")
        assert record is not None
        pool = pool_in("resizers", record.value)
        assert (pool.kind, pool.topic, pool.subscription, pool.max_workers) == ("detached", "orders", "billing", 4)

    def test_every_disk_is_whole(self, packed: str, tmp_path: Path) -> None:
        values = load(None, data_dir=unpacked(packed, tmp_path)).values
        rows = [*inspect.metadata(values, verify=True), *inspect.ledger(values, verify=True)]
        rows += [*inspect.cursor(values, verify=True), *inspect.journal(values, verify=True)]
        assert len(rows) > 30
        assert [row for row in rows if not row["ok"]] == []

    def test_recording_is_played_again(self, packed: str, tmp_path: Path) -> None:
        unpacked(packed, tmp_path)
        found = replay(unpack((tmp_path / "incident.flight").read_bytes(), packed), through=True)
        assert found
        assert [each.violations for each in found.values() if each.violations] == []

    def test_history_of_a_load_test_is_judged(self, packed: str, tmp_path: Path) -> None:
        unpacked(packed, tmp_path)
        folder = tmp_path / "history"
        sent, delivered = read_table(folder / "sends", SENT), read_table(folder / "deliveries", DELIVERIES)
        judged = judge_part(sent, delivered, read_table(folder / "events", EVENTS), span_of(folder))
        found = {kind: count for kind, count in judged.findings.violations.items() if count}
        assert found == {"lost": MESSAGES - ACKNOWLEDGED}, "its consumer finished no more"
        assert judged.findings.messages["acked"] == ACKNOWLEDGED
        assert judged.findings.checked["ordered"] == MESSAGES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder whose objects have times in milliseconds."""
    return unpacked(IN_MILLISECONDS, tmp_path)


@pytest.fixture
def client(folder: Path) -> Iterator[Client]:
    with sluice.connect(embedded=True, data_dir=folder) as client:
        yield client


def publish(client: Client, first: int, last: int) -> None:
    """Messages first .. last, as those before them, and let every closed ledger leave."""
    producer = client.create_producer("orders", "q")
    numbers = range(first, last + 1)
    columns = {
        "key": [b"key-%d" % (number % 5) for number in numbers],
        "payload": [b"%d" % number for number in numbers],
        "publish_time": [number * HOUR for number in numbers],
        "deliver_at": [number * HOUR + 1 if number % 10 == 7 else 0 for number in numbers],
    }
    producer.send_batch(pa.table(columns)).result(60)
    producer.close()
    client.offload("orders")
    eventually(lambda: not any(one["asked"] for one in client.offload_status("orders")), "it does not leave")


def times(client: Client) -> dict[int, tuple[int, int]]:
    """When each message of the log was published and due, as brokers read it; 0 for one that was not delayed."""
    found = {}
    for part in client.stored("orders"):
        for batch in client.read("orders", part):
            published = batch.rows.column("publish_time").to_pylist()
            for payload, *both in zip(
                batch.rows.column("payload").to_pylist(), published, batch.deliver_at, strict=True
            ):
                found[int(payload or -1)] = (both[0], int(both[1]))
    return found


def expected(numbers: range) -> dict[int, tuple[int, int]]:
    return {number: (number * HOUR, number * HOUR + 1 if number % 10 == 7 else 0) for number in numbers}


def test_objects_in_milliseconds_are_read_as_the_new_ones(client: Client) -> None:
    assert times(client) == expected(range(40))
    publish(client, 40, 59)
    assert times(client) == expected(range(60))


def test_a_key_is_erased_in_objects_in_milliseconds(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.actors.topic.background.erasing.FORGOTTEN_MS", 0)
    publish(client, 40, 59)
    client.erase("orders", "key-2")
    eventually(lambda: not any(one["keys"] for one in client.erase_status("orders")), "it is not erased")
    found = times(client)
    found.pop(-1)
    assert found == {number: time for number, time in expected(range(60)).items() if number % 5 != 2}


def test_a_table_of_last_messages_in_milliseconds_goes_on(client: Client) -> None:
    def last(subscription: str, count: int) -> dict[int, int]:
        """The last messages of keys, and when they were published."""
        how = {"type": "exclusive", "initial_position": "earliest", "read_compacted": True}
        with client.subscribe("orders", subscription, **how) as consumer:  # type: ignore[arg-type]
            messages = [consumer.receive(timeout_millis=PATIENCE_MS) for _ in range(count)]
        return {int(message.data()): message.publish_timestamp() for message in messages}

    assert last("before", 5) == {number: number * HOUR for number in range(35, 40)}
    publish(client, 40, 42)
    client.compact("orders")
    eventually(lambda: not any(one["asked"] for one in client.compaction_status("orders")), "it is not compacted")
    assert last("behind", 5) == {number: number * HOUR for number in range(38, 43)}


def files_of(table: IcebergTable) -> list[Path]:
    return [Path(file.file.file_path.removeprefix("file://")) for file in table.table().scan().plan_files()]


def times_of(table: IcebergTable) -> set[pa.DataType]:
    """The types of times in its files."""
    names = ("publish_time", "deliver_at")
    return {parquet.read_schema(file).field(name).type for file in files_of(table) for name in names}


@pytest.mark.parametrize("earlier", [False, True])
def test_an_iceberg_table_over_objects_in_milliseconds(
    client: Client, folder: Path, earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are copied, and those that come are not; every time is what it was.

    earlier: the table was made by an earlier version, which took the objects as they are.
    """
    catalog = iceberg.open_catalog(f"sqlite:///{folder}/c.db", f"file://{folder}/tables")
    table = IcebergTable(catalog, StoreUrls.in_folder(folder), "orders")
    if earlier:
        with monkeypatch.context() as patched:
            patched.setattr(PartColumns, "in_milliseconds", False)
            patched.setattr(iceberg, "in_microseconds", lambda rows: rows)
            table.follow()
        table.table().transaction().remove_properties(iceberg.MICROSECONDS).commit_transaction()
        assert times_of(table) == {pa.timestamp("ms", "UTC")}
    table.follow()
    publish(client, 40, 59)
    table.follow()
    assert table.follow() == iceberg.TableChange()
    rows = table.table().scan().to_arrow().to_pylist()
    assert len(rows) == len({row["payload"] for row in rows})
    found = {int(row["payload"]): (row["publish_time"], row["deliver_at"]) for row in rows}
    told = {number: tuple(time and round(time.timestamp() * 1000) for time in both) for number, both in found.items()}
    assert len(told) > 40
    assert told == {number: (at, due or None) for number, (at, due) in expected(range(60)).items() if number in told}
    hour = table.table().scan(row_filter="publish_time >= '1970-01-02T13:00:00+00:00'").to_arrow()
    assert min(int(payload) for payload in hour.column("payload").to_pylist()) == 37
    assert times_of(table) == {pa.timestamp("us", "UTC")}
    assert {"objects", "tables"} == {file.relative_to(folder).parts[0] for file in files_of(table)}

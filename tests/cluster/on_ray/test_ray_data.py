"""A topic as a dataset of Ray Data and back: which tasks there are, and what each reads or publishes.

Ray itself runs them in `examples/nightly.py`, which `tests/test_examples.py` plays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import sluice
from sluice.cluster.client.bulk import ROWS
from sluice.cluster.client.client import Client
from sluice.cluster.on_ray import ray_data
from sluice.storage.errors import Invalid, NotFound

DAY_MS = 24 * 3600 * 1000
pytestmark = pytest.mark.timeout(300)


@dataclass
class Task:
    """The context that Ray gives a write task."""

    task_idx: int


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with sluice.connect(embedded=True, data_dir=tmp_path_factory.mktemp("data") / "data") as one:
        yield one


@pytest.fixture(autouse=True)
def one_process(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run here, and use the one client."""
    monkeypatch.setattr(ray_data, "connect_to", lambda **_: nullcontext(client))
    monkeypatch.setattr(ray_data, "read_datasource", lambda source, **_: source)


def publish(client: Client, topic: str, days: int, partitions: int = 2) -> None:
    """Ten messages of each day since 1970, one batch a day."""
    client.create_topic(topic, partitions)
    with client.create_producer(topic) as producer:
        for day in range(days):
            numbers = range(10 * day, 10 * day + 10)
            columns = {
                "key": [b"key-%d" % (number % 4) for number in numbers],
                "payload": [b"%d" % number for number in numbers],
                "publish_time": [(day + 1) * DAY_MS] * 10,
            }
            producer.send_batch(pa.record_batch(columns)).result(60)


def read(source: Any) -> list[pa.Table]:
    """Return the rows of each task."""
    tasks = source.get_read_tasks(3)
    tables = [pa.concat_tables(list(task())) for task in tasks]
    assert [task.metadata.num_rows for task in tasks] == [len(table) for table in tables]
    return tables


def test_each_range_is_a_task_and_long_ones_are_cut(client: Client) -> None:
    publish(client, "ranges", 5)
    whole = read(sluice.read_dataset("ranges"))
    assert len(whole) == 2
    pieces = read(sluice.read_dataset("ranges", client=client, messages_per_task=7))
    assert max(map(len, pieces)) == 7
    for tables in (whole, pieces):
        rows = pa.concat_tables(tables).to_pylist()
        assert sorted(int(row["payload"]) for row in rows) == list(range(50))
        for partition in range(2):
            positions = [row["position"] for row in rows if row["partition"] == partition]
            assert positions == sorted(positions)


def test_a_dataset_may_begin_and_end_at_a_time(client: Client) -> None:
    publish(client, "times", 5)
    second = datetime.fromtimestamp(2 * DAY_MS / 1000, UTC)
    for start, end, days in [
        (second, None, range(1, 5)),
        (None, second, range(1)),
        (2 * DAY_MS, 4 * DAY_MS, range(1, 3)),
        (2 * DAY_MS + 1, 4 * DAY_MS + 1, range(2, 4)),
        (9 * DAY_MS, None, range(0)),
    ]:
        found = pa.concat_tables(read(sluice.read_dataset("times", start, end)))
        assert sorted(int(payload.as_py()) for payload in found["payload"]) == [
            10 * day + number for day in days for number in range(10)
        ]


def test_a_topic_without_messages_is_an_empty_dataset(client: Client) -> None:
    client.create_topic("empty")
    [table] = read(sluice.read_dataset("empty"))
    assert table.schema == ROWS
    assert len(table) == 0


def test_unreadable_topic_and_options_are_told(client: Client) -> None:
    with pytest.raises(NotFound):
        sluice.read_dataset("nowhere")
    with pytest.raises(Invalid, match="messages_per_task"):
        sluice.read_dataset("empty", messages_per_task=0)
    with pytest.raises(Invalid, match="time zone"):
        sluice.read_dataset("empty", datetime(2026, 1, 1))
    with pytest.raises(Invalid, match="end is a datetime or ms since 1970, not str"):
        sluice.read_dataset("empty", None, "today")  # type: ignore[arg-type]


def stored(client: Client, topic: str) -> list[tuple[bytes | None, bytes]]:
    tables = pa.concat_tables(read(sluice.read_dataset(topic, client=client)))
    return sorted((row["key"], row["payload"]) for row in tables.to_pylist())


def test_a_write_task_that_runs_again_stores_nothing_twice(client: Client) -> None:
    client.create_topic("totals", 2)
    sink = sluice.SluiceSink("totals", key_column="customer", payload_column="total", name="nightly")
    blocks = [
        pa.table({"customer": [f"c{number}" for number in range(10 * block, 10 * block + 10)], "total": ["7"] * 10})
        for block in range(3)
    ]
    assert sink.write(blocks[:1], Task(0)) == 10  # and then it was ended
    assert sink.write(blocks[:2], Task(0)) == 20
    assert sink.write([blocks[2].to_pandas(), pa.table({})], Task(1)) == 10
    assert sink.write([pa.table({})], Task(2)) == 0
    assert stored(client, "totals") == sorted((f"c{number}".encode(), b"7") for number in range(30))


def test_keys_may_be_whole_numbers_and_other_columns_go_along(client: Client) -> None:
    client.create_topic("numbers")
    block = pa.table({"id": [1, 2], "payload": [b"a", b"b"], "event_time": [5, 6], "partition": [0, 0]})
    sluice.SluiceSink("numbers", key_column="id").write([block], Task(0))
    assert stored(client, "numbers") == [(b"1", b"a"), (b"2", b"b")]
    [piece] = client.stored("numbers")
    times = [row["event_time"] for part in client.read("numbers", piece) for row in part.rows.to_pylist()]
    assert times == [5, 6]


def test_a_column_that_is_missing_is_told(client: Client) -> None:
    block = pa.table({"id": [1], "total": ["7"]})
    for key, told in [(None, "no column 'payload'; it has id, total"), ("customer", "no column 'customer'")]:
        with pytest.raises(Invalid, match=told):
            sluice.SluiceSink("numbers", key_column=key).write([block], Task(0))

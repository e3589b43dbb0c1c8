"""Spark itself over a topic whose ledgers lie in the object store: batch, stream, SQL, and Parquet as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sluice
from sluice.cluster.history import sql as duck
from sluice.cluster.history.log_read import ATTEMPTS, LogRead
from sluice.loadgen.spark import sql
from sluice.loadgen.spark.datasource import SluiceDataSource
from sluice.loadgen.spark.topic_frame import is_gone, topic_frame
from sluice.storage.errors import Invalid
from tests.cluster.helpers import eventually, unpacked
from tests.loadgen.offloaded import EACH, HOUR, OffloadedTopic

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
LEDGERS = 6


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OffloadedTopic]:
    """Everything of it is in the object store. The cluster is in this process, so no task of Spark can ask a broker."""
    folder = tmp_path_factory.mktemp("history")
    with sluice.connect(embedded=True, data_dir=folder) as client:
        topic = OffloadedTopic(client, folder)
        topic.publish(LEDGERS)
        topic.offload()
        yield topic


@pytest.fixture
def frame(topic: OffloadedTopic, spark: Any) -> Any:
    """A read of the store alone, to which options and a schema can be added."""
    spark.dataSource.register(SluiceDataSource)
    return spark.read.format("sluice").options(topic="t", dataDir=str(topic.folder), history="only")


def test_spark_reads_the_store_without_a_broker(topic: OffloadedTopic, frame: Any, spark: Any) -> None:
    rows = frame.load().collect()
    assert sorted(int(row["payload"]) for row in rows) == list(range(topic.next))
    counted = frame.schema("key binary").load().groupBy("key").count().collect()
    assert {bytes(row["key"]): row["count"] for row in counted} == {
        b"k%d" % key: len(range(key, topic.next, 7)) for key in range(7)
    }
    properties = frame.schema("properties map<string, string>, entry long").load().where("properties['n'] = '77'")
    assert [row["entry"] for row in properties.collect()] == [77 % EACH]
    files = str(topic.folder / "objects" / "history+" / "t+")
    plain = spark.read.option("recursiveFileLookup", "true").parquet(files)
    assert plain.where("publish_time >= timestamp_millis(3600000)").count() == topic.next - EACH


def test_queries_of_one_frame_do_not_narrow_each_other(topic: OffloadedTopic, frame: Any, spark: Any) -> None:
    """Spark keeps the plan of a frame's first query: had a filter narrowed it, all others would miss messages."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        table = frame.schema("key binary, publish_time timestamp, payload binary").load()
        begin, end = (f"timestamp_millis({hour * HOUR})" for hour in (2, 3))
        hour = table.where(f"publish_time >= {begin} AND publish_time < {end}")
        assert sorted(int(row["payload"]) for row in hour.collect()) == list(range(2 * EACH, 3 * EACH))
        assert table.count() == topic.next
        narrow = frame.option("startingTimestamp", 2 * HOUR).option("key", "k3").load()
        assert sorted(int(row["payload"]) for row in narrow.collect()) == [
            number for number in range(3, topic.next, 7) if number >= 2 * EACH
        ]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_spark_reads_the_files_itself_and_finds_the_same(topic: OffloadedTopic, spark: Any) -> None:
    """Every column, all messages, a key and a time. An object that goes away after the plan is told by its error."""
    spark.dataSource.register(SluiceDataSource)
    schema = sql.table_schema("*")
    options = {"topic": "t", "dataDir": str(topic.folder), "history": "only"}
    words = ", ".join(f"{name} {kind}" for name, kind in schema.items())
    for more in ({}, {"key": "k3"}, {"startingTimestamp": str(2 * HOUR), "endingTimestamp": str(4 * HOUR)}):
        plain = topic_frame(spark, schema, options | more)
        assert "Python" not in plain._jdf.queryExecution().toString()
        source = spark.read.format("sluice").schema(words).options(**options, **more).load()
        found, wanted = ({row["position"]: row.asDict() for row in one.collect()} for one in (plain, source))
        assert found == wanted
        assert len(found) > 0
    part = topic_frame(spark, schema, options | {"startingOffsets": "2:7", "endingOffsets": "2:9"})
    assert sorted(row["entry"] for row in part.collect()) == [7, 8]
    planned = topic_frame(spark, {"payload": "binary"}, options)
    file = sorted((topic.folder / "objects" / "history+" / "t+").rglob("*.parquet"))[0]
    file.rename(file.with_suffix(".away"))
    try:
        with pytest.raises(Exception, match="FILE_NOT_EXIST") as failed:
            planned.collect()
    finally:
        file.with_suffix(".away").rename(file)
    assert is_gone(failed.value)


def test_spark_reads_times_in_milliseconds_as_the_others(spark: Any, tmp_path: Path) -> None:
    """In objects that an earlier version wrote, message by message an hour later."""
    folder = unpacked("history-in-milliseconds.tar.gz", tmp_path)
    spark.dataSource.register(SluiceDataSource)
    schema = {"payload": "binary", "publish_time": "timestamp", "deliver_at": "timestamp"}
    options = {"topic": "orders", "dataDir": str(folder), "history": "only"}
    orders = topic_frame(spark, schema, options)
    words = ", ".join(f"{name} {kind}" for name, kind in schema.items())
    by_python = spark.read.format("sluice").schema(words).options(**options).load()
    numbers = "int(cast(payload AS string)) AS number", "unix_millis(publish_time)", "unix_millis(deliver_at)"
    found, again = (sorted(map(tuple, one.selectExpr(*numbers).collect())) for one in (orders, by_python))
    assert len(found) == 37, "three are still on bookies"
    assert found == [(one, one * HOUR, one * HOUR + 1 if one % 10 == 7 else None) for one, *_ in found]
    assert again == found
    hour = orders.where(f"publish_time >= timestamp_millis({8 * HOUR}) AND publish_time < timestamp_millis({9 * HOUR})")
    assert [bytes(row["payload"]) for row in hour.collect()] == [b"8"]


BOTH = (
    "SELECT * FROM t",
    "SELECT cast(key AS string) AS customer, count(*) AS orders, sum(entry) AS entries FROM t GROUP BY key",
    "SELECT max(publish_time) AS last, min(position) AS first, count(deliver_at) AS delayed FROM `t`",
    "SELECT cast(payload AS string) AS number, properties['n'] AS n FROM t WHERE properties['n'] = '80'",
    f"SELECT count(*) AS few FROM t WHERE publish_time >= timestamp_millis({HOUR}) AND unix_millis(publish_time) < 9e6",
    "SELECT a.partition, count(*) AS pairs FROM t a JOIN t b USING (position) WHERE b.entry < 3 GROUP BY a.partition",
    "SELECT cast(min(key) AS string) AS least, avg(ledger) AS mean FROM t HAVING count(*) > 1",
)


@pytest.mark.parametrize("more", [{}, {"key": "k3", "startingTimestamp": str(HOUR), "endingTimestamp": str(4 * HOUR)}])
def test_both_engines_give_the_same_rows(
    topic: OffloadedTopic, spark: Any, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    monkeypatch.setattr(sql, "spark_session", lambda *_, **__: contextlib.nullcontext(spark))
    options = {"dataDir": str(topic.folder), "history": "only"} | more
    for text in BOTH:
        by_spark = sql.query(text, ["t"], options)
        by_duckdb = duck.query(text, ["t"], lambda name: LogRead.from_options(options, name, contextlib.nullcontext))
        assert by_duckdb, text
        assert [list(row) for row in by_duckdb] == [list(row) for row in by_spark], text
        assert sorted(map(str, by_duckdb)) == sorted(map(str, by_spark)), text


class Erases:
    """Makes frames as `topic_frame` does. Behind each of the first `times` a key is erased, and planned objects go."""

    def __init__(self, topic: OffloadedTopic, times: int) -> None:
        self.topic, self.times, self.made = topic, times, 0

    def __call__(self, *arguments: Any) -> Any:
        frame = topic_frame(*arguments)
        if self.made < self.times:
            client = self.topic.client
            client.erase("t", f"k{self.made}")
            eventually(lambda: not client.erase_status("t")[0]["keys"], lambda: str(client.erase_status("t")))
        self.made += 1
        return frame


@pytest.fixture
def answering(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], tuple[Any, int]]]:
    """Asks how many messages a topic has and how many of them have keys; so often objects go away meanwhile. Says the
    answer, and how often the query was planned.
    """
    monkeypatch.setattr(sql, "spark_session", lambda *_, **__: contextlib.nullcontext(spark))
    monkeypatch.setattr("sluice.actors.topic.background.erasing.FORGOTTEN_MS", 0)
    with sluice.connect(embedded=True, data_dir=tmp_path) as client:
        topic = OffloadedTopic(client, tmp_path)
        topic.publish(2)
        topic.offload()

        def ask(times: int) -> tuple[Any, int]:
            erases = Erases(topic, times)
            monkeypatch.setattr(sql, "topic_frame", erases)
            options = {"dataDir": str(tmp_path), "history": "only"}
            rows = sql.query("SELECT count(*) AS rows, count(key) AS keyed FROM t", ["t"], options)
            return rows, erases.made

        yield ask


def test_a_query_is_asked_anew_when_objects_went_away(answering: Callable[[int], tuple[Any, int]]) -> None:
    rows, planned = answering(ATTEMPTS - 1)
    gone = len([number for number in range(2 * EACH) if number % 7 < ATTEMPTS - 1])
    assert (rows, planned) == ([{"rows": 2 * EACH, "keyed": 2 * EACH - gone}], ATTEMPTS)


def test_a_query_whose_objects_go_away_all_the_time_says_so(answering: Callable[[int], tuple[Any, int]]) -> None:
    with pytest.raises(Invalid, match="no answer: objects went away in 3 tries"):
        answering(ATTEMPTS)


def test_a_stream_of_the_store_goes_on_from_its_checkpoint(topic: OffloadedTopic, spark: Any, tmp_path: Path) -> None:
    spark.dataSource.register(SluiceDataSource)
    options = {"topic": "t", "dataDir": str(topic.folder), "history": "only", "maxMessagesPerTrigger": "120"}
    for _ in range(2):  # the second one finds nothing new
        read = spark.readStream.format("sluice").options(**options).load().select("payload", "position")
        write = read.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = write.trigger(availableNow=True).start(str(tmp_path / "out"))
        query.awaitTermination(300)
        assert query.exception() is None
    written = [int(row["payload"]) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(written) == list(range(topic.next))
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) >= topic.next // 120

"""The whole thing on a real cluster: the flood with its faults, and the data source in both directions.

One cluster and one Spark session for the module. Nothing is timed; what is waited for has a condition.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.broker import ClusterConnect
from loadgen.datasource import SluiceDataSource
from loadgen.flood import run_flood
from loadgen.options import FloodOptions

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterConnect]:
    from cluster import launch

    with launch.local(tmp_path_factory.mktemp("broker"), bookies=3) as running:
        yield ClusterConnect(running.address, os.environ.get("RAY_AUTH_TOKEN_PATH", ""))


def test_flood_with_faults_keeps_every_promise(connect: ClusterConnect, spark: Any, tmp_path: Path) -> None:
    options = FloodOptions.of(messages=100_000, keys=2_000, seed=21, consumers=3, partitions=2, rate=20_000)
    report = run_flood(options, connect, folder=tmp_path, spark=spark)
    told = report.to_dict()
    assert report.reasons == []
    assert told["verdict"] == "ok"
    assert told["messages"]["published"] == told["messages"]["confirmed"] == told["messages"]["acked"] == 100_000
    assert [fault["kind"] for fault in told["faults"]] == ["restart-consumer", "kill-consumer", "join-consumer"]
    assert told["checked"]["keys_in_flight_together"] > 100
    assert told["checked"]["hashes_moved"] > 0
    assert set(told["at_rest"].values()) == {0}
    assert len(report.judgement.measures.shares) >= 4
    assert {row["role"] for row in told["memory"]} >= {"broker", "bookie", "controller", "consumer", "shared memory"}


def test_flood_of_delayed_messages_delivers_none_early(connect: ClusterConnect, spark: Any, tmp_path: Path) -> None:
    options = FloodOptions.of(
        messages=20_000, keys=500, seed=22, consumers=2, partitions=2, restarts=0, delayed=0.2, delay_max_ms=3_000
    )
    report = run_flood(options, connect, folder=tmp_path, spark=spark)
    assert report.reasons == []
    assert report.judgement.findings.checked["delayed"] > 3_000
    assert report.judgement.measures.lateness.get_total_count() > 3_000


def test_flood_of_a_file(connect: ClusterConnect, spark: Any, tmp_path: Path) -> None:
    lines = ["tail,flight"] + [f"{'' if i % 50 == 0 else f'N{i % 40}'},{i}" for i in range(6_000)]
    (tmp_path / "flights.csv").write_text("\n".join(lines))
    options = FloodOptions.of(input=str(tmp_path / "flights.csv"), key_column="tail", seed=23, restarts=0, work_us=200)
    report = run_flood(options, connect, folder=tmp_path, spark=spark)
    assert report.reasons == []
    assert report.judgement.findings.messages["acked"] == 6_000
    assert report.judgement.findings.checked["keys"] == 40


def test_data_source_writes_and_reads_a_batch(connect: ClusterConnect, spark: Any) -> None:
    with connect() as client:
        client.create_topic("batch", partitions=2)
    spark.dataSource.register(SluiceDataSource)
    place = {"topic": "batch", "address": connect.address, "tokenFile": connect.token_file}
    frame = spark.range(3_000).selectExpr(
        "cast(concat('key-', id % 37) as binary) as key", "cast(cast(id as string) as binary) as payload"
    )
    for _ in range(2):  # the same write again stores nothing twice
        frame.write.format("sluice").options(producer="job-1", **place).mode("append").save()
    rows = spark.read.format("sluice").options(**place).load().collect()
    assert sorted(int(row["payload"]) for row in rows) == list(range(3_000))
    with connect() as client:
        assert client.subscriptions("batch") == []


def test_data_source_streams_through_a_subscription(connect: ClusterConnect, spark: Any, tmp_path: Path) -> None:
    with connect() as client:
        for topic in ("source", "sink"):
            client.create_topic(topic, partitions=2)
    spark.dataSource.register(SluiceDataSource)
    place = {"address": connect.address, "tokenFile": connect.token_file}
    for part in range(2):  # the query ends after the first part and goes on from its checkpoint with the second
        numbers = spark.range(part * 1_000, part * 1_000 + 1_000)
        rows = numbers.selectExpr("cast(concat('k', id % 9) as binary) as key", "cast(string(id) as binary) as payload")
        rows.write.format("sluice").options(topic="source", producer=f"part-{part}", **place).mode("append").save()
        stream = spark.readStream.format("sluice").options(
            topic="source", subscription="copy", spool=str(tmp_path / "spool"), **place
        )
        query = (
            stream.load()
            .select("key", "payload")
            .writeStream.format("sluice")
            .options(topic="sink", checkpointLocation=str(tmp_path / "checkpoint"), **place)
            .start()
        )
        try:
            with connect() as client:
                _until_published(client, "sink", (part + 1) * 1_000, query)
        finally:
            query.stop()
    copied = spark.read.format("sluice").options(topic="sink", **place).load().collect()
    assert sorted(int(row["payload"]) for row in copied) == list(range(2_000))


def _until_published(client: Any, topic: str, count: int, query: Any) -> None:
    from cluster.launch import wait_until

    def arrived() -> bool:
        assert query.exception() is None, query.exception()
        return sum(int(row["msgInCounter"]) for row in client.stats(topic)) >= count

    wait_until(arrived, 120, f"{count} messages in {topic}")

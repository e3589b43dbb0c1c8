"""The whole thing on a real cluster: the flood with its faults, and the data source in both directions.

One cluster and one Spark session for the module. Nothing is timed; what is waited for has a condition.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from sluice.loadgen.base.acts import FAST, LOADED, REST
from sluice.loadgen.base.broker import ClusterConnect
from sluice.loadgen.base.kinds import ACT_KINDS, JOIN, RESTART
from sluice.loadgen.base.options import FloodOptions
from sluice.loadgen.load.consume import ConsumeJob
from sluice.loadgen.load.fork_server import ForkedConsumer, ForkServer
from sluice.loadgen.load.pulsar_client import connect_to, untold
from sluice.loadgen.run.flood import run_flood
from sluice.loadgen.spark.datasource import SluiceDataSource

TOPICS = ("source", "middle")
"""The topics that the streaming program reads."""

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of the module's cluster."""
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def connect(folder: Path) -> Iterator[ClusterConnect]:
    from sluice.cluster.launch import launch

    with launch.local(folder, bookies=3, pulsar_port=0) as running:
        yield ClusterConnect(running.address, os.environ.get("RAY_AUTH_TOKEN_PATH", ""))


def test_flood_with_faults_keeps_every_promise(connect: ClusterConnect, spark: Any, tmp_path: Path) -> None:
    options = FloodOptions.from_values(messages=200_000, keys=2_000, seed=21, consumers=3, partitions=2)
    report = run_flood(options, connect, folder=tmp_path, spark=spark.sparkContext)
    told = report.to_dict()
    assert report.reasons == []
    assert told["verdict"] == "ok"
    assert told["messages"]["published"] == told["messages"]["confirmed"] == told["messages"]["acked"] == 200_000
    assert [fault["kind"] for fault in told["faults"]] == list(ACT_KINDS)
    # Each waits under load, with a bound, for what must be seen of it; the load waits for the last of them.
    assert [fault["kind"] for fault in report.faults if not fault["effect"]] == []
    assert told["draining"]["peak"] > 0
    assert [act["name"] for act in told["acts"]] == [FAST, LOADED, REST]
    assert told["acts"][0]["end_to_end_msgs_per_s"] > told["acts"][1]["intended_msgs_per_s"]
    assert sum(told["moves"]["by_cause"].values()) > 0
    assert told["checked"]["keys_in_flight_together"] > 100
    assert told["checked"]["hashes_moved"] > 0
    assert set(told["at_rest"].values()) == {0}
    # On a busy machine those that come back or join may find everything delivered, so this says nothing of each one.
    assert sum(int(each.sum()) for each in report.judgement.measures.shares.values()) >= 200_000
    assert {row["role"] for row in told["memory"]} >= {"broker", "bookie", "controller", "consumer", "shared memory"}


@pytest.mark.release
def test_the_older_policy_is_found_out(connect: ClusterConnect, spark: Any, tmp_path: Path) -> None:
    """A helper of a hanging consumer gets newer messages of keys that the consumer holds, and the older ones
    afterwards.

    Each run shows it with another load: test_the_judge_tells_policies_that_break_the_order, in test_chaos_live.py.
    """
    for seed in (25, 26, 27, 28):  # whether messages of the right keys meet is a matter of chance
        options = FloodOptions.from_values(messages=60_000, seed=seed, policy="read_position")
        report = run_flood(options, connect, folder=tmp_path / str(seed), spark=spark.sparkContext)
        print(seed, report.judgement.findings.violations, report.faults)
        if report.judgement.findings.violations["order"]:
            break
    assert report.judgement.findings.violations["order"] > 0
    assert (report.verdict, report.exit_code) == ("broken", 1)


class HeldUp(ForkedConsumer):
    """A consumer that never gets to join if it is the newcomer."""

    def start(self, incarnation: str, consumer_name: str, receiver_queue_size: int) -> None:
        """Nothing happens to the third."""
        if consumer_name != "consumer-3":
            super().start(incarnation, consumer_name, receiver_queue_size)


def test_joiner_that_is_held_up_is_told_as_not_shown(
    connect: ClusterConnect, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every promise holds, and the verdict says that the newcomer took nothing over; the load lasts for who follows."""
    monkeypatch.setattr("sluice.loadgen.faults.faults.ACT_KINDS", (JOIN, RESTART))
    options = FloodOptions.from_values(
        messages=30_000, seed=24, consumers=2, partitions=2, rate=6_000, restarts=2, strict=True
    )
    fork_server = ForkServer()

    def spawn(job: ConsumeJob) -> ForkedConsumer:
        made = fork_server(job)
        made.__class__ = HeldUp
        return made

    with contextlib.closing(fork_server):
        report = run_flood(options, connect, folder=tmp_path, spark=spark.sparkContext, spawn=spawn)
    assert (report.reasons, report.verdict, report.exit_code) == ([], "ok", 1)
    assert "join-consumer consumer-3: no effect was seen" in report.not_shown
    assert "consumer-3 joined and received nothing" in report.not_shown
    assert [fault["kind"] for fault in report.faults] == [JOIN, RESTART]
    assert report.faults[1]["effect"], "it came under load, although the one before took all of its time"


def test_flood_with_pulsars_client_keeps_every_promise(
    connect: ClusterConnect, folder: Path, spark: Any, tmp_path: Path
) -> None:
    options = FloodOptions.from_values(client="pulsar", messages=6_000, keys=300, seed=26, consumers=3, partitions=2)
    clients = connect_to(folder)
    report = run_flood(options, connect, folder=tmp_path, spark=spark.sparkContext, clients=clients)
    told = report.to_dict()
    assert report.reasons == []
    assert told["messages"]["published"] == told["messages"]["confirmed"] == told["messages"]["acked"] == 6_000
    assert {fault["kind"] for fault in told["faults"]} == set(ACT_KINDS)
    assert set(told["at_rest"].values()) == {0}
    assert [kind for kind, count in told["violations"].items() if count is None] == list(untold([]))
    assert {line.partition(":")[0] for line in report.not_shown} >= set(untold([]))


def test_flood_of_delayed_messages_delivers_none_early(connect: ClusterConnect, spark: Any, tmp_path: Path) -> None:
    options = FloodOptions.from_values(
        messages=20_000,
        keys=500,
        skew=1.5,
        seed=22,
        consumers=2,
        partitions=2,
        restarts=0,
        acts=False,
        delayed=0.2,
        delay_max_ms=3_000,
    )
    report = run_flood(options, connect, folder=tmp_path, spark=spark.sparkContext)
    assert report.reasons == []
    assert report.judgement.findings.checked["delayed"] > 3_000, "a fifth of all"
    assert report.judgement.measures.lateness.get_total_count() > 3_000
    heaviest = report.to_dict()["hot_keys"]
    assert heaviest["messages"][0]["key"] == heaviest["bytes"][0]["key"] == "key-000", "the first of a skewed load"
    assert 0.3 < heaviest["messages"][0]["share"] < 0.5


def test_flood_of_a_file(connect: ClusterConnect, spark: Any, tmp_path: Path) -> None:
    lines = ["tail,flight"] + [f"{'' if i % 50 == 0 else f'N{i % 40}'},{i}" for i in range(6_000)]
    (tmp_path / "flights.csv").write_text("\n".join(lines))
    options = FloodOptions.from_values(
        input=str(tmp_path / "flights.csv"), key_column="tail", seed=23, restarts=0, acts=False, work_us=200
    )
    report = run_flood(options, connect, folder=tmp_path, spark=spark.sparkContext)
    assert report.reasons == []
    assert report.judgement.findings.messages["acked"] == 6_000
    assert report.judgement.findings.checked["keys"] == 40


def test_data_source_writes_and_reads_a_batch(connect: ClusterConnect, spark: Any) -> None:
    with connect() as client:
        client.create_topic("batch", partitions=2)
    spark.dataSource.register(SluiceDataSource)
    place = {"topic": "batch", "address": connect.address, "tokenFile": connect.token_file}
    due = 4_000_000_000_000  # in a century; a batch reads delayed messages like all others
    frame = spark.range(3_000).selectExpr(
        "cast(concat('key-', id % 37) as binary) as key",
        "cast(cast(id as string) as binary) as payload",
        f"if(id % 10 = 0, {due}, 0) as deliver_at",
    )
    for _ in range(2):  # the same write again stores nothing twice
        frame.write.format("sluice").options(producer="job-1", **place).mode("append").save()
    read = spark.read.format("sluice").options(maxMessagesPerTask=500, **place).load()
    assert read.rdd.getNumPartitions() >= 6
    rows = read.collect()
    assert sorted(int(row["payload"]) for row in rows) == list(range(3_000))
    assert {int(row["payload"]) % 10 == 0: row["deliver_at"] for row in rows} == {True: due, False: 0}
    with connect() as client:
        assert client.subscriptions("batch") == []


def test_streams_that_are_killed_go_on_from_their_checkpoints(
    connect: ClusterConnect, spark: Any, tmp_path: Path
) -> None:
    """Copied by foreachBatch and by writeStream, with SIGKILL in the middle: nothing is lost, nothing stored twice."""
    with connect() as client, contextlib.ExitStack() as jobs:
        for topic in (*TOPICS, "sink"):
            client.create_topic(topic, partitions=2)
        job = jobs.enter_context(_stream_job(connect, tmp_path))
        _publish(client, "source", 0, 200)
        _until_published(client, "sink", 1, job)
        _publish(client, "source", 200, 200)
        _until_halfway(tmp_path, job)
        jobs.close()
        job = jobs.enter_context(_stream_job(connect, tmp_path))
        _publish(client, "source", 400, 200)
        _until_published(client, "sink", 600, job)
    spark.dataSource.register(SluiceDataSource)
    for topic in ("middle", "sink"):
        place = {"topic": topic, "address": connect.address, "tokenFile": connect.token_file}
        rows = spark.read.format("sluice").options(**place).load().collect()
        assert sorted(int(row["payload"]) for row in rows) == list(range(600)), topic


@contextlib.contextmanager
def _stream_job(connect: ClusterConnect, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The streaming program in a process of its own, ended with SIGKILL, Java and Python workers included."""
    command = [sys.executable, "-m", "tests.loadgen.stream_job", str(connect.address), connect.token_file, str(folder)]
    with open(folder / "job.log", "ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as job:
        try:
            yield job
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                top = psutil.Process(job.pid)
                for process in [top, *top.children(recursive=True)]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()


def _until_halfway(folder: Path, job: subprocess.Popen[bytes]) -> None:
    """Wait until a micro-batch was begun and is not committed."""
    from tests.cluster.helpers import eventually

    def newest(what: str) -> int:
        return max((int(path.name) for path in (folder / what).glob("[0-9]*")), default=-1)

    def halfway() -> bool:
        assert job.poll() is None, "the streaming program ended by itself"
        return any(newest(f"checkpoint-{topic}/offsets") > newest(f"checkpoint-{topic}/commits") for topic in TOPICS)

    eventually(halfway, "a micro-batch in the middle", 120)


def _publish(client: Any, topic: str, first: int, count: int) -> None:
    numbers = range(first, first + count)
    keys, payloads = [b"k%d" % (n % 9) for n in numbers], [b"%d" % n for n in numbers]
    with client.create_producer(topic) as producer:
        producer.send_batch(pa.record_batch({"key": pa.array(keys), "payload": pa.array(payloads)})).result(60)


def _until_published(client: Any, topic: str, count: int, job: subprocess.Popen[bytes]) -> None:
    from tests.cluster.helpers import eventually

    def arrived() -> bool:
        assert job.poll() is None, "the streaming program ended by itself"
        return sum(int(row["msgInCounter"]) for row in client.stats(topic)) >= count

    eventually(arrived, f"{count} messages in {topic}", 120)

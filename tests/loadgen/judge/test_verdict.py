"""From files to findings: the judge alone, and the same judge spread over Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sluice.loadgen.base.generate import Workload
from sluice.loadgen.base.history import (
    ACKS,
    CONFIRMED,
    DELIVERIES,
    DETACH,
    EVENTS,
    SENT,
    HistoryClock,
    confirm_acks,
    write_parquet,
)
from sluice.loadgen.judge.checkers import judge
from sluice.loadgen.judge.measures import Span
from sluice.loadgen.judge.verdict import MESSAGES_PER_PART, judge_part, judge_with_spark, read_table, span_of
from sluice.loadgen.load.publish import SUMMARY, PublishJob, publish_generated, publish_rows
from tests.loadgen.fakes import FolderClient

WORKLOAD = Workload(messages=3_000, size=32, keys=60, skew=1.0, tasks=2, seed=3, batch=400)


@dataclass
class Run:
    """A flood's folder, with deliveries that a perfect broker would have made of its sends."""

    folder: Path

    def deliver(self, sent: pa.Table) -> pa.Table:
        """Deliver the messages in order of position: the first half to one consumer, then the rest to another."""
        rows = sent.sort_by([("partition", "ascending"), ("position", "ascending")])
        count = rows.num_rows
        at = np.sort(rows.column("confirmed_at").to_numpy()) + 1_000
        early = np.arange(count) < count // 2
        at = np.where(early, at, at + 10_000_000)
        columns = {
            "consumer": pa.array(np.where(early, "c1", "c2")),
            "session": pa.array(np.full(count, 1)),
            "partition": rows.column("partition"),
            "position": rows.column("position"),
            "key": rows.column("key"),
            "key_seq": rows.column("key_seq"),
            "redelivery": pa.array(np.zeros(count, np.int32)),
            "epoch": pa.array(np.ones(count, np.int64)),
            "dispatch": pa.array(np.arange(count)),
            "received_at": pa.array(at),
            "acked_at": pa.array(at + 5_000),
            "negative": pa.array(np.zeros(count, np.bool_)),
            "bytes": pa.array(np.full(count, 32, np.int32)),
            "hash": rows.column("hash"),
        }
        return pa.table(columns).cast(DELIVERIES)

    def write(self, delivered: pa.Table) -> None:
        """Write deliveries and the events that go with them."""
        for name in ("deliveries", "events"):
            (self.folder / name).mkdir(exist_ok=True)
        write_parquet(delivered, self.folder / "deliveries" / "all.parquet")
        last = int(pc.max(delivered.column("acked_at")).as_py())
        split = int(pc.max(delivered.filter(pc.equal(delivered.column("consumer"), "c1")).column("acked_at")).as_py())
        rows = [
            {"consumer": "c1", "session": -1, "partition": -1, "event": DETACH, "at": split + 1, "upto": 0},
            {"consumer": "c1", "session": -1, "partition": -1, "event": CONFIRMED, "at": split, "upto": split},
            {"consumer": "c2", "session": -1, "partition": -1, "event": CONFIRMED, "at": last, "upto": last},
        ]
        write_parquet(pa.Table.from_pylist(rows, EVENTS), self.folder / "events" / "all.parquet")

    def judge(self) -> Any:
        """The judge without Spark."""
        return judge_part(
            read_table(self.folder / "sends", SENT),
            read_table(self.folder / "deliveries", DELIVERIES),
            read_table(self.folder / "events", EVENTS),
            span_of(self.folder),
        )


def published(folder: Path, fail_after: int = 0) -> PublishJob:
    client = FolderClient(folder / "broker", fail_after)
    client.create_topic("t", partitions=3)
    job = PublishJob(client, "t", "flood", HistoryClock.start(), folder)
    job.prepare()
    return job


@pytest.fixture
def run(tmp_path: Path) -> Run:
    job = published(tmp_path)
    list(publish_generated(job, WORKLOAD)(iter([pa.record_batch({"id": pa.array([0, 1], pa.int64())})])))
    made = Run(tmp_path)
    made.write(made.deliver(read_table(tmp_path / "sends", SENT)))
    return made


def test_perfect_run_is_clean(run: Run) -> None:
    judged = run.judge()
    assert judged.findings.clean
    assert judged.findings.messages["acked"] == WORKLOAD.messages
    assert judged.findings.checked["keys"] == 60
    assert judged.findings.checked["keys_in_flight_together"] > 0
    assert judged.measures.histogram.get_total_count() == WORKLOAD.messages
    assert judged.measures.bytes == 32 * WORKLOAD.messages


def test_redelivery_after_the_confirmation_event_is_found(run: Run) -> None:
    delivered = read_table(run.folder / "deliveries", DELIVERIES)
    late = delivered.slice(10, 4).to_pylist()
    last = int(pc.max(delivered.column("acked_at")).as_py())
    again = [row | {"received_at": last + 1, "acked_at": last + 2, "dispatch": 10**6, "consumer": "c2"} for row in late]
    run.write(pa.concat_tables([delivered, pa.Table.from_pylist(again, DELIVERIES)]))
    assert run.judge().findings.violations["acked_redelivered"] == 4


def test_each_row_is_let_go_by_its_own_acknowledgement(run: Run) -> None:
    """The ack in a row has the same effect as the judge's own pairing of rows and acks in separate tables."""
    delivered = read_table(run.folder / "deliveries", DELIVERIES)
    some = np.where(np.arange(delivered.num_rows) % 7 == 0, 0, delivered.column("acked_at").to_numpy())
    delivered = delivered.set_column(delivered.schema.get_field_index("acked_at"), "acked_at", pa.array(some))
    run.write(delivered)
    events, sent = read_table(run.folder / "events", EVENTS), read_table(run.folder / "sends", SENT)
    acks = delivered.filter(pc.greater(delivered.column("acked_at"), 0))
    acks = acks.append_column("confirmed_at", pa.array(np.zeros(acks.num_rows, np.int64))).select(ACKS.names)
    apart = judge(sent, delivered, confirm_acks(acks, events), events)
    assert apart.violations["lost"] == int((some == 0).sum())
    together = run.judge().findings
    assert (together.violations, together.checked) == (apart.violations, apart.checked)
    assert together.messages == apart.messages


def test_span_is_read_from_the_files(run: Run) -> None:
    span, sent = span_of(run.folder), read_table(run.folder / "sends", SENT)
    assert span.start == int(pc.min(sent.column("sent_at")).as_py())
    assert span_of(run.folder / "nothing") == Span.over(0, 1)


@pytest.mark.spark
def test_spark_finds_what_the_judge_finds_alone(spark: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    delivered = read_table(run.folder / "deliveries", DELIVERIES)
    # Lose some, and let some come in the wrong order.
    broken = pa.concat_tables([delivered.slice(0, 500), delivered.slice(520)])
    stamps = broken.column("dispatch").to_numpy().copy()
    stamps[100:140] = stamps[100:140][::-1]
    place = broken.schema.get_field_index("dispatch")
    run.write(broken.set_column(place, "dispatch", pa.array(stamps)))
    alone = run.judge()
    assert alone.findings.violations["lost"] == 20
    assert alone.findings.violations["order"] > 0
    monkeypatch.setattr("sluice.loadgen.judge.verdict.MESSAGES_PER_PART", 500)
    spread = judge_with_spark(spark.sparkContext, run.folder, span_of(run.folder), WORKLOAD.messages)
    assert spread.findings.violations == alone.findings.violations
    assert spread.findings.checked == alone.findings.checked
    assert spread.findings.messages == alone.findings.messages
    assert spread.measures.delivered.tolist() == alone.measures.delivered.tolist()
    assert spread.measures.latency.tolist() == alone.measures.latency.tolist()
    assert spread.measures.histogram.get_total_count() == alone.measures.histogram.get_total_count()
    assert MESSAGES_PER_PART == 250_000


@pytest.mark.spark
def test_spark_judges_an_empty_history(spark: Any, tmp_path: Path) -> None:
    for name in ("sends", "deliveries", "events"):
        (tmp_path / name).mkdir()
    judged = judge_with_spark(spark.sparkContext, tmp_path, Span.over(0, 1), 0)
    assert judged.findings.clean
    assert judged.findings.checked["messages"] == 0


@pytest.mark.spark
def test_a_retried_spark_task_stores_nothing_twice(spark: Any, tmp_path: Path) -> None:
    job = published(tmp_path, fail_after=2)
    frame = spark.range(0, 2, numPartitions=2).mapInArrow(publish_generated(job, WORKLOAD), SUMMARY)
    rows = frame.collect()
    assert sorted(row["task"] for row in rows) == [0, 1]
    assert {row["attempt"] for row in rows} == {1}
    assert sum(row["confirmed"] for row in rows) == WORKLOAD.messages
    stored = FolderClient(tmp_path / "broker").stored("t")
    places = set(zip(stored.column("partition").to_pylist(), stored.column("position").to_pylist(), strict=True))
    assert len(places) == stored.num_rows == WORKLOAD.messages
    attempts = sorted(file.name for file in job.sends.glob("*.parquet"))
    assert attempts == [f"task-000{task}-attempt-{attempt}.parquet" for task in (0, 1) for attempt in (0, 1)]
    made = Run(tmp_path)
    whole = pa.concat_tables([pq.read_table(file, schema=SENT) for file in job.sends.glob("*attempt-1*")])
    made.write(made.deliver(whole))
    judged = made.judge()
    assert judged.findings.clean
    assert judged.findings.messages["published"] == WORKLOAD.messages
    assert judged.findings.messages["unknown"] == 0


@pytest.mark.spark
def test_spark_tasks_publish_a_users_rows(spark: Any, tmp_path: Path) -> None:
    job = published(tmp_path)
    frame = spark.range(900).selectExpr(
        "cast(string(id % 7) as binary) as key", "cast(string(id) as binary) as payload"
    )
    rows = frame.repartition(2, "key").mapInArrow(publish_rows(job), SUMMARY).collect()
    assert sum(row["confirmed"] for row in rows) == 900
    assert FolderClient(tmp_path / "broker").stored("t").num_rows == 900
    assert read_table(tmp_path / "sends", SENT).num_rows == 900

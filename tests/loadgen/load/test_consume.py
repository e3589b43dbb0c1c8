"""A flood consumer: what it writes, and that it writes before it acknowledges."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.loadgen.base.generate import payloads
from sluice.loadgen.base.history import (
    ATTACH,
    CONFIRMED,
    DELIVERIES,
    DETACH,
    EVENTS,
    EXPIRED,
    HistoryClock,
    read_journal,
)
from sluice.loadgen.load.consume import ConsumeJob, ConsumerProgress, FloodConsumer, seal_journals
from sluice.storage.errors import Unavailable
from sluice.storage.format.position import position
from tests.loadgen.fakes import ListBatch, ListClient, ListConsumer


def make_batch(number: int, count: int = 4) -> ListBatch:
    key_seq = np.arange(number * count, (number + 1) * count)
    payload = payloads(key_seq, key_seq, 24, np.random.default_rng(1))
    rows = pa.record_batch({"key": pa.array([b"k"] * count), "payload": payload})
    return ListBatch(
        rows,
        partition=number % 2,
        positions=position(1, 0) + key_seq,
        redeliveries=np.array([0, 0, 1, 0], np.uint8)[:count],
        dispatch=key_seq + 100,
    )


def make_job(tmp_path: Path, consumer: ListConsumer) -> ConsumeJob:
    job = ConsumeJob(ListClient(consumer), "t", "s", HistoryClock.start(), tmp_path, policy="last_sent_position")
    job.prepare()
    return job


def run(job: ConsumeJob, consumer: ListConsumer) -> ConsumerProgress:
    flood = FloodConsumer(job)
    flood.start("c.1", "c", 500)
    assert consumer.empty.wait(10)
    flood.stop()
    return ConsumerProgress.read(job.progress / "c.1")


def test_a_join_takes_the_connection_that_is_there(tmp_path: Path) -> None:
    """A consumer that is ready has found the cluster already; one that comes back after leaving finds it again."""
    consumer = ListConsumer(deque([make_batch(0)]))
    job = make_job(tmp_path, consumer)
    flood = FloodConsumer(job)
    flood.ready()
    assert job.connect.opened == 1  # type: ignore[attr-defined]
    for incarnation, connections in (("c.1", 1), ("c.2", 2)):
        consumer.empty.clear()
        flood.start(incarnation, "c", 500)
        assert consumer.empty.wait(60)
        flood.stop()
        assert job.connect.opened == connections  # type: ignore[attr-defined]
        assert ConsumerProgress.read(job.progress / incarnation).joined


def test_history_holds_every_delivery_and_event(tmp_path: Path) -> None:
    consumer = ListConsumer(deque(make_batch(number) for number in range(3)))
    job = make_job(tmp_path, consumer)
    progress = run(job, consumer)
    assert progress == ConsumerProgress(joined=True, received=12, redelivered=3)
    rows = pq.read_table(job.deliveries / "c.1.parquet", schema=DELIVERIES)
    assert rows.column("key_seq").to_pylist() == list(range(12))
    assert rows.column("position").to_pylist() == [position(1, entry) for entry in range(12)]
    assert rows.column("partition").to_pylist() == [0] * 4 + [1] * 4 + [0] * 4
    assert rows.column("dispatch").to_pylist() == list(range(100, 112))
    assert rows.column("redelivery").to_pylist() == [0, 0, 1, 0] * 3
    assert set(rows.column("bytes").to_pylist()) == {24}
    assert set(rows.column("consumer").to_pylist()) == {"c.1"}
    received, acked = rows.column("received_at").to_numpy(), rows.column("acked_at").to_numpy()
    assert (received <= acked).all()
    events = pq.read_table(job.events / "c.1.parquet", schema=EVENTS)
    kinds = events.column("event").to_pylist()
    assert kinds[0] == ATTACH
    assert kinds[-1] == DETACH
    confirmed = [row["upto"] for row in events.to_pylist() if row["event"] == CONFIRMED]
    assert max(confirmed) >= acked.max()
    assert consumer.closed
    assert consumer.settings["policy"] == "last_sent_position"
    assert consumer.settings["initial_position"] == "earliest"
    assert consumer.settings["receiver_queue_size"] == 500


def test_rows_are_on_disk_before_the_acknowledgement_leaves(tmp_path: Path) -> None:
    consumer = ListConsumer(deque(make_batch(number) for number in range(3)))
    job = make_job(tmp_path, consumer)
    consumer.look = lambda: read_journal(job.journals / "deliveries-c.1", DELIVERIES).num_rows
    run(job, consumer)
    assert consumer.seen_on_acknowledge == [4, 8, 12]


def test_only_what_was_handed_over_counts_as_confirmed(tmp_path: Path) -> None:
    """Between its row and its acknowledgement a consumer may be stopped for long, and then be killed."""
    consumer = ListConsumer(deque(make_batch(number) for number in range(2)))
    asked = threading.Event()

    def acknowledge(batch: ListBatch) -> None:
        asked.clear()
        assert asked.wait(30), "nobody asks what is durable"
        if consumer.acknowledged:
            consumer.empty.set()
            raise Unavailable("killed")
        consumer.acknowledged.append(batch)

    consumer.acknowledge = acknowledge  # type: ignore[method-assign]
    consumer.wait_acknowledged = lambda timeout_ms=None: asked.set()  # type: ignore[method-assign]
    job = make_job(tmp_path, consumer)
    run(job, consumer)
    seal_journals(job, "c.1")
    handed_over = pq.read_table(job.deliveries / "c.1.parquet").column("acked_at").to_pylist()[:4]
    events = pq.read_table(job.events / "c.1.parquet").to_pylist()
    assert {row["upto"] for row in events if row["event"] == CONFIRMED} == {handed_over[0]}


def test_a_lost_session_ends_with_its_last_batch(tmp_path: Path) -> None:
    consumer = ListConsumer(deque(make_batch(number) for number in range(4)), lose_after=3)
    job = make_job(tmp_path, consumer)
    run(job, consumer)
    rows = pq.read_table(job.deliveries / "c.1.parquet").to_pylist()
    lost = [row for row in pq.read_table(job.events / "c.1.parquet").to_pylist() if row["event"] == EXPIRED]
    assert len(lost) == 1
    assert (lost[0]["session"], lost[0]["partition"]) == (7, 0)
    assert lost[0]["at"] == rows[8]["received_at"]
    assert lost[0]["upto"] >= lost[0]["at"]


def test_a_failing_consumer_says_why(tmp_path: Path) -> None:
    consumer = ListConsumer(deque([make_batch(0)]))

    def refuse(batch: ListBatch) -> None:
        consumer.empty.set()
        raise Unavailable("the dispatcher is gone")

    consumer.acknowledge = refuse  # type: ignore[method-assign]
    job = make_job(tmp_path, consumer)
    progress = run(job, consumer)
    assert progress.error == "Unavailable: the dispatcher is gone"
    seal_journals(job, "c.1")
    assert pq.read_table(job.deliveries / "c.1.parquet").num_rows == 4
    seal_journals(job, "c.1")

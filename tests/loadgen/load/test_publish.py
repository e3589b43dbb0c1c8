"""Publishing tasks without Spark: numbering of a user's rows, the history they write, and the retry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sluice.loadgen.base.acts import Pace, Reserve
from sluice.loadgen.base.generate import Workload, read_key_seq
from sluice.loadgen.base.history import INFO, OK, SENT, HistoryClock
from sluice.loadgen.load.publish import PublishJob, chunks_of, publish_generated, publish_rows, read_progress
from sluice.storage.errors import Unavailable
from tests.loadgen.fakes import FolderClient

WORKLOAD = Workload(messages=2_000, size=32, keys=50, skew=1.0, tasks=2, seed=3, batch=300)


def make_job(tmp_path: Path, fail_after: int = 0) -> PublishJob:
    client = FolderClient(tmp_path / "broker", fail_after)
    client.create_topic("t", partitions=3)
    job = PublishJob(client, "t", "flood", HistoryClock.start(), tmp_path)
    job.prepare()
    return job


def run_tasks(job: PublishJob, workload: Workload) -> list[dict[str, int]]:
    batch = pa.record_batch({"id": pa.array(range(workload.tasks), pa.int64())})
    return [row for result in publish_generated(job, workload)(iter([batch])) for row in result.to_pylist()]


def history(job: PublishJob) -> pa.Table:
    return pa.concat_tables([pq.read_table(file, schema=SENT) for file in sorted(job.sends.glob("*.parquet"))])


def test_everything_is_published_and_written_down(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    summaries = run_tasks(job, WORKLOAD)
    assert sum(row["sent"] for row in summaries) == 2_000
    assert sum(row["confirmed"] for row in summaries) == 2_000
    assert sum(row["bytes"] for row in summaries) >= 2_000 * 32
    assert read_progress(tmp_path) == (2_000, 2_000)
    sent, stored = history(job), FolderClient(tmp_path / "broker").stored("t")
    assert sent.num_rows == stored.num_rows == 2_000
    assert pc.all(pc.equal(sent.column("status"), OK)).as_py()
    written = set(zip(sent.column("partition").to_pylist(), sent.column("position").to_pylist(), strict=True))
    there = set(zip(stored.column("partition").to_pylist(), stored.column("position").to_pylist(), strict=True))
    assert written == there
    order = sent.filter(pc.equal(sent.column("producer"), "flood-0")).column("sequence").to_pylist()
    assert order == list(range(len(order)))
    assert not list(job.sends.glob(".*"))


def test_delays_become_due_times(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    before = job.clock.now() // 1000
    run_tasks(job, replace(WORKLOAD, delayed=0.5, delay_min_ms=5_000, delay_max_ms=6_000))
    due = history(job).column("deliver_at").to_numpy()
    stored = FolderClient(tmp_path / "broker").stored("t").column("deliver_at").to_numpy()
    assert sorted(due.tolist()) == sorted(stored.tolist())
    late = due[due > 0]
    assert 0.4 < len(late) / len(due) < 0.6
    assert late.min() >= before + 5_000
    assert late.max() <= job.clock.now() // 1000 + 6_000


def test_a_failed_attempt_is_unknown_and_its_repetition_harmless(tmp_path: Path) -> None:
    job = make_job(tmp_path, fail_after=2)
    with pytest.raises(Unavailable, match="planted"):
        run_tasks(job, WORKLOAD)
    statuses = history(job).column("status").to_pylist()
    assert set(statuses) == {OK, INFO}
    assert statuses.count(OK) == 2 * WORKLOAD.batch
    assert len(statuses) == WORKLOAD.shares()[0]
    with pytest.raises(Unavailable, match="planted"):  # the other task has its own producer
        run_tasks(job, WORKLOAD)
    run_tasks(job, WORKLOAD)
    stored = FolderClient(tmp_path / "broker").stored("t")
    places = set(zip(stored.column("partition").to_pylist(), stored.column("position").to_pylist(), strict=True))
    assert len(places) == stored.num_rows == 2_000


def test_rate_charges_the_wait_to_the_broker(tmp_path: Path) -> None:
    job = replace(make_job(tmp_path), rate=20_000.0)
    run_tasks(job, replace(WORKLOAD, messages=1_000))
    first = history(job).filter(pc.equal(history(job).column("producer"), "flood-0")).column("sent_at").to_numpy()
    share = WORKLOAD.shares()[0] / WORKLOAD.messages
    assert first[-1] - first[0] == pytest.approx((len(first) - 1) * 1e6 / (20_000 * share), rel=0.02)


def test_a_task_ends_when_it_has_sent_for_its_time(tmp_path: Path) -> None:
    job = replace(make_job(tmp_path), lasts_us=1)
    assert sum(row["sent"] for row in run_tasks(job, WORKLOAD)) == 0
    assert history(job).num_rows == 0
    job = replace(make_job(tmp_path / "paced"), rate=20_000.0, lasts_us=50_000)
    assert sum(row["sent"] for row in run_tasks(job, WORKLOAD)) < WORKLOAD.messages


def test_progress_shows_confirmed_rows_while_more_are_sent(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    seen = []

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            seen.append(read_progress(tmp_path))
            yield pa.record_batch({"key": pa.array([b"a", b"b"]), "payload": pa.array([b"{}"] * 2)})

    for _ in publish_rows(job)(batches()):
        pass
    assert [*seen, read_progress(tmp_path)] == [(0, 0), (2, 2), (4, 4), (6, 6)]


def test_rows_of_a_user_are_numbered_within_their_keys(tmp_path: Path) -> None:
    keys = [b"a", b"b", None, b"a", b"a", None]
    batches = [
        pa.record_batch({"key": pa.array(keys, pa.binary()), "payload": pa.array([b"{}"] * 6), "event_time": range(6)}),
        pa.record_batch({"key": pa.array([], pa.binary()), "payload": pa.array([], pa.binary())}),
        pa.record_batch({"key": pa.array([b"b", b"c", b"a"]), "payload": pa.array([b"{}"] * 3)}),
    ]
    chunks = list(chunks_of(iter(batches), task=2))
    assert [chunk.key_seq.tolist() for chunk in chunks] == [
        [0, 0, (2 << 40) + 2, 1, 2, (2 << 40) + 5],
        [1, 0, 3],
    ]
    assert chunks[1].first_row == 6
    assert all(read_key_seq(chunk.rows).tolist() == chunk.key_seq.tolist() for chunk in chunks)
    assert "event_time" in chunks[0].rows.schema.names


def test_rows_of_a_user_are_published(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    rows = pa.record_batch({"key": pa.array([b"a", None, b"a"], pa.binary()), "payload": pa.array([b"1", b"2", b"3"])})
    (summary,) = publish_rows(job)(iter([rows]))
    assert summary.to_pylist()[0]["confirmed"] == 3
    assert sorted(FolderClient(tmp_path / "broker").stored("t").column("payload").to_pylist()) == [b"1", b"2", b"3"]


def test_two_acts_are_one_numbering_at_intended_times(tmp_path: Path) -> None:
    """The task waits at the border; what it sends then has the times that the pace gives."""
    plain, job = (make_job(tmp_path / name) for name in ("whole", "acts"))
    job = replace(job, first_part=0.5)
    at = job.clock.now()
    Pace(1_000_000.0, at).write(job.pace)
    for each in (plain, job):
        run_tasks(each, WORKLOAD)
    shares = WORKLOAD.shares()
    for task in range(WORKLOAD.tasks):
        mine = pc.equal(history(plain).column("producer"), f"flood-{task}")
        one, other = (history(each).filter(mine) for each in (plain, job))
        for name in ("key", "key_seq", "sequence"):
            assert one.column(name).to_pylist() == other.column(name).to_pylist(), name
        first, rate = int(shares[task] * 0.5), int(shares[task]) / WORKLOAD.messages
        paced = other.column("sent_at").to_numpy()[first:]
        assert paced[0] == at
        assert paced[-1] == at + int((len(paced) - 1) / rate)


def test_rows_of_a_user_come_in_two_acts(tmp_path: Path) -> None:
    """The border is reckoned from the whole job, which the task cannot count; it lies within the second batch."""
    job = replace(make_job(tmp_path), first_part=0.5, total=12, tasks=2)
    at = job.clock.now() - 10_000_000  # past, so that no row waits for its time
    Pace(2_000.0, at).write(job.pace)
    batches = [pa.record_batch({"key": [b"a"] * count, "payload": [b"%d" % count] * count}) for count in (2, 4)]
    (summary,) = publish_rows(job)(iter(batches))
    assert summary.to_pylist()[0]["confirmed"] == 6
    sent_at = history(job).column("sent_at").to_numpy()
    assert (sent_at[:3] >= at + 10_000_000).all(), "the first act is sent as it comes"
    assert sent_at[3:].tolist() == [at, at + 1_000, at + 2_000]


def test_nothing_of_the_first_act_is_delayed(tmp_path: Path) -> None:
    """Throughput with delays would be that of the delays, and half of that would be the rate of the second act."""
    job = replace(make_job(tmp_path), first_part=0.5)
    Pace(1_000_000.0, job.clock.now()).write(job.pace)
    run_tasks(job, replace(WORKLOAD, delayed=0.5, delay_min_ms=5_000, delay_max_ms=6_000))
    for task, share in enumerate(WORKLOAD.shares()):
        mine = history(job).filter(pc.equal(history(job).column("producer"), f"flood-{task}"))
        due, first = mine.column("deliver_at").to_numpy(), int(share * 0.5)
        assert not due[:first].any()
        assert 0.3 < np.count_nonzero(due[first:]) / (share - first) < 0.7


def test_another_pace_is_taken_up_in_the_middle(tmp_path: Path) -> None:
    """The intended times go on from where they were, at the new distance; nothing is skipped or sent twice."""
    job = replace(make_job(tmp_path), rate=100_000.0)
    Reserve(job.pace, 100_000.0, WORKLOAD.messages).adjust(WORKLOAD.messages // 8, 4.0, job.clock.now())
    told = Pace.read(job.pace)
    assert told is not None
    assert told.rate == WORKLOAD.messages // 8 / 4.0
    Pace(200_000.0, job.clock.now() + 50_000).write(job.pace)
    run_tasks(job, WORKLOAD)
    share = WORKLOAD.shares()[0] / WORKLOAD.messages
    mine = history(job).filter(pc.equal(history(job).column("producer"), "flood-0"))
    assert mine.column("sequence").to_pylist() == list(range(mine.num_rows))
    times = mine.column("sent_at").to_numpy()
    assert times[-1] - times[0] == pytest.approx((len(times) - 1) * 1e6 / (200_000 * share), rel=0.02)

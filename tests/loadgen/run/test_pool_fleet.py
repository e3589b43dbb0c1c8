"""Consumers of the flood that are workers of a pool: their history, and faults that the pool answers."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sluice
from sluice.loadgen.base.generate import payloads
from sluice.loadgen.base.history import (
    ATTACH,
    CONFIRMED,
    DEATH,
    DELIVERIES,
    DETACH,
    EVENTS,
    HistoryClock,
    read_journal,
)
from sluice.loadgen.base.kinds import JOIN, KILL, RESTART
from sluice.loadgen.faults.faults import Fault
from sluice.loadgen.load.consume import ConsumeJob, ConsumerProgress
from sluice.loadgen.load.pool_consumer import FloodHandler
from sluice.loadgen.run.pool_fleet import PoolFleet
from tests.cluster.helpers import eventually

ROWS = 200


def make_job(folder: Path) -> ConsumeJob:
    job = ConsumeJob(lambda: None, "orders", "s", HistoryClock.start(), folder)  # type: ignore[arg-type, return-value]
    job.prepare()
    return job


def test_a_worker_writes_the_history_of_a_consumer(tmp_path: Path) -> None:
    numbers = np.arange(ROWS)
    payload = payloads(numbers // 10, numbers, 24, np.random.default_rng(1))
    rows = pa.record_batch({"key": [b"key-%d" % (number % 10) for number in range(ROWS)], "payload": payload})
    job = make_job(tmp_path / "histories")
    with sluice.connect(embedded=True, data_dir=tmp_path / "data") as client:
        client.create_topic("orders", 2)
        with client.create_producer("orders") as producer:
            producer.send_batch(rows).result(60)
        pool = sluice.Workers("orders", "s", FloodHandler(job), client=client, name="consumer", batch_size=50)
        with pool:
            eventually(lambda: pool.status().handled == ROWS, lambda: str(pool.status()))
    (file,) = job.deliveries.iterdir()
    table = pq.read_table(file, schema=DELIVERIES)
    for key in range(10):
        mine = table.filter(pa.compute.equal(table.column("key"), b"key-%d" % key))
        assert mine.column("key_seq").to_pylist() == list(range(ROWS // 10))
    assert set(table.column("consumer").to_pylist()) == {file.stem}
    received, acked = table.column("received_at").to_numpy(), table.column("acked_at").to_numpy()
    assert (received <= acked).all()
    events = pq.read_table(job.events / file.name, schema=EVENTS).to_pylist()
    assert (events[0]["event"], events[-1]["event"]) == (ATTACH, DETACH)
    assert max(row["upto"] for row in events if row["event"] == CONFIRMED) >= acked.max()
    assert ConsumerProgress.read(job.progress / file.stem) == ConsumerProgress(True, ROWS, 0)


def test_handled_rows_are_confirmed_once_the_worker_acknowledges(tmp_path: Path) -> None:
    """A worker acknowledges when its handler has returned, and may be killed in between."""
    job = make_job(tmp_path)
    consumer = SimpleNamespace(consumer_name=lambda: "consumer-0", wait_acknowledged=lambda timeout_ms: None)
    handler = FloodHandler(job)
    handler.on_attached(consumer)
    handler._quiet.set()
    handler._confirmer.join()

    def handled(number: int) -> None:
        numbers = np.array([number])
        columns = {"partition": [0], "session": [1], "epoch": [1], "redelivery_count": [0], "dispatch": numbers}
        payload = payloads(numbers, numbers, 24, np.random.default_rng(1))
        handler(pa.record_batch({"key": [b"k"], "payload": payload, "position": numbers, **columns}))

    def confirmed() -> int:
        handler._ask(consumer, handler._events)
        events = read_journal(job.journals / f"events-{handler._incarnation}", EVENTS).to_pylist()
        return max((row["upto"] for row in events if row["event"] == CONFIRMED), default=0)

    handled(0)
    (first,) = (
        read_journal(job.journals / f"deliveries-{handler._incarnation}", DELIVERIES).column("acked_at").to_pylist()
    )
    assert confirmed() < first
    handled(1)
    assert confirmed() == first
    handler.on_leaving()
    (file,) = job.events.iterdir()
    last = pq.read_table(job.deliveries / file.name).column("acked_at").to_pylist()[-1]
    assert max(row["upto"] for row in pq.read_table(file).to_pylist()) == last


class FakePool:
    """Has a process for each worker, and starts another one in place of one that died."""

    def __init__(self, job: ConsumeJob, size: int) -> None:
        self.job, self.size = job, size
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.lock = threading.Lock()
        self.sizes: list[int] = []

    def start(self) -> None:
        self.status()

    def scale(self, least: int, most: int) -> None:
        assert least == most
        self.sizes.append(most)
        self.size = most

    def status(self) -> Any:
        with self.lock:
            names = [f"consumer-{number}" for number in range(self.size)]
            for name, process in list(self.processes.items()):
                if name not in names:
                    process.kill()
                if name not in names or process.poll() is not None:
                    process.wait()
                    del self.processes[name]
            for name in names:
                if name not in self.processes:
                    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
                    self.processes[name] = started
                    ConsumerProgress(joined=True).write(self.job.progress / f"{name}.{started.pid}")
            where = {name: f"{process.pid} on 127.0.0.1" for name, process in self.processes.items()}
        return SimpleNamespace(where=where, failures={}, reason="")

    def stop(self, timeout_s: float) -> None:
        self.size = 0
        self.status()


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePool]:
    one = FakePool(make_job(tmp_path), 2)
    monkeypatch.setattr(sluice, "Workers", lambda *_, **__: one, raising=False)
    yield one
    one.stop(1)


def begun(pool: FakePool) -> PoolFleet:
    fleet = PoolFleet(pool.job, None, {})
    fleet.start(2, 0)
    return fleet


def names(fleet: PoolFleet) -> list[str]:
    return sorted(member.name for member in fleet.working)


def test_a_death_is_noted_and_the_pool_mends_it(pool: FakePool) -> None:
    fleet = begun(pool)
    before = {member.name: member.incarnation for member in fleet.working}
    fleet.inject(Fault(KILL, target="consumer-1"))

    def mended() -> bool:
        fleet.poll()
        return len(fleet.working) == 2

    eventually(mended, lambda: str(fleet.working))
    assert names(fleet) == ["consumer-0", "consumer-1"]
    after = {member.name: member.incarnation for member in fleet.working}
    assert after["consumer-0"] == before["consumer-0"]
    assert after["consumer-1"] != before["consumer-1"]
    fleet.finish()
    (death,) = pq.read_table(pool.job.events / "driver.parquet").to_pylist()
    assert (death["consumer"], death["event"]) == (before["consumer-1"], DEATH)


def test_joining_and_leaving_change_the_size_of_the_pool(pool: FakePool) -> None:
    fleet = begun(pool)
    fleet.inject(Fault(JOIN))
    assert (pool.sizes, names(fleet)) == ([3], ["consumer-0", "consumer-1", "consumer-2"])
    fleet.inject(Fault(RESTART))
    assert (pool.sizes, names(fleet)) == ([3, 2, 3], ["consumer-0", "consumer-1", "consumer-2"])
    assert [row["target"] for row in fleet.history] == ["consumer-2", "consumer-2"]
    assert len(fleet.gone) == 1
    fleet.finish()
    assert fleet.working == []

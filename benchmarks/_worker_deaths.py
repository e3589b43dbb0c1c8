"""The scene of `workers.py` in which workers of a pool on three nodes are killed while it grows and shrinks."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks._worker_calls import CallRecorder, judged, nodes_of, results_judged, written
from benchmarks._worker_scenes import PATIENCE_S, Look, settled
from sluice import Workers, connect
from sluice.cluster.client.client import Client
from sluice.cluster.launch import launch
from sluice.cluster.settings.config import load

NODES, CPUS = 3, 8
FEWEST, MOST = 2, 8
WORK_S = 0.001
AT_ONCE = 5_000
LOOK_S = 0.25
QUIET_S = 60.0
"""So long the pool may take to shrink when all is handled."""


def handler_of(folder: Path, *, results: bool) -> type:
    """A class that is made without arguments, in each worker."""

    class Handler:
        def __init__(self) -> None:
            import ray

            self._calls = CallRecorder(str(folder), ray.get_runtime_context().get_node_id())

        def __call__(self, message: Any) -> bytes | None:
            data = message.data()
            key, number = np.frombuffer(data, "<i4").tolist()
            call = self._calls.begin(key, number)
            time.sleep(WORK_S)
            self._calls.end(call)
            return data if results else None

    return Handler


def publish(client: Client, topic: str, messages: int, keys: int, rate: float) -> None:
    """Number n has key n % keys; rate messages a second."""
    names = pa.array([b"key-%d" % key for key in range(keys)], pa.binary())
    began = time.monotonic()
    with client.create_producer(topic) as producer:
        for start in range(0, messages, AT_ONCE):
            time.sleep(max(began + start / rate - time.monotonic(), 0))
            numbers = np.arange(start, min(start + AT_ONCE, messages))
            stamps = np.stack([numbers % keys, numbers // keys], axis=1).astype("<i4")
            ends = pa.py_buffer(np.arange(len(numbers) + 1, dtype=np.int32) * 8)
            payload = pa.Array.from_buffers(pa.binary(), len(numbers), [None, ends, pa.py_buffer(stamps.tobytes())])
            rows = pa.record_batch({"key": names.take(pa.array(numbers % keys)), "payload": payload})
            producer.send_batch(rows).result(PATIENCE_S)


class Killer:
    """Kills a worker of the pool with SIGKILL, again and again. deaths: when, ns, by process."""

    def __init__(self, workers: Workers, every_s: float) -> None:
        self.deaths: dict[int, int] = {}
        self._workers, self._every_s = workers, every_s
        self._over = threading.Event()
        self._chance = random.Random(29)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            status = self._workers.status()
            running = [where for name, where in status.where.items() if where and status.workers[name] == "running"]
            if running:
                pid = int(self._chance.choice(running).split()[0])
                if pid not in self.deaths:
                    os.kill(pid, signal.SIGKILL)
                    self.deaths[pid] = time.monotonic_ns()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def deaths(folder: Path, messages: int, keys: int, rate: float, every_s: float, *, results: bool) -> dict[str, Any]:
    """Publish at a rate, kill a worker every so many seconds until all is handled, wait until the pool is small again,
    and judge what the handlers wrote down; with results also what is in the output.
    """
    launch.up(load(None, data_dir=folder, cpus=CPUS, pulsar_port=-1, pulsar_web_port=-1).values, NODES)
    try:
        with connect(data_dir=folder) as client:
            return _played(client, folder, messages, keys, rate, every_s, results)
    finally:
        launch.down(folder)


def _played(
    client: Client, folder: Path, messages: int, keys: int, rate: float, every_s: float, results: bool
) -> dict[str, Any]:
    calls = folder / "calls"
    calls.mkdir()
    client.create_topic("deaths", 4)
    if results:
        client.create_topic("results", 4, deduplication_enabled=True)
    options: dict[str, Any] = {
        "min_workers": FEWEST, "max_workers": MOST, "downscale_delay_ms": 2_000, "output": "results" if results else "",
        "ray_actor_options": {"num_cpus": 1, "scheduling_strategy": "SPREAD"}, "connect": {"data_dir": str(folder)},
    }  # fmt: skip
    course: list[Look] = []
    with Workers("deaths", "s", handler_of(calls, results=results), client=client, **options) as workers:
        settled(workers, FEWEST)
        began = time.monotonic()
        publisher = threading.Thread(target=publish, args=(client, "deaths", messages, keys, rate), daemon=True)
        publisher.start()
        killer, handled_s = Killer(workers, every_s), 0.0
        while not handled_s or (len(workers.status().workers) > FEWEST and course[-1][0] < handled_s + QUIET_S):
            status, now = workers.status(), time.monotonic() - began
            course.append((round(now, 1), len(status.workers), status.oldest_age_ms))
            if not handled_s and not publisher.is_alive() and not _backlog(client):
                handled_s = now
                killer.stop()
            time.sleep(LOOK_S)
        course.append((round(time.monotonic() - began, 1), len(workers.status().workers), 0))
        replaced, failed = workers.status().replaced, workers.status().failed
        events = [text for _, text in workers.status().events]
    told = judged(written(calls, killer.deaths), killer.deaths, keys, messages)
    if results:
        told |= results_judged(stored_numbers(client, "results", keys), keys, messages)
    sizes = [size for _, size, _ in course]
    return told | {
        "messages": messages, "keys": keys, "killed": len(killer.deaths), "replaced": replaced, "failed": failed,
        "nodes_with_workers": len(nodes_of(calls)), "most_workers": max(sizes), "workers_at_the_end": sizes[-1],
        "handled_s": round(handled_s, 1), "messages_per_s": round(messages / handled_s),
        "events": events[-30:],
    }  # fmt: skip


def _backlog(client: Client) -> int:
    return sum(int(part["msgBacklog"]) for part in client.stats("deaths", "s"))


def stored_numbers(client: Client, topic: str, keys: int) -> list[Any]:
    """Return by partition the number of the message that each result was made of, in order."""
    found: dict[int, list[Any]] = {}
    for piece in client.stored(topic):
        for part in client.read(topic, piece):
            pairs = np.frombuffer(b"".join(part.rows.column("payload").to_pylist()), "<i4").reshape(-1, 2)
            found.setdefault(piece.partition, []).append(pairs[:, 0] + pairs[:, 1].astype(np.int64) * keys)
    return [np.concatenate(pieces) for _, pieces in sorted(found.items())]

"""Scenes of `workers.py` in which something happens to a pool on Ray: a death, another version, a step of load."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sluice import Workers
from sluice.cluster.client.client import Client
from sluice.cluster.workers import registry

Look = tuple[float, int, int]
"""Seconds since the beginning, workers, and the age of the oldest message in ms."""
PATIENCE_S = 200.0
TICK_S = 0.005
TARGET_MS = 1_000
LOOK_S = 0.25
OWN_S = 2
"""A key that a worker had within these seconds, and nobody after it, is its own."""


def wait_for(condition: Callable[[], bool], every_s: float = 0.02) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("it did not come true")
        time.sleep(every_s)


def settled(workers: Workers, count: int) -> None:
    """Wait until so many workers run, and a spare one is ready."""
    wait_for(lambda: list(workers.status().workers.values()) == ["running"] * count and workers.status().spares == 1)


class Recorder:
    """A handler that writes down when it was called for which key. work_ms: how long it takes besides."""

    def __init__(self, folder: str, work_ms: float = 0.0) -> None:
        self._file = Path(folder, f"{os.getpid()}-{time.monotonic_ns()}").open("a", buffering=1)  # noqa: SIM115
        self._work_s = work_ms / 1000

    def __call__(self, message: Any) -> None:
        now = time.time_ns()
        print(message.partition_key(), int(message.data()), now, file=self._file)
        if self._work_s:
            time.sleep(self._work_s)


def recording(folder: Path, work_ms: float = 0.0) -> Any:
    """A class that is made without arguments."""

    class Recording(Recorder):
        def __init__(self) -> None:
            super().__init__(str(folder), work_ms)

    return Recording


def recorded(folder: Path) -> list[tuple[str, int, int]]:
    """(key, ns when it was sent, ns when it was handled) of every call so far."""
    return [call for file in folder.iterdir() for call in recorded_in(file)]


def recorded_in(file: Path) -> list[tuple[str, int, int]]:
    lines = [line.split() for line in file.read_text().splitlines()]
    return [(key, int(sent), int(at)) for key, sent, at in (line for line in lines if len(line) == 3)]


class Publisher:
    """Publishes in a thread, every TICK_S: messages that say when they were sent. rate: messages a second, may be
    changed.
    """

    def __init__(self, client: Client, topic: str, keys: int, rate: float) -> None:
        self.rate, self.sent, self._over = rate, 0, threading.Event()
        self._names = pa.array([b"key-%d" % key for key in range(keys)], pa.binary())
        self._thread = threading.Thread(target=self._run, args=(client, topic, keys), daemon=True)
        self._thread.start()

    def _run(self, client: Client, topic: str, keys: int) -> None:
        before, due = time.monotonic(), 0.0
        with client.create_producer(topic, batching_max_publish_delay_ms=2) as producer:
            while not self._over.wait(TICK_S):
                now = time.monotonic()
                due += self.rate * (now - before)
                before, count = now, int(due)
                due -= count
                if count:
                    names = self._names.take(pa.array(np.arange(self.sent, self.sent + count) % keys))
                    producer.send_batch(pa.record_batch({"key": names, "payload": [b"%d" % time.time_ns()] * count}))
                    self.sent += count
            producer.flush()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def kill(client: Client, folder: Path, keys: int, rounds: int) -> dict[str, Any]:
    """Each worker in turn; of its keys the first that is handled again counts, and the last one."""
    client.create_topic("kill", 2)
    calls = folder / "calls-kill"
    calls.mkdir()
    options: dict[str, Any] = {"min_workers": 3, "ray_actor_options": {"num_cpus": 1}}
    with Workers("kill", "s", recording(calls), client=client, connect={"data_dir": str(folder)}, **options) as workers:
        publisher = Publisher(client, "kill", keys, 500)
        settled(workers, 3)
        time.sleep(OWN_S)  # the keys have moved to those that joined, and each has been handled since
        first, last = [], []
        for turn in range(rounds):
            replaced = workers.status().replaced
            name = f"s-workers-{turn % 3}"
            pid = int(workers.status().where[name].split()[0])
            mine = own_keys(calls, pid)
            os.kill(pid, signal.SIGKILL)
            at = time.time_ns()
            wait_for(partial(_is_replaced, workers, replaced))
            wait_for(partial(_came_again, calls, mine, at), 0.2)
            again: dict[str, int] = {}
            for key, _, when in recorded(calls):
                if when > at and key in mine:
                    again[key] = min(again.get(key, when), when)
            first.append((min(again.values()) - at) / 1e6)
            last += [(when - at) / 1e6 for when in again.values()]
            settled(workers, 3)
            time.sleep(OWN_S)
        publisher.stop()
    return {"first_key_ms": quantiles(first), "every_key_ms": quantiles(last), "rounds": rounds}


def _is_replaced(workers: Workers, before: int) -> bool:
    return workers.status().replaced > before


def _came_again(calls: Path, keys: set[str], since: int) -> bool:
    return keys <= {key for key, _, when in recorded(calls) if when > since}


def own_keys(calls: Path, pid: int) -> set[str]:
    """Keys that were handled last by this process, and lately."""
    since = time.time_ns() - OWN_S * 10**9
    last: dict[str, tuple[int, int]] = {}
    for file in calls.iterdir():
        for key, _, when in recorded_in(file):
            last[key] = max(last.get(key, (0, 0)), (when, int(file.name.split("-")[0])))
    return {key for key, (when, whose) in last.items() if whose == pid and when > since}


def roll(client: Client, folder: Path, keys: int, workers: int) -> dict[str, Any]:
    """A detached pool is started again with another version."""
    client.create_topic("roll", 2)
    calls = folder / "calls-roll"
    calls.mkdir()

    def start(version: str) -> None:
        Workers(
            "roll", "s", recording(calls), client=client, detached=True, version=version, min_workers=workers,
            ray_actor_options={"num_cpus": 1}, connect={"data_dir": str(folder)},
        ).start()  # fmt: skip

    def runs(version: str) -> bool:
        told = registry.pools(client, "s-workers")[0]["status"]
        states, versions = told.get("workers", {}), told.get("versions", {})
        return list(states.values()) == ["running"] * workers and set(versions.values()) == {version}

    start("one")
    wait_for(lambda: runs("one"), 0.2)
    publisher = Publisher(client, "roll", keys, 200)
    wait_for(lambda: len(recorded(calls)) > 2 * keys, 0.5)
    moved, began = hashes_moved(client, "roll"), time.time_ns()
    start("two")
    wait_for(lambda: runs("two"), 0.2)
    took = (time.time_ns() - began) / 1e9
    publisher.stop()
    wait_for(lambda: not sum(int(part["msgBacklog"]) for part in client.stats("roll", "s")), 0.2)
    moved = hashes_moved(client, "roll") - moved  # before the workers leave for good, which moves all of them
    waits = [(at - sent) / 1e6 for _, sent, at in recorded(calls) if sent > began]
    registry.drain(client, "s-workers")
    wait_for(lambda: not registry.pools(client), 0.2)
    return {"workers": workers, "hashes_moved": moved, "wait_ms": quantiles(waits), "took_s": round(took, 1)}


def hashes_moved(client: Client, topic: str) -> int:
    return sum(int(part["hashesMovedTotal"]) for part in client.stats(topic, "s"))


def _nap(_: Any) -> None:
    time.sleep(0.001)


def step(client: Client, folder: Path, keys: int, rates: tuple[int, int], seconds: float) -> dict[str, Any]:
    """The age of the oldest message, and workers, over time: at the first rate, at the second, and at the first."""
    client.create_topic("step", 4)
    options: dict[str, Any] = {
        "min_workers": 1, "max_workers": 12, "target_age_ms": TARGET_MS, "downscale_delay_ms": 5_000,
        "ray_actor_options": {"num_cpus": 1}, "connect": {"data_dir": str(folder)},
    }  # fmt: skip
    course: list[Look] = []
    published: list[int] = []
    with Workers("step", "s", _nap, client=client, **options) as workers:
        settled(workers, 1)
        publisher = Publisher(client, "step", keys, 0)
        began, until = time.monotonic(), 0.0
        for lasts, rate in ((5.0, rates[0]), (seconds, rates[1]), (30.0, rates[0])):
            publisher.rate, until = rate, until + lasts
            at, before = time.monotonic(), publisher.sent
            while (now := time.monotonic() - began) < until:
                status = workers.status()
                course.append((round(now, 2), len(status.workers), status.oldest_age_ms))
                time.sleep(LOOK_S)
            published.append(round((publisher.sent - before) / (time.monotonic() - at)))
        publisher.stop()
        events = [text for _, text in workers.status().events]
    up = [(at - 5, size, age) for at, size, age in course if 5 <= at < 5 + seconds]
    late = [at for at, _, age in up if age > TARGET_MS]
    return {
        "seconds_until_below_target": round(max(late, default=0.0), 1),
        "oldest_ms_in_the_last_5_s": max(age for at, _, age in up if at > seconds - 5),
        "most_workers": max(size for _, size, _ in course),
        "workers_at_the_end": course[-1][1],
        "changes": [(now[0], now[1]) for before, now in itertools.pairwise(course) if now[1] != before[1]],
        "published_per_s": max(published),
        "events": events[-20:],
    }


def quantiles(took: list[float]) -> dict[str, float]:
    return {f"p{q}": round(float(np.percentile(took, q)), 1) for q in (50, 99, 100)}

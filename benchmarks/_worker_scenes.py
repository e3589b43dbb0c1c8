"""Scenes of `workers.py` in which something happens to a pool on Ray: a death, another version, a step of load."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cluster import Workers
from cluster.client import Client
from cluster.workers import registry

PATIENCE_S = 200.0


def wait_for(condition: Callable[[], bool], every_s: float = 0.02) -> None:
    """Look until it is so."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("it did not come true")
        time.sleep(every_s)


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
    lines = [line.split() for file in folder.iterdir() for line in file.read_text().splitlines()]
    return [(key, int(sent), int(at)) for key, sent, at in (line for line in lines if len(line) == 3)]


class Publisher:
    """Publishes in a thread: messages that say when they were sent. rate: messages a second, may be changed."""

    def __init__(self, client: Client, topic: str, keys: int, rate: float) -> None:
        self.rate, self._over = rate, threading.Event()
        self._thread = threading.Thread(target=self._run, args=(client, topic, keys), daemon=True)
        self._thread.start()

    def _run(self, client: Client, topic: str, keys: int) -> None:
        number, due = 0, time.monotonic()
        with client.create_producer(topic, batching_max_publish_delay_ms=2) as producer:
            while not self._over.is_set():
                producer.send_async(b"%d" % time.time_ns(), partition_key=f"key-{number % keys}")
                number += 1
                due = max(due + 1 / self.rate, time.monotonic() - 0.5)
                time.sleep(max(due - time.monotonic(), 0))
            producer.flush()

    def stop(self) -> None:
        """Send no more."""
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
        wait_for(lambda: list(workers.status().workers.values()) == ["running"] * 3 and workers.status().spares == 1)
        first, last = [], []
        for turn in range(rounds):
            replaced = workers.status().replaced
            name = f"s-workers-{turn % 3}"
            pid = int(workers.status().where[name].split()[0])
            mine = {key for file in calls.glob(f"{pid}-*") for key, _, _ in _lines(file)}
            os.kill(pid, signal.SIGKILL)
            at = time.time_ns()
            wait_for(partial(_is_replaced, workers, replaced))
            wait_for(partial(_came_again, calls, mine, at), 0.2)
            wait_for(lambda: list(workers.status().workers.values()) == ["running"] * 3)
            again: dict[str, int] = {}
            for key, _, when in recorded(calls):
                if when > at and key in mine:
                    again[key] = min(again.get(key, when), when)
            first.append((min(again.values()) - at) / 1e6)
            last += [(when - at) / 1e6 for when in again.values()]
            time.sleep(2)  # the next spare process starts, as it would between two deaths
        publisher.stop()
    return {"first_key_ms": quantiles(first), "every_key_ms": quantiles(last), "rounds": rounds}


def _is_replaced(workers: Workers, before: int) -> bool:
    return workers.status().replaced > before


def _came_again(calls: Path, keys: set[str], since: int) -> bool:
    return keys <= {key for key, _, when in recorded(calls) if when > since}


def _lines(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines() if len(line.split()) == 3]


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
    return {
        "workers": workers,
        "hashes_moved": moved,
        "wait_ms": quantiles(waits),
        "took_s": round(took, 1),
    }


def hashes_moved(client: Client, topic: str) -> int:
    """From one worker to another."""
    return sum(int(part["hashesMovedTotal"]) for part in client.stats(topic, "s"))


def step(client: Client, folder: Path, keys: int, rates: tuple[int, int], seconds: float) -> dict[str, Any]:
    """The age of the oldest message, and workers, over time."""
    client.create_topic("step", 4)

    def handle(_: Any) -> None:
        time.sleep(0.001)

    target = 1_000
    options: dict[str, Any] = {
        "min_workers": 1, "max_workers": 12, "target_age_ms": target, "downscale_delay_ms": 5_000,
        "ray_actor_options": {"num_cpus": 1}, "connect": {"data_dir": str(folder)},
    }  # fmt: skip
    course: list[tuple[float, int, int]] = []
    with Workers("step", "s", handle, client=client, **options) as workers:
        wait_for(lambda: list(workers.status().workers.values()) == ["running"])
        publisher = Publisher(client, "step", keys, rates[0])
        time.sleep(3)
        publisher.rate = rates[1]
        began, below = time.monotonic(), 0.0
        while (now := time.monotonic() - began) < seconds:
            status = workers.status()
            course.append((round(now, 1), len(status.workers), status.oldest_age_ms))
            below = now if status.oldest_age_ms > target else below
            time.sleep(0.5)
        publisher.rate = rates[0]
        time.sleep(seconds / 2)
        course.append(
            (round(time.monotonic() - began, 1), len(workers.status().workers), workers.status().oldest_age_ms)
        )
        publisher.stop()
        events = [text for _, text in workers.status().events]
    sizes = [size for _, size, _ in course]
    return {
        "seconds_until_below_target": round(below, 1),
        "course": [row for number, row in enumerate(course) if not number or row[1] != course[number - 1][1]],
        "most_workers": max(sizes),
        "picture": picture(sizes),
        "events": events[-20:],
    }


def picture(sizes: list[int]) -> str:
    """Workers over time, one letter a look."""
    return "".join("0123456789abcdefghijklmnopqrstuvwxyz"[min(size, 35)] for size in sizes)


def quantiles(took: list[float]) -> dict[str, float]:
    """Milliseconds."""
    return {f"p{q}": round(float(np.percentile(took, q)), 1) for q in (50, 99, 100)}

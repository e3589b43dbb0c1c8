"""The durable queue beside Ray's own, which keeps its items in the memory of one actor.

    .venv/bin/python benchmarks/keyed_queue.py [--items N] [--rounds N] [--small]

Both run in one Ray cluster on this machine and are given the same items of 1 KB by the same process, in turn. `single`
puts and gets one item a call; `batch` a hundred. Ours is durable on two bookies when the time stops, and every item is
acknowledged. Prints one JSON object: items a second, medians over the rounds, and ours in times of Ray's.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice import KeyedQueue, connect
from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.cluster.launch import launch

ITEM = b"x" * 1024
BATCH = 100


def rate(work: Callable[[], object], items: int) -> float:
    """Items a second."""
    began = time.perf_counter()
    work()
    return items / (time.perf_counter() - began)


def of_ray(items: int) -> dict[str, float]:
    """Ray's queue."""
    from ray.util.queue import Queue

    queue = Queue()
    queue.put(ITEM)
    queue.get()
    single = max(items // 20, BATCH)
    rates = {
        "single put": rate(lambda: [queue.put(ITEM) for _ in range(single)], single),
        "single get": rate(lambda: [queue.get() for _ in range(single)], single),
        "batch put": rate(lambda: [queue.put_nowait_batch([ITEM] * BATCH) for _ in range(items // BATCH)], items),
        "batch get": rate(lambda: [queue.get_nowait_batch(BATCH) for _ in range(items // BATCH)], items),
    }
    queue.shutdown(force=True)
    return rates


def of_ours(queue: KeyedQueue, items: int) -> dict[str, float]:
    """The durable queue, with a hundred keys."""
    keys = [f"key-{number}" for number in range(BATCH)]

    def put_single() -> None:
        for number in range(items):
            queue.put_nowait(ITEM, key=keys[number % BATCH])
        queue.flush()

    def put_batch() -> None:
        for _ in range(items // BATCH):
            queue.put_nowait_batch([ITEM] * BATCH, keys)
        queue.flush()

    def get() -> None:
        for _ in range(items):
            queue.ack(queue.get(timeout=60))

    return {
        "single put": rate(put_single, items),
        "single get": rate(get, items),
        "batch put": rate(put_batch, items // BATCH * BATCH),
        "batch get": rate(get, items // BATCH * BATCH),
    }


def measure(items: int, rounds: int) -> dict[str, Any]:
    """Both in turn."""
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        launch.local(Path(folder)) as running,
        connect(running.address) as client,
        KeyedQueue("bench", client=client, prefetch=20_000) as queue,
    ):
        queue.put(ITEM)
        queue.ack(queue.get(timeout=60))
        told = [(of_ours(queue, items), of_ray(items)) for _ in range(rounds)]
    names = told[0][0]
    ours = {name: statistics.median(round_[0][name] for round_ in told) for name in names}
    ray = {name: statistics.median(round_[1][name] for round_ in told) for name in names}
    return {
        "benchmark": "keyed_queue",
        "items": items,
        "rounds": rounds,
        "ours_per_s": {name: round(ours[name]) for name in names},
        "ray_per_s": {name: round(ray[name]) for name in names},
        "times_ray": {name: round(ours[name] / ray[name], 1) for name in names},
    }


def main() -> None:
    """Parse the command line and print the result."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=count, default=50_000)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    options = parser.parse_args()
    if options.small:
        options.items, options.rounds = 2_000, 1
    print(json.dumps(measure(options.items, options.rounds)))


if __name__ == "__main__":
    main()

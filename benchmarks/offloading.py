"""What publishing pays for offloading: how long a confirmation takes, with and without, at half of the peak.

    .venv/bin/python -m benchmarks.offloading [--seconds N] [--rounds N] [--bytes N] [--rate N] [--folder PATH]

A broker and three bookies in one process, and a producer in this one. First the peak: as many messages as are
confirmed while 8 batches are under way. Then, at half of it or at --rate, rounds in turn: a topic whose ledgers stay
on bookies, and one whose ledgers leave as soon as they are closed, about every second, and are forgotten by the bookies
at once. A confirmation's time is that from the call to the answer, for batches of 10 ms. Processor time is that of the
broker's process, which writes, reads back and compares what leaves. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import sluice
from benchmarks.spark_history import running
from sluice.cluster.base.arguments import ArgumentParser, amount, count

EVERY_S = 0.01
BATCH, AHEAD, PEAK_S = 2_000, 8, 5.0
TOPICS = {"stays": -1, "leaves": 0}
"""Topics, and the bytes of closed ledgers that may stay on bookies."""


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=amount, default=10.0, help="of a round")
    parser.add_argument("--rounds", type=count, default=3, help="of each kind")
    parser.add_argument("--bytes", type=count, default=100, help="of a payload, which cannot be compressed")
    parser.add_argument("--rate", type=count, help="messages a second; default: half of the peak")
    parser.add_argument("--folder", type=Path, help="where to put the data; default: a temporary folder")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sluice-offloading-", dir=options.folder))
    try:
        with running(folder / "data") as broker, sluice.connect(data_dir=folder / "data") as client:
            print(json.dumps(measured(options, client, broker)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measured(options: argparse.Namespace, client: Any, broker: psutil.Process) -> dict[str, Any]:
    """All figures."""
    chance = np.random.default_rng(7)
    client.create_topic("peak", 1, retention_ms=-1)
    peak = peak_of(client, rows(BATCH, options.bytes, chance))
    rate = options.rate or peak // 2
    batch = rows(max(1, int(rate * EVERY_S)), options.bytes, chance)
    for topic, threshold in TOPICS.items():
        settings = {"offload_threshold_bytes": threshold, "offload_deletion_lag_ms": 0, "retention_ms": -1}
        client.create_topic(topic, 1, roll_entries=max(1_000, rate), **settings)
    times: dict[str, list[float]] = {topic: [] for topic in TOPICS}
    used = dict.fromkeys(TOPICS, 0.0)
    for _ in range(options.rounds):
        for topic in TOPICS:
            before = sum(broker.cpu_times()[:2])
            times[topic] += confirmed(client, topic, batch, options.seconds)
            used[topic] += sum(broker.cpu_times()[:2]) - before
    status = client.offload_status("leaves")[0]
    told: dict[str, Any] = {
        "peak_messages_s": peak,
        "messages_s": rate,
        "offloaded_ledgers": status["offloaded_ledgers"],
    }
    for topic in TOPICS:
        told[topic] = {f"p{q}_ms": round(float(np.percentile(times[topic], q)), 2) for q in (50, 99)}
        told[topic]["cpu_s"] = round(used[topic], 1)
    told["p99_with_of_without"] = round(told["leaves"]["p99_ms"] / told["stays"]["p99_ms"], 2)
    return told


def rows(number: int, size: int, chance: np.random.Generator) -> pa.Table:
    """A batch of messages."""
    ends = pa.py_buffer(np.arange(0, (number + 1) * size, size, dtype=np.int32))
    payload = pa.Array.from_buffers(pa.binary(), number, [None, ends, pa.py_buffer(chance.bytes(number * size))])
    return pa.table({"key": pa.array(np.arange(number) % 1_000).cast(pa.string()), "payload": payload})


def peak_of(client: Any, batch: pa.Table) -> int:
    """Messages a second, as many as are confirmed."""
    under_way: deque[Any] = deque()
    with client.create_producer("peak", "p") as producer:
        began, sent = time.perf_counter(), 0
        while (now := time.perf_counter()) - began < PEAK_S:
            under_way.append(producer.send_batch(batch))
            if len(under_way) > AHEAD:
                under_way.popleft().result(60)
                sent += batch.num_rows
    return int(sent / (now - began))


def confirmed(client: Any, topic: str, batch: pa.Table, seconds: float) -> list[float]:
    """Milliseconds of each batch that is sent for so long."""
    found: list[float] = []
    sent: queue.SimpleQueue[tuple[float, Any] | None] = queue.SimpleQueue()

    def wait() -> None:
        while (one := sent.get()) is not None:
            one[1].result(60)
            found.append((time.perf_counter() - one[0]) * 1000)

    with client.create_producer(topic, f"p-{time.monotonic_ns()}") as producer:
        waiter = threading.Thread(target=wait)
        waiter.start()
        began = time.perf_counter()
        for number in range(int(seconds / EVERY_S)):
            time.sleep(max(0.0, began + number * EVERY_S - time.perf_counter()))
            at = time.perf_counter()
            sent.put((at, producer.send_batch(batch)))
        sent.put(None)
        waiter.join()
    return found[len(found) // 10 :]  # the first batches open the topic


if __name__ == "__main__":
    main()

"""End-to-end throughput: published, on disk on two bookies, dispatched in key order, delivered, acknowledged durably.

    .venv/bin/python benchmarks/end_to_end.py [--messages N] [--size BYTES] [--consumers N] [--small]

Prints one JSON object. Messages are made before the clock starts; the clock runs from the first send to the last
durable acknowledgement. Producers and consumers are processes of their own. Processor time is counted for every
process of the cluster, Ray's own included (`ray`: the raylet and the control store). No process is kept ready for a
failover: its start, a second of processor time, would fall into the measured seconds or not.

Producers and consumers do what an application with large batches should do: `gc.freeze()` when they are set up. Ray
has Python collect garbage whenever its object store fills, and without it each collection walks all that the imports
made.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from sluice import connect
from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.cluster.launch import launch

BATCH = 10_000


class Source:
    """A producer process: makes its batches first, then sends them as fast as it can."""

    def __init__(self, address: str, messages: int, size: int, keys: int, seed: int) -> None:
        self._client = connect(address)
        self._producer = self._client.create_producer("bench", producer_name=f"source-{seed}")
        rng = np.random.default_rng(seed)
        names = pa.array([f"key-{key:06d}" for key in range(keys)])
        self._batches = []
        for start in range(0, messages, BATCH):
            count = min(BATCH, messages - start)
            chosen = (rng.zipf(1.2, count) - 1) % keys
            payload = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(size), count, [None, pa.py_buffer(rng.bytes(size * count))]
            ).cast(pa.binary())
            self._batches.append(pa.record_batch({"key": names.take(pa.array(chosen)), "payload": payload}))
        gc.freeze()

    def cpu(self) -> float:
        return time.process_time()

    def run(self) -> tuple[float, float]:
        """Send everything; (start, end) in seconds since 1970, the end with everything confirmed."""
        began = time.time()
        receipts = [self._producer.send_batch(batch) for batch in self._batches]
        for receipt in receipts:
            receipt.result(300)
        return began, time.time()


class Sink:
    """A consumer process: takes batches and acknowledges them."""

    def __init__(self, address: str, name: str, queue: int) -> None:
        self._client = connect(address)
        self._consumer = self._client.subscribe(
            "bench",
            "sink",
            consumer_name=name,
            receiver_queue_size=queue,
            initial_position="earliest",
            max_unacked_messages_per_consumer=0,
            max_unacked_messages_per_subscription=0,
            look_ahead_per_consumer=50_000,
            look_ahead_per_subscription=400_000,
        )
        self.count = 0
        self.calls = 0
        gc.freeze()

    def cpu(self) -> float:
        return time.process_time()

    def ready(self) -> bool:
        return True

    def run(self, idle_ms: int) -> tuple[int, int, float]:
        """Work until nothing came for a while; (messages, batches, time of the last durable acknowledgement)."""
        last = time.time()
        wait = 60_000
        while (batch := self._consumer.receive_batch(wait)) is not None:
            self._consumer.acknowledge(batch)
            self.count += len(batch)
            self.calls += 1
            last = time.time()
            wait = idle_ms
        self._consumer.wait_acknowledged(60_000)
        return self.count, self.calls, last


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark once in a cluster of its own."""
    import ray

    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        launch.local(Path(folder), brokers=options.brokers, standby=False) as running,
        connect(running.address) as client,
    ):
        client.create_topic("bench", partitions=options.partitions)
        sink = ray.remote(num_cpus=0, max_concurrency=2)(Sink)
        source = ray.remote(num_cpus=0, max_concurrency=2)(Source)
        sinks = [sink.remote(running.address, f"sink-{i}", options.queue) for i in range(options.consumers)]
        ray.get([one.ready.remote() for one in sinks])
        share = options.messages // options.producers
        sources = [
            source.remote(running.address, share, options.size, options.keys, seed) for seed in range(options.producers)
        ]
        before = _cpu(sources, sinks)
        done = [one.run.remote(options.idle_ms) for one in sinks]
        sent = ray.get([one.run.remote() for one in sources])
        received = ray.get(done)
        after = _cpu(sources, sinks)
        stats = client.stats("bench", "sink")
    began, published = min(s[0] for s in sent), max(s[1] for s in sent)
    ended = max(r[2] for r in received)
    total = share * options.producers
    return {
        "benchmark": "end_to_end",
        "messages": total,
        "size": options.size,
        "partitions": options.partitions,
        "consumers": options.consumers,
        "received": sum(r[0] for r in received),
        "deliveries": sum(r[1] for r in received),
        "publish_msgs_per_s": round(total / (published - began)),
        "end_to_end_msgs_per_s": round(total / (ended - began)),
        "end_to_end_mb_per_s": round(total * options.size / (ended - began) / 1e6, 1),
        "cpu_us_per_message": {role: round((after[role] - before[role]) * 1e6 / total, 3) for role in after},
        "backlog": sum(row["msgBacklog"] for row in stats),
        "order_violations": sum(row.get("orderViolationsTotal", 0) for row in stats),
        "order_checked": sum(row.get("orderCheckedTotal", 0) for row in stats),
    }


def _cpu(sources: list[Any], sinks: list[Any]) -> dict[str, float]:
    """Processor seconds so far by role; unlike rates they do not depend on what else the machine does."""
    import ray

    roles = {"producers": sum(ray.get([one.cpu.remote() for one in sources]))}
    roles["consumers"] = sum(ray.get([one.cpu.remote() for one in sinks]))
    for row in ray.util.list_named_actors(all_namespaces=True):
        used = ray.get(ray.get_actor(row["name"], row["namespace"]).usage.remote())["cpu_seconds"]
        role = row["name"].partition("-")[0] + "s"
        roles[role] = roles.get(role, 0.0) + used
    roles["ray"] = sum(map(_seconds, _ray_daemons()))
    return roles


def _ray_daemons() -> list[psutil.Process]:
    """Ray's own processes of this cluster."""
    return [one for one in psutil.Process().children() if one.name() in ("raylet", "gcs_server")]


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=count, default=3_000_000)
    parser.add_argument("--size", type=count, default=100)
    parser.add_argument("--keys", type=count, default=10_000)
    parser.add_argument("--partitions", type=count, default=4)
    parser.add_argument("--producers", type=count, default=2)
    parser.add_argument("--consumers", type=count, default=2)
    parser.add_argument("--brokers", type=count, default=2)
    parser.add_argument("--queue", type=count, default=160_000)
    parser.add_argument("--idle-ms", type=count, default=2_000)
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    options = parser.parse_args()
    if options.small:
        options.messages = 40_000
    print(json.dumps(measure(options)))


if __name__ == "__main__":
    main()

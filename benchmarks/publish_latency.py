"""Publish and delivery latency at low load: one small message at a time, confirmed on two disks, then received.

    .venv/bin/python benchmarks/publish_latency.py [--messages N] [--every-ms N] [--small]

Prints one JSON object, milliseconds. Each message is sent at its intended time (no coordinated omission: a slow one
does not delay the clock of the next).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from hdrh.histogram import HdrHistogram

from cluster import connect, launch
from cluster.client import Client

MICROSECONDS = 60_000_000


def measure(client: Client, messages: int, every_ms: float) -> dict[str, Any]:
    """Send and receive `messages` one by one."""
    client.create_topic("latency")
    consumer = client.subscribe("latency", "s", initial_position="earliest")
    producer = client.create_producer("latency")
    producer.send(b"warm", partition_key="k")
    consumer.acknowledge(consumer.receive(timeout_millis=30_000))
    confirmed, delivered = HdrHistogram(1, MICROSECONDS, 3), HdrHistogram(1, MICROSECONDS, 3)
    intended: list[int] = []

    def receive() -> None:
        for number in range(messages):
            message = consumer.receive(timeout_millis=30_000)
            delivered.record_value(max(time.perf_counter_ns() // 1000 - intended[number], 1))
            consumer.acknowledge(message)

    receiver = threading.Thread(target=receive)
    receiver.start()
    begun = time.perf_counter_ns() // 1000
    for number in range(messages):
        at = begun + int(number * every_ms * 1000)
        time.sleep(max(at - time.perf_counter_ns() // 1000, 0) / 1e6)
        intended.append(at)
        producer.send(b"x" * 100, partition_key=f"key-{number % 100}")
        confirmed.record_value(max(time.perf_counter_ns() // 1000 - at, 1))
    receiver.join()
    return {
        "benchmark": "publish_latency",
        "messages": messages,
        "every_ms": every_ms,
        "confirmed_ms": _quantiles(confirmed),
        "delivered_ms": _quantiles(delivered),
    }


def _quantiles(histogram: HdrHistogram) -> dict[str, float]:
    return {
        f"p{name}": histogram.get_value_at_percentile(q) / 1000
        for name, q in (("50", 50), ("99", 99), ("999", 99.9), ("100", 100))
    }


def main() -> None:
    """Parse the command line and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000)
    parser.add_argument("--every-ms", type=float, default=10.0)
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    options = parser.parse_args()
    if options.small:
        options.messages, options.every_ms = 50, 5.0
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        launch.local(Path(folder)) as running,
        connect(running.address) as client,
    ):
        print(json.dumps(measure(client, options.messages, options.every_ms)))


if __name__ == "__main__":
    main()

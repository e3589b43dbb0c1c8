"""The cost of the flight recorder: processor time a message with it and without, in alternating pairs.

    .venv/bin/python benchmarks/recorder.py [--pairs N] [--works alone,callers,singles,batches] [--small]

Two clusters run in this process, and one of them records. Each pair does the same work at both, in turns first. Every
share of the work ends with a pause in which the recorder writes what it has kept. Prints one JSON object: of each work
the medians of microseconds of processor time a message, of clients and servers together, median and quartiles of the
pairs' quotients, and bytes recorded a message.

alone: one message after the other, each sent, received and acknowledged durably. callers: 16 threads that each send one
and wait. singles: `send_async` and `receive` one by one. batches: `send_batch` of 10,000 and `receive_batch`.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sluice import Client
from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.cluster.host.recordings import FOLDER
from sluice.cluster.launch.embedded import connect

KEYS = 1_000
PAYLOAD = b"x" * 100
CALLERS = 16
BATCH = 10_000
PAUSE_S = 0.7
RECORDED_BYTES = 64 << 20


class Side:
    """A cluster in this process, with a topic, a producer and a consumer for each work."""

    def __init__(self, stack: ExitStack, folder: Path, recorder_bytes: int) -> None:
        self._stack, self._folder = stack, folder
        self.client: Client = stack.enter_context(connect(folder, recorder_bytes=recorder_bytes))
        self._ends: dict[str, tuple[Any, Any]] = {}

    def ends(self, topic: str) -> tuple[Any, Any]:
        """Return the producer and the consumer of a topic, made at the first call."""
        if topic not in self._ends:
            self.client.create_topic(topic, 4)
            consumer = self._stack.enter_context(
                self.client.subscribe(
                    topic, "s", initial_position="earliest", receiver_queue_size=100_000, look_ahead_per_consumer=50_000
                )
            )
            self._ends[topic] = self._stack.enter_context(self.client.create_producer(topic)), consumer
        return self._ends[topic]

    def recorded(self) -> int:
        """Bytes of recordings on disk."""
        return sum(file.stat().st_size for file in (self._folder / FOLDER).glob("*/*"))


def alone(side: Side, messages: int) -> None:
    """Send, receive and acknowledge each message before the next one is sent."""
    producer, consumer = side.ends("alone")
    for number in range(messages):
        producer.send(PAYLOAD, partition_key=f"key-{number % KEYS}")
        consumer.acknowledge(consumer.receive(timeout_millis=30_000), ack_receipt=True)


def callers(side: Side, messages: int) -> None:
    """Many threads, each with one message at a time; one consumer."""
    producer, consumer = side.ends("callers")

    def call(first: int) -> None:
        for number in range(first, messages, CALLERS):
            producer.send(PAYLOAD, partition_key=f"key-{number % KEYS}")

    threads = [threading.Thread(target=call, args=(first,)) for first in range(CALLERS)]
    for thread in threads:
        thread.start()
    _receive(consumer, messages)
    for thread in threads:
        thread.join()


def singles(side: Side, messages: int) -> None:
    """Send single messages as fast as one thread can, then receive them."""
    producer, consumer = side.ends("singles")
    for number in range(messages):
        producer.send_async(PAYLOAD, partition_key=f"key-{number % KEYS}")
    producer.flush()
    _receive(consumer, messages)


def batches(side: Side, messages: int) -> None:
    """Send and receive in columns."""
    producer, consumer = side.ends("batches")
    names = pa.array([f"key-{key}" for key in range(KEYS)])
    rng = np.random.default_rng(1)
    payload = pa.array([PAYLOAD] * BATCH, pa.binary())
    for _ in range(messages // BATCH):
        producer.send_batch(
            pa.record_batch({"key": names.take(pa.array(rng.integers(0, KEYS, BATCH))), "payload": payload})
        )
    got = 0
    while got < messages:
        batch = consumer.receive_batch(30_000)
        consumer.acknowledge(batch)
        got += len(batch)
    consumer.wait_acknowledged()


def _receive(consumer: Any, messages: int) -> None:
    for _ in range(messages):
        consumer.acknowledge(consumer.receive(timeout_millis=30_000))
    consumer.wait_acknowledged()


WORKS: dict[str, tuple[Callable[[Side, int], None], int]] = {
    "alone": (alone, 100),
    "callers": (callers, 800),
    "singles": (singles, 20_000),
    "batches": (batches, 200_000),
}


def measure(names: list[str], pairs: int, small: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of each work."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, ExitStack() as stack:
        without = Side(stack, Path(folder) / "without", 0)
        recorded = Side(stack, Path(folder) / "recorded", RECORDED_BYTES)
        for name in names:
            work, messages = WORKS[name]
            messages = max(messages // 50, BATCH if name == "batches" else 1) if small else messages
            took: dict[Side, list[float]] = {without: [], recorded: []}
            for side in took:
                work(side, messages)
                time.sleep(PAUSE_S)
            gc.freeze()
            bytes_before = recorded.recorded()
            for number in range(pairs):
                for side in (without, recorded) if number % 2 else (recorded, without):
                    gc.collect()
                    began = time.process_time()
                    work(side, messages)
                    time.sleep(PAUSE_S)
                    took[side].append((time.process_time() - began) * 1e6 / messages)
            quotients = [b / a for a, b in zip(took[without], took[recorded], strict=True)]
            yield (
                name,
                {
                    "pairs": pairs,
                    "messages": messages,
                    "cpu_us_without": round(statistics.median(took[without]), 2),
                    "cpu_us_recorded": round(statistics.median(took[recorded]), 2),
                    "quotient": round(statistics.median(quotients), 4),
                    "quartiles": [round(at, 4) for at in statistics.quantiles(quotients, n=4)[::2]],
                    "bytes_a_message": round((recorded.recorded() - bytes_before) / (pairs * messages), 2),
                },
            )


def main() -> None:
    """Parse the command line and print the result."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=count, default=60)
    parser.add_argument("--works", default=",".join(WORKS), help="which of the works, with commas between")
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    options = parser.parse_args()
    names = options.works.split(",")
    if not set(names) <= set(WORKS):
        parser.error(f"the works are {', '.join(WORKS)}")
    found = dict(measure(names, 2 if options.small else options.pairs, options.small))
    print(json.dumps({"benchmark": "recorder", "works": found}))


if __name__ == "__main__":
    main()

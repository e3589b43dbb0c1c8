"""What a rolling restart does to keys: hashes that move, and how long messages wait.

    .venv/bin/python benchmarks/rolling_restart.py [--consumers N] [--down-ms N] [--rate N] [--small]

Consumers of one subscription are restarted one after the other while messages are being published: without grace, with
`grace_ms`, and with a planned hand-over. Each is away for `--down-ms`; with a hand-over the newcomer takes as long to
start, and is there before the old one stops. A message waits from its publishing until a consumer has it. Against a
cluster in one process. Prints one JSON object: hashes that moved, and in milliseconds the longest wait of a message and
the longest time of one restart.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice import connect
from sluice.cluster.base.arguments import ArgumentParser, count, count_or_none
from sluice.cluster.client.client import Client
from sluice.cluster.client.consumer import Consumer

KEYS = 1_000
GRACE_MS = 60_000
PATIENCE_S = 120


class Worker:
    """A consumer with a thread that receives and acknowledges. waits: ns, of each message."""

    def __init__(self, client: Client, topic: str, name: str, grace_ms: int) -> None:
        self._given = client, topic, name, grace_ms
        self.consumer: Consumer = client.subscribe(
            topic, "s", consumer_name=name, initial_position="earliest", grace_ms=grace_ms
        )
        self.waits: list[int] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._stopped.is_set():
            batch = self.consumer.receive_batch(20)
            if batch is None:
                continue
            now = time.monotonic_ns()
            self.waits += [now - int(message.data()) for message in batch.messages()]
            self.consumer.acknowledge(batch)

    def stop(self) -> None:
        """Leave."""
        self._stopped.set()
        self._thread.join()
        self.consumer.close()

    def restart(self, down_ms: int) -> Worker:
        """Leave, be away for a while, come back."""
        self.stop()
        time.sleep(down_ms / 1000)
        return Worker(*self._given)

    def hand_over(self, down_ms: int) -> Worker:
        """Another one comes, and takes as long to start; then this one leaves."""
        self.consumer.hand_over()
        time.sleep(down_ms / 1000)
        newcomer = Worker(*self._given)
        wait_for(self.consumer.is_handed_over)
        self.stop()
        return newcomer


def wait_for(condition: Callable[[], bool]) -> None:
    """Look until it is so."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("it did not come true")
        time.sleep(0.001)


def publish(client: Client, topic: str, rate: int, stop: threading.Event) -> int:
    """Publish until told to stop, a message a key in turn; returns how many."""
    producer, number, begun = client.create_producer(topic), 0, time.monotonic()
    while not stop.is_set():
        producer.send_async(str(time.monotonic_ns()).encode(), partition_key=f"key-{number % KEYS}")
        number += 1
        time.sleep(max(begun + number / rate - time.monotonic(), 0))
    producer.flush()
    producer.close()
    return number


def measure(client: Client, how: str, given: argparse.Namespace) -> dict[str, Any]:
    """One rolling restart. how: none, grace or hand_over."""
    topic = f"restart-{how.replace('_', '-')}"
    client.create_topic(topic, 1)
    grace = 0 if how == "none" else GRACE_MS
    workers = [Worker(client, topic, f"worker-{number}", grace) for number in range(given.consumers)]
    stop, sent = threading.Event(), list[int]()
    publisher = threading.Thread(target=lambda: sent.append(publish(client, topic, given.rate, stop)))
    publisher.start()
    wait_for(lambda: sum(len(worker.waits) for worker in workers) > KEYS)
    before, gone, took = moved(client, topic), [], []
    for worker in workers:
        worker.waits.clear()  # what it took to begin is not counted
    for number, worker in enumerate(workers):
        begun = time.monotonic()
        workers[number] = worker.hand_over(given.down_ms) if how == "hand_over" else worker.restart(given.down_ms)
        took.append(time.monotonic() - begun)
        gone.append(worker)
    stop.set()
    publisher.join()
    wait_for(lambda: client.stats(topic, "s")[0]["msgBacklog"] == 0)
    waits = [wait for worker in [*gone, *workers] for wait in worker.waits]
    told = {
        "hashes_moved": moved(client, topic) - before,
        "longest_wait_ms": round(max(waits) / 1e6, 1),
        "longest_restart_ms": round(max(took) * 1000, 1),
        "messages": sent[0],
    }
    for worker in workers:
        worker.stop()
    return told


def moved(client: Client, topic: str) -> int:
    """Hashes that changed from one consumer to another."""
    return int(client.stats(topic, "s")[0]["hashesMovedTotal"])


def main() -> None:
    """The command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--consumers", type=count, default=12)
    parser.add_argument("--down-ms", type=count_or_none, default=200)
    parser.add_argument("--rate", type=count, default=500, help="messages a second")
    parser.add_argument("--small", action="store_true", help="a trial run")
    given = parser.parse_args()
    if given.small:
        given.consumers, given.down_ms = 3, 20
    with (
        tempfile.TemporaryDirectory() as folder,
        connect(embedded=True, data_dir=Path(folder) / "data") as client,
    ):
        print(json.dumps({how: measure(client, how, given) for how in ("none", "grace", "hand_over")}))


if __name__ == "__main__":
    main()

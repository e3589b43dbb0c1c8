"""How the partitions of a process come back that is killed: those with waiting clients, and the others.

    .venv/bin/python benchmarks/takeover.py [--partitions N,N] [--waiting N] [--small]

A cluster on Ray with one process for topics and another one that stands by. Topics with together `--partitions`
partitions have had a message each, and nobody is connected to them; a topic with `--waiting` partitions has a producer.
The process is killed with SIGKILL, and the producer sends a message to each of its partitions. Prints one JSON object:
for each number of partitions, in seconds since the kill, when the half of those messages was confirmed and when all
were; when owners of all partitions ran again; and the processor time of the controller's process meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

import sluice
from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.cluster.client.client import Client
from sluice.cluster.client.producer import Producer
from sluice.cluster.launch import launch
from sluice.loadgen.faults.chaos import ClusterProcesses

MOST = 1_000
"""Partitions of one topic."""
KEYS_EACH = 30
"""So many keys for each partition leave none of them without one."""
PATIENCE_S = 600.0
LOOK_S = 0.5


def batch(partitions: int) -> pa.RecordBatch:
    """Messages for all of so many partitions."""
    keys = [b"key-%d" % number for number in range(partitions * KEYS_EACH)]
    return pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.binary()), "payload": pa.array(keys, pa.binary())})


def running(client: Client) -> dict[str, str]:
    """By partition, where its owner runs."""
    rows = client.status()["actors"]
    return {row["name"]: row["address"] for row in rows if row["kind"] == "topic" and row["address"]}


class Confirmed:
    """Messages to each waiting partition, sent when the process has just been killed. times: s since then, of each."""

    def __init__(self, producer: Producer, messages: int) -> None:
        self.begun = time.monotonic()
        self.times: list[float] = []
        self.failed: list[str] = []
        self._messages, self._every = messages, threading.Event()
        for number in range(messages):
            producer.send_async(b"x", self._settled, partition_key=f"key-{number}")

    def _settled(self, error: Any, _: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        self.times.append(time.monotonic() - self.begun)
        if len(self.times) == self._messages:
            self._every.set()

    def wait(self) -> None:
        """Until all are confirmed, or failed."""
        if not self._every.wait(PATIENCE_S):
            raise TimeoutError(f"{len(self.times)} of {self._messages} messages were confirmed")


def fill(client: Client, partitions: int, waiting: int) -> Producer:
    """A message in each partition, and a producer that stays."""
    for number, first in enumerate(range(0, partitions, MOST)):
        share = min(MOST, partitions - first)
        client.create_topic(f"idle-{number}", share)
        with client.create_producer(f"idle-{number}") as idle:
            idle.send_batch(batch(share)).result(PATIENCE_S)
    client.create_topic("waited", waiting)
    producer = client.create_producer("waited")
    producer.send_batch(batch(waiting)).result(PATIENCE_S)
    return producer


def measure(partitions: int, waiting: int) -> dict[str, Any]:
    """One cluster, one kill."""
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        launch.local(Path(folder) / "data", brokers=1, bookies=3),
        sluice.connect() as client,
    ):
        producer = fill(client, partitions, waiting)
        before = running(client)
        if len(before) != partitions + waiting:
            raise RuntimeError(f"{len(before)} of {partitions + waiting} run")
        (host,) = {address.partition("/")[0] for address in before.values()}
        processes = ClusterProcesses(client, None)
        controller = psutil.Process(processes.pid(client.status()["controller"].partition("/")[0]))
        spent = sum(controller.cpu_times()[:2])
        os.kill(processes.pid(host), signal.SIGKILL)
        confirmed = Confirmed(producer, waiting * KEYS_EACH)
        while len(after := running(client)) < len(before) or any(after[name] == before[name] for name in before):
            if time.monotonic() - confirmed.begun > PATIENCE_S:
                raise TimeoutError(f"{len(after)} of {len(before)} run")
            time.sleep(LOOK_S)
        served = time.monotonic() - confirmed.begun
        confirmed.wait()
        return {
            "waiting_half_s": round(statistics.median(confirmed.times), 2),
            "waiting_all_s": round(max(confirmed.times), 2),
            "failed": confirmed.failed[:3],
            "all_served_s": round(served, 2),
            "controller_cpu_s": round(sum(controller.cpu_times()[:2]) - spent, 2),
        }


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", default="500,5000", help="how many nobody waits for")
    parser.add_argument("--waiting", type=count, default=64)
    parser.add_argument("--small", action="store_true", help="a few, to see that it works")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.partitions, arguments.waiting = "20", 4
    numbers = [count(text) for text in arguments.partitions.split(",")]
    print(json.dumps({str(number): measure(number, arguments.waiting) for number in numbers}, indent=2))


if __name__ == "__main__":
    main()

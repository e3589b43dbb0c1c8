"""Callers that each send one message, wait for its confirmation, and send the next, with Pulsar's Python client.

    .venv/bin/python benchmarks/callers.py [--callers 1,4,16,64] [--topics] [--pulsar FOLDER] [--asyncio send]
                                           [--own process] [--ray]

The broker is Sluice in one process, as `./sluice up --embedded` starts it: two copies, each synced to disk before a
message is confirmed. --ray: in many processes on Ray. --own: with Sluice's own client, in a process of its own, or in
the process of the broker, whose processor time is then that of both. --pulsar adds Pulsar standalone from its
unpacked distribution, with one copy and a journal that syncs. All callers are threads of this process. They share a
topic of 4 partitions; --topics gives each a topic of one partition. Messages have 100 bytes and random keys. Rounds
alternate between the brokers. Figures are medians of the rounds: messages/s, ms until confirmed, and processor time
of the broker a message. The last line is JSON.

--asyncio: callers are tasks of one loop that share one producer, and each broker has its own asyncio client. `send`
publishes and waits; `receive` receives what was published before, and acknowledges it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks._peer_servers import GatewaySide, PulsarSide, Side, counts_of, print_compared
from sluice import Client, connect, connect_async
from sluice.cluster.base.arguments import ArgumentParser, amount, count
from sluice.cluster.launch.standalone import process_on as running

PAYLOAD = b"x" * 100
KEYS = 1_000
PARTITIONS = 4
Figures = dict[str, float]


def measure(side: Side, topic: str, callers: int, options: argparse.Namespace) -> Figures:
    """Run this many callers at one broker."""
    names = [f"{topic}-{number}" for number in range(callers if options.topics else 1)]
    client, produces = _client_of(side)
    try:
        for name in names:
            side.make_topic(name, 1 if options.topics else PARTITIONS)
        producers = [client.create_producer(names[number % len(names)], **produces) for number in range(callers)]
        for producer in producers:
            producer.send(PAYLOAD, partition_key="k")
        cpu, began = side.cpu(), time.monotonic()
        took = _waits(producers, began + options.seconds)
        elapsed, cpu = time.monotonic() - began, side.cpu() - cpu
    finally:
        client.close()
    return _figures(took, elapsed, cpu)


def _client_of(side: Side) -> tuple[Any, dict[str, Any]]:
    """Connect to a broker; returns also what a producer without batches is made with."""
    if isinstance(side, OwnSide):
        return side.connect(), {}
    import pulsar

    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(side.url, io_threads=2, logger=logger), {"batching_enabled": False}


class OwnSide(Side):
    """Sluice in one process, for its own clients."""

    def start(self) -> None:
        up = ["up", "--embedded", "--foreground", "--data-dir", str(self.folder / "data")]
        log = self.folder.parent / "log"
        process = self._run([sys.executable, "-c", "import sluice.cli; sluice.cli.main()", *up], log)
        while not running(self.folder / "data"):
            if process.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.05)

    def connect(self) -> Client:
        """Make the client by which topics are made, too."""
        self.client = connect(data_dir=self.folder / "data")
        return self.client

    def make_topic(self, topic: str, partitions: int) -> str:
        self.client.create_topic(topic, partitions)
        return topic


class HereSide(OwnSide):
    """Sluice in this process, for as long as there is a client."""

    def start(self) -> None:
        pass

    def connect(self) -> Client:
        self.client = connect(embedded=True, data_dir=self.folder / "data")
        return self.client

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process()]


async def measure_tasks(side: Side, topic: str, callers: int, options: argparse.Namespace) -> Figures:
    """The same with tasks of one loop."""
    client: Any
    produces: dict[str, Any] = {}
    consumes: dict[str, Any] = {"initial_position": "earliest"}
    if isinstance(side, OwnSide):
        client = await connect_async(data_dir=side.folder / "data")
        await client.create_topic(topic, PARTITIONS)
    else:
        import pulsar.asyncio

        client = pulsar.asyncio.Client(side.url, io_threads=2, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        side.make_topic(topic, PARTITIONS)
        produces = {"batching_enabled": options.batching, "batching_max_publish_delay_ms": 1}
        consumes = {
            "initial_position": pulsar.InitialPosition.Earliest, "consumer_type": pulsar.ConsumerType.KeyShared
        }  # fmt: skip
    producer = await client.create_producer(topic, **produces)
    consumer = await client.subscribe(topic, "s", **consumes)
    await _send(producer)
    left = int(5_000 * options.seconds)
    if options.asyncio == "receive":
        for _ in range(0, left, 1_000):
            await asyncio.gather(*(_send(producer) for _ in range(1_000)))
    took: list[float] = []
    cpu, own, began = side.cpu(), time.process_time(), time.monotonic()

    async def call() -> None:
        nonlocal left
        while (sent := time.monotonic()) < began + options.seconds and left:
            if options.asyncio == "receive":
                left -= 1
                await consumer.acknowledge(await consumer.receive())
            else:
                await _send(producer)
            took.append(time.monotonic() - sent)

    await asyncio.gather(*(call() for _ in range(callers)))
    figures = _figures(took, time.monotonic() - began, side.cpu() - cpu)
    figures["client_cpu_ms"] = (time.process_time() - own) * 1000 / len(took)
    await client.close()
    return figures


async def _send(producer: Any) -> None:
    await producer.send(PAYLOAD, partition_key=f"k{random.randrange(KEYS)}")


def _figures(took: list[float], elapsed: float, cpu: float) -> Figures:
    return {
        "per_s": len(took) / elapsed,
        "p50_ms": float(np.percentile(took, 50)) * 1000,
        "p99_ms": float(np.percentile(took, 99)) * 1000,
        "broker_cpu_ms": cpu * 1000 / len(took),
    }


def _waits(producers: list[Any], until: float) -> list[float]:
    """Send with all producers at once up to a time; return seconds until each confirmation. Raises RuntimeError."""
    took: list[list[float]] = [[] for _ in producers]
    errors: list[Exception] = []

    def call(producer: Any, mine: list[float]) -> None:
        try:
            while (sent := time.monotonic()) < until:
                producer.send(PAYLOAD, partition_key=f"k{random.randrange(KEYS)}")
                mine.append(time.monotonic() - sent)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=each) for each in zip(producers, took, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise RuntimeError(f"a caller failed: {errors[0]}")
    return [each for mine in took for each in mine]


@contextlib.contextmanager
def brokers(options: argparse.Namespace) -> Iterator[list[Side]]:
    """Start the brokers that are wanted, and end them."""
    with tempfile.TemporaryDirectory(prefix="sluice-callers-") as folder, contextlib.ExitStack() as stack:
        ours = Path(folder) / "sluice"
        own = options.own or ("process" if options.asyncio else None)
        if own is None:
            found: list[Side] = [GatewaySide("sluice", ours, one_process=not options.ray)]
        else:
            found = [OwnSide("sluice", ours) if own == "process" else HereSide("sluice", ours)]
        if options.pulsar or os.environ.get("SLUICE_PULSAR_HOME"):
            found.append(PulsarSide("pulsar", Path(folder) / "pulsar", options.pulsar))
        for side in found:
            stack.callback(side.stop)
            side.start()
        yield found


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Measure every number of callers in rounds over all brokers."""
    works: dict[str, dict[str, Figures]] = {}
    with brokers(options) as sides:
        for callers in options.callers:
            rounds: dict[str, list[Figures]] = {side.name: [] for side in sides}
            for number in range(options.rounds):
                for side in sides:
                    topic = f"callers-{callers}-{number}-{time.time_ns():x}"
                    if options.asyncio:
                        figures = asyncio.run(measure_tasks(side, topic, callers, options))
                    else:
                        figures = measure(side, topic, callers, options)
                    rounds[side.name].append(figures)
            works[str(callers)] = {
                name: {figure: round(float(np.median([one[figure] for one in measured])), 4) for figure in measured[0]}
                for name, measured in rounds.items()
            }
            for name, figures in works[str(callers)].items():
                told = ", ".join(f"{figure} {value:,.3f}" for figure, value in figures.items())
                print(f"{callers} callers, {name}: {told}", flush=True)
    return {"benchmark": "callers", "topics": options.topics, "load": round(os.getloadavg()[0], 1), "callers": works}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=counts_of, default=[1, 4, 16, 64], help="how many at once, for example 1,16")
    parser.add_argument("--topics", action="store_true", help="a topic for each caller")
    parser.add_argument("--asyncio", choices=["send", "receive"], help="tasks of a loop instead of threads")
    parser.add_argument("--own", choices=["process", "broker"], help="Sluice's own client, and in which process")
    parser.add_argument("--ray", action="store_true", help="the broker in many processes")
    parser.add_argument("--batching", action="store_true", help="with --asyncio: batches of Pulsar's client")
    parser.add_argument("--seconds", type=amount, default=3.0, help="of each round")
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--pulsar", metavar="FOLDER", help="Pulsar's unpacked distribution")
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    options = parser.parse_args()
    if options.small:
        options.callers, options.seconds, options.rounds = [1, 4], 0.3, 1
    print_compared(compare, options)


if __name__ == "__main__":
    main()

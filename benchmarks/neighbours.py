"""Nine quiet clients of a gateway, beside one that takes all that it can get.

    .venv/bin/python benchmarks/neighbours.py [--seconds N] [--rounds N] [--small]

Prints one JSON object: of the nine, which publish one message every 50 ms and wait for its confirmation, milliseconds
at the usual places, alone and beside the tenth, in turn; the median of the ratios of the 99th percentiles; what the
tenth got rid of, in messages a second; and the most memory that the broker had, in MB. The tenth publishes as fast as
it can, asks for everything between, and never reads.
The cluster is `./sluice up --embedded`, a process of its own; the nine are another one, and so is the tenth.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pulsar

from benchmarks.pulsar_clients import quantiles
from sluice.actors.pulsar.codec.frames import U32, encode
from sluice.actors.pulsar.codec.protocol import Metadata, command
from sluice.cluster.base.arguments import ArgumentParser, amount, count
from sluice.cluster.gateway.ports import service_url
from sluice.cluster.launch import launch, standalone
from sluice.cluster.launch.discovery import process_of
from sluice.cluster.settings.config import load

ROOT = Path(__file__).resolve().parents[1]
QUIET, EVERY_S = 9, 0.05
ASKED = ("lookup", "partition_metadata", "get_schema", "topics_of")


def _frame(number: int) -> bytes:
    """A message of 1,000 bytes."""
    metadata = Metadata(producer_name=b"tenth", sequence_id=number, publish_time=1).SerializeToString()
    head = command("send", producer_id=1, sequence_id=number, num_messages=1).SerializeToString()
    rest = U32.pack(len(metadata)) + metadata + b"x" * 1_000
    return b"".join((U32.pack(4 + len(head) + len(rest)), U32.pack(len(head)), head, rest))


def _attack(url: str, counted: Path) -> None:
    """Until it is ended. counted: a file that says how many messages it got rid of."""
    one = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
    one.sendall(encode(command("connect", client_version="tenth", protocol_version=20)))
    one.sendall(encode(command("producer", topic="tenth", producer_id=1, request_id=1)))
    time.sleep(1)  # sends before its producer is there would be dropped, and cost nothing
    counter = counted.open("wb", buffering=0)
    for first in itertools.count(1, 100):
        sends = map(_frame, range(first, first + 100))
        name = ASKED[first // 100 % len(ASKED)]
        place = {"namespace": "public/default"} if name == "topics_of" else {"topic": "tenth"}
        one.sendall(b"".join((*sends, encode(command(name, request_id=first + 1, **place)))))
        counter.seek(0)
        counter.write(b"%12d" % first)


@contextlib.contextmanager
def _tenth(url: str, counted: Path) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, __file__, "--attack", url, "--counted", counted], cwd=ROOT)
    try:
        while not (counted.exists() and counted.stat().st_size):
            time.sleep(0.05)
        time.sleep(1)
        yield
    finally:
        process.kill()
        process.wait()
        counted.unlink(missing_ok=True)


def _nine(clients: list[pulsar.Client], seconds: float) -> list[float]:
    """What each of their messages took, in seconds."""
    took: list[float] = []

    def publish(client: pulsar.Client, number: int) -> None:
        producer = client.create_producer(f"quiet-{number}", batching_enabled=False)
        begun = time.perf_counter() + EVERY_S * number / QUIET
        for turn in range(int(seconds / EVERY_S)):
            time.sleep(max(begun + turn * EVERY_S - time.perf_counter(), 0))
            sent = time.perf_counter()
            producer.send(b"x" * 100)
            took.append(time.perf_counter() - sent)
        producer.close()

    threads = [threading.Thread(target=publish, args=(client, number)) for number, client in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def _measure(data: Path, broker: psutil.Process, seconds: float, rounds: int) -> dict[str, Any]:
    url, counted = service_url(data, 0), data / "tenth"
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    clients = [pulsar.Client(url, logger=quiet) for _ in range(QUIET)]
    _nine(clients, min(seconds, 2))
    pairs, most = list[dict[str, Any]](), 0
    for _ in range(rounds):
        alone = _nine(clients, seconds)
        with _tenth(url, counted):
            before, begun = int(counted.read_text()), time.perf_counter()
            beside = _nine(clients, seconds)
            rate = (int(counted.read_text()) - before) / (time.perf_counter() - begun)
            most = max(most, broker.memory_info().rss)
        pairs.append({"alone_ms": quantiles(alone), "beside_ms": quantiles(beside), "tenth_per_s": round(rate)})
    for client in clients:
        client.close()
    ratios = [pair["beside_ms"]["p99"] / pair["alone_ms"]["p99"] for pair in pairs]
    return {"rounds": pairs, "median_ratio_p99": round(statistics.median(ratios), 2), "mb": round(most / 1e6)}


def main() -> None:
    """See the module."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=amount, default=10)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--small", action="store_true", help="a few seconds; the figures mean nothing")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--counted", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        _attack(args.attack, args.counted)
        return
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as place:
        data = Path(place) / "data"
        try:
            standalone.up(load(None, data_dir=data, pulsar_port=0, pulsar_web_port=-1).values)
            broker = process_of(json.loads((data / "cluster.json").read_text()))
            assert broker is not None
            seconds, rounds = (1, 1) if args.small else (args.seconds, args.rounds)
            print(json.dumps(_measure(data, broker, seconds, rounds)))
        finally:
            launch.down(data)


if __name__ == "__main__":
    main()

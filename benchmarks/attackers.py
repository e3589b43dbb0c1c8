"""What one client that floods a gateway and reads nothing costs the others.

    .venv/bin/python benchmarks/attackers.py [--seconds N] [--only NAME] [--small]

Prints one JSON object; of each command that is flooded how many messages a second another client of Pulsar publishes
one by one beside it, as a share of those without an attacker right before; the slowest of its connections, in
milliseconds; and the most memory that the broker had, in MB. With and without an attacker take turns, ROUNDS times, and
the share is the median of the rounds: what else the machine does hits both. The cluster is `./sluice up --embedded`, a
process of its own; attacker and publisher are others.
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
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pulsar

from sluice.actors.pulsar.codec.frames import U32, encode
from sluice.actors.pulsar.codec.protocol import command
from sluice.cluster.base.arguments import ArgumentParser, amount
from sluice.cluster.gateway.ports import service_url
from sluice.cluster.launch import launch, standalone
from sluice.cluster.launch.discovery import process_of
from sluice.cluster.settings.config import load

ROOT = Path(__file__).resolve().parents[1]
HELLO = encode(command("connect", client_version="attacker", protocol_version=20))
ROUNDS = 3
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def _asked(name: str, **values: Any) -> Callable[[int], bytes]:
    return lambda number: encode(command(name, request_id=number, **values))


def _schema(number: int) -> bytes:
    schema = {"name": "s", "data": b"x" * 250_000, "type": 1}
    first = encode(command("put_schema", topic="schema", request_id=0, schema=schema)) if number == 1 else b""
    return first + encode(command("get_schema", topic="schema", request_id=number))


FLOODS: dict[str, Callable[[int], bytes]] = {
    "ping": lambda number: encode(command("ping")),
    "lookup": _asked("lookup", topic="calm", listener="x" * 5_000),
    "partition_metadata": _asked("partition_metadata", topic="calm"),
    "get_schema": _schema,
    "producer": lambda number: encode(command("producer", topic="crowd", producer_id=number, request_id=number)),
    "subscribe": lambda number: encode(
        command("subscribe", topic="crowd", subscription="s", type=1, consumer_id=number, request_id=number)
    ),
    "send": lambda number: encode(command("send", producer_id=9, sequence_id=number)),
    "ack": _asked("ack", consumer_id=9, ack_type=0),
}


def _attack(url: str, name: str) -> None:
    """Until it is ended."""
    at = ("127.0.0.1", int(url.rpartition(":")[2]))
    if name == "half frames":
        held = [socket.create_connection(at) for _ in range(400)]
        for one in held:
            one.setblocking(False)
            try:
                one.send(U32.pack(5_000_000) + b"x" * 4_000_000)
            except OSError:  # it was closed
                continue
        time.sleep(3_600)
    one = socket.create_connection(at)
    with contextlib.suppress(ConnectionError):  # the gateway may end it
        one.sendall(HELLO)
        for first in itertools.count(1, 100):
            one.sendall(b"".join(map(FLOODS[name], range(first, first + 100))))


@contextmanager
def _attacked(url: str, name: str) -> Any:
    process = subprocess.Popen([sys.executable, __file__, "--attack", url, "--only", name], cwd=ROOT)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _others(url: str, seconds: float, broker: psutil.Process) -> dict[str, float]:
    """Connect and publish, again and again."""
    sent = most = 0
    slowest, end = 0.0, time.perf_counter() + seconds
    publishing = 0.0
    while time.perf_counter() < end:
        begin = time.perf_counter()
        client = pulsar.Client(url, logger=QUIET)
        producer = client.create_producer("calm", batching_enabled=False)
        connected = time.perf_counter()
        slowest = max(slowest, connected - begin)
        while time.perf_counter() < connected + 1:
            producer.send(b"x" * 100)
            sent += 1
        publishing += time.perf_counter() - connected
        client.close()
        most = max(most, broker.memory_info().rss)
    return {"per_second": sent / publishing, "connect_ms": slowest * 1e3, "mb": most / 1e6}


def _measured(url: str, name: str, broker: psutil.Process, seconds: float, rounds: int) -> dict[str, float]:
    """Of one command: the figures of the worst round, and the median of the shares."""
    shares, beside = [], []
    for _ in range(rounds):
        alone = _others(url, seconds, broker)
        with _attacked(url, name):
            beside.append(_others(url, seconds, broker))
        shares.append(beside[-1]["per_second"] / alone["per_second"])
    return {
        "share": round(statistics.median(shares), 2),
        "per_second": round(min(one["per_second"] for one in beside)),
        "connect_ms": round(max(one["connect_ms"] for one in beside)),
        "mb": round(max(one["mb"] for one in beside)),
    }


def main() -> None:
    """See the module."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=amount, default=3)
    parser.add_argument("--only", choices=[*FLOODS, "half frames"])
    parser.add_argument("--small", action="store_true", help="a few seconds; the figures mean nothing")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        _attack(args.attack, args.only)
        return
    seconds, rounds = (1, 1) if args.small else (args.seconds, ROUNDS)
    names = [args.only] if args.only else ["ping"] if args.small else [*FLOODS, "half frames"]
    told = {}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as place:
        data = Path(place) / "data"
        try:
            standalone.up(load(None, data_dir=data, pulsar_port=0, pulsar_web_port=-1).values)
            broker = process_of(json.loads((data / "cluster.json").read_text()))
            assert broker is not None
            url = service_url(data, 0)
            for name in names:
                told[name] = _measured(url, name, broker, seconds, rounds)
        finally:
            launch.down(data)
    print(json.dumps(told))


if __name__ == "__main__":
    main()

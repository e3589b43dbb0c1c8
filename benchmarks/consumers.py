"""How long others wait when a consumer is killed, and when one joins.

    .venv/bin/python benchmarks/consumers.py [--rounds N] [--partitions N] [--ray] [--small]

Killed: several consumers hold messages of a topic; one after another gets SIGKILL, and the time counts from then until
the first of its messages comes to the one that stays. Joined: a consumer joins a topic of many partitions while
messages are being published; the time counts from the call of `subscribe` until it has its first message. Against a
cluster in one process, or with --ray one of many. Prints one JSON object, milliseconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from sluice import connect
from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.cluster.client.client import Client

KEYS, PER_KEY = 1_000, 5
EVERY_S = 0.001
"""Between two messages that are published while others join."""
COMMAND = "import sys; from sluice.cli import main; sys.argv[0] = 'sluice'; main()"
VICTIM = """
import sys
from sluice import connect
client = connect(data_dir=sys.argv[1])
consumer = client.subscribe("killed", "s", consumer_name=sys.argv[2], receiver_queue_size=100_000)
print(0, flush=True)
while True:
    batch = consumer.receive_batch(1_000)
    if batch is not None:
        print(len(batch), flush=True)
"""


class Victim:
    """A consumer in a process of its own, which keeps what it gets. held: how many messages that is."""

    def __init__(self, folder: Path, name: str) -> None:
        command = [sys.executable, "-c", VICTIM, str(folder), name]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.held = 0
        self.attached = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.held += int(line)
            self.attached.set()

    def kill(self) -> float:
        """End it without a word; returns when, in seconds of this process's clock."""
        at = time.perf_counter()
        self._process.kill()
        self._process.wait()
        return at


def killed(client: Client, folder: Path, rounds: int) -> list[float]:
    """Milliseconds from each kill to the first message that comes again."""
    client.create_topic("killed")
    took: list[float] = []
    stays = client.subscribe("killed", "s", consumer_name="stays", receiver_queue_size=100_000)
    victims = [Victim(folder, f"victim-{number}") for number in range(rounds)]
    try:
        for victim in victims:
            if not victim.attached.wait(120):
                raise SystemExit("a consumer did not attach")
        with client.create_producer("killed") as producer:
            for number in range(KEYS * PER_KEY):
                producer.send_async(b"x" * 100, partition_key=f"key-{number % KEYS}")
        mine = 0
        while mine + sum(victim.held for victim in victims) < KEYS * PER_KEY:
            batch = stays.receive_batch(100)
            mine += 0 if batch is None else _done(stays, batch)
        for victim in victims:
            at = victim.kill()
            batch = stays.receive_batch(60_000)
            if batch is None:
                raise SystemExit("nothing came again within a minute")
            took.append((time.perf_counter() - at) * 1_000)
            while batch is not None:
                _done(stays, batch)
                batch = stays.receive_batch(500)
    finally:
        for victim in victims:
            victim.kill()
    return took


def _done(consumer: Any, batch: Any) -> int:
    consumer.acknowledge(batch)
    return len(batch)


def joined(client: Client, rounds: int, partitions: int) -> list[float]:
    """Milliseconds from each `subscribe` to the first message."""
    client.create_topic("joined", partitions=partitions)
    there, over = client.subscribe("joined", "s", consumer_name="there"), threading.Event()

    def receive() -> None:
        while not over.is_set():
            batch = there.receive_batch(100)
            if batch is not None:
                there.acknowledge(batch)

    def publish() -> None:
        with client.create_producer("joined") as producer:
            number = 0
            while not over.wait(EVERY_S):
                producer.send_async(b"x" * 100, partition_key=f"key-{number % KEYS}")
                number += 1

    threads = [threading.Thread(target=work) for work in (receive, publish)]
    for thread in threads:
        thread.start()
    took: list[float] = []
    try:
        for number in range(rounds):
            time.sleep(0.5)
            at = time.perf_counter()
            consumer = client.subscribe("joined", "s", consumer_name=f"newcomer-{number}")
            consumer.acknowledge(consumer.receive(timeout_millis=60_000))
            took.append((time.perf_counter() - at) * 1_000)
            consumer.close()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    return took


def quantiles(took: list[float]) -> dict[str, float]:
    """Milliseconds."""
    return {f"p{q}": round(float(np.percentile(took, q)), 1) for q in (50, 99, 100)}


def cluster(folder: Path, cleanup: ExitStack, *, ray: bool) -> Client:
    """A client of a cluster that runs until `cleanup` ends."""
    _sluice("up", folder, *([] if ray else ["--embedded"]))
    cleanup.callback(_sluice, "down", folder)
    return cleanup.enter_context(connect(data_dir=folder))


def _sluice(verb: str, folder: Path, *more: str) -> None:
    subprocess.run(
        [sys.executable, "-c", COMMAND, verb, "--data-dir", str(folder), *more], check=True, stdout=subprocess.DEVNULL
    )


def main() -> None:
    """Parse the command line and print the result."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=count, default=12)
    parser.add_argument("--partitions", type=count, default=16)
    parser.add_argument("--ray", action="store_true", help="a cluster of many processes")
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    options = parser.parse_args()
    if options.small:
        options.rounds = 2
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name, ExitStack() as cleanup:
        folder = Path(name)
        client = cluster(folder, cleanup, ray=options.ray)
        result = {
            "benchmark": "consumers",
            "rounds": options.rounds,
            "partitions": options.partitions,
            "joined_ms": quantiles(joined(client, options.rounds, options.partitions)),
            "killed_ms": quantiles(killed(client, folder, options.rounds)),
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()

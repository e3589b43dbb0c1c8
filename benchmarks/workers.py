"""A pool of workers beside a loop written by hand; and its keys at a death, a new version, and a step of load.

    .venv/bin/python benchmarks/workers.py [--messages N] [--keys N] [--rounds N] [--scenes NAME ...]

Scenes:

* `empty`: threads of one process against a cluster in the same process; a pool and a loop over `Consumer` in turn, with
  messages and with columns, and pools with an output. Messages a second from the first call to the last
  acknowledgement, and microseconds of processor time of the whole process for each.
* `kill`: a worker of a pool on Ray gets SIGKILL, again and again; milliseconds until one of its keys is handled again.
* `roll`: a detached pool of 12 gets another version under load: hashes that moved, and the longest wait of a message.
* `step`: the load steps from 100 to 5,000 messages a second with a handler of 1 ms: seconds until the oldest message is
  younger than the target again, and workers over time.
* `deaths`: three nodes, a handler of 1 ms, a pool of 2 to 8 and back, and a worker killed every 5 s; what the handlers
  wrote down is judged. `results`: the same with an output.

Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks._worker_deaths import deaths
from benchmarks._worker_scenes import PATIENCE_S, kill, roll, step, wait_for
from sluice import Workers, connect
from sluice.cluster.base.arguments import ArgumentParser, amount, count
from sluice.cluster.client.client import Client
from sluice.cluster.launch import launch

ON_RAY = ("kill", "roll", "step")
ON_NODES = ("deaths", "results")
SCENES = ("empty", *ON_RAY, *ON_NODES)
AT_ONCE = 10_000
CPUS = 32
"""What Ray is told it has, so that it places all workers."""


def nothing(_: Any) -> None:
    """The empty handler."""


def echo(message: Any) -> bytes:
    return bytes(message.data())


def send(client: Client, topic: str, messages: int, keys: int) -> None:
    """Messages of 100 bytes, key after key."""
    client.create_topic(topic, 4)
    with client.create_producer(topic) as producer:
        for start in range(0, messages, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, messages))
            columns = {"key": [b"key-%d" % (one % keys) for one in numbers], "payload": [b"x" * 100] * len(numbers)}
            producer.send_batch(pa.record_batch(columns)).result(PATIENCE_S)


def timed(work: Callable[[], float | None], messages: int) -> dict[str, float]:
    """work: returns when it really began, if not at once."""
    wall, cpu = time.perf_counter(), time.process_time()
    began = work() or wall
    return {
        "messages_per_s": round(messages / (time.perf_counter() - began)),
        "cpu_us": round((time.process_time() - cpu) * 1e6 / messages, 2),
    }


# -- an empty handler, in one process ---------------------------------------------------------------------------------


def by_hand(client: Client, messages: int, subscription: str, *, columns: bool) -> None:
    """The loop that a user would write."""
    consumer = client.subscribe("empty", subscription, initial_position="earliest", nack_order="key")
    done = 0
    while done < messages:
        if columns:
            batch = consumer.receive_batch(30_000)
            assert batch is not None
            nothing(batch.rows)
            consumer.acknowledge(batch)
            done += len(batch)
        else:
            message = consumer.receive(30_000)
            nothing(message)
            consumer.acknowledge(message)
            done += 1
    consumer.wait_acknowledged()
    consumer.close()


def by_pool(client: Client, messages: int, subscription: str, *, columns: bool, concurrency: int) -> None:
    options: dict[str, Any] = {"batch_size": 1_000} if columns else {"concurrency": concurrency}
    with Workers("empty", subscription, nothing, client=client, **options) as workers:
        wait_for(lambda: workers.status().handled >= messages)


def by_output(client: Client, messages: int, subscription: str, *, concurrency: int) -> None:
    """A pool whose handler gives each message back, to be published."""
    with Workers(
        "empty", subscription, echo, client=client, output="empty-results", concurrency=concurrency
    ) as workers:
        wait_for(lambda: workers.status().handled >= messages)


def empty(client: Client, messages: int, keys: int, rounds: int) -> dict[str, Any]:
    """Loop and pool in turn, so that what else the machine does meets both."""
    send(client, "empty", messages, keys)
    client.create_topic("empty-results", 4, deduplication_enabled=True)
    ways: dict[str, Callable[[str], None]] = {}
    for name, columns in (("messages", False), ("columns", True)):
        ways[f"loop, {name}"] = partial(by_hand, client, messages, columns=columns)
        ways[f"pool, {name}"] = partial(by_pool, client, messages, columns=columns, concurrency=1)
    ways["pool, 8 keys at once"] = partial(by_pool, client, messages, columns=False, concurrency=8)
    ways["pool, output"] = partial(by_output, client, messages, concurrency=1)
    ways["pool, output, 8 keys at once"] = partial(by_output, client, messages, concurrency=8)
    took: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name, way in ways.items():
            subscription = f"{name}-{turn}".replace(", ", "-").replace(" ", "-")
            took[name].append(timed(partial(way, subscription), messages))
    told: dict[str, Any] = {
        name: {what: statistics.median(one[what] for one in each) for what in each[0]} for name, each in took.items()
    }
    for name in ("messages", "columns"):
        pairs = zip(took[f"pool, {name}"], took[f"loop, {name}"], strict=True)
        ratios = [pool["messages_per_s"] / loop["messages_per_s"] for pool, loop in pairs]
        told[f"pool by loop, {name}"] = round(statistics.median(ratios), 3)
    return told


# -- on Ray -----------------------------------------------------------------------------------------------------------


@contextmanager
def on_ray(folder: Path) -> Iterator[Client]:
    """A cluster on Ray, to which this process is attached."""
    with launch.local(folder, cpus=CPUS, brokers=1), connect() as client:
        yield client


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = {"benchmark": "workers", "messages": given.messages, "keys": given.keys}
    if "empty" in given.scenes:
        with connect(embedded=True, data_dir=folder / "embedded") as client:
            told["empty"] = empty(client, given.messages, given.keys, given.rounds)
    for scene in ON_NODES:
        if scene in given.scenes:
            rate, every_s = given.rate, given.kill_every
            (data := folder / scene).mkdir()
            told[scene] = deaths(data, given.messages, given.keys, rate, every_s, results=scene == "results")
    wanted = [scene for scene in ON_RAY if scene in given.scenes]
    if not wanted:
        return told
    with ExitStack() as cleanup:
        data = folder / "ray"
        client = cleanup.enter_context(on_ray(data))
        for scene in wanted:
            if scene == "kill":
                told[scene] = kill(client, data, 60, given.rounds)
            elif scene == "roll":
                told[scene] = roll(client, data, 200, given.workers)
            else:
                told[scene] = step(client, data, 2_000, (100, given.rate), given.seconds)
    return told


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=count, default=200_000)
    parser.add_argument("--keys", type=count, default=1_000)
    parser.add_argument("--rounds", type=count, default=5, help="pairs of runs of an empty handler, and kills")
    parser.add_argument("--workers", type=count, default=12, help="of the pool that rolls")
    parser.add_argument("--rate", type=count, default=5_000, help="messages a second after the step")
    parser.add_argument("--seconds", type=count, default=40, help="after the step")
    parser.add_argument("--kill-every", type=amount, default=5.0, help="seconds between two deaths of `deaths`")
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    given = parser.parse_args()
    if given.small:
        given.messages, given.keys, given.rounds, given.scenes = 2_000, 50, 1, ["empty"]
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        told = measure(given, Path(folder))
    print(json.dumps(told))


if __name__ == "__main__":
    main()

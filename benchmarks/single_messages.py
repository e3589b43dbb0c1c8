"""Single messages through the client: `send_async` one by one, then `receive` and `acknowledge` one by one.

Before that one message at a time, from `send` to an acknowledgement that is durable.

    .venv/bin/python benchmarks/single_messages.py [--messages N] [--alone N] [--partitions N] [--keys N] [--small]

Prints one JSON object: messages a second as the calling thread sees them, from the first call to the last confirmation
(or the last acknowledgement that is durable), and the microseconds of processor time that a message costs this process;
of those at a time (`alone`), which of them each process of the cluster takes, and milliseconds on the clock.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice import connect
from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.cluster.client.client import Client
from sluice.cluster.launch import launch


def measure(client: Client, messages: int, alone: int, partitions: int, keys: int) -> dict[str, Any]:
    """Send, receive and acknowledge `alone` messages of 100 bytes, each before the next. Then send, and then receive,
    `messages` more.
    """
    client.create_topic("singles", partitions)
    consumer = client.subscribe("singles", "s", initial_position="earliest", receiver_queue_size=100_000)
    producer = client.create_producer("singles")
    producer.send(b"warm", partition_key="k")
    consumer.acknowledge(consumer.receive(timeout_millis=30_000), ack_receipt=True)
    names = [f"key-{number}" for number in range(keys)]
    payload = b"x" * 100

    def one_at_a_time() -> None:
        for number in range(alone):
            producer.send(payload, partition_key=names[number % keys])
            consumer.acknowledge(consumer.receive(timeout_millis=30_000), ack_receipt=True)

    def send() -> None:
        for number in range(messages):
            producer.send_async(payload, partition_key=names[number % keys])
        producer.flush()

    def receive() -> None:
        for _ in range(messages):
            message = consumer.receive(timeout_millis=30_000)
            message.data()
            consumer.acknowledge(message)
        consumer.wait_acknowledged()

    return {
        "benchmark": "single_messages",
        "messages": messages,
        "partitions": partitions,
        "alone": _by_process(one_at_a_time, alone),
        "send_async": _timed(send, messages),
        "receive_acknowledge": _timed(receive, messages),
    }


def _by_process(work: Callable[[], None], messages: int) -> dict[str, Any]:
    """Microseconds of processor time by process, and milliseconds, that each message takes."""
    before, wall = _cpu_seconds(), time.perf_counter()
    work()
    took, after = time.perf_counter() - wall, _cpu_seconds()
    used = {name: round((seconds - before.get(name, 0.0)) * 1e6 / messages) for name, seconds in after.items()}
    return {"messages": messages, "ms": round(took * 1e3 / messages, 2), "cpu_us": used, "total": sum(used.values())}


def _cpu_seconds() -> dict[str, float]:
    """Return the processor seconds so far of this process and of every host."""
    import ray

    hosts = [(row["name"], ray.get_actor(row["name"], row["namespace"])) for row in ray.util.list_named_actors(True)]
    used = {name.rpartition("-")[0] or name: ray.get(host.usage.remote())["cpu_seconds"] for name, host in hosts}
    return {"client": time.process_time(), **dict(sorted(used.items()))}


def _timed(work: Any, messages: int) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {
        "messages_per_s": round(messages / (time.perf_counter() - wall)),
        "client_cpu_us": round((time.process_time() - cpu) * 1e6 / messages, 2),
    }


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=count, default=1_000_000)
    parser.add_argument("--alone", type=count, default=500, help="how many are sent one at a time")
    parser.add_argument("--partitions", type=count, default=4)
    parser.add_argument("--keys", type=count, default=10_000)
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    options = parser.parse_args()
    if options.small:
        options.messages, options.alone = 20_000, 50
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        launch.local(Path(folder)) as running,
        connect(running.address) as client,
    ):
        print(json.dumps(measure(client, options.messages, options.alone, options.partitions, options.keys)))


if __name__ == "__main__":
    main()

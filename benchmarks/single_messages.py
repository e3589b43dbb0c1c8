"""Single messages through the client: `send_async` one by one, then `receive` and `acknowledge` one by one.

    .venv/bin/python benchmarks/single_messages.py [--messages N] [--partitions N] [--keys N] [--small]

Prints one JSON object: messages a second as the calling thread sees them, from the first call to the last confirmation
(or the last acknowledgement that is durable), and the microseconds of processor time that a message costs this process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from cluster import connect, launch
from cluster.client import Client


def measure(client: Client, messages: int, partitions: int, keys: int) -> dict[str, Any]:
    """Send and then receive `messages` of 100 bytes."""
    client.create_topic("singles", partitions)
    consumer = client.subscribe("singles", "s", initial_position="earliest", receiver_queue_size=100_000)
    producer = client.create_producer("singles")
    producer.send(b"warm", partition_key="k")
    consumer.acknowledge(consumer.receive(timeout_millis=30_000), ack_receipt=True)
    names = [f"key-{number}" for number in range(keys)]
    payload = b"x" * 100

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
        "send_async": _timed(send, messages),
        "receive_acknowledge": _timed(receive, messages),
    }


def _timed(work: Any, messages: int) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {
        "messages_per_s": round(messages / (time.perf_counter() - wall)),
        "client_cpu_us": round((time.process_time() - cpu) * 1e6 / messages, 2),
    }


def main() -> None:
    """Parse the command line and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    options = parser.parse_args()
    if options.small:
        options.messages = 20_000
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        launch.local(Path(folder)) as running,
        connect(running.address) as client,
    ):
        print(json.dumps(measure(client, options.messages, options.partitions, options.keys)))


if __name__ == "__main__":
    main()

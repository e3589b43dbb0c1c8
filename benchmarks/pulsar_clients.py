"""An unchanged `pulsar-client` through the gateway: latency of one message every 10 ms, and what a message costs.

    .venv/bin/python benchmarks/pulsar_clients.py [--messages N] [--paced N] [--small]

Prints one JSON object. The cluster is `./sluice up --embedded`, a process of its own with three bookies and two copies
of everything; the client is this process. `paced`: milliseconds from `send` to the confirmation and to `receive`, one
message every 10 ms on the clock, whatever became of the one before; the quantiles leave out the first tenth. `keyed`,
`batches` and `singles`: 100-byte messages with 1,000 keys, sent as fast as the Python client can, in batches by key, in
batches, or one by one, and received beside that; microseconds of processor time a message, of the broker alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pulsar

from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.cluster.gateway.ports import service_url
from sluice.cluster.launch import launch, standalone
from sluice.cluster.launch.discovery import process_of
from sluice.cluster.settings.config import load

EVERY_S = 0.01
PAYLOAD = b"x" * 100
PATIENCE_MS = 60_000


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Milliseconds at the usual places, without the first tenth."""
    kept = np.array(seconds[len(seconds) // 10 :]) * 1000
    places = (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100))
    return {name: round(float(np.percentile(kept, place)), 2) for name, place in places}


def paced(client: pulsar.Client, count: int) -> dict[str, Any]:
    """One message every 10 ms."""
    consumer = client.subscribe("paced", "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer("paced", batching_enabled=False)
    sent, confirmed, received = [0.0] * count, [0.0] * count, [0.0] * count

    def take() -> None:
        for _ in range(count):
            message = consumer.receive(PATIENCE_MS)
            received[int(message.data())] = time.perf_counter()
            consumer.acknowledge(message)

    def done(number: int) -> Any:
        def confirm(result: Any, _: Any) -> None:
            assert result == pulsar.Result.Ok
            confirmed[number] = time.perf_counter()

        return confirm

    taking = threading.Thread(target=take)
    taking.start()
    began = time.perf_counter()
    for number in range(count):
        time.sleep(max(began + number * EVERY_S - time.perf_counter(), 0))
        sent[number] = time.perf_counter()
        producer.send_async(b"%d" % number, done(number), partition_key=f"k{number % 100}")
    producer.flush()
    taking.join()
    return {
        "messages": count,
        "confirmed_ms": quantiles([b - a for a, b in zip(sent, confirmed, strict=True)]),
        "received_ms": quantiles([b - a for a, b in zip(sent, received, strict=True)]),
    }


def flood(client: pulsar.Client, broker: psutil.Process, topic: str, count: int, **options: Any) -> dict[str, Any]:
    """As fast as the client can."""
    kind = pulsar.ConsumerType.KeyShared
    consumer = client.subscribe(
        topic, "s", consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=5000
    )
    producer = client.create_producer(topic, block_if_queue_full=True, max_pending_messages=10_000, **options)
    rng = np.random.default_rng(0)
    keys = [f"key-{key}" for key in (rng.zipf(1.2, count) - 1) % 1000]
    before = broker.cpu_times()

    def send() -> None:
        for key in keys:
            producer.send_async(PAYLOAD, lambda *_: None, partition_key=key)
        producer.flush()

    began = time.perf_counter()
    sending = threading.Thread(target=send)
    sending.start()
    for _ in range(count):
        consumer.acknowledge(consumer.receive(PATIENCE_MS))
    sending.join()
    seconds = time.perf_counter() - began
    after = broker.cpu_times()
    spent = after.user + after.system - before.user - before.system
    return {
        "messages": count,
        "messages_per_second": round(count / seconds),
        "broker_us_per_message": round(spent / count * 1e6, 1),
    }


def measure(messages: int, pace: int) -> dict[str, Any]:
    """All of it, on a cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="sluice_") as folder:
        data = Path(folder) / "data"
        values = load(None, data_dir=data, pulsar_port=0, pulsar_web_port=-1).values
        standalone.up(values)
        try:
            state = json.loads((data / "cluster.json").read_text())
            broker = process_of(state)
            assert broker is not None
            quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            client = pulsar.Client(service_url(data, 0), logger=quiet)
            answer = {
                "paced": paced(client, pace),
                "keyed": flood(
                    client, broker, "keyed", messages, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased
                ),
                "batches": flood(client, broker, "batches", messages, batching_enabled=True),
                "singles": flood(client, broker, "singles", messages // 2, batching_enabled=False),
            }
            client.close()
        finally:
            launch.down(data)
    return answer


def main() -> None:
    """See the module."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=count, default=200_000)
    parser.add_argument("--paced", type=count, default=1_000)
    parser.add_argument("--small", action="store_true", help="a few seconds; the figures mean nothing")
    wanted = parser.parse_args()
    print(json.dumps(measure(4_000, 100) if wanted.small else measure(wanted.messages, wanted.paced)))


if __name__ == "__main__":
    main()

"""Latency over load: messages of 100 bytes at a steady rate, until they are confirmed and until they are delivered.

    .venv/bin/python benchmarks/latency.py [--seconds N] [--rates 100,1000] [--partitions N] [--table] [--picture FILE]

Without rates: 100 and 1,000 messages a second, then 10 % and 50 % of the peak that is measured first. Single messages
are sent up to 2,000 a second, above it what is due in each 5 ms goes as one batch. Each message counts from its
intended time, so a slow one does not delay the clock of the next. Prints one JSON object: milliseconds, and the
processor time of everything (client, brokers, bookies, controller, Ray) a message; or a table of it in Markdown.
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
import numpy.typing as npt
import psutil
import pyarrow as pa

from benchmarks._latency_picture import picture, table
from sluice import connect
from sluice.cluster.base.arguments import ArgumentParser, amount, count
from sluice.cluster.client.client import Client
from sluice.cluster.client.consumer import Consumer
from sluice.cluster.client.message import MessageId
from sluice.cluster.client.producer import Producer
from sluice.cluster.launch import launch
from sluice.cluster.node.sessions import processes_of

SIZE, KEYS = 100, 100
TICK_S = 0.005
SINGLE_UP_TO = 2_000
Times = npt.NDArray[np.int64]


def now_us() -> int:
    """Microseconds of this process's clock."""
    return time.perf_counter_ns() // 1000


class Sink:
    """Receives everything in a thread of its own, acknowledges it, and notes how long it took."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.took: list[Times] = []
        self.count = self.wanted = 0
        self.complete, self._over = threading.Event(), False
        self._thread.start()

    def expect(self, messages: int) -> None:
        """Count anew, until so many have come."""
        self.took, self.count, self.wanted = [], 0, messages
        self.complete.clear()

    def close(self) -> None:
        """End the thread."""
        self._over = True
        self._thread.join()

    def _run(self) -> None:
        while not self._over:
            got = self._consumer.receive_batch(200)
            if got is None:
                continue
            column = pa.compute.binary_slice(got.rows.column("payload"), 0, 8)
            sent = np.frombuffer(b"".join(column.to_pylist()), np.int64)
            self.took.append(now_us() - sent)
            self._consumer.acknowledge(got)
            self.count += len(got)
            if self.count >= self.wanted:
                self.complete.set()


def payloads(times: Times) -> list[bytes]:
    """Each message begins with its intended time."""
    return [int(at).to_bytes(8, "little") + bytes(SIZE - 8) for at in times]


def send_singles(producer: Producer, times: Times, confirmed: list[Times]) -> None:
    """One by one, each at its time."""

    def note(at: int) -> Any:
        def told(error: Exception | None, _: MessageId | None) -> None:
            assert error is None, error
            confirmed.append(np.array([now_us() - at]))

        return told

    for number, content in enumerate(payloads(times)):
        at = int(times[number])
        time.sleep(max(at - now_us(), 0) / 1e6)
        producer.send_async(content, note(at), partition_key=f"key-{number % KEYS}")
    producer.flush()


def send_batches(producer: Producer, times: Times, confirmed: list[Times]) -> None:
    """What is due at each tick, as one batch."""
    names = np.array([f"key-{number}".encode() for number in range(KEYS)], object)
    waiting: list[tuple[Any, Times]] = []
    at = 0
    while at < len(times):
        time.sleep(max(int(times[at]) + TICK_S * 1e6 - now_us(), 0) / 1e6)
        until = int(np.searchsorted(times, now_us(), side="right"))
        due = times[at:until]
        rows = {"key": pa.array(names[np.arange(at, until) % KEYS], pa.binary()), "payload": pa.array(payloads(due))}
        waiting.append((producer.send_batch(pa.record_batch(rows)), due))
        at = until
        while waiting and waiting[0][0].done():
            confirmed.append(now_us() - waiting.pop(0)[1])
    for receipt, due in waiting:
        receipt.result(60)
        confirmed.append(now_us() - due)


def spent_s(session: str) -> float:
    """Processor time of every process of the cluster, and of this one."""
    total = 0.0
    for process in {each.pid: each for each in [*processes_of(session), psutil.Process()]}.values():
        try:
            used = process.cpu_times()
        except psutil.Error:
            continue
        total += used.user + used.system
    return total


def quantiles(took: list[Times]) -> dict[str, float]:
    """Milliseconds."""
    values = np.concatenate(took) / 1000
    return {f"p{q:g}": round(float(np.percentile(values, q)), 2) for q in (50, 99, 99.9)}


def at_rate(producer: Producer, sink: Sink, rate: int, seconds: float, session: str) -> dict[str, Any]:
    """One load."""
    messages = max(int(rate * seconds), 10)
    sink.expect(messages)
    confirmed: list[Times] = []
    before = spent_s(session)
    times = now_us() + 20_000 + (np.arange(messages) * 1e6 / rate).astype(np.int64)
    (send_singles if rate <= SINGLE_UP_TO else send_batches)(producer, times, confirmed)
    if not sink.complete.wait(120):
        raise SystemExit(f"{sink.count} of {messages} messages came")
    return {
        "rate": rate,
        "messages": messages,
        "confirmed_ms": quantiles(confirmed),
        "delivered_ms": quantiles(sink.took),
        "cpu_us_per_message": round((spent_s(session) - before) * 1e6 / messages, 1),
    }


def peak(producer: Producer, sink: Sink, messages: int) -> int:
    """Messages a second, sent as fast as possible until all have come."""
    sink.expect(messages)
    began = time.perf_counter()
    names = pa.array([f"key-{number % KEYS}".encode() for number in range(50_000)], pa.binary())
    for _ in range(messages // 50_000):
        content = pa.array(payloads(np.full(50_000, now_us(), np.int64)))
        producer.send_batch(pa.record_batch({"key": names, "payload": content}))
    if not sink.complete.wait(120):
        raise SystemExit(f"{sink.count} of {messages} messages came")
    return round(messages / (time.perf_counter() - began))


def measure(client: Client, options: argparse.Namespace, session: str) -> dict[str, Any]:
    """Every load, one after the other."""
    client.create_topic("latency", partitions=options.partitions)
    consumer = client.subscribe("latency", "s", initial_position="earliest", receiver_queue_size=200_000)
    sink = Sink(consumer)
    result: dict[str, Any] = {"benchmark": "latency", "partitions": options.partitions}
    with client.create_producer("latency") as producer:
        at_rate(producer, sink, 200, 1, session)
        rates = [int(rate) for rate in options.rates.split(",") if rate]
        if not rates:
            result["peak_msgs_per_s"] = peak(producer, sink, options.peak_messages)
            rates = [100, 1_000, result["peak_msgs_per_s"] // 10, result["peak_msgs_per_s"] // 2]
        result["loads"] = [at_rate(producer, sink, rate, options.seconds, session) for rate in rates]
    sink.close()
    return result


def main() -> None:
    """Parse the command line and print the result."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=amount, default=10.0, help="how long each load lasts")
    parser.add_argument("--rates", default="", help="messages a second, with commas between")
    parser.add_argument("--partitions", type=count, default=1)
    parser.add_argument("--peak-messages", type=count, default=1_000_000)
    parser.add_argument("--table", action="store_true", help="print a table in Markdown instead of JSON")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it, as SVG")
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    options = parser.parse_args()
    if options.picture is not None and not options.picture.absolute().parent.is_dir():
        parser.error(f"there is no folder {options.picture.absolute().parent} to draw in")
    if options.small:
        options.seconds, options.peak_messages = 0.5, 50_000
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        launch.local(Path(folder)) as running,
        connect(running.address) as client,
    ):
        import ray

        session = str(Path(ray._private.worker._global_node.get_session_dir_path()).parent)
        result = measure(client, options, session)
    if options.picture is not None:
        options.picture.write_text(picture(result), encoding="utf-8")
    print(table(result) if options.table else json.dumps(result))


if __name__ == "__main__":
    main()

"""Keys are parked under load, the broker's process is killed, all are redriven; and what other keys notice of it.

    .venv/bin/python benchmarks/parking.py [--keys N] [--seconds N] [--rate N] [--small]

One partition, one consumer, dead_letter_policy=park. Half of the load, at a steady rate, is of keys that go well; the
other half of as many keys that do not: at first they go well too, then everything of them is given back until each of
them is parked. With all of them parked the process of the dispatcher gets SIGKILL; when its successor delivers again,
all keys are redriven. Prints one JSON object: milliseconds from a message's intended time to its delivery, of the keys
that go well, by phase; seconds of the steps; and of the keys that were parked how many messages came `out_of_order`,
`twice` after they were acknowledged, or were `lost`, all of which have to be 0.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sluice import connect
from sluice.cluster.base.arguments import ArgumentParser, amount, count
from sluice.cluster.client.client import Client
from sluice.cluster.client.consumer import Consumer
from sluice.cluster.client.message import Batch
from sluice.cluster.client.producer import Producer
from sluice.cluster.launch import launch
from sluice.storage.errors import SluiceError

TOPIC, SUBSCRIPTION = "parking", "s"
TICK_S = 0.005
PATIENCE_S = 300.0
_CONTENT = struct.Struct("<qqqq")
"""Whether its key goes well, number of the key, number in the key, intended time in microseconds."""


class Load(threading.Thread):
    """Sends both kinds of keys in turn, at a steady rate, until it is told to stop. sent: messages of each bad key."""

    def __init__(self, producer: Producer, keys: int, rate: int) -> None:
        super().__init__(daemon=True)
        self._producer, self._keys, self._rate = producer, keys, rate
        self.sent = np.zeros(keys, np.int64)
        self.over = threading.Event()

    def run(self) -> None:
        """Send what is due in each tick as one batch."""
        began, number = time.perf_counter(), 0
        counts = np.zeros(2 * self._keys, np.int64)
        while not self.over.is_set():
            due = int((time.perf_counter() - began) * self._rate)
            if due > number:
                numbers = np.arange(number, due)
                kinds = numbers % (2 * self._keys)
                at = ((began + numbers / self._rate) * 1e6).astype(np.int64)
                rows = []
                for kind, moment in zip(kinds.tolist(), at.tolist(), strict=True):
                    rows.append(_CONTENT.pack(kind % 2, kind // 2, int(counts[kind]), moment))
                    counts[kind] += 1
                names = [b"%s-%d" % (b"well" if kind % 2 else b"bad", kind // 2) for kind in kinds.tolist()]
                self._producer.send_batch(pa.table({"key": names, "payload": rows}))
                number = due
            self.over.wait(TICK_S)
        self._producer.flush()
        self.sent = counts[0::2]


class Sink(threading.Thread):
    """Acknowledges everything, but gives back bad keys while `rejecting`; notes how long the others took."""

    def __init__(self, consumer: Consumer) -> None:
        super().__init__(daemon=True)
        self._consumer = consumer
        self.rejecting = False
        self.phase = "warming up"
        self.took: dict[str, list[Any]] = defaultdict(list)
        self.last: dict[int, int] = defaultdict(lambda: -1)
        """Of each bad key, the last message that was acknowledged."""
        self.acknowledged: set[tuple[int, int]] = set()
        self.out_of_order = self.twice = self.well = 0
        self.over = threading.Event()
        self._giving_back = ThreadPoolExecutor(1)

    def run(self) -> None:
        """Receive until it is over."""
        while not self.over.is_set():
            batch = self._consumer.receive_batch(200)
            if batch is not None:
                self._take(batch)

    def _take(self, batch: Batch) -> None:
        rows = np.array([_CONTENT.unpack(one) for one in batch.rows.column("payload").to_pylist()], np.int64)
        rows = rows.reshape(-1, 4)
        well = rows[:, 0] == 1
        self.took[self.phase].append(time.perf_counter() * 1e6 - rows[well, 3])
        self.well += int(np.count_nonzero(well))
        if self.rejecting and not well.all():
            # It returns when it is durable, and when what follows is taken back: nobody else waits for that.
            self._giving_back.submit(
                self._consumer.negative_acknowledge, batch, rows=np.flatnonzero(~well), delay_ms=0
            ).add_done_callback(lambda _: self._consumer.acknowledge(batch))
            return
        for row in np.flatnonzero(~well & ~batch.taken_back).tolist():
            self._done(int(rows[row, 1]), int(rows[row, 2]))
        self._consumer.acknowledge(batch)

    def _done(self, key: int, number: int) -> None:
        self.twice += (key, number) in self.acknowledged
        self.out_of_order += number != self.last[key] + 1
        self.last[key] = number
        self.acknowledged.add((key, number))


def measure(client: Client, options: argparse.Namespace) -> dict[str, Any]:
    """Every phase, one after the other."""
    client.create_topic(TOPIC, 1)
    consumer = client.subscribe(
        TOPIC,
        SUBSCRIPTION,
        initial_position="earliest",
        receiver_queue_size=10_000,
        nack_order="key",
        max_redeliver_count=1,
        dead_letter_policy="park",
        park_max_keys=options.keys,
    )
    sink = Sink(consumer)
    load = Load(client.create_producer(TOPIC), options.keys, options.rate)
    sink.start()
    load.start()
    told: dict[str, Any] = {"benchmark": "parking", "keys": options.keys, "msgs_per_s": options.rate}
    time.sleep(options.seconds / 2)
    sink.phase = "before"
    time.sleep(options.seconds)
    sink.phase, sink.rejecting = "while keys fail", True
    told["parked_after_s"] = _until(lambda: _stats(client)["parkedKeys"] == options.keys)
    sink.phase, sink.rejecting = "settling", False
    time.sleep(options.seconds / 5)
    sink.phase = "parked"
    time.sleep(options.seconds)
    told["msgParked"] = _stats(client)["msgParked"]
    sink.phase = "killed"
    _kill(client)
    before = sink.well
    told["delivers_again_after_s"] = _until(lambda: sink.well > before + options.rate)
    told["parkedKeys_after_kill"] = _stats(client)["parkedKeys"]
    time.sleep(options.seconds / 2)
    sink.phase = "redriven"
    began = time.perf_counter()
    told["redriven"] = client.admin(TOPIC, SUBSCRIPTION, "redrive", everything=True)[0]
    told["redrive_s"] = round(time.perf_counter() - began, 3)
    time.sleep(options.seconds)
    load.over.set()
    load.join(PATIENCE_S)
    told["drained_after_s"] = _until(lambda: _stats(client)["msgBacklog"] == 0)
    sink.over.set()
    sink.join(PATIENCE_S)
    lost = int(load.sent.sum()) - len(sink.acknowledged)
    told |= {"messages": int(load.sent.sum()), "out_of_order": sink.out_of_order, "twice": sink.twice, "lost": lost}
    told["delivered_ms"] = {
        phase: _quantiles(took) for phase, took in sink.took.items() if phase not in ("warming up", "settling")
    }
    return told


def _quantiles(took: list[Any]) -> dict[str, float]:
    all_of_them = np.concatenate([np.zeros(0), *took]) / 1000
    return {f"p{q}": round(float(np.percentile(all_of_them, q)), 2) for q in (50, 99)} if len(all_of_them) else {}


def _stats(client: Client) -> dict[str, Any]:
    """Statistics of the subscription, as soon as its owner tells them."""
    while True:
        try:
            return client.stats(TOPIC, SUBSCRIPTION)[0]
        except SluiceError:
            time.sleep(0.05)


def _until(true: Callable[[], bool]) -> float:
    """Wait; returns the seconds."""
    began = time.perf_counter()
    while not true():
        if time.perf_counter() - began > PATIENCE_S:
            raise SystemExit("it did not come to that")
        time.sleep(0.1)
    return round(time.perf_counter() - began, 2)


def _kill(client: Client) -> None:
    """SIGKILL to the process of the dispatcher."""
    import ray

    (row,) = [row for row in client.status()["actors"] if row["kind"] == "dispatcher"]
    host = ray.get_actor(row["address"].partition("/")[0], "sluice")
    os.kill(int(ray.get(host.usage.remote(), timeout=60)["pid"]), signal.SIGKILL)


def main() -> None:
    """Parse the command line and print the result."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=count, default=1_000)
    parser.add_argument("--seconds", type=amount, default=20.0, help="how long a phase lasts")
    parser.add_argument("--rate", type=count, default=1_000, help="messages a second")
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    options = parser.parse_args()
    if options.small:
        options.keys, options.seconds, options.rate = 50, 1.0, 200
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        launch.local(Path(folder)) as running,
        connect(running.address) as client,
    ):
        result = measure(client, options)
    print(json.dumps(result))


if __name__ == "__main__":
    main()

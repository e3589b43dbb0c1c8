"""A steady load on a running cluster, from a machine of it, that is judged at the end.

    python -m tests.kit.steady_load ADDRESS TOPIC RATE FILE [TOKEN]

Publishes RATE messages a second on KEYS keys, and receives them with one consumer, until FILE exists. With TOKEN, a
file, Pulsar's client does so, and ADDRESS is the URL of its service.

Prints one JSON object: how many messages were confirmed and received, how many of the confirmed ones were lost, how
many first deliveries were out of the order of their key, how many messages are stored more than once, and in
milliseconds the longest time between two confirmations of a partition (`longest_confirm_ms`) and between a confirmation
and the message's delivery (`longest_delivery_ms`), with the seconds since the start at which each began. `began` is the
start itself, by the monotonic clock. `waits_s` are the longest waits of either kind that took longer than a second, at
most one for each second of the run: when, how long.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar

import sluice
from sluice.storage.errors import SluiceError

KEYS = 24
PATIENCE_S = 60.0
SHARE_S = 0.05
"""Messages are published in portions, so often."""


class PulsarClient:
    """Pulsar's client, with Sluice's names for what the load does. It never gives up a message."""

    def __init__(self, url: str, token: Path) -> None:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        shown = pulsar.AuthenticationToken(token.read_text().strip())
        self._client = pulsar.Client(url, authentication=shown, logger=quiet, operation_timeout_seconds=int(PATIENCE_S))

    def __enter__(self) -> PulsarClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def create_producer(self, topic: str) -> PulsarClient:
        keyed = {"batching_enabled": True, "batching_type": pulsar.BatchingType.KeyBased}
        self._producer = self._client.create_producer(
            topic, "steady", send_timeout_millis=0, block_if_queue_full=True, **keyed
        )
        return self

    def send_async(self, data: bytes, on_sent: Callable[[object, object], None], partition_key: str) -> None:
        def on_result(result: pulsar.Result, message_id: object) -> None:
            on_sent(None if result == pulsar.Result.Ok else result, message_id)

        self._producer.send_async(data, on_result, partition_key=partition_key)

    def flush(self, timeout_s: float) -> None:
        self._producer.flush()

    def subscribe(self, topic: str, name: str, initial_position: str) -> Any:
        earliest = pulsar.InitialPosition.Earliest
        return self._client.subscribe(topic, name, pulsar.ConsumerType.KeyShared, initial_position=earliest)


class SteadyLoad:
    """Publishes and receives in a thread each. Times are seconds since it began."""

    def __init__(self, client: Any, topic: str, rate: int) -> None:
        self._client, self._topic, self._rate = client, topic, rate
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self.confirmed: dict[tuple[int, int], float] = {}
        """By key and number."""
        self.received: list[tuple[float, int, int, str]] = []
        self.failed: dict[str, int] = {}
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._publish, self._receive)]

    def run(self, until: Path) -> None:
        """Until a file exists, and all that was confirmed has come."""
        for thread in self._threads:
            thread.start()
        while not until.exists():
            time.sleep(SHARE_S)  # nobody tells of a file
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _publish(self) -> None:
        producer = self._client.create_producer(self._topic)
        number = 0
        while not self._over.is_set():
            while number < self._now() * self._rate:
                self._send(producer, number % KEYS, number // KEYS)
                number += 1
            time.sleep(SHARE_S)
        producer.flush(timeout_s=PATIENCE_S)

    def _send(self, producer: Any, key: int, number: int) -> None:
        def on_sent(error: object, _: object) -> None:
            with self._lock:
                if error is None:
                    self.confirmed[key, number] = self._now()
                else:
                    self.failed[str(error)] = self.failed.get(str(error), 0) + 1

        producer.send_async(str(number).encode(), on_sent, partition_key=f"key-{key}")

    def _receive(self) -> None:
        consumer = self._client.subscribe(self._topic, "steady", initial_position="earliest")
        deadline = None
        while deadline is None or self._now() < deadline:
            if self._over.is_set():
                deadline = deadline or self._now() + PATIENCE_S
                if not self._threads[0].is_alive() and len(set(self._ids())) >= len(self.confirmed):
                    return
            try:
                message = consumer.receive(timeout_millis=500)
            except (SluiceError, pulsar.Timeout):
                continue
            key = int(message.partition_key().removeprefix("key-"))
            self.received.append((self._now(), key, int(message.data()), str(message.message_id())))
            consumer.acknowledge(message)

    def _ids(self) -> list[tuple[int, int]]:
        return [(key, number) for _, key, number, _ in self.received]

    def verdict(self) -> dict[str, Any]:
        """See the module."""
        first: dict[tuple[int, int], float] = {}
        newest: dict[int, int] = {}
        disorder = 0
        for at, key, number, _ in self.received:
            if (key, number) not in first:
                first[key, number] = at
                disorder += number < newest.get(key, -1)
                newest[key] = max(number, newest.get(key, -1))
        confirms: list[tuple[float, float]] = []
        for key in range(KEYS):
            times = sorted(at for (other, _), at in self.confirmed.items() if other == key)
            confirms += [(later - sooner, sooner) for sooner, later in itertools.pairwise(times)]
        deliveries = [(first[each] - at, at) for each, at in self.confirmed.items() if each in first]
        longest: dict[int, tuple[float, float]] = {}
        for wait, at in [*confirms, *deliveries]:
            if wait > 1.0:
                longest[int(at)] = max(longest.get(int(at), (0.0, 0.0)), (round(wait, 2), round(at, 2)))
        return {
            "began": self._began,
            "confirmed": len(self.confirmed),
            "received": len(self.received),
            "lost": sum(each not in first for each in self.confirmed),
            "disorder": disorder,
            "twice": len({(key, number, stored) for _, key, number, stored in self.received}) - len(first),
            "failed": self.failed,
            "longest_confirm_ms": [round(max(confirms)[0] * 1000), round(max(confirms)[1], 1)],
            "longest_delivery_ms": [round(max(deliveries)[0] * 1000), round(max(deliveries)[1], 1)],
            "waits_s": sorted((at, wait) for wait, at in longest.values()),
        }


def main() -> None:
    address, topic, rate, until, *token = sys.argv[1:]
    client: Any = PulsarClient(address, Path(token[0])) if token else sluice.connect(address)
    with client:
        load = SteadyLoad(client, topic, int(rate))
        load.run(Path(until))
        print(json.dumps(load.verdict()))


if __name__ == "__main__":
    main()

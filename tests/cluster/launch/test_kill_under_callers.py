"""SIGKILL under many callers of Pulsar's client that wait: with deduplication all that was confirmed is there once."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pulsar
import pytest

import sluice
from sluice.cluster.gateway.ports import port_of
from sluice.cluster.launch import launch, standalone
from tests.cluster.helpers import PATIENCE_S, Received, eventually, values
from tests.cluster.launch.test_standalone import process

pytestmark = pytest.mark.timeout(1500)

CALLERS = 32


class Callers:
    """A thread for each producer. It sends the next number when the one before is confirmed."""

    def __init__(self, url: str, topics: list[str]) -> None:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self.client = pulsar.Client(url, logger=quiet, operation_timeout_seconds=120)
        self.confirmed, self.errors = [0] * CALLERS, list[Exception]()
        self._producers = [
            self.client.create_producer(topics[n % len(topics)], f"caller-{n}", send_timeout_millis=0)
            for n in range(CALLERS)
        ]
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(n,), daemon=True) for n in range(CALLERS)]
        for thread in self._threads:
            thread.start()

    def _send(self, number: int) -> None:
        try:
            while not self._over.is_set():
                sent = b"%d" % self.confirmed[number]
                self._producers[number].send(sent, partition_key=f"key-{number}")
                self.confirmed[number] += 1
        except Exception as error:
            self.errors.append(error)

    def go_on(self, messages: int) -> None:
        """Wait until each has so many more confirmed."""
        wanted = [count + messages for count in self.confirmed]

        def there() -> bool:
            return bool(self.errors) or all(now >= then for now, then in zip(self.confirmed, wanted, strict=True))

        eventually(there, lambda: f"some wait: {self.confirmed}")
        assert not self.errors

    def close(self) -> None:
        """Wait until each has its last confirmation."""
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not self.errors
        self.client.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "topics"),
    [(2, 1), pytest.param(20, 1, marks=pytest.mark.release), pytest.param(20, 8, marks=pytest.mark.release)],
)
def test_killed_waves_are_stored_once(tmp_path: Path, kills: int, topics: int) -> None:
    data, names = tmp_path / "data", [f"topic-{number}" for number in range(topics)]
    standalone.up(values(data, pulsar_port=0))
    try:
        with sluice.connect(data_dir=data) as client:
            for name in names:
                client.create_topic(name, partitions=4, deduplication_enabled=True)
                client.subscribe(name, "audit", initial_position="earliest").close()  # keeps all from being trimmed
        port = port_of(data)
        callers = Callers(f"pulsar://127.0.0.1:{port}", names)
        for _ in range(kills):
            callers.go_on(5)
            serving = process(data)
            serving.send_signal(signal.SIGKILL)
            serving.wait(PATIENCE_S)
            standalone.up(values(data, pulsar_port=port))
        callers.go_on(5)
        callers.close()
        received, total = Received(), sum(callers.confirmed)
        with sluice.connect(data_dir=data) as client:
            assert sum(row["numberOfEntries"] for name in names for row in client.stats(name)) == total
            consumers = [client.subscribe(name, "audit", initial_position="earliest") for name in names]
            eventually(
                lambda: received.take(consumers) >= 0 and received.count >= total,
                lambda: f"{received.count} of {total} came",
            )
        assert received.by_key == {f"key-{n}": list(range(count)) for n, count in enumerate(callers.confirmed)}
    finally:
        launch.down(data)

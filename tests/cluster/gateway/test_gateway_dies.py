"""The cost of a gateway's death for unchanged clients: they connect again. On Ray, with SIGKILL, under load."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pulsar
import pytest
import ray

from sluice.cluster.client.client import Client
from sluice.cluster.gateway.ports import port_of
from sluice.cluster.launch import launch
from sluice.cluster.launch.build import make_host
from sluice.cluster.settings.config import Configuration
from tests.cluster.gateway.clients import EARLIEST, KEY_SHARED
from tests.cluster.helpers import attached, eventually, values

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

KEYS = 7


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configuration]:
    """A cluster that stays, with a gateway at a free port."""
    wanted = values(tmp_path_factory.mktemp("sluice") / "data", pulsar_port=0)
    launch.up(wanted)
    ray.shutdown()
    yield wanted
    launch.down(wanted.data_dir)


@pytest.fixture
def client(configured: Configuration) -> Iterator[Client]:
    """One of Sluice's own, to look with."""
    with attached(configured.data_dir) as one:
        yield one


class Load:
    """Numbered messages of some keys, sent and received by clients of Pulsar's until it is closed."""

    def __init__(self, topic: str, *urls: str) -> None:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self.clients = [pulsar.Client(url, logger=quiet, operation_timeout_seconds=120) for url in urls]
        self.consumers = [
            client.subscribe(topic, "s", consumer_type=KEY_SHARED, initial_position=EARLIEST) for client in self.clients
        ]
        self.producer = self.clients[0].create_producer(topic, producer_name=f"{topic}-till", send_timeout_millis=0)
        self.sent = 0
        self.came: list[list[tuple[str, int]]] = [[] for _ in self.clients]
        self.errors: list[BaseException] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._guarded, args=(self._send,), daemon=True)]
        self._threads += [
            threading.Thread(target=self._guarded, args=(self._receive, number), daemon=True)
            for number in range(len(self.clients))
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:
            self.errors.append(error)

    def _send(self) -> None:
        while not self._over.is_set():
            self.producer.send(b"%d" % self.sent, partition_key=str(self.sent % KEYS))
            self.sent += 1

    def _receive(self, number: int) -> None:
        while True:
            try:
                message = self.consumers[number].receive(500)
            except pulsar.Timeout:
                if self._over.is_set() and len(self.numbers()) == self.sent:
                    return
                continue
            self.came[number].append((message.partition_key(), int(message.data())))
            self.consumers[number].acknowledge(message)

    def numbers(self) -> set[int]:
        """Every message that came."""
        return {number for came in self.came for _, number in came}

    def goes_on(self) -> None:
        """Wait until fifty more were sent and received."""
        wanted = self.sent + 50
        eventually(lambda: self.errors or len(self.numbers()) >= wanted, lambda: f"{self.sent} sent")
        assert not self.errors

    def close(self) -> None:
        """Stop sending, and receive what is left."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        for client in self.clients:
            client.close()

    def check(self) -> None:
        """Nothing is lost, and what comes of a key for the first time rises at each consumer."""
        assert not self.errors
        assert self.numbers() == set(range(self.sent))
        for came in self.came:
            highest: dict[str, int] = {}
            seen: set[int] = set()
            for key, number in came:
                assert number in seen or number > highest.get(key, -1), f"{number} of {key} came late"
                highest[key] = max(number, highest.get(key, -1))
                seen.add(number)


def listener(port: int) -> psutil.Process:
    """The process that has a port."""
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            return psutil.Process(connection.pid)
    raise AssertionError(f"nobody listens at {port}")


def owners(client: Client, topic: str) -> list[tuple[int, int]]:
    """Epochs of the partitions, and of the subscription's owners."""
    both = zip(client.stats(topic), client.stats(topic, "s"), strict=True)
    return [(partition["epoch"], owner["epoch"]) for partition, owner in both]


def restarts(client: Client, kind: str) -> int:
    """How often something of a kind was started again."""
    return sum(row["restarts"] for row in client.status()["actors"] if row["kind"] == kind)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_reconnection_and_nothing_else(configured: Configuration, client: Client, end: signal.Signals) -> None:
    topic, port = f"orders-{end.name.lower()}", port_of(configured.data_dir)
    load = Load(topic, f"pulsar://127.0.0.1:{port}")
    load.goes_on()
    before = owners(client, topic), [restarts(client, kind) for kind in ("topic", "dispatcher", "bookie")]
    died = restarts(client, "gateway")
    holder = listener(port)
    holder.send_signal(end)
    load.goes_on()
    load.close()
    load.check()
    assert port_of(configured.data_dir) == port
    assert listener(port).pid != holder.pid
    assert (owners(client, topic), [restarts(client, kind) for kind in ("topic", "dispatcher", "bookie")]) == before
    assert restarts(client, "gateway") == died + 1


def test_two_gateways_serve_one_subscription(configured: Configuration, client: Client, tmp_path: Path) -> None:
    """The second one as on a machine with another data folder. It dies as well, and its clients go to the first."""
    settings = configured.cluster_options().settings() | {"data_dir": str(tmp_path)}
    second = make_host("gateway-elsewhere-1", settings, boot=[("gateway", "gateway", {"machine": "elsewhere"})])
    ray.get(second.ready.remote())
    here, there = (f"127.0.0.1:{port_of(folder)}" for folder in (configured.data_dir, tmp_path))
    load = Load("both", f"pulsar://{here}", f"pulsar://{there},{here}")
    load.goes_on()
    assert all(load.came), "each has some of the keys"
    with pytest.raises(pulsar.ProducerBusy):
        load.clients[1].create_producer("both", producer_name="both-till")
    listener(port_of(tmp_path)).kill()
    load.goes_on()
    load.close()
    load.check()

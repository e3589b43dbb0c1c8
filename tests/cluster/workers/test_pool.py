"""Pools of workers in one process: order of each key, failures, replacement, scaling, and how a pool ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cluster
from cluster.client import Client
from cluster.message import Message
from cluster.workers.places import lacking
from cluster.workers.pool import Workers
from storage.errors import Invalid
from tests.cluster.helpers import PATIENCE_S, eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with cluster.connect(embedded=True, data_dir=tmp_path / "data") as one:
        one.create_topic("orders", 2)
        yield one


class Record:
    """What handlers saw: numbers by key in order of the calls, and whether a key was ever beside itself."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls: dict[bytes, list[int]] = {}
        self.running: set[bytes] = set()
        self.beside_itself = False
        self.most_at_once = 0

    def enter(self, message: Message) -> tuple[bytes, int]:
        key, number = message.key() or b"", int(message.data())
        with self.lock:
            self.beside_itself |= key in self.running
            self.running.add(key)
            self.most_at_once = max(self.most_at_once, len(self.running))
            self.calls.setdefault(key, []).append(number)
        return key, number

    def leave(self, key: bytes) -> None:
        with self.lock:
            self.running.discard(key)

    def count(self) -> int:
        with self.lock:
            return sum(len(numbers) for numbers in self.calls.values())


def send(client: Client, keys: int, messages: int) -> dict[bytes, list[int]]:
    """Numbered messages, key after key; returns the numbers of each key."""
    names = [b"key-%d" % (number % keys) for number in range(messages)]
    payloads = [b"%d" % number for number in range(messages)]
    with client.create_producer("orders") as producer:
        producer.send_batch(pa.record_batch({"key": names, "payload": payloads})).result(60)
    return {b"key-%d" % key: list(range(key, messages, keys)) for key in range(keys)}


def drained(client: Client) -> bool:
    return sum(int(row["msgBacklog"]) for row in client.stats("orders", "billing")) == 0


def test_each_key_is_handled_in_order(client: Client) -> None:
    sent, record = send(client, 20, 1_000), Record()

    def handle(message: Message) -> None:
        key, _ = record.enter(message)
        record.leave(key)

    with Workers("orders", "billing", handle, client=client, min_workers=3, concurrency=4) as workers:
        eventually(lambda: record.count() >= 1_000, lambda: str(workers.status()))
    assert record.calls == sent
    assert not record.beside_itself
    assert workers.status().handled == 1_000
    assert drained(client)


def test_different_keys_are_handled_at_once(client: Client) -> None:
    """Three handlers wait for each other, so each must run beside the other two."""
    send(client, 3, 3)
    together = threading.Barrier(3)

    def handle(_: Message) -> None:
        together.wait(PATIENCE_S)

    with Workers("orders", "billing", handle, client=client, concurrency=3) as workers:
        eventually(lambda: workers.status().handled == 3, lambda: str(workers.status()))


def test_a_coroutine_function_runs_beside_others(client: Client) -> None:
    sent, record = send(client, 5, 100), Record()

    @Workers("orders", "billing", client=client, concurrency=5)
    async def workers(message: Message) -> None:
        key, _ = record.enter(message)
        record.leave(key)

    with workers:
        eventually(lambda: record.count() >= 100, lambda: str(workers.status()))
    assert record.calls == sent


def test_a_class_is_made_once_in_each_worker(client: Client) -> None:
    send(client, 10, 100)
    made: list[object] = []

    class Model:
        def __init__(self) -> None:
            made.append(self)

        def __call__(self, _: Message) -> None:
            pass

    with Workers("orders", "billing", Model, client=client, min_workers=2) as workers:
        eventually(lambda: workers.status().handled == 100, lambda: str(workers.status()))
    assert len(made) == 2


def test_what_fails_comes_again_before_what_follows(client: Client) -> None:
    sent, record = send(client, 3, 30), Record()

    def handle(message: Message) -> None:
        key, number = record.enter(message)
        record.leave(key)
        if number == 4 and message.redelivery_count() < 2:
            raise ValueError("not yet")

    with Workers("orders", "billing", handle, client=client, retry_delay_ms=10, concurrency=2) as workers:
        eventually(lambda: workers.status().handled == 30, lambda: str(workers.status()))
        status = workers.status()
    assert record.calls == {**sent, b"key-1": [1, 4, 4, 4, *sent[b"key-1"][2:]]}
    assert status.failed == 2
    assert "ValueError: not yet" in status.failures["key-1"]


def test_a_message_that_always_fails_parks_its_key(client: Client) -> None:
    sent, record = send(client, 3, 30), Record()

    def handle(message: Message) -> None:
        key, number = record.enter(message)
        record.leave(key)
        if number == 4:
            raise ValueError("never")

    def parked() -> bool:
        return sum(int(row["keysParkedTotal"]) for row in client.stats("orders", "billing")) == 1

    options: dict[str, Any] = {"retry_delay_ms": 10, "max_redeliver_count": 2}
    with Workers("orders", "billing", handle, client=client, **options) as workers:
        eventually(lambda: parked() and workers.status().handled == 21, lambda: str(workers.status()))
    assert record.calls == {**sent, b"key-1": [1, 4, 4, 4]}


def test_a_worker_that_dies_is_replaced_under_its_name(client: Client) -> None:
    sent, record = send(client, 4, 40), Record()
    died = threading.Event()

    def handle(message: Message) -> None:
        key, number = record.enter(message)
        record.leave(key)
        if number == 8 and not died.is_set():
            died.set()
            raise SystemExit(1)

    with Workers("orders", "billing", handle, client=client) as workers:
        eventually(lambda: set(record.calls.get(b"key-0", ())) == set(sent[b"key-0"]), lambda: str(workers.status()))
        eventually(lambda: drained(client), lambda: str(workers.status()))
        assert workers.status().replaced == 1
        assert list(workers.status().workers) == ["billing-workers-0"]
    assert {key: list(dict.fromkeys(numbers)) for key, numbers in record.calls.items()} == sent
    assert record.calls[b"key-0"].count(8) == 2


def test_a_pool_grows_and_shrinks(client: Client) -> None:
    """Handlers wait until the pool has grown, so the messages behind them are late; then there is a calm."""
    sent, record = send(client, 12, 120), Record()
    go_on = threading.Event()

    def handle(message: Message) -> None:
        key, _ = record.enter(message)
        go_on.wait(PATIENCE_S)
        record.leave(key)

    options: dict[str, Any] = {"target_age_ms": 200, "upscale_delay_ms": 100, "downscale_delay_ms": 100}
    with Workers("orders", "billing", handle, client=client, min_workers=1, max_workers=3, **options) as workers:
        eventually(lambda: len(workers.status().workers) == 3, lambda: str(workers.status()))
        go_on.set()
        eventually(lambda: drained(client) and len(workers.status().workers) == 1, lambda: str(workers.status()))
    assert record.calls == sent
    assert not record.beside_itself
    assert workers.status().handled == 120


def test_a_handler_that_takes_too_long_is_named(client: Client) -> None:
    send(client, 1, 1)
    go_on = threading.Event()

    def handle(_: Message) -> None:
        go_on.wait(PATIENCE_S)

    with Workers("orders", "billing", handle, client=client, handler_timeout_ms=50) as workers:
        eventually(lambda: workers.status().overdue == {"billing-workers-0": ["key-0"]}, lambda: str(workers.status()))
        go_on.set()


def test_what_is_under_way_is_finished_before_a_pool_ends(client: Client) -> None:
    send(client, 1, 2)
    began, go_on = threading.Event(), threading.Event()

    def handle(_: Message) -> None:
        began.set()
        go_on.wait(PATIENCE_S)

    workers = Workers("orders", "billing", handle, client=client)
    workers.start()
    assert began.wait(PATIENCE_S)
    ending = threading.Thread(target=workers.stop, args=(PATIENCE_S,))
    ending.start()
    eventually(lambda: workers.status().workers == {"billing-workers-0": "stopping"}, lambda: str(workers.status()))
    go_on.set()
    ending.join(PATIENCE_S)
    assert workers.status().handled == 1
    with client.subscribe("orders", "billing", nack_order="key") as consumer:
        assert consumer.receive(60_000).data() == b"1"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"min_workers": 3, "max_workers": 2}, "min_workers = 3"),
        ({"workers": 3}, "workers"),
        ({"concurrency": 0}, "concurrency"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(Invalid, match=told):
        Workers("orders", "billing", print, **options)


def test_a_pool_without_handler_does_not_start(client: Client) -> None:
    with pytest.raises(Invalid, match="handler"):
        Workers("orders", "billing", client=client).start()


def test_what_ray_does_not_have_is_named() -> None:
    assert lacking({"num_cpus": 1, "num_gpus": 1}, {"CPU": 4}) == "GPU: 1 wanted, 0 free"
    assert lacking({}, {"CPU": 1}) == ""


def test_a_pool_on_ray_needs_a_program_that_uses_ray() -> None:
    """Else Ray would start a cluster of its own, of which nobody knows."""
    with pytest.raises(Invalid, match="Ray"):
        Workers("orders", "billing", print, ray_actor_options={}).start()


def test_a_worker_that_cannot_be_made_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray refuses handlers that cannot be pickled, and options that it does not know, with Python's own errors."""

    def refused(*_: object) -> None:
        raise TypeError("cannot pickle '_thread.lock' object")

    send(client, 2, 10)
    workers = Workers("orders", "billing", lambda _: None, client=client)
    with monkeypatch.context() as patched:
        patched.setattr("cluster.workers.pool.ThreadWorker", refused)
        workers.start()
        eventually(lambda: "cannot pickle" in workers.status().reason, lambda: str(workers.status()))
    eventually(lambda: workers.status().handled == 10, lambda: str(workers.status()))
    workers.stop()

"""Pools of workers in one process: order of each key, failures, replacement, scaling, and how a pool ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

import sluice
from sluice.cluster.client.client import Client
from sluice.cluster.client.message import Message
from sluice.cluster.workers import pool, registry
from sluice.cluster.workers.keeper import PoolKeeper
from sluice.cluster.workers.pool import Workers
from sluice.cluster.workers.ray_places import lacking
from sluice.storage.errors import Invalid, Unavailable
from tests.cluster.helpers import PATIENCE_S, eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with sluice.connect(embedded=True, data_dir=tmp_path / "data") as one:
        one.create_topic("orders", 2)
        yield one


class Record:
    """A record of handlers' calls: numbers by key in order, and whether calls of a key ever overlapped."""

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


def test_failed_message_comes_again_before_later_ones(client: Client) -> None:
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


async def cancelled_inside() -> None:
    """A handler that waits for something of its own, which is cancelled."""
    inner = asyncio.ensure_future(asyncio.sleep(PATIENCE_S))
    inner.cancel()
    await inner


def columns_of(call: Callable[[bytes], Any]) -> Callable[[pa.RecordBatch], Any]:
    """A handler of columns, which comes with one row at a time."""
    return lambda rows: call(rows.column("payload")[0].as_py())


def handlers_that_are_cancelled() -> list[Any]:
    """One for each sort of worker, with its options; each fails for the payload b"0" alone."""

    async def handle(message: Message) -> None:
        if message.data() == b"0":
            await cancelled_inside()

    async def generate(message: Message) -> AsyncIterator[bytes]:
        if message.data() == b"0":
            await cancelled_inside()
        yield message.data()

    async def of_payload(payload: bytes) -> None:
        if payload == b"0":
            await cancelled_inside()

    wrapped: Callable[[Message], Any] = lambda message: handle(message)  # noqa: E731
    return [
        pytest.param(wrapped, {}, id="serial"),
        pytest.param(wrapped, {"concurrency": 2}, id="threads"),
        pytest.param(handle, {"concurrency": 2}, id="tasks"),
        pytest.param(columns_of(of_payload), {"batch_size": 1}, id="columns"),
        pytest.param(wrapped, {"output": "results"}, id="results of functions"),
        pytest.param(lambda message: generate(message), {"output": "results"}, id="results of generators"),
        pytest.param(handle, {"output": "results", "concurrency": 2}, id="results of tasks"),
    ]


@pytest.mark.parametrize(("handler", "options"), handlers_that_are_cancelled())
def test_cancellation_in_a_handler_fails_its_message(client: Client, handler: Any, options: dict[str, Any]) -> None:
    """And does not end the worker, which would begin with the same message again and again."""
    client.create_topic("results", 1, deduplication_enabled=True)
    send(client, 3, 30)
    retries: dict[str, Any] = {"retry_delay_ms": 10, "max_redeliver_count": 1, "dead_letter_policy": "skip"}
    with Workers("orders", "billing", handler, client=client, dead_letter_topic="dead", **retries, **options) as pool:
        eventually(lambda: pool.status().handled == 29 or pool.status().replaced, lambda: str(pool.status()))
        assert pool.status().replaced == 0, pool.status().reason
        eventually(lambda: drained(client), lambda: str(pool.status()))
        status = pool.status()
    assert status.failed == 2
    assert "HandlerCancelled" in status.failures["key-0"]


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


def test_pool_finishes_started_messages_before_its_end(client: Client) -> None:
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


def test_missing_resources_of_ray_are_named() -> None:
    assert lacking({"num_cpus": 1, "num_gpus": 1}, {"CPU": 4}) == "GPU: 1 wanted, 0 free"
    assert lacking({}, {"CPU": 1}) == ""


def test_a_pool_on_ray_needs_a_program_that_uses_ray() -> None:
    """Otherwise Ray would start a cluster of its own that no user knows."""
    with pytest.raises(Invalid, match="Ray"):
        Workers("orders", "billing", print, ray_actor_options={}).start()


def test_a_worker_that_cannot_be_made_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray refuses handlers that cannot be pickled, and options that it does not know, with Python's own errors."""

    def refused(*_: object) -> None:
        raise TypeError("cannot pickle '_thread.lock' object")

    send(client, 2, 10)
    workers = Workers("orders", "billing", lambda _: None, client=client)
    with monkeypatch.context() as patched:
        patched.setattr("sluice.cluster.workers.places.new_worker", refused)
        workers.start()
        eventually(lambda: "cannot pickle" in workers.status().reason, lambda: str(workers.status()))
    eventually(lambda: workers.status().handled == 10, lambda: str(workers.status()))
    workers.stop()


def handled_rows(record: Record, rows: pa.RecordBatch) -> None:
    for key, payload in zip(rows.column("key").to_pylist(), rows.column("payload").to_pylist(), strict=True):
        record.calls.setdefault(key, []).append(int(payload))


def test_columns_hold_rows_of_many_keys_in_order(client: Client) -> None:
    sent, record, sizes = send(client, 20, 1_000), Record(), list[int]()

    def handle(rows: pa.RecordBatch) -> None:
        handled_rows(record, rows)
        sizes.append(len(rows))
        assert len(
            set(zip(rows.column("partition").to_pylist(), rows.column("position").to_pylist(), strict=True))
        ) == len(rows)

    options: dict[str, Any] = {"batch_size": 300, "batch_wait_ms": 60_000}
    with Workers("orders", "billing", handle, client=client, **options) as workers:
        eventually(lambda: workers.status().handled == 900, lambda: str(workers.status()))
    assert sizes == [300, 300, 300]
    assert {key: numbers[: len(record.calls[key])] for key, numbers in sent.items()} == record.calls
    with Workers("orders", "billing", handle, client=client, batch_size=300) as workers:
        eventually(lambda: workers.status().handled == 100, lambda: str(workers.status()))
    assert record.calls == sent
    assert drained(client)


def test_rows_that_are_named_come_again_and_others_do_not(client: Client) -> None:
    """Rows behind a failed one of its key come again behind it, once; those before it, and other keys, do not."""
    sent, record = send(client, 3, 60), Record()

    def handle(rows: pa.RecordBatch) -> None:
        handled_rows(record, rows)
        for row, (payload, count) in enumerate(
            zip(rows.column("payload").to_pylist(), rows.column("redelivery_count").to_pylist(), strict=True)
        ):
            if payload == b"31" and not count:
                raise sluice.FailedRows([row], "not this one")

    options: dict[str, Any] = {"batch_size": 100, "batch_wait_ms": 200, "retry_delay_ms": 10}
    with Workers("orders", "billing", handle, client=client, **options) as workers:
        eventually(lambda: workers.status().handled == 60, lambda: str(workers.status()))
        assert workers.status().failed == 1
        assert "not this one" in workers.status().failures["key-1"]
    again = record.calls.pop(b"key-1")
    assert again[again.index(31) + 1 :][-len(sent[b"key-1"]) + sent[b"key-1"].index(31) :] == list(range(31, 60, 3))
    assert list(dict.fromkeys(again)) == sent.pop(b"key-1")
    assert record.calls == sent
    assert drained(client)


def test_a_row_that_always_fails_parks_its_key_alone(client: Client) -> None:
    sent, record = send(client, 20, 400), Record()

    def handle(rows: pa.RecordBatch) -> None:
        if b"207" in rows.column("payload").to_pylist():
            raise ValueError("poison")
        handled_rows(record, rows)

    options: dict[str, Any] = {"batch_size": 400, "retry_delay_ms": 5, "max_redeliver_count": 3}
    with Workers("orders", "billing", handle, client=client, **options) as workers:
        eventually(
            lambda: (
                sum(int(row["keysParkedTotal"]) for row in client.stats("orders", "billing")) == 1
                and workers.status().handled == 390
            ),
            lambda: str(workers.status()),
        )
    assert record.calls == {**sent, b"key-7": list(range(7, 207, 20))}


def test_a_pool_stops_when_a_message_fails_for_the_last_time(client: Client) -> None:
    send(client, 1, 3)
    calls: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        calls.append((int(message.data()), message.redelivery_count()))
        if message.data() == b"1":
            raise ValueError("never")

    options: dict[str, Any] = {"dead_letter_policy": "stop", "max_redeliver_count": 2, "retry_delay_ms": 5}
    with Workers("orders", "billing", handle, client=client, **options) as workers:
        eventually(lambda: "ValueError: never" in workers.status().reason, lambda: str(workers.status()))
        eventually(lambda: not workers.status().workers, lambda: str(workers.status()))
    assert calls == [(0, 0), (1, 0), (1, 1), (1, 2)]
    with client.subscribe("orders", "billing", nack_order="key") as consumer:
        assert [consumer.receive(60_000).data() for _ in range(2)] == [b"1", b"2"]


def test_a_message_that_always_fails_goes_to_the_dead_letters(client: Client) -> None:
    send(client, 1, 3)
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        if message.data() == b"1":
            raise ValueError("never")
        handled.append(message.data())

    options: dict[str, Any] = {"dead_letter_policy": "skip", "max_redeliver_count": 2, "retry_delay_ms": 5}
    with Workers("orders", "billing", handle, client=client, dead_letter_topic="dead", **options) as workers:
        eventually(lambda: drained(client), lambda: str(workers.status()))
    assert handled == [b"0", b"2"]
    with client.subscribe("dead", "s", initial_position="earliest") as consumer:
        assert consumer.receive(60_000).data() == b"1"


def test_a_keeper_that_fails_says_so_and_ends_its_workers(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers("orders", "billing", lambda message: None, client=client)
    workers.start()
    eventually(lambda: "running" in workers.status().workers.values(), lambda: str(workers.status()))

    kill, killed = PoolKeeper.kill, threading.Event()

    def broken(*_: object) -> None:
        raise RuntimeError("not foreseen")

    def seen(keeper: PoolKeeper) -> None:
        kill(keeper)
        killed.set()

    monkeypatch.setattr(PoolKeeper, "_scale", broken)
    monkeypatch.setattr(PoolKeeper, "kill", seen)
    assert killed.wait(20)
    assert workers.status().reason == "its keeper has failed, and its workers end: RuntimeError: not foreseen"
    eventually(lambda: not client.stats("orders", "billing")[0]["consumers"], lambda: str(workers.status()))
    workers.stop()


def test_a_pool_that_does_not_start_leaves_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Mock(owners=Mock(side_effect=Invalid("no such topic")))
    monkeypatch.setattr(pool, "connect", lambda: refusing)
    workers = Workers("orders", "billing", lambda message: None, output="not-there")
    with pytest.raises(Invalid, match="no such topic"):
        workers.start()
    refusing.close.assert_called_once_with()


def test_stop_without_patience_names_busy_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(pool, "connect", Mock)
    monkeypatch.setattr(registry, "drain", lambda _, name: asked.append(name))
    monkeypatch.setattr(registry, "pools", lambda *_: [{"status": {"workers": {"late-0": "stopping"}}}])
    workers = Workers("orders", "billing", name="late", detached=True, ray_actor_options={})
    with pytest.raises(Unavailable, match="after 0 s the pool late has not ended: late-0"):
        workers.stop(0)
    assert asked == ["late"]

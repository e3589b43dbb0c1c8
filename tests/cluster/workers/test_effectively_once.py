"""Results of a pool are there once, each key's in order: when handlers fail, workers die, and the pool changes."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

import sluice
from sluice.cluster.client.client import Client
from sluice.cluster.client.message import Message
from sluice.cluster.workers.keyed_worker import KeyedWorker, LoopWorker, ThreadedWorker
from sluice.cluster.workers.options import WorkersOptions
from sluice.cluster.workers.pool import Workers
from sluice.cluster.workers.result_loop import Call
from sluice.cluster.workers.result_sender import ResultSender
from sluice.storage.errors import Invalid, NotFound
from tests.cluster.helpers import eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with sluice.connect(embedded=True, data_dir=tmp_path_factory.mktemp("data") / "data") as one:
        yield one


@pytest.fixture
def topics(running: Client, request: pytest.FixtureRequest) -> tuple[Client, str, str]:
    """A client, a topic with 200 messages of 8 keys, and an output."""
    name = request.node.name.replace("_", "-")[5:50]
    source, output = f"in-{name}", f"out-{name}"
    running.create_topic(source, 2)
    running.create_topic(output, 2, deduplication_enabled=True)
    keys = [b"key-%d" % (number % 8) for number in range(200)]
    payloads = [b"%d" % number for number in range(200)]
    with running.create_producer(source) as producer:
        producer.send_batch(pa.record_batch({"key": keys, "payload": payloads})).result(60)
    return running, source, output


def stored(client: Client, topic: str) -> dict[bytes, list[bytes]]:
    """Payloads by key, in order."""
    found: dict[bytes, list[bytes]] = {}
    for piece in client.stored(topic):
        for part in client.read(topic, piece):
            for row in part.rows.to_pylist():
                found.setdefault(row["key"], []).append(row["payload"])
    return found


def wanted(*suffixes: str) -> dict[bytes, list[bytes]]:
    return {
        b"key-%d" % key: [f"{number}{suffix}".encode() for number in range(key, 200, 8) for suffix in suffixes]
        for key in range(8)
    }


def finish(client: Client, topic: str, pool: Workers) -> None:
    def drained() -> bool:
        return sum(int(row["msgBacklog"]) for row in client.stats(topic, "s")) == 0

    eventually(drained, lambda: str(pool.status()))


def test_returned_value_is_published(topics: tuple[Client, str, str]) -> None:
    client, source, output = topics

    def handle(message: Message) -> str:
        return message.data().decode() + "!"

    with Workers(source, "s", handle, client=client, min_workers=2, concurrency=3, output=output) as pool:
        finish(client, source, pool)
        eventually(lambda: pool.status().handled == 200, lambda: str(pool.status()))
    assert stored(client, output) == wanted("!")


def test_yielded_values_are_published_in_order(topics: tuple[Client, str, str]) -> None:
    client, source, output = topics

    async def handle(message: Message) -> AsyncIterator[bytes]:
        for letter in (b"a", b"b"):
            await asyncio.sleep(0)
            yield message.data() + letter

    with Workers(source, "s", handle, client=client, concurrency=4, output=[output]) as pool:
        finish(client, source, pool)
    assert stored(client, output) == wanted("a", "b")


def test_results_are_there_once_when_workers_die(
    topics: tuple[Client, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they publish, and after it and before they acknowledge; the pool grows and shrinks meanwhile."""
    client, source, output = topics
    deaths = {"publish": {20, 90}, "acknowledge": {10, 50, 130}}
    calls: list[int] = []
    publish, acknowledge = KeyedWorker.publish, KeyedWorker.acknowledge

    def dies(step: str, message: Message) -> bool:
        number = int(message.data())
        if number in deaths[step]:
            deaths[step].discard(number)
            return True
        return False

    def publish_or_die(self: KeyedWorker, begun: list[Call[Message]]) -> None:
        if any(dies("publish", call.item) for call in begun):
            raise SystemExit("before it published")
        publish(self, begun)

    def acknowledge_or_die(self: KeyedWorker, done: list[Call[Message]]) -> None:
        if any(dies("acknowledge", call.item) for call in done):
            raise SystemExit("before it acknowledged")
        acknowledge(self, done)

    def handle(message: Message) -> bytes:
        calls.append(int(message.data()))
        return message.data()

    monkeypatch.setattr(KeyedWorker, "publish", publish_or_die)
    monkeypatch.setattr(KeyedWorker, "acknowledge", acknowledge_or_die)
    options: dict[str, Any] = {"target_age_ms": 20, "upscale_delay_ms": 20, "downscale_delay_ms": 20, "output": output}
    with Workers(source, "s", handle, client=client, max_workers=3, concurrency=2, prefetch=20, **options) as pool:
        finish(client, source, pool)
    assert stored(client, output) == wanted("")
    assert deaths == {"publish": set(), "acknowledge": set()}
    assert len(calls) > 200, "nothing came again, so nothing was shown"


def test_a_message_that_fails_has_no_results_until_it_succeeds(topics: tuple[Client, str, str]) -> None:
    client, source, output = topics
    failed = threading.Event()

    def handle(message: Message) -> Iterator[bytes]:
        yield message.data() + b"a"
        if int(message.data()) == 17 and not failed.is_set():
            failed.set()
            raise ValueError("in the middle")
        yield message.data() + b"b"

    with Workers(source, "s", handle, client=client, concurrency=2, retry_delay_ms=10, output=output) as pool:
        finish(client, source, pool)
        eventually(lambda: pool.status().failed == 1, lambda: str(pool.status()))
    assert stored(client, output) == wanted("a", "b")


def test_a_slow_handler_holds_up_no_acknowledgement(topics: tuple[Client, str, str]) -> None:
    """Check this for a pool that handles one key at a time."""
    client, source, output = topics
    calls, go_on = itertools.count(), threading.Event()

    def handle(message: Message) -> bytes:
        if next(calls) < 3:
            time.sleep(0.1)
        else:
            go_on.wait(60)
        return message.data()

    with Workers(source, "s", handle, client=client, output=output) as pool:
        eventually(lambda: pool.status().handled == 3, lambda: str(pool.status()))
        go_on.set()
        finish(client, source, pool)
    assert stored(client, output) == wanted("")


def test_several_outputs_each_have_their_results(topics: tuple[Client, str, str]) -> None:
    client, source, output = topics
    client.create_topic(f"{output}-audit", 1, deduplication_enabled=True)

    def handle(message: Message) -> list[sluice.Result]:
        audit = sluice.Result(message.data(), key="all", topic=f"{output}-audit")
        return [sluice.Result(message.data(), topic=output), audit]

    with Workers(source, "s", handle, client=client, min_workers=2, output=[output, f"{output}-audit"]) as pool:
        finish(client, source, pool)
    assert stored(client, output) == wanted("")
    assert sorted(map(int, stored(client, f"{output}-audit")[b"all"])) == list(range(200))


def test_a_result_that_cannot_be_published_fails_its_message(topics: tuple[Client, str, str]) -> None:
    client, source, output = topics

    def handle(message: Message) -> Any:
        return 7 if int(message.data()) == 3 else message.data()

    def parked() -> bool:
        return sum(int(row["keysParkedTotal"]) for row in client.stats(source, "s")) == 1

    options: dict[str, Any] = {"retry_delay_ms": 1, "max_redeliver_count": 1, "output": output}
    with Workers(source, "s", handle, client=client, **options) as pool:
        eventually(lambda: parked() and pool.status().handled == 175, lambda: str(pool.status()))
        assert "gives payloads" in pool.status().failures["key-3"]
    assert stored(client, output) == {key: numbers for key, numbers in wanted("").items() if key != b"key-3"}


class CutOff(ResultSender):
    """A sender whose client closed at the very moment: what it was given last reaches nobody."""

    lost = False

    @property
    def cut_off(self) -> bool:
        return self.lost

    def publish(self, calls: Sequence[Call[Message]]) -> None:
        self.lost = True


def test_a_worker_ends_with_its_client(topics: tuple[Client, str, str]) -> None:
    """Results that were on their way to it come back neither confirmed nor refused."""
    client, source, output = topics

    async def later(message: Message) -> bytes:
        return message.data()

    def ends(kind: type[KeyedWorker], handler: Any) -> None:
        sender = CutOff(*client.owners(), (source, kind.__name__), [output])
        consumer = client.subscribe(source, kind.__name__, initial_position="earliest")
        worker = kind(consumer, handler, WorkersOptions(output=output, prefetch=1), sender)
        worker.start()
        eventually(lambda: sender.lost, "nothing was handled")
        worker.stop()
        eventually(lambda: worker.report().ended, f"a {kind.__name__} waits for ever")
        assert "the client is closed" in worker.report().error

    ends(ThreadedWorker, lambda message: message.data())
    ends(LoopWorker, later)


def test_a_seek_back_repeats_no_result(topics: tuple[Client, str, str]) -> None:
    """Results that the output remembers are passed over, and those that it has forgotten are refused."""
    client, source, output = topics
    with Workers(source, "s", lambda message: message.data(), client=client, output=output) as pool:
        finish(client, source, pool)
    with client.create_producer(source) as producer:
        producer.send(b"200", partition_key="key-0")
    client.admin(source, "s", "seek", message_id="earliest")
    options: dict[str, Any] = {"retry_delay_ms": 1, "max_redeliver_count": 1, "output": output}
    with Workers(source, "s", lambda message: message.data(), client=client, **options) as pool:
        eventually(lambda: pool.status().failed > 0 or pool.status().handled == 201, lambda: str(pool.status()))
    found = stored(client, output)
    assert [payload for payload in found[b"key-0"] if payload != b"200"] == wanted("")[b"key-0"]


def test_an_output_that_does_not_deduplicate_is_refused(running: Client) -> None:
    running.create_topic("plain")
    with pytest.raises(Invalid, match=r"output 'plain' does not deduplicate.*deduplication_enabled=True"):
        Workers("plain", "s", print, client=running, output="plain").start()
    with pytest.raises(NotFound):
        Workers("plain", "s", print, client=running, output="nowhere").start()


def test_a_result_that_is_refused_fails_no_other_key(topics: tuple[Client, str, str]) -> None:
    """Keys that are handled at once have their results made and sent together."""
    client, source, output = topics
    options: dict[str, Any] = {"concurrency": 8, "max_redeliver_count": 1, "retry_delay_ms": 1}

    async def handle(message: Message) -> sluice.Result:
        await asyncio.sleep(0)
        key = "k" * 2_000 if message.data() == b"3" else None
        return sluice.Result(message.data(), key=key)

    with Workers(source, "s", handle, client=client, output=output, **options) as pool:
        eventually(lambda: pool.status().handled == 175, lambda: str(pool.status()))
        eventually(lambda: pool.status().failed == 2, lambda: str(pool.status()))
        assert list(pool.status().failures) == ["key-3"]
    expected = wanted("")
    del expected[b"key-3"]
    assert stored(client, output) == expected

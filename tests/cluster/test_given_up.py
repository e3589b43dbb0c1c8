"""Opening something that does not succeed in time leaves nothing open: no consumer that holds keys, and no task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sluice
from sluice.actors.messages import Attach, Detach, OpenProducer
from sluice.cluster.client.client import Client
from sluice.cluster.launch import embedded
from sluice.cluster.settings.options import ClusterOptions
from sluice.storage.errors import Conflict, Fenced, Unavailable
from tests.cluster import helpers
from tests.cluster.helpers import PATIENCE_S, eventually

pytestmark = pytest.mark.timeout(300)

COUNT = 100


class Held:
    """A net that holds back one answer of a kind until it is released; the request was carried out."""

    def __init__(self, client: Client, kind: type, patch: pytest.MonkeyPatch) -> None:
        self._call, self._kind = client._core.net.call, kind
        self.seen = 0
        self.gate = asyncio.Event()
        self._loop = client._loop
        patch.setattr(client._core.net, "call", self.call)

    async def call(self, to: str, request: Any, timeout: int) -> Any:
        reply = await self._call(to, request, timeout)
        if isinstance(request, self._kind):
            self.seen += 1
            if self.seen == 2:
                await self.gate.wait()
        return reply

    def release(self) -> None:
        """Now it is heard."""
        self._loop.soon(self.gate.set)


def attached(client: Client) -> int:
    """Consumers of the subscription, over both partitions."""
    return sum(len(row["consumers"]) for row in client.stats("two", "s"))


def test_a_subscribe_in_vain_leaves_no_consumer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_topic("two", 2)
    producer = client.create_producer("two")
    keys = [f"key-{number}" for number in range(COUNT)]
    payloads = [str(number) for number in range(COUNT)]
    producer.send_batch(pa.record_batch({"key": keys, "payload": payloads})).result(60)
    held = Held(client, Attach, monkeypatch)
    with pytest.raises(Unavailable, match="did not succeed within"):
        client.subscribe("two", "s", initial_position="earliest", timeout_ms=1_000)
    eventually(lambda: attached(client) <= 1, "who was opened has left", 20)
    held.release()
    eventually(lambda: attached(client) == 0, "who was opened too late has left", 20)
    with client.subscribe("two", "s") as consumer:
        received = helpers.Received()
        while received.count < COUNT:
            received.take([consumer], timeout_millis=20_000)
    assert [name for name in tasks(client) if "poll" in name] == []


def test_a_refused_subscribe_leaves_no_consumer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first partition refuses; the answer of the second one comes later."""
    client.create_topic("two", 2)
    client.subscribe("two", "s").close()
    call = client._core.net.call
    seen: list[object] = []

    async def refuse(to: str, request: Any, timeout: int) -> Any:
        if isinstance(request, Attach):
            seen.append(request)
            if len(seen) == 1:
                raise Conflict("no room for it")
        return await call(to, request, timeout)

    monkeypatch.setattr(client._core.net, "call", refuse)
    with pytest.raises(Conflict, match="no room"):
        client.subscribe("two", "s")
    assert attached(client) == 0
    assert [name for name in tasks(client) if "poll" in name] == []


def test_a_producer_in_vain_leaves_no_task(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_topic("two", 2)
    monkeypatch.setattr("sluice.cluster.client.async_client.OPEN_TIMEOUT", 1_000)
    held = Held(client, OpenProducer, monkeypatch)
    with pytest.raises(Unavailable, match="did not succeed within"):
        client.create_producer("two")
    held.release()
    eventually(lambda: not [name for name in tasks(client) if "publish" in name], lambda: str(tasks(client)), 20)


def test_interrupted_subscribe_leaves_no_consumer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does, when the consumer has just been opened and nobody was told."""
    run = client._loop.run

    def interrupted(work: Any, timeout: float | None = None) -> Any:
        run(work, timeout)
        raise KeyboardInterrupt

    client.create_topic("two", 2)
    monkeypatch.setattr(client._loop, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.subscribe("two", "s")
    with pytest.raises(KeyboardInterrupt):
        client.create_producer("two")
    monkeypatch.undo()
    eventually(lambda: attached(client) == 0, "who was opened has left", 20)
    eventually(lambda: not [name for name in tasks(client) if "publish" in name], lambda: str(tasks(client)), 20)


def test_a_close_in_vain_leaves_no_consumer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_topic("two", 2)
    consumer = client.subscribe("two", "s")
    monkeypatch.setattr("sluice.cluster.client.consumer_core.CLOSE_S", 1.0)
    held = Held(client, Detach, monkeypatch)
    with pytest.raises(Unavailable, match="no answer within"):
        consumer.close()
    assert client._core.opened == {}
    held.release()
    eventually(lambda: not [name for name in tasks(client) if "lease" in name], lambda: str(tasks(client)), 20)
    assert attached(client) == 0


def test_interrupted_close_leaves_no_consumer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything of it has begun."""
    client.create_topic("two", 2)
    consumer = client.subscribe("two", "s")
    run = client._loop.run

    def interrupted(work: Any, timeout: float | None = None) -> Any:
        if work.__name__ != "_drain":
            return run(work, timeout)
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(client._loop, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    monkeypatch.undo()
    eventually(lambda: attached(client) == 0, "who was opened has left", 20)
    eventually(lambda: not [name for name in tasks(client) if "lease" in name], lambda: str(tasks(client)), 20)


def test_interrupted_end_of_a_client_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or what it had not closed yet would hold its keys as long as the process lives, and nobody could close it."""
    with embedded.running(ClusterOptions(data_dir=tmp_path / "data")) as inner:
        client = Client(None, inner.net, inner.loop)
        client.create_topic("two", 2)
        producer = client.create_producer("two")
        client.subscribe("two", "s")

        def interrupted(timeout_s: float | None = None) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(producer, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.close()
        monkeypatch.undo()
        client.close()
        assert client._core.opened == {}
        eventually(lambda: tasks(client) == [], lambda: str(tasks(client)), 20)


def test_wait_on_a_client_that_closes_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the error of everything that is asked of a closed client."""
    client = sluice.connect(embedded=True, data_dir=tmp_path / "data")
    client.create_topic("two", 2)
    asked = threading.Event()

    async def silent(to: str, request: Any, timeout: int) -> Any:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(client._core.net, "call", silent)
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(client.stats, "two")
        assert asked.wait(PATIENCE_S)
        client.close()
        with pytest.raises(Fenced, match="the client is closed"):
            waits.result(PATIENCE_S)


def tasks(client: Client) -> list[str]:
    """Return the names of a client's background tasks."""
    names: Callable[[], list[str]] = lambda: [task.get_name() for task in client._core.tasks._tasks]  # noqa: E731
    return client._loop.ask(names)

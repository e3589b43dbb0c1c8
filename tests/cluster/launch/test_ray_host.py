"""A host: it gets itself going after Ray restarted it, and who waits for an actor that ends learns of it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import ray
from ray.exceptions import ActorUnavailableError

from sluice.actors.messages import Alive, Done, ListBookies, ListLedgers, Ping, ReadRowIndex, Stats, Text
from sluice.actors.ports import Meta, Objects, Ports, Unknown
from sluice.actors.ports.wire import Reply, Request, pack
from sluice.actors.runtime.host import Actor, Answer, why_ended
from sluice.cluster.launch import ray_host as host
from sluice.cluster.launch.process_requests import Introduce, Introduced
from sluice.storage.errors import InvariantViolation
from tests.kit.asking import answer_of

METHODS = {
    *("__init__", "ready", "wake", "serve", "node", "start", "stop", "endpoint", "introduce", "process", "usage"),
    *("_export", "_start_boot", "_make", "_take_office", "_leave_office", "_dropped"),
}


class Handle:
    """An actor's handle whose first calls fail, as while Ray takes the actor for restarting."""

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.calls = 0
        self.wake = self

    def remote(self) -> str:
        self.calls += 1
        return "ref"

    def get(self, ref: str) -> None:
        """Fail `left` times and then succeed, in place of ray.get."""
        assert ref == "ref"
        if self.left:
            self.left -= 1
            raise ActorUnavailableError("the actor is restarting", None)


@pytest.mark.parametrize("failures", [0, 1, 3])
def test_a_host_is_called_until_it_is_awake(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    """Each failed call is followed by another; the first one that works is the last."""
    handle: Any = Handle(failures)
    monkeypatch.setattr(ray, "get", handle.get)
    host.wake_host(handle, pause_s=0)
    assert handle.calls == failures + 1


class Slow(Actor):
    """Answers pings. Statistics are told when `go` is set. begin: its start waits for it."""

    def __init__(self, ports: Ports, begin: asyncio.Event) -> None:
        super().__init__(ports)
        self.go, self.finished = asyncio.Event(), asyncio.Event()
        self.seen: list[np.ndarray] = []
        self._begin = begin

    async def start(self) -> None:
        await self._begin.wait()

    async def handle(self, request: Request[Any]) -> Reply:
        if isinstance(request, Ping):
            return Alive()
        if isinstance(request, ListLedgers):
            raise InvariantViolation("it cannot go on")
        if isinstance(request, ListBookies):
            raise AttributeError("it has a defect")
        if isinstance(request, ReadRowIndex):
            self.seen.append(request.positions)
            return Done()
        await self.go.wait()
        self.finished.set()
        return Done()


class Parts:
    """A host of slow actors."""

    def __init__(self) -> None:
        self.made: list[Slow] = []
        self.begin = asyncio.Event()
        self.begin.set()

    def stores(self, settings: dict[str, Any]) -> tuple[Meta, Objects]:
        nothing: Any = None
        return nothing, nothing

    def actor(self, kind: str, ports: Ports, settings: dict[str, Any]) -> Actor:
        self.made.append(Slow(ports, self.begin))
        return self.made[-1]


async def waiting_for(parts: Parts) -> tuple[host.Host, asyncio.Task[Answer]]:
    """A host with one actor, and somebody who waits for its answer."""
    runs = host.Host("host", parts, {}, [])
    await runs.start("topic", "slow", {})
    waiting = asyncio.create_task(answer_of(runs.actors, "slow", "Stats", pack(Stats())))
    await asyncio.sleep(0)
    return runs, waiting


class Odd(Actor):
    """An actor whose statistics are no JSON."""

    asked = 0

    async def handle(self, request: Request[Any]) -> Reply:
        self.asked += 1
        return Text(json="[")


class OddParts(Parts):
    """Parts of a host of these."""

    def actor(self, kind: str, ports: Ports, settings: dict[str, Any]) -> Actor:
        return Odd(ports)


async def test_odd_statistics_end_no_metrics(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The host asks on, and its log says why they are not shown: the metrics of all its actors stood still."""
    monkeypatch.setattr(host, "EVERY_S", 0.001)
    runs = host.Host("host", OddParts(), {}, [])
    for name in ("one", "another"):
        await runs.start("topic", name, {})
    exporting = asyncio.create_task(runs._export())
    actors = runs.actors.serving(Odd)
    async with asyncio.timeout(30):
        while not exporting.done() and min(actor.asked for actor in actors) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert not exporting.done(), exporting.exception()
    exporting.cancel()
    assert "the statistics of host/one cannot be shown" in caplog.text


async def test_wait_for_a_stopped_actor_ends_with_gone() -> None:
    """At once, and not when its patience ends: it has to find the next one."""
    runs, waiting = await waiting_for(Parts())
    await runs.stop("slow")
    await asyncio.wait([waiting], timeout=1)  # cancelling it would bring the same answer
    answer = waiting.result()
    assert isinstance(answer, Unknown)
    assert answer.gone
    assert not waiting.cancelling()


@pytest.mark.parametrize("breaking", [ListLedgers(), ListBookies()])
async def test_so_does_who_waits_for_one_that_breaks(breaking: Request[Any]) -> None:
    """And who asked the question that broke it, by a broken promise or by a plain defect."""
    runs, waiting = await waiting_for(Parts())
    broken = await answer_of(runs.actors, "slow", type(breaking).__name__, pack(breaking))
    await asyncio.wait([waiting], timeout=1)
    answer = waiting.result()
    assert isinstance(broken, Unknown)
    assert isinstance(answer, Unknown)
    assert (broken.gone, answer.gone) == (True, True)
    later = await answer_of(runs.actors, "slow", "Ping", pack(Ping()))
    assert isinstance(later, Unknown)
    assert later.gone
    assert why_ended("host/slow", later) in (
        "InvariantViolation: it cannot go on",
        "AttributeError: it has a defect",
    ), "whoever looks for it later is told why it is not there"
    assert why_ended("host", later) == "", "that is not the end of its process"


async def test_time_out_of_a_caller_ends_nothing_else() -> None:
    """A time-out of a caller in the same process is the caller's: the handler goes on with its work to the end."""
    parts = Parts()
    runs = host.Host("host", parts, {}, [])
    net = runs.net
    await runs.start("topic", "slow", {})
    answer = await net.call("host/slow", Stats(), 10)
    assert isinstance(answer, Unknown)
    assert not answer.gone
    parts.made[0].go.set()
    async with asyncio.timeout(5):
        await parts.made[0].finished.wait()
    assert isinstance(await net.call("host/slow", Ping(), 1000), Alive)


async def test_request_waits_until_an_actor_has_started() -> None:
    """Statistics that are asked for meanwhile wait; the metrics ask only those that have started."""
    parts = Parts()
    parts.begin = asyncio.Event()
    runs = host.Host("host", parts, {}, [])
    starting = asyncio.create_task(runs.start("topic", "slow", {}))
    asking = asyncio.create_task(runs.net.call("host/slow", Ping(), 1000))
    await asyncio.sleep(0.01)
    assert not asking.done()
    assert runs.actors.inventory() == []
    parts.begin.set()
    assert await starting == "host/slow"
    assert await asking == Alive()
    assert runs.actors.inventory() == [("topic", "host/slow", {})]


async def test_a_callers_later_changes_of_its_columns_reach_nobody() -> None:
    """Two actors of one process are as far apart as two processes."""
    parts = Parts()
    runs = host.Host("host", parts, {}, [])
    await runs.start("topic", "slow", {})
    columns = np.arange(2000, dtype=np.int64)
    asking = asyncio.create_task(runs.net.call("host/slow", ReadRowIndex(positions=columns), 1000))
    await asyncio.sleep(0)
    columns[:] = -1
    await asyncio.gather(asking, return_exceptions=True)
    (seen,) = parts.made[0].seen
    assert seen.tolist() == list(range(2000))
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 7


async def test_a_process_is_asked_by_itself_as_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller asks all processes where they are, and its own is one of them."""
    monkeypatch.setattr(host, "own_node", lambda: "n1")
    monkeypatch.setattr(host, "watch_own_node", lambda: None)
    monkeypatch.setattr(host, "is_controller_host", lambda name: False)
    runs = host.Host("controller", Parts(), {}, [])
    told = await runs.net.call("controller/process", Introduce(), 5_000)
    assert isinstance(told, Introduced)
    assert told.node == "n1"


def test_a_host_has_the_methods_of_every_version() -> None:
    """Ray names each when it makes a process; one that is new keeps it from starting where an older version is.

    So this list stays as it is, as long as clusters of 0.1 are upgraded machine by machine. What is new is a request.
    """
    assert {name for name, value in vars(host.Host).items() if callable(value)} == METHODS

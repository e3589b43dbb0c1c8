"""What a new controller learns of the processes that another one made, and which nodes can be used; without Ray."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from ray.exceptions import RayActorError

import cluster.places as module
from cluster.places import Placed, RayPlaces, slot_of

TOPIC = {"topic": "t", "partition": 0}
BOOKIE = {"bookie": "bookie-0"}


class Method:
    """A remote method: `answer` is what it returns, or raises."""

    def __init__(self, answer: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.remote_calls = 0
        self._answer = answer

    async def remote(self, *_: object) -> Any:
        self.remote_calls += 1
        return await self._answer()


class Process:
    """A host of an earlier controller. It introduces itself when `awake` is set."""

    def __init__(self, name: str, slot: str, rows: list[Placed]) -> None:
        self.name = name
        self.awake = asyncio.Event()
        self.ended = False
        self._told = slot, "node", [(kind, address, json.dumps(settings)) for kind, address, settings in rows]
        self.introduce = Method(self._introduce)
        self.start = Method(self._start)

    async def _introduce(self) -> Any:
        await self.awake.wait()
        if self.ended:
            raise RayActorError
        return self._told

    async def _start(self) -> str:
        return f"{self.name}/new"


class Cluster:
    """The processes that there are, in place of Ray."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: dict[str, Process] = {}
        monkeypatch.setattr(module, "_host_names", lambda: sorted(self.processes))
        monkeypatch.setattr(module, "_kill", self._kill)
        monkeypatch.setattr("ray.get_actor", lambda name, _: self.processes[name])
        monkeypatch.setattr(module, "PROMPT", 0.3)
        self.places = RayPlaces({"standby": False}, self._make)

    def add(self, name: str, *rows: Placed, slot: str = "", awake: bool = True) -> Process:
        process = self.processes[name] = Process(name, slot, list(rows))
        if awake:
            process.awake.set()
        return process

    def _kill(self, process: Process) -> None:
        process.ended = True
        process.awake.set()

    def _make(self, name: str, *_: object, **__: object) -> Any:
        raise AssertionError(f"{name} is made, and nobody needs it")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """No process yet."""
    return Cluster(monkeypatch)


async def test_who_answers_at_once_is_known_at_once(cluster: Cluster) -> None:
    """Also one that stands in for the process of another name."""
    rows: list[Placed] = [("bookie", "bookie-0-a/b", BOOKIE), ("topic", "broker-standby-b/t", TOPIC)]
    cluster.add("bookie-0-a", rows[0])
    cluster.add("broker-standby-b", rows[1], slot="broker-0")
    assert await cluster.places.inventory() == rows
    assert await cluster.places.start("topic", "again", TOPIC) == "broker-standby-b/new"


async def test_who_is_slow_keeps_those_waiting_who_want_its_slot(cluster: Cluster) -> None:
    """And nobody else; what ran in it is not started a second time."""
    cluster.add("bookie-0-a", ("bookie", "bookie-0-a/b", BOOKIE))
    slow = cluster.add("broker-0-b", ("topic", "broker-0-b/t", TOPIC), awake=False)
    assert [kind for kind, _, _ in await cluster.places.inventory()] == ["bookie"]
    wanted = asyncio.create_task(cluster.places.start("topic", "again", TOPIC))
    other = asyncio.create_task(cluster.places.start("dispatcher", "new", TOPIC))
    await asyncio.sleep(0)
    slow.awake.set()
    assert await wanted == "broker-0-b/t"
    assert await other == "broker-0-b/new"
    assert slow.start.remote_calls == 1
    assert await cluster.places.start("topic", "third", TOPIC) == "broker-0-b/new"  # that one was told about once


async def test_who_never_answers_is_ended(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was frozen; its slot gets another process."""
    monkeypatch.setattr(module, "INVENTORY_TIMEOUT", 0.05)
    frozen = cluster.add("broker-0-a", ("topic", "broker-0-a/t", TOPIC), awake=False)
    assert await cluster.places.inventory() == []
    monkeypatch.setattr(module, "_nodes", lambda: [module.Node("node", "machine")])
    with pytest.raises(AssertionError, match="broker-0-"):
        await cluster.places.start("topic", "again", TOPIC)
    assert frozen.ended


async def test_two_processes_of_one_slot(cluster: Cluster) -> None:
    """The second is of no use, and ends; nobody hears of what it ran."""
    first = cluster.add("broker-0-a", ("topic", "broker-0-a/t", TOPIC))
    second = cluster.add("broker-standby-b", ("topic", "broker-standby-b/t", TOPIC), slot="broker-0")
    assert [address for _, address, _ in await cluster.places.inventory()] == ["broker-0-a/t"]
    assert (first.ended, second.ended) == (False, True)


async def test_what_ended_meanwhile_is_nothing(cluster: Cluster) -> None:
    """Between being listed and being asked."""
    gone = cluster.add("broker-0-a", ("topic", "broker-0-a/t", TOPIC))
    gone.ended = True
    assert await cluster.places.inventory() == []


def test_node_whose_port_refuses_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray still takes it for alive."""
    with socket.create_server(("127.0.0.1", 0)) as alive, socket.create_server(("127.0.0.1", 0)) as dead:
        ports = [alive.getsockname()[1], dead.getsockname()[1]]
        dead.close()
        rows = [
            {"Alive": True, "NodeID": name, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}
            for name, port in zip(("a", "b"), ports, strict=True)
        ]
        monkeypatch.setattr("ray.nodes", lambda: rows)
        assert [node.id for node in module._nodes()] == ["a"]


def test_the_slot_is_what_a_name_begins_with() -> None:
    """Of a slot, it is its sort."""
    assert [slot_of(name) for name in ("bookie-0-a1b2", "broker-standby-c3d4", "broker-1")] == [
        "bookie-0",
        "broker-standby",
        "broker",
    ]

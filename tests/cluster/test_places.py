"""What a new controller learns of the processes that another one made, who runs what a lost one ran; without Ray."""

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

TOPIC, OTHER = {"topic": "t", "partition": 0}, {"topic": "t", "partition": 1}
BOOKIE = {"bookie": "bookie-0"}


class Method:
    """A remote method: `answer` is what it returns, or raises."""

    def __init__(self, answer: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.remote_calls = 0
        self._answer = answer

    async def remote(self, *given: object) -> Any:
        self.remote_calls += 1
        return await self._answer(*given)


class Process:
    """A host of an earlier controller. It introduces itself when `awake` is set."""

    def __init__(self, name: str, slot: str, rows: list[Placed]) -> None:
        self.name = name
        self.awake = asyncio.Event()
        self.ended = False
        self.rows = rows
        self._slot = slot
        self.introduce = Method(self._introduce)
        self.start = Method(self._start)
        self.stop = Method(self._stop)
        self.ready = self.serve = Method(self._answer)
        self.node = Method(self._answer)

    async def _introduce(self) -> Any:
        await self.awake.wait()
        if self.ended:
            raise RayActorError
        return self._slot, "node", [(kind, address, json.dumps(settings)) for kind, address, settings in self.rows]

    async def _start(self, kind: str, actor: str, settings: dict[str, Any]) -> str:
        if self.ended:
            raise RayActorError
        self.rows.append((kind, f"{self.name}/{actor}", settings))
        return f"{self.name}/{actor}"

    async def _stop(self, actor: str) -> None:
        if self.ended:
            raise RayActorError
        self.rows = [row for row in self.rows if row[1] != f"{self.name}/{actor}"]

    async def _answer(self, *_: object) -> str:
        return "node"


class Cluster:
    """The processes that there are, in place of Ray."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: dict[str, Process] = {}
        monkeypatch.setattr(module, "_host_names", lambda: sorted(self.processes))
        monkeypatch.setattr(module, "_kill", self._kill)
        monkeypatch.setattr("ray.get_actor", lambda name, _: self.processes[name])
        monkeypatch.setattr(module, "PROMPT", 0.3)
        monkeypatch.setattr(module, "_nodes", lambda: [module.Node("node", "machine")])
        self.makes = False
        self.places = self.controller()

    def controller(self, *, standby: bool = False) -> RayPlaces:
        return RayPlaces({"standby": standby, "brokers": 2}, self._make)

    def add(self, name: str, *rows: Placed, slot: str = "", awake: bool = True) -> Process:
        process = self.processes[name] = Process(name, slot, list(rows))
        if awake:
            process.awake.set()
        return process

    def _kill(self, process: Process) -> None:
        process.ended = True
        process.awake.set()

    def _make(self, name: str, *_: object, **__: object) -> Any:
        assert self.makes, f"{name} is made, and nobody needs it"
        return self.add(name)

    def runs(self) -> dict[str, list[str]]:
        """What the living processes run: partitions and bookies, by slot."""
        living = [process for process in self.processes.values() if not process.ended]
        return {
            slot_of(process.name): [str(settings.get("partition", "bookie")) for _, _, settings in process.rows]
            for process in living
        }


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
    assert await cluster.places.start("topic", "again", TOPIC) == "broker-standby-b/again"


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
    assert await cluster.places.start("topic", "third", TOPIC) == "broker-0-b/third"  # that one was told about once


async def test_who_never_answers_is_ended(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was frozen; its slot gets another process."""
    monkeypatch.setattr(module, "INVENTORY_TIMEOUT", 0.05)
    frozen = cluster.add("broker-0-a", ("topic", "broker-0-a/t", TOPIC), awake=False)
    assert await cluster.places.inventory() == []
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


@pytest.fixture
async def running(cluster: Cluster) -> Cluster:
    """Two broker processes with a partition each, and a bookie."""
    cluster.makes = True
    for kind, settings in (("topic", TOPIC), ("topic", OTHER), ("bookie", BOOKIE)):
        await cluster.places.start(kind, "a", settings)
    assert cluster.runs() == {"broker-0": ["0"], "broker-1": ["1"], "bookie-0": ["bookie"]}
    cluster.makes = False
    return cluster


async def lose(cluster: Cluster, slot: str) -> None:
    """The process of a slot dies, and the controller hears of it."""
    process = next(process for process in cluster.processes.values() if slot_of(process.name) == slot)
    process.ended = True
    await cluster.places.stop(f"{process.name}/a")
    del cluster.processes[process.name]


async def test_what_a_lost_process_ran_does_not_wait_for_a_new_one(running: Cluster) -> None:
    """Another broker process takes it in; one process more shall wait, so that the next loss finds one."""
    assert running.places._missing() == 1
    await lose(running, "broker-0")
    await running.places.start("topic", "b", TOPIC)
    assert running.places._missing() == 2
    await running.places.start("dispatcher", "c", TOPIC)
    assert running.runs() == {"broker-1": ["1", "0", "0"], "bookie-0": ["bookie"]}


async def test_a_bookie_is_not_taken_in_and_takes_nobody_in(running: Cluster) -> None:
    """Its process is its own; so is the first one of a broker, and the last one's successor."""
    running.makes = True
    await lose(running, "bookie-0")
    await running.places.start("bookie", "b", BOOKIE)
    await lose(running, "broker-0")
    await lose(running, "broker-1")
    await running.places.start("topic", "b", TOPIC)
    assert running.runs() == {"bookie-0": ["bookie"], "broker-0": ["0"]}


async def test_when_all_is_calm_each_has_its_process_again(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What took refuge is ended there, so that it is missed and started where it belongs. Its host keeps its own."""
    monkeypatch.setattr(module, "CALM_S", 0.0)
    running.makes = True
    await lose(running, "broker-0")
    address = await running.places.start("topic", "b", TOPIC)
    assert slot_of(address.partition("/")[0]) == "broker-1"
    assert running.places._parting is not None
    await running.places._parting
    assert running.runs() == {"broker-1": ["1"], "bookie-0": ["bookie"], "broker-0": []}
    await running.places.stop(address)
    await running.places.start("topic", "c", TOPIC)
    assert running.runs() == {"broker-1": ["1"], "bookie-0": ["bookie"], "broker-0": ["0"]}


async def test_it_is_not_calm_while_processes_are_lost(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moving would be one more interruption for those who just had one."""
    monkeypatch.setattr(module, "CALM_S", 0.3)
    await lose(running, "broker-0")
    await running.places.start("topic", "b", TOPIC)
    for _ in range(5):
        await asyncio.sleep(0.1)
        running.places._lost_at = asyncio.get_running_loop().time()
    assert running.runs() == {"broker-1": ["1", "0"], "bookie-0": ["bookie"]}
    running.makes = True
    assert running.places._parting is not None
    await running.places._parting
    assert running.runs() == {"broker-1": ["1"], "bookie-0": ["bookie"], "broker-0": []}


async def test_who_took_others_in_and_is_lost_is_replaced_for_all_of_them(running: Cluster) -> None:
    """Each has a process of its own then; nothing of the lost one is thought to run."""
    await lose(running, "broker-0")
    await running.places.start("topic", "b", TOPIC)
    await lose(running, "broker-1")
    running.makes = True
    await running.places.start("topic", "c", OTHER)
    await running.places.start("topic", "c", TOPIC)
    assert running.runs() == {"bookie-0": ["bookie"], "broker-1": ["1", "0"]}


@pytest.mark.parametrize("standby", [False, True])
async def test_two_that_are_lost_together_do_not_slow_each_other_down(running: Cluster, standby: bool) -> None:
    """One process is started, which both need; it is the one that would be kept ready, if one shall be."""
    running.places = running.controller(standby=standby)
    await running.places.inventory()
    await lose(running, "broker-0")
    await lose(running, "broker-1")
    running.makes = True
    await asyncio.gather(*(running.places.start("topic", "b", settings) for settings in (TOPIC, OTHER)))
    (served,) = [sorted(partitions) for slot, partitions in running.runs().items() if slot != "bookie-0"]
    assert served == ["0", "1"]
    assert ("broker-standby" in running.runs()) is standby


async def test_a_new_controller_leaves_in_peace_what_took_refuge(cluster: Cluster) -> None:
    """Until all is calm; a process that is lost meanwhile is treated as any other."""
    guest, host = ("topic", "broker-1-a/g", TOPIC), ("topic", "broker-1-a/h", OTHER)
    cluster.add("broker-1-a", host, guest)
    assert await cluster.places.inventory() == [guest, host]
    assert await cluster.places.start("dispatcher", "d", TOPIC) == "broker-1-a/d"


async def test_a_process_of_its_own_comes_before_the_one_that_took_it_in(cluster: Cluster) -> None:
    """A controller died while a slot was moving."""
    cluster.add("broker-1-a", ("topic", "broker-1-a/g", TOPIC))
    own = cluster.add("broker-0-b")
    await cluster.places.inventory()
    assert await cluster.places.start("dispatcher", "d", TOPIC) == "broker-0-b/d"
    assert not own.ended

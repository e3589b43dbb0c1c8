"""Which nodes and processes of a Ray cluster there are, and what is said to them, without Ray."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import threading
from typing import Any

import pytest
from ray.exceptions import RayActorError

import sluice.cluster.launch.processes as module
from sluice.actors.messages import Done
from sluice.actors.ports import Node, Unknown
from sluice.actors.ports.wire import Packed, Request, pack
from sluice.actors.runtime.host import opened
from sluice.cluster.base.impairments import CLOCK_JUMP, IMPAIRMENTS
from sluice.cluster.launch.process_requests import ACTOR, Felt, Impair, Relieve, answer
from sluice.cluster.launch.processes import Listed, RayProcesses
from sluice.storage.errors import Corrupt, Invalid, Unavailable

Handles = queue.Queue[Any]


class Method:
    """A remote method that answers, raises, or never answers."""

    def __init__(self, outcome: object) -> None:
        self.outcome = outcome

    async def remote(self, *given: object) -> object:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.outcome == "silent":
            await asyncio.Event().wait()
        return self.outcome


class Handle:
    """A host's handle with the same outcome for every method."""

    def __init__(self, outcome: object = None) -> None:
        self.ready = self.node = Method(outcome)


class Process:
    """A host process that can be asked itself."""

    slot = ""

    async def introduce(self) -> tuple[str, str, list[tuple[str, str, str]]]:
        """Report one topic as running."""
        return self.slot, "n1", [("topic", "broker-0-a/t", json.dumps({"topic": "t", "partition": 0}))]

    def serve(self, slot: str) -> None:
        """Serve the first slot that is asked for; refuse others."""
        if self.slot not in ("", slot):
            raise Unavailable(f"serves {self.slot} already")
        self.slot = slot

    async def start(self, kind: str, actor: str, settings: dict[str, Any]) -> str:
        """A bookie finds a damaged disk, and a gateway a defect."""
        if kind == "bookie":
            raise Corrupt("another disk")
        if kind == "gateway":
            raise KeyError("a defect")
        return f"broker-0-a/{actor}-{settings['partition']}"

    async def stop(self, actor: str) -> None:
        """Nothing to do."""


class Net:
    """Reaches one process, if there is one."""

    def __init__(self, process: Process | None) -> None:
        self.process = process

    async def call(self, to: str, request: Request[Any], timeout: int) -> Any:
        """As DirectNet does."""
        if self.process is None:
            return Unknown("it has ended", gone=True)
        assert to == f"broker-0-a/{ACTOR}"
        told = await answer(self.process, type(request).__name__, pack(request).copied())
        return opened(request, told.copied() if isinstance(told, Packed) else told)


def processes(process: Process | None, make: Any = Handle) -> RayProcesses:
    """Return the processes as a controller sees them that reaches this one."""
    net: Any = Net(process)
    return RayProcesses({}, make, net)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Handles:
    """The handles that were ended."""
    handles: Handles = queue.Queue()
    monkeypatch.setattr(module, "end", handles.put)
    monkeypatch.setattr(module, "LISTED", Listed())  # it belongs to one event loop
    monkeypatch.setattr("ray.nodes", list)
    return handles


async def until_ended(handles: Handles) -> Any:
    """The next handle that was ended, which happens in a thread."""
    return await asyncio.to_thread(handles.get, timeout=5)


def rows(**ports: int) -> list[dict[str, Any]]:
    """Return Ray's rows of living nodes, by name."""
    return [
        {"Alive": True, "NodeID": name, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}
        for name, port in ports.items()
    ]


async def test_node_whose_port_refuses_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray still takes the node for alive. A refused connection means that the node has ended, and not that it is
    away.
    """
    with socket.create_server(("127.0.0.1", 0)) as alive, socket.create_server(("127.0.0.1", 0)) as dead:
        listed = rows(a=alive.getsockname()[1], b=dead.getsockname()[1])
        dead.close()
        monkeypatch.setattr("ray.nodes", lambda: listed)
        known = Listed()
        assert [node.id for node in await known.nodes()] == ["a"]
        assert known.away == []


async def test_node_that_says_nothing_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one behind a cable that was cut."""
    monkeypatch.setattr(module, "CONNECT_TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as alive:
        listed = [*rows(a=alive.getsockname()[1]), {**rows(b=9)[0], "NodeManagerAddress": "192.0.2.1"}]
        monkeypatch.setattr("ray.nodes", lambda: listed)
        monkeypatch.setattr(module, "answers", lambda address, _: answers_slowly(address))
        known = Listed()
        assert [node.id for node in await known.nodes()] == ["a"]
        assert [node.id for node in known.away] == ["b"]


async def test_node_that_says_nothing_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look hears at once that the node is away, and soon that it is back."""
    probed, back = threading.Semaphore(0), threading.Event()

    def probe(row: dict[str, Any]) -> bool | None:
        if row["NodeID"] == "a" or back.is_set():
            return True
        if not probed.acquire(blocking=False):
            back.wait()
        return True if back.is_set() else None

    listed = rows(a=1, b=2)
    monkeypatch.setattr("ray.nodes", lambda: listed)
    monkeypatch.setattr(module, "_probe", probe)
    probed.release()
    known = Listed()
    try:
        for _ in range(3):  # the second probe of b does not end
            assert [node.id for node in await known.nodes()] == ["a"]
            assert [node.id for node in known.away] == ["b"]
    finally:
        back.set()
    async with asyncio.timeout(5):
        while known.away:
            await known.nodes()
    assert [node.id for node in await known.nodes()] == ["a", "b"]


async def test_head_that_is_away_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that it has not answered in time keeps nobody else."""
    over, listed = threading.Event(), rows(a=1)
    monkeypatch.setattr("ray.nodes", lambda: over.wait() and listed)
    known = Listed()
    monkeypatch.setattr(module, "HEAD_S", 0.05)
    assert not await known.head_answers()
    monkeypatch.setattr(module, "HEAD_S", 3_600.0)
    try:
        for _ in range(3):
            assert await known.nodes() == []
            assert not await known.head_answers()
    finally:
        over.set()
    await known._pending["nodes"]
    assert await known.head_answers()
    assert [node.id for node in await known.nodes()] == ["a"]


def answers_slowly(address: str) -> bool:
    """Tell whether an address answers: one of the documentation's neither answers nor refuses."""
    if address.startswith("192.0.2."):
        threading.Event().wait(module.CONNECT_TIMEOUT)
        return False
    return True


async def test_last_answer_holds_while_the_head_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread asks it, however often it is looked for."""
    monkeypatch.setattr(module, "HEAD_S", 0.05)
    over = threading.Event()
    asked: list[None] = []
    listed = [{"namespace": "sluice", "name": "broker-0-a"}, {"namespace": "other", "name": "x"}]

    def silent(everywhere: bool) -> list[dict[str, str]]:
        asked.append(None)
        if len(asked) > 1:
            over.wait()
        return listed

    monkeypatch.setattr("ray.util.list_named_actors", silent)
    monkeypatch.setattr("ray.nodes", list)
    known = Listed()
    try:
        for _ in range(4):
            assert await known.names() == ["broker-0-a"]
        assert len(asked) == 2
    finally:
        over.set()


async def test_a_head_that_is_away_is_not_asked_with_the_lock_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray answers some questions in a way that stops the whole process until the head has answered."""
    monkeypatch.setattr(module, "HEAD_S", 0.05)
    over = threading.Event()
    monkeypatch.setattr(module, "LISTED", Listed())
    monkeypatch.setattr("ray.nodes", over.wait)
    monkeypatch.setattr("ray.util.list_named_actors", lambda everywhere: pytest.fail("it was asked"))
    try:
        assert await Listed().names() == []
        with pytest.raises(Unavailable, match="head does not answer"):
            await processes(None).make("broker-0-a", None, 1_000)
    finally:
        over.set()


async def test_a_process_is_asked_over_its_own_connection() -> None:
    """The process tells its identity, its slot, and its actors; its refusals and defects come back."""
    asked = processes(Process())
    told = await asked.introduce("broker-0-a", 1_000)
    assert not isinstance(told, Unknown)
    assert (told.node, told.running) == ("n1", [("topic", "broker-0-a/t", {"topic": "t", "partition": 0})])
    assert await asked.serve("broker-0-a", "broker-0", 1_000) is None
    with pytest.raises(Unavailable, match="broker-0 already"):
        await asked.serve("broker-0-a", "broker-1", 1_000)
    assert await asked.start("broker-0-a", "topic", "t", {"partition": 3}, 1_000) == "broker-0-a/t-3"
    with pytest.raises(Corrupt):
        await asked.start("broker-0-a", "bookie", "b", {}, 1_000)
    with pytest.raises(Unavailable, match="defect"):
        await asked.start("broker-0-a", "gateway", "g", {}, 1_000)
    assert await asked.stop("broker-0-a", "t", 1_000) is None


async def test_ended_process_is_gone() -> None:
    """Between being listed and being asked."""
    asked = processes(None)
    for told in (await asked.introduce("broker-0-a", 20), await asked.stop("broker-0-a", "t", 20)):
        assert isinstance(told, Unknown)
        assert told.gone


async def test_a_process_that_does_not_come_up_is_ended(ended: Handles) -> None:
    """Frozen while it starts, or dead."""
    for outcome in ("silent", RayActorError()):
        handle = Handle(outcome)
        with pytest.raises(Unavailable):
            await processes(None, lambda *given, made=handle, **more: made).make("broker-0-a", None, 20)
        assert await until_ended(ended) is handle


@pytest.mark.parametrize("error", [ConnectionError, RuntimeError, RayActorError])
async def test_a_process_that_ray_does_not_make_is_none(error: type[Exception], ended: Handles) -> None:
    """The head of Ray ended between two questions."""

    def make(*given: object, **more: object) -> Handle:
        raise error("the head has gone")

    with pytest.raises(Unavailable):
        await processes(None, make).make("broker-0-a", None, 20)


async def test_no_process_comes_up_on_a_node_that_ends(monkeypatch: pytest.MonkeyPatch, ended: Handles) -> None:
    """Ray says so a minute or two later, and until then the wait for the process would go on."""
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    handle = Handle("silent")
    with socket.create_server(("127.0.0.1", 0)) as alive, socket.create_server(("127.0.0.1", 0)) as dead:
        listed = rows(a=alive.getsockname()[1], b=dead.getsockname()[1])
        monkeypatch.setattr("ray.nodes", lambda: listed)
        making = asyncio.create_task(processes(None, lambda *given, **more: handle).make("broker-0-a", "b", 60_000))
        await asyncio.sleep(0.1)
        assert not making.done()
        dead.close()
        with pytest.raises(Unavailable, match="node has ended"):
            await making
    assert await until_ended(ended) is handle


async def test_process_in_use_again_is_not_ended_late(monkeypatch: pytest.MonkeyPatch, ended: Handles) -> None:
    """A process was to be ended while Ray's head was away, and came into use again: when the head is back it stays."""
    over, asked = threading.Event(), threading.Event()

    def away() -> None:
        asked.set()
        over.wait()

    monkeypatch.setattr("ray.nodes", away)
    monkeypatch.setattr("ray.get_actor", lambda name, namespace: name)
    made = processes(Process())
    made.kill("broker-0-a")
    await asyncio.to_thread(asked.wait, 5)
    assert not isinstance(await made.introduce("broker-0-a", 1_000), Unknown)
    made.kill("broker-1-a")
    over.set()
    assert await until_ended(ended) == "broker-1-a"
    assert ended.empty()


async def test_connections_to_processes_of_lost_nodes_are_given_up(
    monkeypatch: pytest.MonkeyPatch, ended: Handles
) -> None:
    """Such processes may live and answer, but Ray finds them no longer, so a process without a connection never reaches
    them.
    """
    alive = [Node("here", "127.0.0.1"), Node("there", "127.0.0.2")]
    monkeypatch.setattr(module, "LOST_NODES_S", 0.001)
    made = processes(None, lambda name, settings, node: Handle(node))

    async def nodes() -> list[Node]:
        return alive

    monkeypatch.setattr(made, "nodes", nodes)
    for name, node in (("a", "here"), ("b", "there"), ("c", "there")):
        assert await made.make(name, node, 1_000) == node
    parted: asyncio.Queue[str] = asyncio.Queue()
    looking = asyncio.create_task(made.part_from_lost_nodes(parted.put_nowait))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(parted.get(), 0.1)
    made.kill("c")
    assert isinstance(await until_ended(ended), Handle)
    del alive[1]
    assert [await asyncio.wait_for(parted.get(), 5) for _ in range(3)] == ["b"] * 3
    looking.cancel()


async def test_a_process_makes_itself_worse_when_it_is_asked() -> None:
    """For a while, and it says how often that was felt. What it cannot do to itself is refused."""
    net = Net(Process())
    with pytest.raises(Invalid, match="no process can do 'fire' to itself"):
        await net.call("broker-0-a/process", Impair(kind="fire", amount=1, seconds=1.0), 1_000)
    assert await net.call("broker-0-a/process", Relieve(kind="fire"), 1_000) == Felt(times=0)
    with pytest.raises(Invalid, match="no process can do 'fire' to itself"):
        await net.call("broker-0-a/process", Impair(kind="fire", amount=1, seconds=1.0), 1_000)
    assert await net.call("broker-0-a/process", Impair(kind=CLOCK_JUMP, amount=60_000, seconds=3_600), 1_000) == Done()
    IMPAIRMENTS.wall_clock(0)
    assert await net.call("broker-0-a/process", Relieve(kind=CLOCK_JUMP), 1_000) == Felt(times=1)
    assert IMPAIRMENTS.wall_clock(0) == 0

"""Which nodes and processes of a Ray cluster there are, without Ray."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

import cluster.bootstrap.processes as module
from actors.ports import Node, Unknown
from cluster.bootstrap.processes import RayProcesses
from storage.errors import Unavailable


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
    """A host's handle, of which every method ends like this."""

    def __init__(self, outcome: object = None) -> None:
        self.introduce = self.serve = self.start = self.stop = self.ready = self.node = Method(outcome)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The handles that were ended."""
    handles: list[Any] = []
    monkeypatch.setattr(module, "end", handles.append)
    return handles


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
        assert [node.id for node in module.live_nodes()] == ["a"]


@pytest.mark.parametrize(
    ("outcome", "gone"),
    [
        (RayActorError(), True),
        (ActorUnavailableError("away", b"0" * 16), False),
        (RayError(), False),
        ("silent", False),
    ],
)
async def test_no_answer_is_unknown(monkeypatch: pytest.MonkeyPatch, outcome: object, gone: bool) -> None:
    """A process that has ended is told from one that does not answer now."""
    monkeypatch.setattr("ray.get_actor", lambda name, _: Handle(outcome))
    told = await RayProcesses({}, Handle).introduce("broker-0-a", 20)
    assert isinstance(told, Unknown)
    assert told.gone is gone


async def test_what_is_no_process_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between being listed and being asked it has ended."""

    def missing(name: str, namespace: str) -> None:
        raise ValueError(name)

    monkeypatch.setattr("ray.get_actor", missing)
    processes = RayProcesses({}, Handle)
    assert await processes.introduce("broker-0-a", 20) == Unknown("there is no process broker-0-a", gone=True)
    assert await processes.stop("broker-0-a", "t", 20) == Unknown("broker-0-a was ended", gone=True)


async def test_a_process_that_does_not_come_up_is_ended(ended: list[Any]) -> None:
    """Frozen while it starts, or dead."""
    for outcome in ("silent", RayActorError()):
        handle = Handle(outcome)
        processes = RayProcesses({}, lambda *given, made=handle, **more: made)
        with pytest.raises(Unavailable):
            await processes.make("broker-0-a", None, 20)
        assert ended.pop() is handle


async def test_connections_to_processes_of_lost_nodes_are_given_up(
    monkeypatch: pytest.MonkeyPatch, ended: list[Any]
) -> None:
    """They may live and answer, but Ray finds them no more: whoever has no connection yet would never reach them."""
    alive = [Node("here", "127.0.0.1"), Node("there", "127.0.0.2")]
    monkeypatch.setattr(module, "live_nodes", lambda: alive)
    monkeypatch.setattr(module, "LOST_NODES_S", 0.001)
    processes = RayProcesses({}, lambda name, settings, node: Handle(node))
    for name, node in (("a", "here"), ("b", "there"), ("c", "there")):
        assert await processes.make(name, node, 1_000) == node
    parted: asyncio.Queue[str] = asyncio.Queue()
    looking = asyncio.create_task(processes.part_from_lost_nodes(parted.put_nowait))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(parted.get(), 0.1)
    processes.kill("c")
    assert len(ended) == 1
    del alive[1]
    assert [await asyncio.wait_for(parted.get(), 5) for _ in range(3)] == ["b"] * 3
    looking.cancel()

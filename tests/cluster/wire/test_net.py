"""Calls by name: where a process listens, as it was last said while nobody can say it now."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.actors.ports import Address, Unknown
from sluice.actors.ports.wire import Packed, pack
from sluice.actors.runtime.host import Answer, Message, OnAnswer
from sluice.cluster.node.environment import CONTROLLER_HOST
from sluice.cluster.wire import net as module
from sluice.cluster.wire.endpoint import Endpoint, SocketFolder
from sluice.cluster.wire.net import NAMING, DirectNet, Listening, Whereabouts, open_endpoint
from tests.kit.asking import answer_in_task

TOKEN = b"t" * 64
TIMEOUT = 30_000


class Named:
    """A process that answers."""

    def accept(self, actor: str, kind: str, message: Message, on_answer: OnAnswer) -> None:
        answer_in_task(self.answer, actor, kind, message, on_answer)

    async def answer(self, actor: str, kind: str, packed: Packed) -> Answer:
        return pack(Listening(reason="here"))


class Finder:
    """Says where one process listens, until it is told to say something else."""

    def __init__(self, found: Endpoint | Unknown) -> None:
        self.found = found

    async def __call__(self, host: str) -> Endpoint | Unknown:
        return self.found


async def test_an_ended_process_is_gone_though_ray_does_not_know(tmp_path: Path) -> None:
    """For a minute Ray may say of the processes of a lost node that they do not answer."""
    endpoint, listener = open_endpoint("host-a", Named(), str(tmp_path), "127.0.0.1", TOKEN)
    finder = Finder(endpoint)
    net = DirectNet(None, finder, TOKEN)
    assert isinstance(await net.call(f"host-a/{NAMING}", Whereabouts(host="x"), TIMEOUT), Listening)
    finder.found = Unknown("host-a does not answer")
    net.part("host-a")
    assert isinstance(await net.call(f"host-a/{NAMING}", Whereabouts(host="x"), TIMEOUT), Listening)
    listener.close()
    for _ in range(2):  # it is so however often it is asked
        net.part("host-a")
        told = await net.call(f"host-a/{NAMING}", Whereabouts(host="x"), TIMEOUT)
        assert isinstance(told, Unknown)
        assert told.gone
    unknown = await net.call(f"host-b/{NAMING}", Whereabouts(host="x"), TIMEOUT)
    assert isinstance(unknown, Unknown)
    assert not unknown.gone
    net.close()


async def test_a_process_that_cannot_listen_leaves_nothing(tmp_path: Path) -> None:
    """Each look for it has it try again, for as long as its settings name an address that is not here."""
    opened = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="assign requested address"):
            open_endpoint("host-a", Named(), str(tmp_path), "192.0.2.1", TOKEN)
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == opened


def test_a_long_folder_is_not_used(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    sockets = SocketFolder(str(deep))
    assert not sockets.path.startswith(str(deep))
    sockets.listen().close()
    sockets.remove()
    assert not os.path.exists(os.path.dirname(sockets.path))


class Controller:
    """The process of the controller, which notes what it asks itself."""

    name = CONTROLLER_HOST

    def __init__(self) -> None:
        self.asked: list[str] = []

    def has(self, address: Address) -> bool:
        return False

    def accept(self, actor: str, kind: str, message: Message, on_answer: OnAnswer) -> None:
        answer_in_task(self.answer, actor, kind, message, on_answer)

    async def answer(self, actor: str, kind: str, packed: Packed) -> Answer:
        self.asked.append(f"{actor} {kind}")
        return Unknown("it does not know either")


class SilentRay:
    """Says nothing before it is let."""

    def __init__(self) -> None:
        self.speaks = asyncio.Event()

    async def __call__(self, host: str) -> Endpoint | Unknown:
        await self.speaks.wait()
        return Endpoint(host, "", "", "", "127.0.0.1", 7, "", ())


class Here:
    """A process that has every actor."""

    name = "host-a"

    def has(self, address: Address) -> bool:
        return True

    def accept(self, actor: str, kind: str, message: Message, on_answer: OnAnswer) -> None:
        answer_in_task(self.answer, actor, kind, message, on_answer)

    async def answer(self, actor: str, kind: str, packed: Packed) -> Answer:
        return Unknown("it does not matter")


async def test_a_request_that_never_begins_leaves_nothing_behind() -> None:
    """A program that ends cancels it there. What nobody awaits any more Python complains of, as the last it says."""
    net = DirectNet(Here(), token=TOKEN)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asking = asyncio.create_task(net.call("host-a/orders", Whereabouts(host="x"), TIMEOUT))
        await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        assert len(others) == 2
        await asyncio.wait(others)
        assert asking.cancelled()
        net.close()
        del task, others, asking, net
        gc.collect()
    assert [str(one.message) for one in told] == []


async def test_a_process_does_not_ask_itself_while_ray_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller's process did, again and again in each of its own requests: soon it did nothing else."""
    monkeypatch.setattr(module, "FIND_AGAIN_S", 0.001)
    ray, local = SilentRay(), Controller()
    net = DirectNet(local, ray, TOKEN)
    finding = asyncio.create_task(net.find("host-a"))
    await asyncio.sleep(0.05)
    ray.speaks.set()
    found = await finding
    assert isinstance(found, Endpoint)
    assert (local.asked, net.lookups) == ([], 1)
    net.close()


async def test_a_process_asked_for_another_asks_only_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that take each other for the controller's would ask in a circle."""
    monkeypatch.setattr(module, "FIND_AGAIN_S", 0.001)
    ray = SilentRay()
    net = DirectNet(Controller(), ray, TOKEN, controller="controller-b")
    finding = asyncio.create_task(net.find_for_others("host-a"))
    await asyncio.sleep(0.05)
    assert net.lookups == 1
    monkeypatch.setattr(module, "FIND_FOR_OTHERS_S", 0.001)
    given_up = await net.find_for_others("host-b")
    assert isinstance(given_up, Unknown)
    assert not given_up.gone
    ray.speaks.set()
    assert isinstance(await finding, Endpoint)
    net.close()


async def test_a_search_while_the_interpreter_ends_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An uncaught exception of a program was followed by a traceback of each partition."""
    ended = ThreadPoolExecutor(1)
    ended.shutdown()
    monkeypatch.setattr(module, "_ASKING", ended)
    found = await module.find("broker-0")
    assert isinstance(found, Unknown)
    assert "after shutdown" in found.reason

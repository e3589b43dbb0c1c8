"""A client without Ray finds processes through the door in the data folder."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import msgspec
import pytest

from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import Packed
from sluice.actors.runtime.host import Answer, Message, OnAnswer
from sluice.cluster.launch import naming
from sluice.cluster.launch.naming import open_door, read_door, through
from sluice.cluster.node.environment import CONTROLLER_HOST
from sluice.cluster.node.folder import DOOR_FILE
from sluice.cluster.wire.endpoint import Endpoint
from sluice.cluster.wire.listener import Listener
from sluice.cluster.wire.net import NAMING, DirectNet, Listening, Whereabouts, open_endpoint
from sluice.storage.errors import Invalid
from tests.kit.asking import answer_in_task

ADDRESS = "127.0.0.1:6379"
KNOWN = Endpoint("bookie-1", "m", "n", "/s", "127.0.0.1", 5)
TIMEOUT = 30_000


async def find(host: str) -> Endpoint | Unknown:
    """Return the endpoint of the one known process, and Unknown for every other."""
    return KNOWN if host == KNOWN.name else Unknown(f"no process {host}", gone=True)


class Keeper:
    """A process that knows one other."""

    def accept(self, actor: str, kind: str, message: Message, on_answer: OnAnswer) -> None:
        answer_in_task(self.answer, actor, kind, message, on_answer)

    async def answer(self, actor: str, kind: str, packed: Packed) -> Answer:
        assert (actor, kind) == (NAMING, "Whereabouts")
        return await naming.answer(packed, find)


@pytest.fixture(autouse=True)
def ray_that_knows_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t" * 64)
    (tmp_path / "token").chmod(0o600)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(naming, "cluster_token", lambda: b"t" * 64)


def keep(folder: Path, name: str = CONTROLLER_HOST) -> Listener:
    """Begin a new incarnation of the process that keeps the door."""
    endpoint, listener = open_endpoint(name, Keeper(), str(folder), "127.0.0.1", b"t" * 64)
    open_door(folder, ADDRESS, endpoint)
    return listener


async def ask(net: DirectNet, host: str) -> Listening | Unknown:
    return await net.call(f"{CONTROLLER_HOST}/{NAMING}", Whereabouts(host=host), TIMEOUT)


async def answers(net: DirectNet, kind: type[Listening | Unknown]) -> None:
    """Ask until it is answered like that."""
    async with asyncio.timeout(60):
        told = None
        while not isinstance(told, kind):
            told = await ask(net, KNOWN.name)


async def test_process_at_the_door_learns_where_others_listen(tmp_path: Path) -> None:
    listener = keep(tmp_path)
    net = through(tmp_path, ADDRESS)
    assert net is not None
    told = await ask(net, "bookie-1")
    assert isinstance(told, Listening)
    assert told.endpoint == KNOWN
    gone = await ask(net, "bookie-2")
    assert isinstance(gone, Listening)
    assert (gone.endpoint, gone.gone) == (None, True)
    missing = await net.call("bookie-2/b", Whereabouts(host="x"), TIMEOUT)
    assert isinstance(missing, Unknown)
    assert missing.gone
    net.close()
    listener.close()


async def test_a_new_incarnation_is_found_where_the_old_one_was(tmp_path: Path) -> None:
    listener = keep(tmp_path)
    net = through(tmp_path, ADDRESS)
    assert net is not None
    assert isinstance(await ask(net, "bookie-1"), Listening)
    listener.close()
    await answers(net, Unknown)
    # That the door is closed says nothing about a third process.
    other = await net.call("bookie-2/b", Whereabouts(host="x"), TIMEOUT)
    assert isinstance(other, Unknown)
    assert not other.gone
    again = keep(tmp_path)
    await answers(net, Listening)
    net.close()
    again.close()


async def test_process_that_changes_its_folder_comes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    listener = keep(tmp_path)
    net = through(Path("."), ADDRESS)
    assert net is not None
    assert isinstance(await ask(net, "bookie-1"), Listening)
    monkeypatch.chdir(tmp_path / "elsewhere")
    listener.close()
    await answers(net, Unknown)
    again = keep(tmp_path)
    assert await net.find(CONTROLLER_HOST) == read_door(tmp_path).endpoint  # type: ignore[union-attr]
    net.close()
    again.close()


async def test_another_keeper_of_the_door_is_taken_for_itself_alone(tmp_path: Path) -> None:
    """Another candidate is the controller now, or was for a while: it is not where the first one's name leads to."""
    listener = keep(tmp_path)
    net = through(tmp_path, ADDRESS)
    assert net is not None
    assert isinstance(await ask(net, "bookie-1"), Listening)
    listener.close()
    other = keep(tmp_path, "controller-b")
    found = await net.find(CONTROLLER_HOST)
    assert isinstance(found, Unknown)
    assert found.gone
    assert await net.find("bookie-1") == KNOWN
    again = keep(tmp_path)
    found = await net.find(CONTROLLER_HOST)
    assert isinstance(found, Endpoint)
    assert found.name == CONTROLLER_HOST
    net.close()
    other.close()
    again.close()


async def test_wrong_token_keeps_a_process_out(tmp_path: Path) -> None:
    listener = keep(tmp_path)
    (tmp_path / "token").write_text("w" * 64)
    net = through(tmp_path, ADDRESS)
    assert net is not None
    with pytest.raises(Invalid):
        await ask(net, "bookie-1")
    net.close()
    listener.close()


async def test_there_is_no_door_to_another_cluster_or_machine(tmp_path: Path) -> None:
    assert through(tmp_path, ADDRESS) is None
    listener = keep(tmp_path)
    assert stat.S_IMODE((tmp_path / DOOR_FILE).stat().st_mode) == 0o600
    assert through(tmp_path, "127.0.0.1:1") is None
    door = read_door(tmp_path)
    assert door is not None
    elsewhere = msgspec.structs.replace(door, endpoint=msgspec.structs.replace(door.endpoint, machine="other"))
    (tmp_path / DOOR_FILE).write_bytes(msgspec.json.encode(elsewhere))
    assert through(tmp_path, ADDRESS) is None
    (tmp_path / DOOR_FILE).write_text("{")
    assert through(tmp_path, ADDRESS) is None
    listener.close()


async def test_without_a_token_file_no_door_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the token in the environment only, a process that came in by the door could not prove that it knows it."""
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    keep(tmp_path).close()
    assert not (tmp_path / DOOR_FILE).exists()

"""Two processes that talk, played by two ends in one: answers, refusals, ends, strangers and crowds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import pytest_asyncio

from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import Packed
from sluice.actors.runtime.host import Answer, Message, OnAnswer
from sluice.cluster.wire import connection, frames, listener, peers
from sluice.cluster.wire.connection import Connection
from sluice.cluster.wire.endpoint import Endpoint, SocketFolder, this_machine, this_network
from sluice.cluster.wire.frames import HEADER, MAGIC, REQUEST, VERSION
from sluice.cluster.wire.listener import Listener
from sluice.cluster.wire.payloads import SharedPayload
from sluice.cluster.wire.peers import Peers
from sluice.storage.errors import Invalid, Unavailable
from tests.kit.asking import answer_in_task

KEY = b"a token of the cluster"
ASK = Packed(b"head", [], [])


class Echo:
    """Answers with what was asked. Can be told to wait, or to answer something else."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.asked: list[tuple[str, str]] = []
        self.finished = 0
        self.says: Answer | None = None

    def accept(self, actor: str, kind: str, message: Message, on_answer: OnAnswer) -> None:
        answer_in_task(self.answer, actor, kind, message, on_answer)

    async def answer(self, actor: str, kind: str, packed: Packed) -> Answer:
        self.asked.append((actor, kind))
        await self.go.wait()
        self.finished += 1
        shared = [SharedPayload.create(one) if isinstance(one, memoryview) else one for one in packed.handles]
        return self.says or Packed(packed.head, packed.attachments, shared)


class Machine:
    """A process that listens, and one that calls it."""

    def __init__(self, folder: Path) -> None:
        self.echo = Echo()
        self.folder = str(folder)
        self.endpoints: dict[str, Endpoint] = {}
        self.found = 0
        self.listeners: dict[str, Listener] = {}
        self.peers = Peers(self.find, lambda _: KEY)

    async def find(self, host: str) -> Endpoint | Unknown:
        self.found += 1
        return self.endpoints.get(host) or Unknown(f"no process {host}", gone=True)

    def listen(self, name: str, *, key: bytes = KEY, here: bool = True, strangers: int = 64) -> Endpoint:
        sockets = SocketFolder(self.folder)
        inet = socket.create_server(("127.0.0.1", 0))
        opened = self.listeners[name] = Listener(name, key, self.echo, strangers=strangers)
        opened.listen(sockets.listen())
        opened.listen(inet)
        machine = this_machine() if here else "another"
        port = inet.getsockname()[1]
        end = self.endpoints[name] = Endpoint(name, machine, this_network(), sockets.path, "127.0.0.1", port)
        return end

    async def ask(self, host: str = "a", packed: Packed = ASK, timeout_s: float = 5.0, kind: str = "Ping") -> Answer:
        return await self.peers.call(host, f"actor {kind}".encode(), packed, timeout_s)

    def close(self) -> None:
        self.peers.close()
        for one in self.listeners.values():
            one.close()


@pytest_asyncio.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()
    await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Wait for what must come true."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("here", [True, False])
async def test_a_request_is_answered(machine: Machine, here: bool) -> None:
    """Over the socket of the machine and over the network; large columns arrive whole and can be read in place."""
    machine.listen("a", here=here)
    columns = np.arange(300_000, dtype=np.int64)
    answer = await machine.ask(packed=Packed(b"x", [columns.view(np.uint8), b"small"], []))
    assert isinstance(answer, Packed)
    assert answer.head == b"x"
    assert np.array_equal(np.frombuffer(answer.attachments[0], np.int64), columns)
    assert bytes(answer.attachments[1]) == b"small"
    assert machine.echo.asked == [("actor", "Ping")]


@pytest.mark.parametrize("here", [True, False])
async def test_shared_payloads_go_there_and_back(machine: Machine, here: bool) -> None:
    """Many at a time, also when the other side does not read at once: each frame has its own."""
    machine.listen("a", here=here)
    made = [bytes([number]) * 70_000 for number in range(40)]
    shared = [SharedPayload.create(data) for data in made]
    filler = bytes(1 << 20)
    asked = [machine.ask(packed=Packed(b"x", [filler], [one, shared[0]])) for one in shared]
    for data, answer in zip(made, await asyncio.gather(*asked), strict=True):
        assert isinstance(answer, Packed)
        mine, first = (one.view() if isinstance(one, SharedPayload) else one for one in answer.handles)
        assert (mine, first) == (data, made[0])
        assert isinstance(answer.handles[0], SharedPayload) is here
    assert len(machine.echo.asked) == len(made)


async def test_a_process_is_looked_up_once(machine: Machine) -> None:
    machine.listen("a")
    await asyncio.gather(*(machine.ask() for _ in range(50)))
    await machine.ask()
    assert machine.found == 1
    assert machine.listeners["a"].connections == (1, 0)


async def test_refusals_and_no_answers_keep_their_meaning(machine: Machine) -> None:
    machine.listen("a")
    for answer in (("Fenced", "by epoch 7"), Unknown("it ended", gone=True), Unknown("it is slow")):
        machine.echo.says = answer
        assert await machine.ask() == answer


async def test_a_caller_that_gives_up_ends_nobodys_work(machine: Machine) -> None:
    machine.listen("a")
    machine.echo.go.clear()
    with pytest.raises(TimeoutError):
        await machine.ask(timeout_s=0.05)
    assert machine.echo.asked
    machine.echo.go.set()
    await until(lambda: machine.echo.finished == 1)
    assert await machine.ask() == ASK


async def test_a_waiting_caller_learns_that_the_process_has_ended(machine: Machine) -> None:
    """At once, from the machine itself: nobody listens there any more."""
    machine.listen("a")
    machine.echo.go.clear()
    waiting = asyncio.create_task(machine.ask(timeout_s=60))
    await until(lambda: machine.echo.asked)
    machine.listeners["a"].close()
    answer = await waiting
    assert isinstance(answer, Unknown)
    assert answer.gone


@pytest.mark.parametrize("here", [True, False])
async def test_a_lost_connection_says_nothing_about_the_process(machine: Machine, here: bool) -> None:
    """The process still listens, so it has not ended: what was asked may have happened or may yet."""
    machine.listen("a", here=here)
    machine.echo.go.clear()
    waiting = asyncio.create_task(machine.ask(timeout_s=60))
    await until(lambda: machine.echo.asked)
    for incoming in list(machine.listeners["a"]._known):
        incoming.close()
    answer = await waiting
    assert isinstance(answer, Unknown)
    assert not answer.gone
    machine.echo.go.set()
    assert await machine.ask() == ASK


async def test_another_process_on_its_port_is_not_taken_for_it(machine: Machine) -> None:
    machine.endpoints["a"] = machine.listen("b", here=False)
    machine.endpoints["a"] = msgspec.structs.replace(machine.endpoints["a"], name="a")
    answer = await machine.ask("a")
    assert isinstance(answer, Unknown)
    assert answer.gone
    assert machine.echo.asked == []


async def answered(machine: Machine) -> None:
    """Ask until the right one answers."""
    answers: list[Answer] = []
    async with asyncio.timeout(10):
        while not answers or answers[-1] != ASK:
            answers.append(await machine.ask())
            await asyncio.sleep(0.001)


async def test_a_name_with_a_new_process_is_looked_up_again(machine: Machine) -> None:
    """As the controller's, which Ray starts again under its old name."""
    machine.listen("a")
    assert await machine.ask() == ASK
    machine.listeners["a"].close()
    machine.listen("a")
    await answered(machine)
    assert machine.found == 2


def loses(machine: Machine, name: str) -> bool:
    """Whether the caller has noticed the end of a connection."""
    return machine.peers._peers[name].connection is None


async def test_processes_that_have_ended_are_forgotten(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one that takes the place of another has a new name, for as long as the cluster runs."""
    monkeypatch.setattr(peers, "MOST_PEERS", 8)
    machine.listen("lives")
    assert await machine.ask("lives") == ASK
    for number in range(30):
        machine.listen(f"{number}")
        assert await machine.ask(f"{number}") == ASK
        machine.listeners[f"{number}"].close()
        await until(partial(loses, machine, f"{number}"))
    assert len(machine.peers._peers) <= 8
    assert await machine.ask("lives") == ASK
    assert machine.found == 31


async def test_a_place_that_is_silent_is_not_the_last_word(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that died, or a frozen process: nothing is known of it, and the next attempt asks where it is now."""
    monkeypatch.setattr(connection, "GREETING_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        end = Endpoint("a", "another", this_network(), "", "127.0.0.1", silent.getsockname()[1])
        machine.endpoints["a"] = end
        answer = await machine.ask()
        assert isinstance(answer, Unknown)
        assert not answer.gone
        monkeypatch.undo()
        machine.listen("a")
        await answered(machine)


async def test_a_process_that_is_not_there_is_not_hammered(machine: Machine) -> None:
    async with asyncio.timeout(10):
        while machine.found < 3:
            answer = await machine.ask()
            assert isinstance(answer, Unknown)
            assert answer.gone
            await asyncio.sleep(0.001)
    begun = asyncio.get_running_loop().time()
    found = machine.found
    for _ in range(1000):
        await machine.ask()
    spent = asyncio.get_running_loop().time() - begun
    assert machine.found <= found + 1 + spent / 0.04


async def test_the_loopback_of_another_machine_is_not_looked_for_here(machine: Machine) -> None:
    """At that address nobody listens here, or another process does. Neither says that the process has ended."""
    end = machine.listen("a", here=False)
    machine.endpoints["a"] = msgspec.structs.replace(end, network="another")
    with pytest.raises(Invalid, match="its own machine only; for a cluster of several machines set bind_address"):
        await machine.ask()


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open nothing more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0), limits[1]))  # the lowest number that was free
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_a_caller_without_descriptors_blames_nobody(machine: Machine) -> None:
    """The caller could not see that the process is on its own machine, and called the address wrong."""
    machine.listen("a")
    with no_more_files():
        answer = await machine.ask()
        assert isinstance(answer, Unknown)
        assert not answer.gone
    await answered(machine)


async def test_a_caller_with_another_token_is_refused_in_one_line(machine: Machine) -> None:
    machine.listen("a", key=b"another")
    with pytest.raises(Invalid, match="the caller does not have this cluster's token"):
        await machine.ask()
    assert machine.echo.asked == []
    await until(lambda: machine.listeners["a"].connections == (0, 0))


async def stranger(end: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(end.path)


async def test_another_version_is_refused_in_clear_words(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    end = machine.listen("a")
    reader, writer = await stranger(end)
    writer.write(HEADER.pack(MAGIC, VERSION + 1, REQUEST, 0, 0, 0, 0, 0, 0))
    said = await reader.read()
    assert f"speaks version {VERSION + 1} of the wire protocol, this one {VERSION}".encode() in said
    writer.close()


async def test_a_stranger_asks_nothing_and_does_not_stay(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests, noise and silence alike; and a large frame is not even waited for."""
    monkeypatch.setattr(listener, "GREETING_S", 0.2)
    end = machine.listen("a")
    request = b"".join(frames.encode(REQUEST, 1, b"actor Ping", b"head"))
    large = HEADER.pack(MAGIC, VERSION, REQUEST, 0, 1, 0, 0, 0, 1 << 30)
    for said in (request, large, os.urandom(4000), b""):
        reader, writer = await stranger(end)
        writer.write(said)
        async with asyncio.timeout(10):
            await reader.read()
        writer.close()
    assert machine.echo.asked == []
    assert await machine.ask() == ASK


async def test_a_crowd_of_strangers_keeps_nobody_out(machine: Machine) -> None:
    end = machine.listen("a", strangers=8)
    crowd = [await stranger(end) for _ in range(40)]
    assert await machine.ask() == ASK
    await until(lambda: machine.listeners["a"].connections[1] <= 8)
    for _, writer in crowd:
        writer.close()


async def test_only_this_user_can_reach_the_socket(machine: Machine) -> None:
    end = machine.listen("a")
    assert stat.S_IMODE(os.stat(end.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(end.path)).st_mode) == 0o700


async def test_columns_changed_after_the_send_arrive_unchanged(machine: Machine) -> None:
    """Also the part that the other side had no room for yet."""
    machine.listen("a")
    columns = np.zeros(4 << 20, np.uint8)
    asking = [asyncio.create_task(machine.ask(packed=Packed(b"x", [columns], []))) for _ in range(3)]
    await until(lambda: machine.echo.asked)
    columns[:] = 1
    for one in await asyncio.gather(*asking):
        assert isinstance(one, Packed)
        came = np.frombuffer(one.attachments[0], np.uint8)
        assert came.min() == came.max()


async def test_a_caller_is_held_back_by_bytes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the other side answers too much, nothing more is read from it; nothing is lost by it."""
    monkeypatch.setattr(listener, "MAX_ANSWERING", 1 << 20)
    machine.listen("a")
    machine.echo.go.clear()
    payload = Packed(b"x", [bytes(1 << 20)], [])
    asking = [asyncio.create_task(machine.ask(packed=payload, timeout_s=60)) for _ in range(100)]
    await until(lambda: machine.echo.asked)
    opened = machine.peers._peers["a"].connection
    assert isinstance(opened, Connection)
    await until(lambda: opened.full)
    for _ in range(100):
        await asyncio.sleep(0)  # it would be read meanwhile
    assert opened.full
    assert len(machine.echo.asked) < 10
    machine.echo.go.set()
    answers: list[Answer] = await asyncio.gather(*asking)
    assert all(isinstance(answer, Packed) for answer in answers)


async def test_a_process_that_was_parted_from_is_asked_for_again(machine: Machine) -> None:
    machine.listen("a")
    machine.peers.part("a")
    await machine.ask()
    machine.echo.go.clear()
    waiting = asyncio.create_task(machine.ask())
    await until(lambda: len(machine.echo.asked) == 2)
    del machine.endpoints["a"]
    machine.peers.part("a")
    given_up = await waiting
    assert isinstance(given_up, Unknown)
    assert not given_up.gone
    gone = await machine.ask()
    assert isinstance(gone, Unknown)
    assert gone.gone
    assert machine.found == 2


async def beside(machine: Machine, packed: Packed) -> tuple[Answer | Exception, Answer]:
    """A request, and one that another makes over the same connection and that is answered behind it."""
    machine.echo.go.clear()
    other = asyncio.create_task(machine.ask())
    await until(lambda: machine.echo.asked)
    first: Answer | Exception
    try:
        asked = asyncio.create_task(machine.ask(packed=packed))
        await asyncio.wait([asked], timeout=0)
        machine.echo.go.set()
        first = await asked
    except Invalid as error:
        first = error
    return first, await other


@pytest.mark.parametrize("here", [True, False])
async def test_too_large_a_request_is_refused_where_it_is_made(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    """The sender alone gets an error; the connection stays, and with it the requests of others."""
    machine.listen("a", here=here)
    monkeypatch.setattr(frames, "MAX_FRAME", 1 << 20)
    first, other = await beside(machine, Packed(b"x", [bytes(1 << 20)], []))
    assert isinstance(first, Invalid)
    assert "1048576" in str(first)
    assert isinstance(other, Packed)
    assert machine.found == 1
    assert [kind for _, kind in machine.echo.asked] == ["Ping"]


async def test_too_large_an_answer_refuses_its_request_alone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.listen("a")
    await machine.ask()
    machine.echo.says = Packed(b"x", [bytes(1 << 20)], [])
    monkeypatch.setattr(frames, "MAX_FRAME", 1 << 20)
    answer = await machine.ask()
    assert isinstance(answer, tuple)
    assert answer[0] == "Invalid"
    assert "1048576" in answer[1]
    machine.echo.says = None
    assert isinstance(await machine.ask(), Packed)
    assert machine.found == 1


async def test_payloads_without_descriptors_count_in_full(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """More payloads than a frame has descriptors for travel as bytes, and are refused when they do not fit."""
    machine.listen("a")
    one = SharedPayload.create(bytes(70_000))
    monkeypatch.setattr(frames, "MAX_FRAME", 1 << 20)
    with pytest.raises(Invalid):
        await machine.ask(packed=Packed(b"x", [], [one] * (frames.MAX_DESCRIPTORS + 1)))
    assert isinstance(await machine.ask(packed=Packed(b"x", [], [one] * 3)), Packed)


async def test_an_answer_that_fails_gives_its_bytes_back(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong with the answers, the connection reads on, and each request has an answer."""
    monkeypatch.setattr(listener, "MAX_ANSWERING", 1 << 20)
    machine.listen("a")
    machine.echo.says = Packed(b"x", ["no bytes"], [])
    for _ in range(8):
        assert isinstance(await machine.ask(packed=Packed(b"x", [bytes(1 << 19)], [])), Unknown)
    machine.echo.says = None
    assert isinstance(await machine.ask(), Packed)


async def test_a_request_on_an_ended_connection_fails_at_once(machine: Machine) -> None:
    machine.listen("a")
    await machine.ask()
    opened = machine.peers.open_to("a")
    assert opened is not None
    opened.close()
    await asyncio.sleep(0.01)  # who waited for an answer on it has been told
    _, answer = opened.ask(b"actor Ping", ASK)
    assert isinstance(await asyncio.wait_for(answer, 5), Unknown)


async def test_callers_are_told_although_nobody_knows_where_it_is(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.listen("a")
    machine.echo.go.clear()
    asked = asyncio.ensure_future(machine.ask(timeout_s=60))
    await until(lambda: machine.echo.asked)

    async def refuse(host: str) -> Endpoint | Unknown:
        raise Unavailable(f"who knows where {host} is does not start")

    monkeypatch.setattr(machine.peers, "_find", refuse)
    machine.peers._peers["a"].endpoint = None
    machine.listeners["a"].close()
    lost = await asyncio.wait_for(asked, 10)
    assert isinstance(lost, Unknown)
    assert not lost.gone
    again = await machine.ask()
    assert isinstance(again, Unknown)
    assert "does not start" in again.reason

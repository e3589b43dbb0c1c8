"""Processes of several machines, which speak TLS: certificates are real, and made here."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import pytest_asyncio

from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import Packed
from sluice.actors.runtime.host import Answer, Message, OnAnswer
from sluice.cluster.wire import tls
from sluice.cluster.wire.endpoint import Endpoint, SocketFolder, this_machine, this_network
from sluice.cluster.wire.handshake import HandshakeRefused
from sluice.cluster.wire.listener import Listener
from sluice.cluster.wire.payloads import SharedPayload
from sluice.cluster.wire.peers import Peers
from sluice.cluster.wire.tls import Secured, TlsFiles, Trust, checked, files_of
from sluice.storage.errors import Invalid
from tests.kit.asking import answer_in_task
from tests.kit.certificates import Authority

KEY = b"a token of the cluster"
ASK = Packed(b"head", [], [])
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for the certificates of these tests."""
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    """The cluster's."""
    return Authority(folder)


@pytest.fixture(scope="module")
def files(authority: Authority) -> TlsFiles:
    """Return the files that every process of the cluster has."""
    return TlsFiles(authority.trust, *authority.issue("node"))


@pytest.fixture(scope="module")
def strange(folder: Path) -> TlsFiles:
    """Return the files of a process of another cluster."""
    other = Authority(folder, "stranger")
    return TlsFiles(other.trust, *other.issue("strangers-node"))


class Echo:
    """Answers with what was asked, and shares what was shared."""

    def __init__(self) -> None:
        self.asked = 0

    def accept(self, actor: str, kind: str, message: Message, on_answer: OnAnswer) -> None:
        answer_in_task(self.answer, actor, kind, message, on_answer)

    async def answer(self, actor: str, kind: str, packed: Packed) -> Answer:
        self.asked += 1
        shared = [SharedPayload.create(one) if isinstance(one, memoryview) else one for one in packed.handles]
        return Packed(packed.head, packed.attachments, shared)


class Machines:
    """A process on another machine, and those that call it."""

    def __init__(self, folder: Path) -> None:
        self.echo = Echo()
        self._folder = str(folder)
        self._open: list[Listener | Peers] = []

    def listen(self, files: TlsFiles | None, *, key: bytes = KEY, near: bool = False) -> Endpoint:
        """A process with these files."""
        sockets, inet = SocketFolder(self._folder), socket.create_server(("127.0.0.1", 0))
        opened = Listener("a", key, self.echo, trust=None if files is None else Trust(files))
        self._open.append(opened)
        opened.listen(sockets.listen())
        opened.listen(inet)
        port = inet.getsockname()[1]
        machine = this_machine() if near else "another"
        return Endpoint("a", machine, this_network(), sockets.path, "127.0.0.1", port, "", files or ())

    async def ask(self, end: Endpoint, files: TlsFiles | None, packed: Packed = ASK) -> Answer:
        """One call of it by a process with these files."""

        async def find(_: str) -> Endpoint | Unknown:
            return end

        peers = Peers(find, lambda _: KEY, None if files is None else Trust(files))
        self._open.append(peers)
        return await peers.call("a", b"actor Ping", packed, PATIENCE_S)

    def close(self) -> None:
        """End all of it."""
        for one in self._open:
            one.close()


@pytest_asyncio.fixture
async def machines(tmp_path: Path) -> AsyncIterator[Machines]:
    made = Machines(tmp_path)
    yield made
    made.close()
    await asyncio.sleep(0)


async def test_large_columns_and_payloads_arrive_whole(machines: Machines, files: TlsFiles) -> None:
    """More than any buffer holds. Nothing is passed as a descriptor: what is shared travels with the rest."""
    end = machines.listen(files)
    columns = np.arange(3_000_000, dtype=np.int64)
    shared = [SharedPayload.create(bytes([number % 256]) * 70_000) for number in range(300)]
    answer = await machines.ask(end, files, Packed(b"x", [columns.view(np.uint8), b"small"], shared))
    assert isinstance(answer, Packed)
    assert np.array_equal(np.frombuffer(answer.attachments[0], np.int64), columns)
    assert bytes(answer.attachments[1]) == b"small"
    assert [bytes(one) for one in answer.handles] == [bytes([number % 256]) * 70_000 for number in range(300)]


async def test_many_calls_share_a_connection(machines: Machines, files: TlsFiles) -> None:
    end = machines.listen(files)

    async def find(_: str) -> Endpoint | Unknown:
        return end

    peers = Peers(find, lambda _: KEY, Trust(files))
    sizes = random.Random(7).choices(range(200_000), k=200)
    asked = [peers.call("a", b"actor Ping", Packed(b"x", [bytes(size)], []), PATIENCE_S) for size in sizes]
    answers = await asyncio.gather(*asked)
    peers.close()
    assert [len(one.attachments[0]) for one in answers if isinstance(one, Packed)] == sizes


async def test_a_caller_without_files_takes_those_of_the_process(machines: Machines, files: TlsFiles) -> None:
    """As a client on a machine of the cluster does: there they lie at the same paths."""
    assert await machines.ask(machines.listen(files), None) == ASK


async def test_nothing_can_be_read_on_the_way(machines: Machines, files: TlsFiles) -> None:
    seen = bytearray()
    end = machines.listen(files)
    async with _relay(end.port, seen) as port:
        secret = Packed(b"head", [b"a word that nobody may read"], [])
        assert isinstance(await machines.ask(msgspec.structs.replace(end, port=port), files, secret), Packed)
    assert len(seen) > 1000
    assert b"nobody may read" not in seen
    assert b"SLCE" not in seen


async def test_on_one_machine_nothing_is_sealed(machines: Machines, files: TlsFiles) -> None:
    """There descriptors are passed, which TLS could not."""
    payload = SharedPayload.create(bytes(70_000))
    answer = await machines.ask(machines.listen(files, near=True), files, Packed(b"x", [], [payload]))
    assert isinstance(answer, Packed)
    assert isinstance(answer.handles[0], SharedPayload)


# -- who is not let in -------------------------------------------------------------------------------------------------


async def test_a_plain_caller_is_told_what_is_spoken(machines: Machines, files: TlsFiles) -> None:
    end = msgspec.structs.replace(machines.listen(files), tls=())
    with pytest.raises(Invalid, match="TLS is spoken here; set tls_trust_certs_file"):
        await machines.ask(end, None)
    assert machines.echo.asked == 0


async def test_a_plain_process_is_not_spoken_to(machines: Machines, files: TlsFiles) -> None:
    with pytest.raises(Invalid, match="does not speak TLS; start it with the same tls_ settings"):
        await machines.ask(machines.listen(None), files)
    assert machines.echo.asked == 0


async def test_another_authority_is_not_trusted(machines: Machines, files: TlsFiles, strange: TlsFiles) -> None:
    """Neither side lets the other in, whichever notices first."""
    with pytest.raises(Invalid, match="certificate is not accepted"):
        await machines.ask(machines.listen(strange), files)
    trusting = TlsFiles(files.trust_certs, *strange[1:])
    mixed = _unchecked(trusting)
    with pytest.raises(Invalid, match="does not trust the authority"):
        await _greet(machines.listen(files), mixed)
    assert machines.echo.asked == 0


async def test_a_certificate_that_is_over_is_refused(machines: Machines, files: TlsFiles, authority: Authority) -> None:
    over = TlsFiles(files.trust_certs, *authority.issue("over-while-it-ran", days=-1))
    with pytest.raises(Invalid, match="has expired"):
        await _greet(machines.listen(files), _unchecked(over))
    assert machines.echo.asked == 0


async def test_a_certificate_alone_is_not_enough(machines: Machines, files: TlsFiles) -> None:
    with pytest.raises(Invalid, match="does not have this cluster's token"):
        await machines.ask(machines.listen(files, key=b"another token"), files)
    assert machines.echo.asked == 0


async def test_a_relay_in_the_middle_cannot_pass_proofs_on(machines: Machines, files: TlsFiles) -> None:
    """Not even with a certificate of the cluster: the proof of the token covers the connection."""
    end = machines.listen(files)
    calling, listening = checked(files)
    async with _relay(end.port, bytearray(), calling, listening) as port:
        with pytest.raises(Invalid, match="does not have this cluster's token"):
            await machines.ask(msgspec.structs.replace(end, port=port), files)
    assert machines.echo.asked == 0


@pytest.mark.parametrize("seed", range(3))
async def test_first_bytes_of_any_sort_hurt_nobody(machines: Machines, files: TlsFiles, seed: int) -> None:
    """Noise, and a true beginning that is damaged at some place: it ends, and others are served as before."""
    rng = random.Random(seed)
    end = machines.listen(files)
    true = Secured(checked(files)[0], server_side=False).sealed()
    begun = [rng.randbytes(rng.randrange(1, 2000)) for _ in range(20)]
    begun += [b"\x16" + rng.randbytes(rng.randrange(600)) for _ in range(20)]
    for _ in range(40):
        damaged = bytearray(true)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        begun.append(bytes(damaged[: rng.randrange(1, len(damaged) + 1)]))
    for data in begun:
        reader, writer = await asyncio.open_connection("127.0.0.1", end.port)
        writer.write(data)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                await reader.read()
        writer.close()
    assert await machines.ask(end, files) == ASK
    assert machines.echo.asked == 1


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_defect_of_the_files_is_named_in_one_line(
    authority: Authority, files: TlsFiles, strange: TlsFiles, tmp_path: Path
) -> None:
    second = authority.issue("second")
    late = authority.issue("late", days=-1)
    noise = tmp_path / "noise.pem"
    noise.write_text("nothing")
    noise.chmod(0o600)
    open_to_all = authority.issue("open")
    Path(open_to_all.key).chmod(0o644)
    written_by_all = Path(shutil.copy(files.trust_certs, noise.with_name("written-by-all.pem")))
    written_by_all.chmod(0o622)
    wrong = [
        (files._replace(trust_certs=str(tmp_path / "none")), "tls_trust_certs_file .* cannot be read: No such file"),
        (files._replace(key=str(tmp_path / "none")), "tls_key_file .* cannot be read: No such file"),
        (files._replace(trust_certs=str(noise)), "tls_trust_certs_file .* holds no certificate"),
        (files._replace(certificate=str(noise)), "are not a pair in PEM"),
        (files._replace(key=second.key), "is not the key of tls_certificate_file"),
        (TlsFiles(files.trust_certs, *open_to_all), "readable by others; chmod 600 it"),
        (TlsFiles(str(written_by_all), files.certificate, files.key), "others may write to tls_trust_certs_file"),
        (TlsFiles(files.trust_certs, *late), "certificate has expired"),
        (TlsFiles(files.trust_certs, *strange[1:]), "certificate is not accepted"),
    ]
    for one, said in wrong:
        with pytest.raises(Invalid, match=said) as caught:
            checked(one)
        assert "\n" not in str(caught.value)


def test_three_files_or_none() -> None:
    assert files_of({"tls_key_file": ""}) is None
    with pytest.raises(Invalid, match="tls_trust_certs_file and tls_key_file is not set"):
        files_of({"tls_certificate_file": "x"})


def test_files_that_are_replaced_are_read_again(authority: Authority) -> None:
    """A half of the new ones, or one that is no good, changes nothing yet."""
    pair = authority.issue("renewed")
    files = TlsFiles(authority.trust, *pair)
    trust = Trust(files)
    first = trust.secured(server_side=True)
    Path(pair.key).write_text("half of a key")
    assert trust.secured(server_side=True)._tls.context is first._tls.context
    authority.issue("renewed")
    assert trust.secured(server_side=True)._tls.context is not first._tls.context


# -- what stands between ----------------------------------------------------------------------------------------------


class _Unchecked(Trust):
    """One whose own certificate nobody has looked at, as that of another program."""

    def __init__(self, files: TlsFiles) -> None:
        self.files, self._stamps = files, tls._stamps(files)
        context = tls._context(ssl.PROTOCOL_TLS_CLIENT, files)
        self._contexts = (context, context)


def _unchecked(files: TlsFiles) -> Trust:
    return _Unchecked(files)


async def _greet(end: Endpoint, trust: Trust) -> None:
    async def find(_: str) -> Endpoint | Unknown:
        return end

    peers = Peers(find, lambda _: KEY, trust)
    try:
        await peers.call("a", b"actor Ping", ASK, PATIENCE_S)
    finally:
        peers.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            seen += data
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def _relay(
    port: int, seen: bytearray, calling: ssl.SSLContext | None = None, listening: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """A port that passes on what comes, and keeps it. Its connections end with it: since 3.12.1 a server waits for
    them.

    calling, listening: TLS towards the real port, and towards the callers.
    """
    opened: list[asyncio.StreamWriter] = []

    async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        name = None if calling is None else ""
        there, back = await asyncio.open_connection("127.0.0.1", port, ssl=calling, server_hostname=name)
        opened.append(back)
        await asyncio.gather(_pump(reader, back, seen), _pump(there, writer, seen))

    async with await asyncio.start_server(between, "127.0.0.1", 0, ssl=listening) as server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            for writer in opened:
                writer.close()


def test_a_connection_that_was_refused_stays_refused(files: TlsFiles, strange: TlsFiles) -> None:
    """Nothing is read from it in clear."""
    caller = Secured(checked(files)[0], server_side=False)
    listener = Secured(checked(strange)[1], server_side=True)
    listener.receive_data(caller.sealed([b"early words"]))
    with pytest.raises(HandshakeRefused):
        caller.receive_data(listener.sealed())
    assert caller.binding == b""
    assert listener.read(memoryview(bytearray(10))) == 0

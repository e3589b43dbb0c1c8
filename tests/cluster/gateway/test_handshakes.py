"""The beginning of connections with TLS: whose session can be taken up again, and how many may begin at a time."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import cast

import pytest

from sluice.cluster.base.loop import new_loop
from sluice.cluster.gateway.handshakes import Handshakes
from sluice.cluster.gateway.tls import context_of
from tests.cluster.helpers import admin_ports
from tests.kit.certificates import Authority


class Greeting(asyncio.Protocol):
    """Says who has come, and ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.WriteTransport, transport).write(b"in")
        transport.close()


class Door:
    """A port of the loopback with TLS, and a client whom the first authority has signed."""

    def __init__(self, folder: Path) -> None:
        self.first, self.second = (Authority(folder, name) for name in ("first", "second"))
        self.pair, self.client = self.first.issue("broker"), self.first.issue("till")
        self.context = self.trusting(self.first)
        self.sock = socket.create_server(("127.0.0.1", 0))

    def trusting(self, authority: Authority) -> ssl.SSLContext | None:
        """Return the TLS context for handshakes while this authority is trusted."""
        names = {"certificate_file": self.pair.certificate, "key_file": self.pair.key}
        trust = {"pulsar_tls_trust_certs_file": authority.trust}
        return context_of({f"pulsar_tls_{name}": path for name, path in names.items()} | trust)

    def listening(self, most: int) -> Handshakes:
        """Listen with room for `most` handshakes at a time."""
        handshakes = Handshakes(admin_ports(), lambda: self.context, most, most)
        handshakes.listen(self.sock, Greeting)
        return handshakes

    def greeted(self, by: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLSession | None:
        """The session of a client that was let in; None if it was not."""
        try:
            with (
                socket.create_connection(self.sock.getsockname(), timeout=60) as plain,
                by.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as sealed,
            ):
                return sealed.session if sealed.recv(2) == b"in" else None
        except (ssl.SSLError, ConnectionError):
            return None


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("make", [asyncio.new_event_loop, new_loop], ids=["asyncio", "ours"])
def test_client_that_lost_trust_resumes_no_session(tmp_path: Path, make: type, version: ssl.TLSVersion) -> None:
    """A session that is taken up shows no certificate: that of its beginning would count for hours."""
    door = Door(tmp_path)
    by = ssl.create_default_context(cafile=door.first.trust)
    by.load_cert_chain(*door.client)
    by.maximum_version = version

    async def scenario() -> None:
        handshakes = door.listening(10)
        session = await asyncio.to_thread(door.greeted, by)
        assert session is not None
        assert await asyncio.to_thread(door.greeted, by, session)
        door.context = door.trusting(door.second)
        assert await asyncio.to_thread(door.greeted, by, session) is None
        handshakes.close()

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(scenario())


@pytest.mark.parametrize("make", [asyncio.new_event_loop, new_loop], ids=["asyncio", "ours"])
def test_silent_connection_makes_room_for_others(tmp_path: Path, make: type) -> None:
    door = Door(tmp_path)
    by = ssl.create_default_context(cafile=door.first.trust)
    by.load_cert_chain(*door.client)

    async def scenario() -> None:
        handshakes = door.listening(3)
        silent = [await asyncio.open_connection(*door.sock.getsockname()) for _ in range(5)]
        for reader, _ in silent[:2]:
            assert await reader.read() == b"", "it was closed long before a handshake is late"
        assert len(handshakes) == 3
        assert await asyncio.to_thread(door.greeted, by)
        handshakes.close()
        for reader, writer in silent:
            assert await reader.read() == b""
            writer.close()

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(scenario())

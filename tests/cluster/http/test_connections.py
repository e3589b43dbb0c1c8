"""Bytes that a client sends before its connection is taken over are not lost, on either event loop."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web

from sluice.cluster.base.loop import new_loop
from sluice.cluster.http.connections import HeadAlone
from sluice.cluster.http.guard import ASKER, answered
from sluice.cluster.http.server import MOST_CONNECTIONS, HttpServer
from tests.cluster.helpers import admin_ports


class Nobody:
    """No request goes anywhere."""

    async def call(self, to: str, request: Any, timeout: int) -> Any:
        """Never called."""
        raise AssertionError(request)


@web.middleware
async def everybody(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
    """Let every client in."""
    return await handler(request)


async def answer_to_the_impatient(request: bytes) -> bytes:
    """The whole answer to a request that lies in the socket before its connection is accepted."""

    async def told(request: web.Request) -> web.Response:
        return web.Response(text="told")

    server = HttpServer(admin_ports(Nobody()), [web.get("/ask", told)], everybody)
    port = await server.listen(0)
    try:
        with socket.create_connection(("127.0.0.1", port)) as client:  # the kernel accepts it, nobody else does yet
            client.sendall(request)
            client.setblocking(False)
            answer = b""
            while part := await asyncio.get_running_loop().sock_recv(client, 4096):
                answer += part
            return answer
    finally:
        await server.close()


@pytest.mark.parametrize("make", [asyncio.new_event_loop, new_loop], ids=["asyncio", "ours"])
def test_a_request_that_comes_with_the_connection_is_answered(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=make) as runner:
        answer = runner.run(answer_to_the_impatient(b"GET /ask HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"))
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"told")


def seen_lost(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return what is set when a server has seen that a client has left."""
    lost, told = asyncio.Event(), HeadAlone.connection_lost

    def connection_lost(connection: HeadAlone, error: Exception | None) -> None:
        told(connection, error)
        lost.set()

    monkeypatch.setattr(HeadAlone, "connection_lost", connection_lost)
    return lost


async def left_during(method: str, where: str, lost: asyncio.Event) -> list[str]:
    """Return what becomes of a request whose client leaves while the guard, or the handler, waits for something.

    lost: set when the server has seen that.
    """
    went: list[str] = []
    waits, goes_on, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait(here: str) -> None:
        if here != where:
            return
        waits.set()
        try:
            await goes_on.wait()
            went.append(f"{here} done")
        except asyncio.CancelledError:
            went.append(f"{here} cancelled")
            raise
        finally:
            over.set()

    @web.middleware
    async def guard(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
        await wait("guard")
        return await handler(request)

    async def handle(request: web.Request) -> web.Response:
        await wait("handler")
        return web.Response(text="done")

    server = HttpServer(admin_ports(Nobody()), [web.route("*", "/ask", handle)], guard)
    port = await server.listen(0)
    try:
        _, client = await asyncio.open_connection("127.0.0.1", port)
        client.write(f"{method} /ask HTTP/1.1\r\nhost: h\r\n\r\n".encode())
        await waits.wait()
        client.close()
        await lost.wait()
        goes_on.set()
        await over.wait()
        return went
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("method", "where", "becomes"),
    [
        ("PUT", "guard", "guard cancelled"),
        ("PUT", "handler", "handler done"),
        ("GET", "handler", "handler cancelled"),
        ("HEAD", "handler", "handler cancelled"),
    ],
)
async def test_a_change_outlives_its_client_and_a_question_does_not(
    method: str, where: str, becomes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = seen_lost(monkeypatch)
    assert await left_during(method, where, lost) == [becomes]


@pytest.mark.parametrize(
    "line", [b"authorization: Bearer hidden\x01", b"authorization : Bearer hidden", b"x: y\r\n" * 999]
)
async def test_input_that_is_no_http_is_not_logged(line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Strangers can fill no log with such input, and their credentials do not get into it."""
    server = HttpServer(admin_ports(Nobody()), [], everybody)
    port = await server.listen(0)
    reader, client = await asyncio.open_connection("127.0.0.1", port)
    client.write(b"GET /ask HTTP/1.1\r\nhost: h\r\n" + line.rstrip() + b"\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"400"
    client.close()
    await server.close()
    assert caplog.text == ""


async def test_a_silent_connection_makes_room_for_a_request() -> None:
    """Else a stranger that sends nothing, or half a request, would keep every tool out."""
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def told(request: web.Request) -> web.Response:
        begun.set()
        await goes_on.wait()
        return web.Response(text="told")

    server = HttpServer(admin_ports(Nobody()), [web.get("/ask", told)], everybody, most=2)
    port = await server.listen(0)
    ask = b"GET /ask HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"
    asking = [await asyncio.open_connection("127.0.0.1", port)]
    asking[0][1].write(ask)
    await begun.wait()
    silent, other = await asyncio.open_connection("127.0.0.1", port)
    other.write(ask[:20])
    asking.append(await asyncio.open_connection("127.0.0.1", port))
    ended = asyncio.ensure_future(silent.read())
    answers = [asyncio.ensure_future(reader.read()) for reader, _ in asking]
    await asyncio.wait([ended, *answers], return_when=asyncio.FIRST_COMPLETED)
    assert ended.done(), "those who wait for an answer stay, though one of them is older"
    begun.clear()
    asking[1][1].write(ask)
    await begun.wait()
    late, last = await asyncio.open_connection("127.0.0.1", port)
    assert await late.read() == b"", "nobody is idle"
    goes_on.set()
    for answer in answers:
        assert (await answer).endswith(b"told")
    for writer in (other, last, *(each for _, each in asking)):
        writer.close()
    await server.close()


async def test_all_who_connect_during_one_turn_are_heard() -> None:
    """The system dropped the first packet of those beyond 100, and they tried again after a second or three."""
    server = HttpServer(admin_ports(Nobody()), [], everybody)
    port = await server.listen(0)
    waiting = select.poll()
    async with AsyncExitStack() as open_ones:
        open_ones.push_async_callback(server.close)
        for _ in range(MOST_CONNECTIONS + 1):  # nothing is accepted, for this turn does not end
            connection = open_ones.enter_context(socket.socket())
            connection.setblocking(False)
            assert connection.connect_ex(("127.0.0.1", port)) in (0, errno.EINPROGRESS)
            waiting.register(connection, select.POLLOUT)
        assert len(waiting.poll(0)) == MOST_CONNECTIONS + 1


async def test_a_change_counts_to_its_end_though_its_client_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a role could have any number of them under way."""
    begun, goes_on, lost = asyncio.Event(), asyncio.Event(), seen_lost(monkeypatch)

    @web.middleware
    async def guard(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
        request[ASKER] = "till"
        return await answered(request, handler)

    async def handle(request: web.Request) -> web.Response:
        begun.set()
        await goes_on.wait()
        return web.Response(text="done")

    async def asked(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PUT /ask HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        return reader, writer

    async def status(port: int) -> bytes:
        reader, writer = await asked(port)
        line = await reader.readline()
        writer.close()
        return line.split()[1]

    server = HttpServer(admin_ports(Nobody()), [web.put("/ask", handle)], guard, most=3)
    port = await server.listen(0)
    try:
        _, leaving = await asked(port)
        await begun.wait()
        leaving.close()
        await lost.wait()
        begun.clear()
        refused, another = asyncio.ensure_future(status(port)), asyncio.ensure_future(begun.wait())
        await asyncio.wait([refused, another], return_when=asyncio.FIRST_COMPLETED)
        assert not another.done()
        another.cancel()
        assert await refused == b"429"
        goes_on.set()
        while await status(port) != b"200":
            pass
    finally:
        goes_on.set()
        await server.close()

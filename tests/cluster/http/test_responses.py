"""Answers that nobody reads: what they take of a process, and of the others who ask."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from sluice.cluster.http import responses
from sluice.cluster.http.guard import ASKER, answered
from sluice.cluster.http.responses import (
    MADE_OF_ONE,
    STREAMS_OF_ONE,
    UNREAD_OF_ONE,
    Pieces,
    in_turns,
    large,
    responses_here,
)
from sluice.cluster.http.server import HttpServer
from sluice.storage.errors import NotFound
from tests.cluster.helpers import admin_ports
from tests.cluster.http.test_connections import Nobody

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
SIZE = 4 * 1024 * 1024


@web.middleware
async def roles(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
    """A guard that takes a header for the role; who has none is the operator."""
    if (role := request.headers.get("Role")) is not None:
        request[ASKER] = role
    return await answered(request, handler)


class Asked:
    """A server with a large answer, a streamed one, a stream of events, and a small answer."""

    def __init__(self, most: int = 200) -> None:
        self.made = 0
        self.begun, self.read_on = asyncio.Event(), asyncio.Event()
        routes = [
            web.get("/large", large(self._large)),
            web.get("/changing", large(self._changing)),
            web.get("/refused", large(self._refused)),
            web.get("/pieces", large(self._pieces)),
            web.get("/events", self._events),
            web.get("/waits", self._waits),
            web.get("/small", self._small),
        ]
        self.server = HttpServer(admin_ports(Nobody()), routes, roles, most=most)
        self.port = 0

    async def _large(self, request: web.Request) -> web.Response:
        self.made += 1
        self.begun.set()
        return web.Response(body=bytes(SIZE))

    async def _changing(self, request: web.Request) -> web.Response:
        self.made += 1
        made = self.made
        self.begun.set()
        await self.read_on.wait()
        return web.Response(body=bytes(int(request.query.get("bytes", 0))) + b"made %d" % made)

    async def _refused(self, request: web.Request) -> web.Response:
        await self._changing(request)
        raise NotFound("nothing is here")

    async def _pieces(self, request: web.Request) -> web.StreamResponse:
        async def pieces() -> Any:
            while True:
                self.made += 1
                self.begun.set()
                yield bytes(1 << 20)

        return Pieces(pieces(), "text/plain")

    async def _events(self, request: web.Request) -> web.StreamResponse:
        with responses_here().stream(request):
            return await self._waits(request)

    async def _waits(self, request: web.Request) -> web.StreamResponse:
        self.begun.set()
        await self.read_on.wait()
        return web.Response(text="done")

    async def _small(self, request: web.Request) -> web.Response:
        return web.Response(text="small")

    async def ask(self, path: str, role: str | None = None) -> Streams:
        """A connection on which this was asked, and nothing read; small buffers hide little."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=1024)
        said = "" if role is None else f"role: {role}\r\n"
        writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{said}connection: close\r\n\r\n".encode())
        await writer.drain()
        return reader, writer

    async def told(self, path: str, role: str | None = None) -> bytes:
        """The whole answer."""
        reader, writer = await self.ask(path, role)
        try:
            return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def serving(most: int = 200) -> AsyncIterator[Asked]:
    """A server, until the test is over."""
    asked = Asked(most)
    asked.port = await asked.server.listen(0)
    async with asyncio.timeout(60):
        yield asked
    asked.read_on.set()
    await asked.server.close()


async def until(true: Callable[[], bool]) -> None:
    """Give the others their turns until this is so."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_answers_nobody_reads_are_not_all_made() -> None:
    """All of them were made at once, and lay in memory."""
    async with serving() as asked:
        unread = [await asked.ask(f"/large?number={number}", "idle") for number in range(90)]
        await until(lambda: len(responses_here().patient) == len(unread))
        assert responses_here().unread_bytes <= UNREAD_OF_ONE + (MADE_OF_ONE - 1) * SIZE
        assert asked.made <= UNREAD_OF_ONE // SIZE + MADE_OF_ONE
        for role in ("busy", None):
            assert len(await asked.told("/large", role)) > SIZE, "who reads need not wait for another role"
        assert (await asked.told("/small", "idle")).endswith(b"small")
        for _, writer in unread:
            writer.transport.abort()
        await until(lambda: responses_here().unread_bytes == 0)


async def test_requests_that_wait_for_one_answer_share_it() -> None:
    """Each of them made it once more. One that came while it was made takes none that may be older than a change."""
    async with serving() as asked:
        first = asyncio.ensure_future(asked.told("/changing", "role-0"))
        await asked.begun.wait()
        waiting = [asyncio.ensure_future(asked.told("/changing", f"role-{number % 4}")) for number in range(90)]
        await until(lambda: len(responses_here().patient) == len(waiting))
        asked.read_on.set()
        assert (await first).endswith(b"made 1")
        assert {answer.rpartition(b"\r\n")[2] for answer in await asyncio.gather(*waiting)} == {b"made 2"}


async def test_a_shared_answer_counts_once_until_all_have_read_it() -> None:
    path, size = f"/changing?bytes={SIZE}", SIZE + len("made 1")
    async with serving() as asked:
        unread = [await asked.ask(path, "idle") for _ in range(90)]
        await until(lambda: len(responses_here().patient) == len(unread) - 1)
        asked.read_on.set()
        await until(lambda: responses_here().unread_bytes > size)
        assert (asked.made, responses_here().unread_bytes) == (2, 2 * size)
        *others, last = unread
        for _, writer in others:
            writer.transport.abort()
        await until(lambda: len(responses_here().patient) == 1)
        assert responses_here().unread_bytes == size, "one of them has not read it"
        last[1].transport.abort()
        await until(lambda: responses_here().unread_bytes == 0)


async def test_a_maker_that_leaves_lets_another_request_make_it() -> None:
    async with serving() as asked:
        _, maker = await asked.ask("/changing", "team")
        await asked.begun.wait()
        other = asyncio.ensure_future(asked.told("/changing", "team"))
        await until(lambda: len(responses_here().patient) == 1)
        asked.begun.clear()
        maker.transport.abort()
        await asked.begun.wait()
        asked.read_on.set()
        assert (await other).endswith(b"made 2")


async def test_refusal_of_one_request_refuses_all_that_wait() -> None:
    async with serving() as asked:
        waiting = [asyncio.ensure_future(asked.told("/refused", "team")) for _ in range(90)]
        await asked.begun.wait()
        await until(lambda: len(responses_here().patient) == len(waiting) - 1)
        asked.read_on.set()
        answers = await asyncio.gather(*waiting)
        assert {answer[:13] for answer in answers} == {b"HTTP/1.1 404 "}
        assert asked.made == 2


async def test_an_answer_nobody_reads_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads nothing would keep out the others of its role."""
    monkeypatch.setattr(responses, "HELD_S", 0.5)  # a client that reads takes a piece in this time on a busy machine
    async with serving() as asked:
        unread = [await asked.ask(f"/large?number={number}", "team") for number in range(5)]
        assert len(await asked.told("/large", "team")) > SIZE
        for _, writer in unread:
            writer.transport.abort()


async def test_no_room_for_long_is_answered_with_429(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "WAIT_S", 0.01)
    async with serving() as asked:
        unread = [await asked.ask(f"/large?number={number}", "team") for number in range(5)]
        await until(lambda: asked.made * SIZE >= UNREAD_OF_ONE)
        assert (await asked.told("/large", "team")).startswith(b"HTTP/1.1 429 ")
        for _, writer in unread:
            writer.transport.abort()


async def test_an_answer_in_pieces_is_made_as_it_is_read() -> None:
    """And no more of it where its client has left."""
    async with serving() as asked:
        reader, writer = await asked.ask("/pieces", "team")
        await asked.begun.wait()
        await until(lambda: bool(responses_here().patient))
        before = asked.made
        while asked.made < before + 20:
            await reader.readexactly(1 << 16)
        writer.transport.abort()
        await until(lambda: not responses_here().patient and not responses_here().unread_bytes)


@pytest.mark.parametrize(("path", "most"), [("/events", STREAMS_OF_ONE), ("/waits", 100)])
async def test_a_role_at_its_limit_keeps_no_other_role_out(path: str, most: int) -> None:
    """Streams of one role took all places, also that of who asks whether the cluster is well."""
    async with serving() as asked:
        first = [await asked.ask(path, "team") for _ in range(200)]
        ends = [asyncio.ensure_future(reader.readline()) for reader, _ in first]
        while sum(end.done() for end in ends) < len(first) - most:
            await asyncio.wait([end for end in ends if not end.done()], return_when=asyncio.FIRST_COMPLETED)
        refused = {end.result().partition(b" ")[2][:3] for end in ends if end.done()}
        assert refused == {b"429"}
        for role in ("other", None):
            assert (await asked.told("/small", role)).endswith(b"small")
        asked.read_on.set()
        await asyncio.wait(ends)
        for _, writer in first:
            writer.close()


async def test_unread_answers_give_their_places_to_new_clients() -> None:
    """All places are taken by several who read nothing; the oldest of them leaves."""
    async with serving(most=8) as asked:
        unread = [await asked.ask(f"/large?number={number}", f"role-{number % 4}") for number in range(8)]
        await until(lambda: len(responses_here().patient) == 8)
        assert (await asked.told("/small")).endswith(b"small")
        for _, writer in unread:
            writer.transport.abort()


async def test_others_have_turns_while_an_answer_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of 2,000 owners was made in one turn, for which everybody waited."""
    monkeypatch.setattr(responses, "TURN_S", 0.0)
    done: list[str] = []

    async def other() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            done.append("other")

    beside = asyncio.ensure_future(other())
    async for part in in_turns(["first", "second", "third"]):
        done.append(part)
    await beside
    assert done.index("other") < done.index("second")

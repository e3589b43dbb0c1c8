"""An HTTP server on this machine that limits the number of connections and how long they may be idle.

A connection that brings no request for so long is closed, whether or not one has come and however much of one: clients
that send half a request, or none, hold nothing for long.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from sluice.actors.ports import Ports
from sluice.cluster.base.descriptors import HTTP, at_most
from sluice.cluster.base.forks import keep_from_children
from sluice.cluster.http.connections import BACKLOG, HeadAlone, HttpDoor
from sluice.cluster.http.guard import ASKER, CARRIED, Handler
from sluice.cluster.http.responses import responses_here
from sluice.cluster.node.environment import LOOPBACK
from sluice.storage.errors import Invalid, Overloaded, Unavailable

CONNECTION_SECONDS = 30.0
MOST_CONNECTIONS = 200
MAX_BODY = 64 * 1024
MAX_NUMBER = 2**63 - 1
MAX_DEPTH = 100
"""Of JSON: what reads and writes it calls itself for each level."""
_logger = logging.getLogger("sluice.http")
_logger.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))
"""The log of what goes wrong here. Input that is no HTTP is its sender's affair, and the sender gets the reason. Its
lines, credentials among them, do not belong into a log, and strangers would fill that.
"""
_BODY_SECONDS = web.AppKey("body_seconds", float)
_COUNTED = web.RequestKey("counted", str)
"""Of a request that counts as one of its role: the role."""
_SHOWN = 40


class HttpServer:
    """Serves routes behind a guard (a middleware of aiohttp). When a client leaves, the guard's question ends with it,
    and so does a GET; any other request that was let in is carried out to its end.

    connection_seconds: how long a client may keep a connection without a request, or take to send a body, or to read a
    piece of an answer. A client that comes when `most` connections are there takes the place of the oldest connection
    on which nothing is being answered, so that clients that only connect keep no others out. If there is none, it takes
    the place of the oldest one whose client waits for its turn or does not read. If there is none of these either, it
    is sent away. A role may have half of `most` requests under way, so that it keeps neither another one out nor the
    operator.
    """

    def __init__(
        self,
        ports: Ports,
        routes: Iterable[web.AbstractRouteDef],
        guard: Any,
        *,
        connection_seconds: float = CONNECTION_SECONDS,
        most: int = MOST_CONNECTIONS,
    ) -> None:
        self._ports, self._seconds, self._most = ports, connection_seconds, at_most(most, HTTP)
        application = web.Application(middlewares=[self._noted, guard, self._carry_out], client_max_size=MAX_BODY)
        application[_BODY_SECONDS] = connection_seconds
        application.add_routes(routes)
        application.router.register_resource(_OneSlash(application.router))
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, logger=_logger)
        self._listening: asyncio.Server | None = None
        self._ready = asyncio.Lock()
        self._answering: list[Any] = []
        self._asking = Counter[str]()
        """How many requests of each role are under way."""
        self._asked: dict[Any, None] = {}
        """Connections on which a request came since they were last looked at."""
        self._carried: dict[asyncio.Future[web.StreamResponse], None] = {}

    async def listen(self, port: int) -> int:
        """Listen on the loopback; returns the port, which is any free one for 0. Raises Unavailable if it is in use."""
        try:
            listening = await asyncio.get_running_loop().create_server(self._door, LOOPBACK, port, backlog=BACKLOG)
        except OSError as error:
            raise Unavailable(f"port {port} is in use: {error.strerror}") from error
        for sock in listening.sockets:
            keep_from_children(sock.fileno())
        self._listening = listening
        return int(listening.sockets[0].getsockname()[1])

    def _door(self) -> asyncio.BaseProtocol:
        return HttpDoor(lambda accepted: self._ports.spawn(self.serve(accepted), "http"))

    async def serve(self, transport: asyncio.Transport, begun: bytes = b"") -> None:
        """Serve a connection that another listener accepted, which is paused, and on which these bytes came."""
        await self._begin()
        server = self._runner.server
        if server is None or transport.is_closing() or not self._has_room(server):
            transport.abort()
            return
        door = transport.get_protocol()
        if isinstance(door, HttpDoor):
            begun += door.came
        protocol: Any = server()
        alone = HeadAlone(protocol)
        transport.set_protocol(alone)
        protocol.connection_made(transport)
        if begun:
            alone.data_received(begun)
        transport.resume_reading()

    def _has_room(self, server: web.Server) -> bool:
        """Whether there is room for one more, or has been made."""
        present = [connection for connection in server.connections if connection.transport is not None]
        if len(present) < self._most:
            return True
        idle = [connection for connection in present if connection not in self._answering]
        patient = responses_here().patient
        waiting = [connection for connection in patient if connection in present]
        for connection in (*idle, *waiting)[:1]:
            _end(connection)
        return bool(idle or waiting)

    async def close(self) -> None:
        """Stop listening, and end every connection."""
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()
        for work in list(self._carried):
            work.cancel()

    async def _begin(self) -> None:
        async with self._ready:
            if self._runner.server is None:
                await self._runner.setup()
                self._ports.spawn(self._close_silent_connections(), "connections")

    async def _close_silent_connections(self) -> None:
        """aiohttp waits without limit for a first request, and for the rest of one."""
        known: list[Any] = []
        while (server := self._runner.server) is not None:
            await asyncio.sleep(self._seconds)
            present = server.connections
            for connection in present:
                asked = connection in self._asked or connection in self._answering
                if connection in known and not asked:
                    _end(connection)
            known, self._asked = present, {}

    @web.middleware
    async def _noted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Remember the connections on which something is asked, and being answered."""
        self._asked[request.protocol] = None
        self._answering.append(request.protocol)
        answers = responses_here()
        try:
            return await answers.write(request, await handler(request), self._seconds)
        finally:
            answers.release(request)
            self._answering.remove(request.protocol)
            if (who := request.get(_COUNTED)) is not None:
                self._one_less(who)

    def _one_less(self, who: str) -> None:
        self._asking[who] -= 1
        self._asking += Counter()  # without those that have none

    @web.middleware
    async def _carry_out(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if (who := request.get(ASKER)) is not None:
            if self._asking[who] >= max(self._most // 2, 1):
                raise Overloaded(f"{self._asking[who]} requests of this role are under way: wait for their answers")
            self._asking[who] += 1
            request[_COUNTED] = who
        if request.method in ("GET", "HEAD"):
            return await handler(request)
        work = request[CARRIED] = asyncio.ensure_future(handler(request))
        self._carried[work] = None
        work.add_done_callback(self._carried_out)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if who is not None and not work.done():  # it counts to its end, though its client has left
                del request[_COUNTED]
                work.add_done_callback(lambda _: self._one_less(who))
            raise

    def _carried_out(self, work: asyncio.Future[web.StreamResponse]) -> None:
        del self._carried[work]
        if not work.cancelled():
            work.exception()  # whoever asked has got it, or has left


def _end(connection: Any) -> None:
    """Close a connection; what its client has not read is dropped, else the process would keep it."""
    transport = connection.transport
    connection.force_close()
    if transport is not None:
        transport.abort()


class _OneSlash(web.PlainResource):
    """Slashes in a row mean one, as in Pulsar's web server, because scripts build such addresses."""

    def __init__(self, router: web.UrlDispatcher) -> None:
        super().__init__("/")
        self._router = router

    async def resolve(self, request: web.Request) -> Any:
        """The handler of the same path without such slashes."""
        asked = request.rel_url
        path = re.sub("/+", "/", asked.raw_path)
        if path == asked.raw_path:
            return None, set()
        meant = request.clone(rel_url=asked.with_path(path, encoded=True, keep_query=True))
        return await self._router.resolve(meant), set()


async def body_of(request: web.Request) -> str:
    """The body as text, whatever charset the client names. Raises Invalid if it does not come in time."""
    seconds = request.app[_BODY_SECONDS]
    try:
        async with asyncio.timeout(seconds):
            return (await request.read()).decode("utf-8", "replace")
    except TimeoutError:
        raise Invalid(f"the body did not come within {seconds:g} s") from None


def json_in(text: str) -> Any:
    """A text as JSON. Raises ValueError, also for one that is nested deeper than anybody means, and for half of a
    letter in it, which nothing can be written with.
    """
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    level, depth = [found], 0
    while level := [inner for one in level if isinstance(one, dict | list) for inner in _inside(one)]:
        if (depth := depth + 1) > MAX_DEPTH:
            raise ValueError(f"the JSON is nested more than {MAX_DEPTH} deep")
    return found


def _inside(one: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return one.values() if isinstance(one, dict) else one


def object_in(body: str, complaint: str) -> dict[str, Any]:
    """A body that is a JSON object. Raises Invalid with the complaint."""
    try:
        given = json_in(body)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise Invalid(complaint)
    return given


def number_of(text: str, complaint: str = "{} is no number") -> int:
    """Digits as a number that fits into 64 bits. Raises Invalid with the beginning of the text."""
    digits = text.strip()
    if digits.isascii() and digits.isdecimal() and len(digits) < _SHOWN and int(digits) <= MAX_NUMBER:
        return int(digits)
    raise Invalid(complaint.format(repr(text) if len(text) < _SHOWN else f"{text[:_SHOWN]!r}..."))

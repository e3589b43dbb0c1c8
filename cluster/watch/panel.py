"""The live page with buttons for faults, for a run under load.

It is served by the process that runs the load and by no other: the admin interface of a cluster has no such routes, and
its token opens nothing here. This server has a token of its own, made for the run and shown on its terminal alone. What
the page shows comes from the admin interface: questions are handed on to it, with its own token. A controller that is
killed comes back at another port, which is looked up each time.

    GET    /watch, /watch/events, /watch/past, /watch/subscriptions     as the admin interface
    GET    /watch/cluster, .../explain                                  as the admin interface
    GET    /watch/faults                                                what can be broken, and what was
    GET    /watch/faults/events                                         the same, as often as it changes
    POST   /watch/faults  {"kind": K, "target": T}                      break it; 202, and it is done soon
    POST   /watch/end                                                   enough: send no more; 202
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import urlencode

from aiohttp import ClientError, ClientSession, ClientTimeout, web

from sluice.cluster.base.loop import LoopThread
from sluice.cluster.http.guard import PORT_FILE, TOKEN_FILE, guard
from sluice.cluster.http.server import json_in
from sluice.cluster.node.environment import LOOPBACK
from sluice.cluster.watch.feed import event
from sluice.cluster.watch.http import PAGE_PATHS, page_routes
from sluice.storage.errors import Invalid, NotFound, Unavailable

MAX_BODY = 4 * 1024
EXPLAIN = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/explain"
_HANDED_ON = ("/watch/events", "/watch/past", "/watch/subscriptions", "/watch/cluster", EXPLAIN)
_CONNECT_S = 5.0
_LOOK_EVERY_S = 0.1


class Breakable(Protocol):
    """A cluster with parts that can be broken. Its methods are called in threads, and may block and raise
    SluiceError.
    """

    def state(self) -> dict[str, Any]:
        """For the page: victims, each {target, label, kinds}; meanings by kind; done, sentences; phase, a sentence;
        open, whether anything may be pressed now. It is asked often, and answers from memory."""

    def press(self, kind: str, target: str) -> None:
        """Break this soon. Raises Invalid for what there is not, Conflict when it is too late."""

    def end(self) -> None:
        """Send no more; what was sent is delivered and judged. Raises Conflict when it is too late."""


class Admin:
    """Finds the admin interface of the cluster on a data folder."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    def locate(self) -> tuple[str, dict[str, str]]:
        """Return the address of the admin interface, and the headers that it wants. Raises NotFound if there is
        none.
        """
        try:
            port = int((self._data_dir / PORT_FILE).read_text())
            token = (self._data_dir / TOKEN_FILE).read_text().strip()
        except (OSError, ValueError):
            raise NotFound(f"no cluster on {self._data_dir} says where its admin interface is") from None
        return f"http://{LOOPBACK}:{port}", {"Authorization": f"Bearer {token}"}


class Panel:
    """Serves the page during a `with` block. Raises NotFound at the start if there is nothing to show."""

    def __init__(self, admin: Admin, breakable: Breakable, *, topic: str, subscription: str) -> None:
        self._admin, self._breakable = admin, breakable
        self._chosen = {"topic": topic, "subscription": subscription, "faults": "yes"}
        self._token = secrets.token_urlsafe(32)
        self._port = 0

    @property
    def address(self) -> str:
        """The URL for a browser on this machine; the token stands behind the #, which no browser sends."""
        return f"http://{LOOPBACK}:{self._port}/watch?{urlencode(self._chosen)}#token={self._token}"

    def __enter__(self) -> Panel:
        self._admin.locate()
        self._thread = LoopThread("panel")
        self._thread.run(self._start())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.run(self._stop())
        self._thread.stop()

    async def _start(self) -> None:
        where = "stands behind the # of the address that was printed"
        app = web.Application(middlewares=[guard(self._token, PAGE_PATHS, where)], client_max_size=MAX_BODY)
        app.add_routes(
            [
                *page_routes(),
                *(web.get(path, self._hand_on) for path in _HANDED_ON),
                web.get("/watch/faults", self._state),
                web.get("/watch/faults/events", self._changes),
                web.post("/watch/faults", self._press),
                web.post("/watch/end", self._end),
            ]
        )
        self._session = ClientSession(timeout=ClientTimeout(total=None, sock_connect=_CONNECT_S))
        # Whoever looks has a stream open that never ends by itself.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, 0).start()
        self._port = int(self._runner.addresses[0][1])

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _hand_on(self, request: web.Request) -> web.StreamResponse:
        """Ask the admin interface, and pass on what it says, while it says it."""
        base, headers = self._admin.locate()
        try:
            async with self._session.get(base + request.path_qs, headers=headers) as answer:
                kind = {"Content-Type": answer.headers.get("Content-Type", "text/plain"), "Cache-Control": "no-store"}
                response = web.StreamResponse(status=answer.status, headers=kind)
                await response.prepare(request)
                try:
                    async for block in answer.content.iter_any():
                        await response.write(block)
                except (ClientError, ConnectionResetError):
                    pass  # either side has left; the page asks again
                return response
        except ClientError as error:
            raise Unavailable(f"the cluster's admin interface does not answer: {error}") from None

    async def _state(self, request: web.Request) -> web.Response:
        return web.json_response(await asyncio.to_thread(self._breakable.state))

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        """The stream of states, each sent when it differs from the one before."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        before = None
        with suppress(ConnectionResetError):  # the viewer has left
            while True:
                state = await asyncio.to_thread(self._breakable.state)
                if state != before:
                    await response.write(event("faults", state).encode())
                    before = state
                await asyncio.sleep(_LOOK_EVERY_S)
        return response

    async def _end(self, request: web.Request) -> web.Response:
        await asyncio.to_thread(self._breakable.end)
        return web.json_response({}, status=202)

    async def _press(self, request: web.Request) -> web.Response:
        try:
            wanted = json_in(await request.text())
            kind, target = wanted["kind"], wanted["target"]
        except (ValueError, KeyError, TypeError):
            raise Invalid('the body is {"kind": ..., "target": ...}') from None
        if not isinstance(kind, str) or not isinstance(target, str):
            raise Invalid("kind and target must be text")
        await asyncio.to_thread(self._breakable.press, kind, target)
        return web.json_response({"kind": kind, "target": target}, status=202)

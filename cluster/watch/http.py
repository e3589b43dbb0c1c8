"""The routes of the live page: its files, what there is to look at, and the stream of events."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from sluice.actors.ownership.names import check_name
from sluice.actors.ports import Ports
from sluice.cluster.http.guard import STREAM_UNTIL
from sluice.cluster.http.responses import large, responses_here
from sluice.cluster.watch.feed import Audits, Feed, Owners
from sluice.cluster.watch.past import past_explanation, past_picture
from sluice.cluster.watch.story import picture
from sluice.storage.errors import Invalid, NotFound

Recordings = Callable[[Any], Awaitable[Path]]
"""Return a data folder with what all machines recorded, for a cluster of this status."""
_LONGEST = 16
_FOLDER = Path(__file__).parent / "page"
_FILES = {"/watch": ("index.html", "text/html"), "/watch/watch.css": ("watch.css", "text/css")} | {
    f"/watch/{name}": (name, "text/javascript")
    for name in ("watch.js", "ring.js", "charts.js", "faults.js", "stream.js")
}
PAGE_PATHS = tuple(_FILES)
"""Paths of files that hold no data of the cluster and are the same everywhere."""
_HEADERS = {
    # Nothing from anywhere else, nothing inline, and no other page may frame this one.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def page_routes() -> list[web.RouteDef]:
    """The files of the page, PAGE_PATHS."""
    return [web.get(path, _file) for path in PAGE_PATHS]


async def _file(request: web.Request) -> web.Response:
    name, kind = _FILES[request.path]
    return web.Response(body=(_FOLDER / name).read_bytes(), content_type=kind, charset="utf-8", headers=_HEADERS)


class Watched(Owners, Protocol):
    """The source of the page: its subscriptions and their owners."""

    async def subscriptions(self) -> dict[str, list[str]]:
        """The subscriptions of every topic."""


class WatchHttp:
    """Serves the page and its feed."""

    def __init__(
        self,
        ports: Ports,
        owners: Watched,
        audits: Callable[[], Audits] | None = None,
        recordings: Recordings | None = None,
    ) -> None:
        """recordings: from which the past is shown."""
        self._ports, self._owners, self._recordings = ports, owners, recordings
        self._feed = Feed(ports, owners, audits)

    def routes(self) -> list[web.RouteDef]:
        """Return routes for an application whose guard lets PAGE_PATHS through without a token, and nothing else."""
        return [
            *page_routes(),
            web.get("/watch/subscriptions", large(self._subscriptions)),
            web.get("/watch/past", large(self._past)),
            web.get("/watch/cluster", large(self._cluster)),
            web.get("/watch/events", self._events),
        ]

    async def _past(self, request: web.Request) -> web.Response:
        """The picture of `at`; with a key or hash the rows of its explanation then."""
        asked = request.query
        names = check_name("topic", asked.get("topic", "")), check_name("subscription", asked.get("subscription", ""))
        numbers = [asked.get("at", ""), asked.get("hash", "0")]
        if not all(number.isascii() and number.isdecimal() and len(number) < _LONGEST for number in numbers):
            raise Invalid("at is a time in milliseconds since 1970, and hash a number")
        if self._recordings is None:
            raise NotFound("this process has no recordings")
        at, key_hash = map(int, numbers)
        folder = await self._recordings(await self._owners.status())
        if "key" in asked or key_hash:
            explain = partial(past_explanation, key=asked.get("key"), hash=key_hash)
            return web.json_response(await asyncio.to_thread(explain, folder, *names, at))
        return web.json_response(await asyncio.to_thread(past_picture, folder, *names, at))

    async def _subscriptions(self, request: web.Request) -> web.Response:
        return web.json_response(await self._owners.subscriptions())

    async def _cluster(self, request: web.Request) -> web.Response:
        """A picture of no subscription: the processes and actors alone."""
        return web.json_response(picture(self._ports.clock.now(), [], [], await self._owners.status()))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        topic = check_name("topic", request.query.get("topic", ""))
        subscription = check_name("subscription", request.query.get("subscription", ""))
        with responses_here().stream(request):
            return await self._follow(request, topic, subscription)

    async def _follow(self, request: web.Request, topic: str, subscription: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        stream = self._feed.follow(topic, subscription)
        try:
            async for text in stream:
                await response.write(text.encode())
                if time.monotonic() > request.get(STREAM_UNTIL, math.inf):
                    break  # the page asks again, and is asked who it is
        except ConnectionResetError:
            pass  # the viewer has left
        finally:
            await stream.aclose()
        return response

"""The checks of every HTTP request to this machine: its origin, its token, and errors as one line of JSON.

No page in a browser reaches a server here. A Host header is refused unless it is the loopback's or a name that the
server was given: a made-up name that a page points here would look like that. An Origin header of any other place is
refused: browsers send it with all that a page sends to change something. A Sec-Fetch-Site header of any other place is
refused as well, which browsers also send with pictures, links and scripts.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from sluice.actors.policies.authorization import Forbidden
from sluice.cluster.base.real import logger
from sluice.cluster.node.environment import LOOPBACK
from sluice.storage.errors import Conflict, Fenced, Invalid, NotFound, Overloaded, SluiceError, Unavailable

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

STATUS: tuple[tuple[type[SluiceError], int], ...] = (
    (NotFound, 404),
    (Conflict, 409),
    (Forbidden, 403),
    (Invalid, 412),
    (Overloaded, 429),
    (Fenced, 503),
    (Unavailable, 503),
)
"""HTTP status of each error, as Pulsar's clients expect them."""
STREAM_S, STREAM_UNTIL = 30.0, web.RequestKey("stream_until", float)
"""A stream of events for a role ends after so many seconds, and whoever looks asks again: its rights may be others by
then. The second is where a request says when, by the monotonic clock.
"""
ASKER = web.RequestKey("asker", str)
"""The client's roles, as one text; empty for the operator, who has the token, and for a client that needs no
credentials.
"""
CARRIED = web.RequestKey("carried", asyncio.Future)
"""What carries a request out that was let in, where that goes on when its client has left."""
BY_TOKEN = "the token of this interface"
"""As whom the audit knows those who have it."""
HERE = (LOOPBACK, "localhost", "[::1]")
"""How the loopback is called."""

TOKEN_FILE = "admin-token"
PORT_FILE = "admin-port"
"""The files in the data folder that say the token and the port of the admin server."""


@dataclass(frozen=True)
class RoleGuard:
    """A guard that lets in clients with a role, for what the role may do. roles: of a client. check: raises Forbidden.

    roles raises Invalid for credentials that are none, and Overloaded. audit: gets each request that was done or
    refused, with its client.
    """

    roles: Callable[[web.Request], Awaitable[Sequence[str]]]
    check: Callable[[Sequence[str], web.Request], Awaitable[None]]
    audit: Callable[[Sequence[str], web.Request, web.StreamResponse], None] = lambda *_: None

    async def answer(self, request: web.Request, handler: Handler, *names: str) -> web.StreamResponse:
        """Answer as `answered` does, if the client's roles may ask for this."""
        try:
            roles = await self.roles(request)
        except Invalid as error:
            refused = web.json_response({"reason": str(error)}, status=401)
            self.audit((), request, refused)
            return refused
        except Overloaded as error:
            return web.json_response({"reason": str(error)}, status=503)

        async def checked(request: web.Request) -> web.StreamResponse:
            await self.check(roles, request)
            return await handler(request)

        request[ASKER] = ",".join(roles)
        request[STREAM_UNTIL] = time.monotonic() + STREAM_S
        return await self.audited(roles, request, checked, *names)

    async def audited(
        self, roles: Sequence[str], request: web.Request, handler: Handler, *names: str
    ) -> web.StreamResponse:
        """Answer as `answered` does, and audit the outcome, also if the client leaves before the work is done."""
        try:
            answer = await answered(request, handler, *names)
        except asyncio.CancelledError:
            if (carried := request.get(CARRIED)) is not None:
                carried.add_done_callback(partial(self._audit_carried, roles, request))
            raise
        self.audit(roles, request, answer)
        return answer

    def _audit_carried(
        self, roles: Sequence[str], request: web.Request, carried: asyncio.Future[web.StreamResponse]
    ) -> None:
        if not carried.cancelled():  # else this process ends
            error = carried.exception()
            self.audit(roles, request, carried.result() if error is None else _answer_to(error, request))


def guard(token: str, open_paths: Collection[str], where: str, others: RoleGuard | None = None) -> Any:
    """Return a middleware. token: what `Authorization: Bearer` must say, but for open_paths, which hold nothing.

    where: where a person finds the token, as the end of a sentence. others: decides about clients with another one.
    """

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if request.path not in open_paths and not hmac.compare_digest(
            given.encode("utf-8", "surrogateescape"), token.encode()
        ):
            if given and others is not None:
                return await others.answer(request, handler)
            return web.json_response({"reason": f"a bearer token is needed; it {where}"}, status=401)
        if request.path in open_paths:
            return await answered(request, handler, linked=True)
        if others is not None:
            return await others.audited((BY_TOKEN,), request, handler)
        return await answered(request, handler)

    return checked


async def answered(request: web.Request, handler: Handler, *names: str, linked: bool = False) -> web.StreamResponse:
    """Call a handler. Its errors, and requests from pages of elsewhere, are answered with one line of JSON.

    names: further hosts that this server may be called by. linked: a page of elsewhere may have a link that leads here.
    """
    if _host(request.host) not in (*HERE, *names):
        return web.json_response({"reason": "ask for 127.0.0.1"}, status=421)
    origin = request.headers.get("Origin")
    if (origin is not None and _netloc(origin) != request.host) or _set_off_elsewhere(request, linked=linked):
        return web.json_response({"reason": "pages of other origins are not answered"}, status=403)
    try:
        return await handler(request)
    except Exception as error:
        if isinstance(error, web.HTTPException) and error.status < 400:
            raise
        return _answer_to(error, request)


def _answer_to(error: BaseException, request: web.Request) -> web.Response:
    """Return the response that tells a client of an error."""
    if isinstance(error, SluiceError):
        status = next((code for kind, code in STATUS if isinstance(error, kind)), 500)
        return web.json_response({"reason": str(error)}, status=status)
    if isinstance(error, web.HTTPException):
        reason = f"{error.reason}: {request.method} {request.path[:200]}"
        allow = {name: value for name, value in error.headers.items() if name == "Allow"}
        return web.json_response({"reason": reason}, status=error.status, headers=allow)
    logger.error("%s %s failed", request.method, request.path, exc_info=error)
    return web.json_response({"reason": f"internal error: {type(error).__name__}"}, status=500)


def _host(given: str) -> str:
    """A Host header without its port."""
    name, colon, port = given.rpartition(":")
    return (name if colon and port.isdecimal() else given).lower()


def _set_off_elsewhere(request: web.Request, *, linked: bool) -> bool:
    """Whether a browser says that a page of elsewhere set this off: a picture or a link there has no Origin header."""
    if request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
        return False
    return not (linked and request.headers.get("Sec-Fetch-Mode") == "navigate")


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""

"""What every HTTP request to this machine passes first: its Host header, its token, and errors as one line of JSON.

A Host header that is not the loopback's is refused: no page in a browser can reach a server by a made-up name.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from aiohttp import web

from cluster.environment import LOOPBACK
from cluster.real import logger
from storage.errors import Conflict, Fenced, Invalid, NotFound, Overloaded, SluiceError, Unavailable

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

STATUS: tuple[tuple[type[SluiceError], int], ...] = (
    (NotFound, 404),
    (Conflict, 409),
    (Invalid, 412),
    (Overloaded, 429),
    (Fenced, 503),
    (Unavailable, 503),
)
"""HTTP status of each error, as Pulsar's clients expect them."""


def guard(token: str, open_paths: Collection[str], where: str) -> Any:
    """A middleware. token: what `Authorization: Bearer` must say, but for open_paths, which hold nothing.

    where: where a person finds the token, as the end of a sentence.
    """

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if request.path not in open_paths and not hmac.compare_digest(
            given.encode("utf-8", "surrogateescape"), token.encode()
        ):
            return web.json_response({"reason": f"a bearer token is needed; it {where}"}, status=401)
        return await answered(request, handler)

    return checked


async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What a handler answers; what it raises, and a Host header that is not this machine's, as one line of JSON."""
    if request.host.rpartition(":")[0] not in (LOOPBACK, "localhost"):
        return web.json_response({"reason": "ask for 127.0.0.1"}, status=421)
    try:
        return await handler(request)
    except SluiceError as error:
        status = next((code for kind, code in STATUS if isinstance(error, kind)), 500)
        return web.json_response({"reason": str(error)}, status=status)
    except web.HTTPException:
        raise
    except Exception as error:
        logger.exception("%s %s failed", request.method, request.path)
        return web.json_response({"reason": f"internal error: {type(error).__name__}"}, status=500)

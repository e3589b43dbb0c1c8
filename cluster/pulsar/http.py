"""Lookups by HTTP, for clients whose service URL begins with http: or https: instead of pulsar:.

    GET /lookup/v2/topic/persistent/public/default/{topic}          where the topic is served
    GET /admin/v2/persistent/public/default/{topic}/partitions      how many partitions it has; 0 is a plain topic
    GET /admin/v2/namespaces/public/default/topics                  every topic, partitions by their names

They come on the ports of the binary protocol, which cannot be mistaken for one another: read as the length of a frame,
what a request begins with is above every limit. Nothing is made or changed by a request, so that no page in a browser
can do so, and a Host header that is not the loopback's is refused. Where the gateway wants credentials, these paths do.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from actors.messages import ListTopics
from actors.names import TENANT_NAMESPACE
from actors.pulsar.gateway import Gateway
from actors.pulsar.topics import full_names, settings_of, split_name
from cluster.http_guard import Handler, answered
from cluster.pulsar.tls import role_of
from cluster.pulsar.tokens import METHOD
from storage.errors import Invalid, NotFound

MOST_CONNECTIONS = 200
CONNECTION_SECONDS = 30.0
"""A connection lasts no longer, whatever comes on it."""


class HttpLookups:
    """Answers requests on connections that the listener hands over."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._runner: web.AppRunner | None = None
        self._making = asyncio.Lock()

    async def take(self, transport: asyncio.Transport, begun: bytes) -> None:
        """Go on with a connection, which reads nothing now, on which these bytes came."""
        async with self._making:
            if self._runner is None:
                self._runner = web.AppRunner(self._application(), access_log=None)
                await self._runner.setup()
        server = self._runner.server
        if server is None or len(server.connections) >= MOST_CONNECTIONS or transport.is_closing():
            transport.abort()
            return
        protocol: Any = server()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(begun)
        transport.resume_reading()
        asyncio.get_running_loop().call_later(CONNECTION_SECONDS, transport.abort)

    async def close(self) -> None:
        """End every connection."""
        if self._runner is not None:
            await self._runner.cleanup()

    def _application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        namespace = "{tenant}/{namespace}"
        app.add_routes(
            [
                web.get(f"/lookup/v2/topic/persistent/{namespace}/{{topic}}", self._lookup),
                web.get(f"/admin/v2/persistent/{namespace}/{{topic}}/partitions", self._partitions),
                web.get(f"/admin/v2/namespaces/{namespace}/topics", self._topics),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        authenticate = self._gateway.authenticate
        certified = request.transport and role_of(request.transport.get_extra_info("peercert"))
        if authenticate is not None and not certified:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            try:
                authenticate(METHOD, given.encode("utf-8", "surrogateescape"))
            except Invalid as error:
                return web.json_response({"reason": str(error)}, status=401)
        return await answered(request, handler)

    async def _lookup(self, request: web.Request) -> web.Response:
        """This gateway, whichever topic it is; who produces or subscribes makes it."""
        _named(request)
        urls = {"brokerUrl": self._gateway.url, "brokerUrlTls": self._gateway.url_tls}
        return web.json_response(urls | {"nativeUrl": self._gateway.url, "httpUrl": "", "httpUrlTls": ""})

    async def _partitions(self, request: web.Request) -> web.Response:
        topic, partition = split_name(_named(request))
        count = 0
        try:
            settings = await settings_of(self._gateway.directory, topic, create=False)
            count = settings.partitions if settings.partitions > 1 and partition is None else 0
        except NotFound:
            if request.query.get("checkAllowAutoCreation", "").lower() != "true":
                raise
        return web.json_response({"partitions": count})

    async def _topics(self, request: web.Request) -> web.Response:
        if _namespace(request) != TENANT_NAMESPACE:
            raise NotFound(f"there is no namespace {_namespace(request)}")
        known = await self._gateway.ask(self._gateway.controller, ListTopics())
        return web.json_response(full_names(known.topics))


def _namespace(request: web.Request) -> str:
    return "{tenant}/{namespace}".format(**request.match_info)


def _named(request: web.Request) -> str:
    """The full name of the topic. Raises Invalid, NotFound if there is none of that sort."""
    name = "persistent://{tenant}/{namespace}/{topic}".format(**request.match_info)
    split_name(name)
    return name

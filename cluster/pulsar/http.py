"""HTTP for Pulsar's clients and tools: the admin interface and lookups (cluster.pulsar.admin).

It has a port of its own, and comes on the ports of the binary protocol as well, which cannot be mistaken for it: read
as the length of a frame, what a request begins with is above every limit. Where the gateway wants credentials these
paths do, and no page in a browser gets an answer (cluster.http.guard).
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from actors.pulsar.conversation.gateway import Gateway
from cluster.http.guard import Handler, answered
from cluster.http.server import HttpServer
from cluster.pulsar.admin.addresses import Addresses
from cluster.pulsar.admin.broker import Broker
from cluster.pulsar.admin.paths import pulsar_routes
from cluster.pulsar.authentication import in_header
from cluster.pulsar.tls import role_of
from storage.errors import Invalid, Overloaded


class GatewayHttp:
    """Answers requests on connections that the listener hands over. host: the name of this machine for clients.

    most: the number of connections that may be open.
    """

    def __init__(self, gateway: Gateway, addresses: Addresses, host: str, most: int) -> None:
        self._gateway, self._host = gateway, host
        ports = gateway.ports
        broker = Broker(ports, gateway.controller, gateway.directory, ports.me, gateway.quotas, gateway.ages)
        self._server = HttpServer(ports, pulsar_routes(broker, addresses), self._guard, most=most)

    async def take(self, transport: asyncio.Transport, begun: bytes = b"") -> None:
        """Go on with a connection, which reads nothing now, on which these bytes came."""
        await self._server.take(transport, begun)

    async def close(self) -> None:
        await self._server.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        authenticate = self._gateway.authenticate
        certified = request.transport and role_of(request.transport.get_extra_info("peercert"))
        if authenticate is not None and not certified:
            try:
                await authenticate(*in_header(request.headers.get("Authorization", "")))
            except Invalid as error:
                return web.json_response({"reason": str(error)}, status=401)
            except Overloaded as error:
                return web.json_response({"reason": str(error)}, status=503)
        return await answered(request, handler, self._host)

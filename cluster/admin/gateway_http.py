"""HTTP for Pulsar's clients and tools: the admin interface and lookups (cluster.admin).

It has a port of its own, and comes on the ports of the binary protocol as well, which cannot be mistaken for it: read
as the length of a frame, what a request begins with is above every limit. Where the gateway wants credentials these
paths do, and no page in a browser gets an answer (cluster.http.guard).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from aiohttp import web

from sluice.actors.pulsar.conversation.gateway.gateway import Gateway
from sluice.cluster.admin.broker import Broker
from sluice.cluster.admin.paths import pulsar_routes
from sluice.cluster.admin.rights import check_rights, write_down
from sluice.cluster.gateway.addresses import Addresses
from sluice.cluster.gateway.authentication import in_header
from sluice.cluster.gateway.tls import identity_of
from sluice.cluster.http.guard import Handler, RoleGuard
from sluice.cluster.http.server import HttpServer
from sluice.storage.errors import Invalid


class GatewayHttp:
    """Answers requests on connections that the listener hands over. host: the name of this machine for clients.

    most: the number of connections that may be open.
    """

    def __init__(self, gateway: Gateway, addresses: Addresses, host: str, most: int) -> None:
        self._gateway, self._host = gateway, host
        ports = gateway.ports
        self._permissions = gateway.access.permissions
        self._clients = RoleGuard(
            self._roles, partial(check_rights, self._permissions), partial(write_down, gateway.audit)
        )
        broker = Broker(
            ports, gateway.controller, gateway.directory, ports.me, gateway.quotas, gateway.ages, self._permissions
        )
        self._server = HttpServer(ports, pulsar_routes(broker, addresses), self._guard, most=most)

    async def serve(self, transport: asyncio.Transport, begun: bytes = b"") -> None:
        """Go on with a connection, which reads nothing now, on which these bytes came."""
        await self._server.serve(transport, begun)

    async def close(self) -> None:
        await self._server.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        return await self._clients.answer(request, handler, self._host)

    async def _roles(self, request: web.Request) -> Sequence[str]:
        """Return the roles of the caller: presented credentials count before a certificate.

        Raises Invalid if nobody is to be let in with that, Overloaded.
        """
        authenticate, (method, data) = self._gateway.authenticate, in_header(request.headers.get("Authorization", ""))
        certified = identity_of(request.transport.get_extra_info("peercert")) if request.transport else None
        if certified is not None and (authenticate is None or not method):
            if certified.ends is not None and certified.ends * 1000 <= self._gateway.ports.clock.now():
                raise Invalid("the certificate has expired since this connection began")
            return certified.roles
        if authenticate is not None:
            return (await authenticate(method, data)).roles
        anonymous = self._gateway.access.anonymous
        if self._permissions is not None and not anonymous:
            raise Invalid("this broker needs a client that it knows")
        return (anonymous,)

"""Operations on all topics of a namespace, by HTTP; `N` is its path. There is one bundle, which has all topics.

POST N/clearBacklog[/{sub}]              everything counts as done, by all subscriptions or those of a name
POST N/unsubscribe/{sub}                 the subscriptions of that name go; 412 while one has consumers
PUT  N/{bundle}/unload                   all clients connect again
The first two also below N/{bundle}.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from aiohttp import web

from sluice.actors.messages import ClearBacklog, RemoveSubscription, SendAway
from sluice.cluster.admin.broker import Broker, Named, space_of, subscription_of
from sluice.cluster.admin.topics import NAMESPACE
from sluice.storage.errors import Invalid

BUNDLE = ("0x00000000", "0xffffffff")
"""All hashes are in one."""
WHOLE = "_".join(BUNDLE)


class WholeNamespaces:
    """The routes that concern all topics of a namespace."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[web.RouteDef]:
        bundle = f"{NAMESPACE}/{{bundle:0x[0-9a-fA-F]+_0x[0-9a-fA-F]+}}"
        return [
            web.put(f"{bundle}/unload", self._unload),
            *(
                web.post(f"{base}/{path}", handler)
                for base in (NAMESPACE, bundle)
                for path, handler in (
                    ("clearBacklog", self._clear),
                    ("clearBacklog/{subscription}", self._clear),
                    ("unsubscribe/{subscription}", self._unsubscribe),
                )
            ),
        ]

    async def _topics(self, request: web.Request) -> Iterable[str]:
        """Return the topics of the namespace, and the bundle, that a path names. Raises NotFound, Invalid."""
        given = request.match_info.get("bundle", WHOLE)
        if given.lower() != WHOLE:
            raise Invalid(f"there is no bundle {given[:40]}: all topics are in {WHOLE}")
        return await self._broker.topics_in(space_of(request))

    async def _subscriptions(self, request: web.Request) -> AsyncIterator[tuple[str, str]]:
        """Topics and subscriptions that a path means. Raises NotFound, Invalid."""
        only = subscription_of(request) if "subscription" in request.match_info else None
        for topic in await self._topics(request):
            for name in await self._broker.subscriptions(topic):
                if only in (None, name):
                    yield topic, name

    async def _clear(self, request: web.Request) -> web.Response:
        async for topic, name in self._subscriptions(request):
            await self._broker.rows(Named(topic, None), name, ClearBacklog())
        return web.Response(status=204)

    async def _unsubscribe(self, request: web.Request) -> web.Response:
        async for topic, name in self._subscriptions(request):
            remove = RemoveSubscription(topic=topic, subscription=name, force=False)
            await self._broker.ask_controller(remove)
            self._broker.directory.invalidate(topic)
        return web.Response(status=204)

    async def _unload(self, request: web.Request) -> web.Response:
        for topic in await self._topics(request):
            await self._broker.ask_gateways(SendAway(topic=topic))
        return web.Response(status=204)

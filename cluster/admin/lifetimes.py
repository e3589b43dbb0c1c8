"""How long messages are kept, by HTTP, of a namespace and of a topic (`N` is either's path).

GET    N/retention      {"retentionTimeInMinutes": M, "retentionSizeInMB": S}, 204 where nothing is said
POST   N/retention      say it; -1 is without end, and 0 for both keeps nothing that everybody has seen
GET    N/messageTTL     seconds, 204 where nothing is said
POST   N/messageTTL     say it: as the body of a namespace's, as ?messageTTL= of a topic's; 0: nothing expires
DELETE of both          nothing is said any more

Of a topic, with ?applied=true, GET tells what holds: its own, or its namespace's.
"""

from __future__ import annotations

from aiohttp import web

from sluice.actors.policies.retention import Lifetimes, Retention, made_with, retention_of, ttl_of
from sluice.cluster.admin.broker import Broker, applied, named
from sluice.cluster.admin.topics import NAMESPACE, TOPIC
from sluice.cluster.http.server import body_of, number_of, object_in
from sluice.storage.errors import Conflict, Invalid

MINUTE_MS, MB = 60_000, 1 << 20
EXAMPLE = '{"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}'


class LifetimesByHttp:
    """The routes of retention and time to live."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._lifetimes = broker, Lifetimes(broker.ports.meta)

    def routes(self) -> list[web.RouteDef]:
        return [
            route
            for base in (NAMESPACE, TOPIC)
            for route in (
                web.get(f"{base}/retention", self._retention),
                web.post(f"{base}/retention", self._set_retention),
                web.delete(f"{base}/retention", self._unset_retention),
                web.get(f"{base}/messageTTL", self._ttl),
                web.post(f"{base}/messageTTL", self._set_ttl),
                web.delete(f"{base}/messageTTL", self._unset_ttl),
            )
        ]

    async def _retention(self, request: web.Request) -> web.Response:
        name, made = await self._broker.recorded(request)
        kept = (await self._lifetimes.read(name)).retention or made_with(made)
        if kept is None and applied(request):
            kept = await retention_of(self._broker.ports.meta, named(request).topic, made)
        return web.Response(status=204) if kept is None else web.json_response(retention_shown(kept))

    async def _set_retention(self, request: web.Request) -> web.Response:
        name, _ = await self._broker.recorded(request)
        await self._lifetimes.change(name, retention=_retention_in(await body_of(request)))
        return web.Response(status=204)

    async def _unset_retention(self, request: web.Request) -> web.Response:
        name, _ = await self._broker.recorded(request)
        await self._lifetimes.change(name, retention=None)
        return web.Response(status=204)

    async def _ttl(self, request: web.Request) -> web.Response:
        name, made = await self._broker.recorded(request)
        ttl = (await self._lifetimes.read(name)).ttl_ms
        if ttl is None and made.ttl_ms:
            ttl = made.ttl_ms
        elif ttl is None and applied(request):
            ttl = await ttl_of(self._broker.ports.meta, named(request).topic, made)
        return web.Response(status=204) if ttl is None else web.json_response(ttl // 1000)

    async def _set_ttl(self, request: web.Request) -> web.Response:
        name, made = await self._broker.recorded(request)
        if made.ttl_ms:
            raise Conflict(f"the topic was made with a time to live of {made.ttl_ms // 1000} s, which stays")
        text = request.query.get("messageTTL", "") if "topic" in request.match_info else await body_of(request)
        seconds = number_of(text, "messageTTL is a number of seconds, not {}")
        await self._lifetimes.change(name, ttl_ms=seconds * 1000)
        return web.Response(status=204)

    async def _unset_ttl(self, request: web.Request) -> web.Response:
        name, _ = await self._broker.recorded(request)
        await self._lifetimes.change(name, ttl_ms=None)
        return web.Response(status=204)


def retention_shown(of: Retention) -> dict[str, int]:
    """Return a retention in the form that Pulsar's tools read."""
    minutes = of.ms // MINUTE_MS if of.ms > 0 else of.ms
    megabytes = of.bytes // MB if of.bytes > 0 else of.bytes
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


def _retention_in(body: str) -> Retention:
    """The retention in a request's body. Raises Invalid."""
    complaint = f"the body is a retention in numbers of -1 or more, for example {EXAMPLE}"
    given = object_in(body, complaint)
    minutes, megabytes = given.get("retentionTimeInMinutes"), given.get("retentionSizeInMB")
    if type(minutes) is not int or type(megabytes) is not int or min(minutes, megabytes) < -1:
        raise Invalid(complaint)
    if (minutes == 0) != (megabytes == 0):
        raise Invalid("time and size of a retention are both 0, or neither is; -1 means no limit")
    return Retention(
        minutes * MINUTE_MS if minutes > 0 else minutes,
        megabytes * MB if megabytes > 0 else megabytes,
    )

"""When ledgers leave for the object store and when logs are compacted, by HTTP.

`N` is the path of a namespace, `T` of a topic.

GET    N/offloadThreshold            bytes that may lie on bookies; -1, also where nothing is said: nothing leaves
GET    N/offloadThresholdInSeconds   the age at which ledgers leave, likewise
GET    N/offloadDeletionLagMs        how long bookies keep what has left; 204 where nothing is said
GET    N/compactionThreshold         bytes after which a topic is compacted, 0: never; 204 where nothing is said
PUT    of these                      say it; the body is the number. For a topic POST
DELETE of these                      nothing is said any more

A topic has `T/compactionThreshold`; with ?applied=true it tells what holds: its own, or its namespace's.
"""

from __future__ import annotations

from aiohttp import web

from sluice.actors.messages import TopicSettings
from sluice.actors.policies.retention import Lifetimes, thresholds_of
from sluice.cluster.admin.broker import Broker, applied, named
from sluice.cluster.admin.topics import NAMESPACE, TOPIC
from sluice.cluster.http.server import body_of
from sluice.storage.errors import Invalid

NAMES = {
    "offloadThreshold": "offload_threshold_bytes",
    "offloadThresholdInSeconds": "offload_threshold_seconds",
    "offloadDeletionLagMs": "offload_deletion_lag_ms",
    "compactionThreshold": "compaction_threshold_bytes",
}
"""Pulsar's names, and those of topics' settings."""
_NEVER = ("offloadThreshold", "offloadThresholdInSeconds")
"""Pulsar's tools expect a number of these."""
_MADE = TopicSettings()


class ThresholdsByHttp:
    """The routes of thresholds."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._lifetimes = broker, Lifetimes(broker.ports.meta)

    def routes(self) -> list[web.RouteDef]:
        of_namespaces = f"{NAMESPACE}/{{threshold:{'|'.join(NAMES)}}}"
        of_topics = f"{TOPIC}/{{threshold:compactionThreshold}}"
        return [
            web.get(of_namespaces, self._shown),
            web.put(of_namespaces, self._set),
            web.delete(of_namespaces, self._unset),
            web.get(of_topics, self._shown),
            web.post(of_topics, self._set),
            web.delete(of_topics, self._unset),
        ]

    async def _shown(self, request: web.Request) -> web.Response:
        name, made = await self._broker.recorded(request)
        said = request.match_info["threshold"]
        value = (await self._lifetimes.read(name)).thresholds().get(NAMES[said])
        if value is None and getattr(made, NAMES[said]) != getattr(_MADE, NAMES[said]):
            value = getattr(made, NAMES[said])
        if value is None and "topic" in request.match_info and applied(request):
            value = getattr(await thresholds_of(self._broker.ports.meta, named(request).topic, made), NAMES[said])
        if value is None and said in _NEVER:
            value = -1
        return web.Response(status=204) if value is None else web.json_response(value)

    async def _set(self, request: web.Request) -> web.Response:
        name, _ = await self._broker.recorded(request)
        said = request.match_info["threshold"]
        try:
            value = int((await body_of(request)).strip().strip('"'))
        except ValueError:
            raise Invalid(f"the body is {said}, a number") from None
        await self._lifetimes.change(name, **{NAMES[said]: value})
        return web.Response(status=204)

    async def _unset(self, request: web.Request) -> web.Response:
        name, _ = await self._broker.recorded(request)
        await self._lifetimes.change(name, **{NAMES[request.match_info["threshold"]]: None})
        return web.Response(status=204)

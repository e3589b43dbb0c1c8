"""Backlog quotas by HTTP, of a namespace and of a topic (`N` is either's path).

GET    N/backlogQuotaMap       {"destination_storage": {"limitSize": bytes, "policy": P, ...}}, {} where none is set
POST   N/backlogQuota          set it: {"limitSize": bytes, "policy": P}, with ?backlogQuotaType=destination_storage
DELETE N/backlogQuota          there is none any more

P is `producer_request_hold` or `producer_exception`. A quota by time, and one that throws messages away
(`consumer_backlog_eviction`), are refused with 405.
"""

from __future__ import annotations

from aiohttp import web

from actors.pulsar.quotas import Quota, of_namespace, of_topic
from cluster.http_server import body_of, number_of, object_in
from cluster.pulsar.admin.broker import Broker, named, space_of
from cluster.pulsar.admin.topics import NAMESPACE, TOPIC
from storage.errors import Invalid

BY_SIZE = "destination_storage"
EVICTION = "consumer_backlog_eviction"
NO_LIMIT = -1
_COMPLAINT = 'the body is a quota, for example {"limitSize": 1048576, "policy": "producer_request_hold"}'


class QuotasByHttp:
    """These routes."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._quotas = broker, broker.quotas

    def routes(self) -> list[web.RouteDef]:
        """See the module."""
        return [
            route
            for base in (NAMESPACE, TOPIC)
            for route in (
                web.get(f"{base}/backlogQuotaMap", self._show),
                web.post(f"{base}/backlogQuota", self._set),
                web.delete(f"{base}/backlogQuota", self._unset),
            )
        ]

    async def _show(self, request: web.Request) -> web.Response:
        names = [await self._name(request)]
        if "topic" in request.match_info and request.query.get("applied", "").lower() == "true":
            names.append(of_namespace(space_of(request)))
        for name in names:
            quota = await self._quotas.read(name)
            if quota is not None:
                told = {"limit": quota.limit, "limitSize": quota.limit, "limitTime": NO_LIMIT, "policy": quota.policy}
                return web.json_response({BY_SIZE: told})
        return web.json_response({})

    async def _set(self, request: web.Request) -> web.Response:
        name, given = await self._name(request), object_in(await body_of(request), _COMPLAINT)
        size = given.get("limitSize", given.get("limit", NO_LIMIT))
        kind = request.query.get("backlogQuotaType", BY_SIZE)
        if (
            kind != BY_SIZE
            or given.get("policy") == EVICTION
            or given.get("limitTime", NO_LIMIT) not in (NO_LIMIT, None)
        ):
            reason = f"Sluice offers backlog quotas by size (type {BY_SIZE}) that keep producers out, and no others"
            return web.json_response({"reason": reason}, status=405)
        policy = given.get("policy")
        if not isinstance(policy, str):
            raise Invalid("the body has a policy, for example producer_request_hold")
        await self._quotas.set(name, Quota(number_of(str(size), "limitSize is a number of bytes, not {}"), policy))
        return web.Response(status=204)

    async def _unset(self, request: web.Request) -> web.Response:
        await self._quotas.unset(await self._name(request))
        return web.Response(status=204)

    async def _name(self, request: web.Request) -> str:
        """Whose quota a path means. Raises NotFound."""
        if "topic" not in request.match_info:
            await self._broker.namespaces.policies(space_of(request))
            return of_namespace(space_of(request))
        which = named(request)
        await self._broker.settings(which)
        return of_topic(which.topic)

"""Tenants, namespaces and the policies of these by HTTP.

GET    /admin/v2/tenants | tenants/{tenant}
PUT    /admin/v2/tenants/{tenant}                   make one; what the body says of roles and clusters is not kept
DELETE /admin/v2/tenants/{tenant}                   409 while it has namespaces
GET    /admin/v2/namespaces/{tenant}
PUT    /admin/v2/namespaces/{tenant}/{namespace}    make one; 404 without its tenant
DELETE of the same                                  409 while topics are in it
POST   .../{namespace}/deduplication                true or false: of the topics that are made from now on
POST   .../{namespace}/schemaValidationEnforced     true or false: who produces to a topic with a schema must have one
PUT    .../{namespace}/schemaCompatibilityStrategy  "FORWARD", as JSON; GET and DELETE of all three
"""

from __future__ import annotations

from aiohttp import web

from actors.policies.namespaces import NamespacePolicies
from actors.policies.policy_records import of_namespace
from actors.policies.retention import Lifetimes
from actors.pulsar.conversation.topic_names import topics_in
from cluster.http.server import body_of, json_in
from cluster.pulsar.admin.broker import Broker, space_of
from cluster.pulsar.admin.topics import NAMESPACE
from storage.errors import Conflict, Invalid, NotFound

TENANT = "/admin/v2/tenants/{tenant}"
CLUSTER = "sluice"
_FIELDS = {
    "deduplication": "deduplication",
    "schemaCompatibilityStrategy": "compatibility",
    "schemaValidationEnforced": "enforced",
}


class NamespacesByHttp:
    """The routes of tenants, namespaces and their policies."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._namespaces = broker, broker.namespaces

    def routes(self) -> list[web.RouteDef]:
        policy = f"{NAMESPACE}/{{policy:{'|'.join(_FIELDS)}}}"
        return [
            web.get("/admin/v2/tenants", self._tenants),
            web.get(TENANT, self._tenant),
            web.put(TENANT, self._create_tenant),
            web.delete(TENANT, self._remove_tenant),
            web.get("/admin/v2/namespaces/{tenant}", self._list),
            web.put(NAMESPACE, self._create),
            web.delete(NAMESPACE, self._remove),
            web.get(policy, self._policy),
            web.post(policy, self._set),
            web.put(policy, self._set),
            web.delete(policy, self._unset),
        ]

    async def _tenants(self, request: web.Request) -> web.Response:
        return web.json_response(await self._namespaces.tenants())

    async def _tenant(self, request: web.Request) -> web.Response:
        await self._known_tenant(request)
        return web.json_response({"adminRoles": [], "allowedClusters": [CLUSTER]})

    async def _known_tenant(self, request: web.Request) -> str:
        tenant = request.match_info["tenant"]
        if tenant not in await self._namespaces.tenants():
            raise NotFound(f"Tenant {tenant[:80]} does not exist")
        return tenant

    async def _create_tenant(self, request: web.Request) -> web.Response:
        await self._namespaces.create_tenant(request.match_info["tenant"])
        return web.Response(status=204)

    async def _remove_tenant(self, request: web.Request) -> web.Response:
        await self._namespaces.remove_tenant(request.match_info["tenant"])
        return web.Response(status=204)

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(await self._namespaces.all_of(await self._known_tenant(request)))

    async def _create(self, request: web.Request) -> web.Response:
        await self._known_tenant(request)
        await self._namespaces.create(space_of(request))
        return web.Response(status=204)

    async def _remove(self, request: web.Request) -> web.Response:
        space = space_of(request)
        if topics_in(space, await self._broker.topics()):
            raise Conflict(f"namespace {space} has topics")
        await self._namespaces.remove(space)
        await self._broker.quotas.unset(of_namespace(space))
        await self._broker.ages.unset(of_namespace(space))
        await Lifetimes(self._broker.ports.meta).forget(of_namespace(space))
        return web.Response(status=204)

    async def _policy(self, request: web.Request) -> web.Response:
        policies = await self._namespaces.policies(space_of(request))
        return web.json_response(getattr(policies, _field(request)))

    async def _set(self, request: web.Request) -> web.Response:
        field = _field(request)
        try:
            value = json_in(await body_of(request))
        except ValueError:
            value = None
        if type(value) is not type(getattr(NamespacePolicies(), field)):
            raise Invalid(f"the body must be the value of {request.match_info['policy']} as JSON")
        await self._namespaces.change(space_of(request), **{field: value})
        return web.Response(status=204)

    async def _unset(self, request: web.Request) -> web.Response:
        field = _field(request)
        await self._namespaces.change(space_of(request), **{field: getattr(NamespacePolicies(), field)})
        return web.Response(status=204)


def _field(request: web.Request) -> str:
    return _FIELDS[request.match_info["policy"]]

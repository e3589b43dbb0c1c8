"""Tenants, namespaces and the policies of these by HTTP.

GET    /admin/v2/tenants | tenants/{tenant}
PUT    /admin/v2/tenants/{tenant}                   {"adminRoles": [...], "allowedClusters": ["sluice"]}: make one
POST   /admin/v2/tenants/{tenant}                   the same: its roles are others from now on
DELETE /admin/v2/tenants/{tenant}                   409 while it has namespaces
GET    /admin/v2/namespaces/{tenant}
PUT    /admin/v2/namespaces/{tenant}/{namespace}    make one, and grant permissions; 404 without its tenant
DELETE of the same                                  409 while topics are in it
POST   .../{namespace}/deduplication                true or false: of the topics that are made from now on
POST   .../{namespace}/schemaValidationEnforced     true or false: who produces to a topic with a schema must have one
PUT    .../{namespace}/schemaCompatibilityStrategy  "FORWARD", as JSON; GET and DELETE of all three
"""

from __future__ import annotations

from aiohttp import web

from sluice.actors.ownership.names import TENANT_NAMESPACE
from sluice.actors.policies.namespaces import NamespacePolicies, check_roles
from sluice.actors.policies.permissions import Permissions, check_grant
from sluice.actors.policies.policy_records import of_namespace
from sluice.actors.policies.retention import Lifetimes
from sluice.actors.pulsar.topic_names import topics_in
from sluice.cluster.admin.broker import Broker, space_of
from sluice.cluster.admin.topics import NAMESPACE
from sluice.cluster.http.responses import large
from sluice.cluster.http.server import body_of, json_in, object_in
from sluice.storage.errors import Conflict, Invalid, NotFound

TENANT = "/admin/v2/tenants/{tenant}"
CLUSTER = "sluice"
EXAMPLE = '{"adminRoles": ["till"], "allowedClusters": ["sluice"]}'
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
            web.get("/admin/v2/tenants", large(self._tenants)),
            web.get(TENANT, large(self._tenant)),
            web.put(TENANT, self._create_tenant),
            web.post(TENANT, self._change_tenant),
            web.delete(TENANT, self._remove_tenant),
            web.get("/admin/v2/namespaces/{tenant}", large(self._list)),
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
        tenant = await self._namespaces.tenant(await self._known_tenant(request))
        return web.json_response({"adminRoles": list(tenant.admin_roles), "allowedClusters": [CLUSTER]})

    async def _known_tenant(self, request: web.Request) -> str:
        tenant = request.match_info["tenant"]
        if tenant not in await self._namespaces.tenants():
            raise NotFound(f"Tenant {tenant[:80]} does not exist")
        return tenant

    async def _create_tenant(self, request: web.Request) -> web.Response:
        roles = self._roles_in(await body_of(request))
        await self._namespaces.create_tenant(request.match_info["tenant"], roles)
        return web.Response(status=204)

    async def _change_tenant(self, request: web.Request) -> web.Response:
        roles = self._roles_in(await body_of(request))
        await self._namespaces.change_tenant(await self._known_tenant(request), roles)
        return web.Response(status=204)

    @staticmethod
    def _roles_in(body: str) -> tuple[str, ...]:
        """Return the administrators of the tenant that a body describes. Names of clusters in the body are ignored.

        Raises Invalid.
        """
        given = object_in(body, "the body is a tenant as JSON, for example " + EXAMPLE) if body.strip() else {}
        return check_roles(given.get("adminRoles") or [])

    async def _remove_tenant(self, request: web.Request) -> web.Response:
        await self._namespaces.remove_tenant(request.match_info["tenant"])
        return web.Response(status=204)

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(await self._namespaces.all_of(await self._known_tenant(request)))

    async def _create(self, request: web.Request) -> web.Response:
        """The body may grant permissions, as `{"auth_policies": {"namespace_auth": {"till": ["produce"]}}}`."""
        await self._known_tenant(request)
        granted = _granted_in(await body_of(request))
        await self._namespaces.create(space_of(request))
        for role, actions in granted.items():
            await Permissions(self._broker.ports.meta).grant(of_namespace(space_of(request)), role, actions)
        return web.Response(status=204)

    async def _remove(self, request: web.Request) -> web.Response:
        space = space_of(request)
        if topics_in(space, await self._broker.topics()):
            raise Conflict(f"namespace {space} has topics")
        if space != TENANT_NAMESPACE:  # which is always there, with what is said of it
            await self._namespaces.check_exists(space)
            await self._forget(space)
        await self._namespaces.remove(space)
        return web.Response(status=204)

    async def _forget(self, space: str) -> None:
        """Remove the policies of a namespace before its record. If this ends halfway, the namespace can be removed
        again, and a later one of the same name inherits nothing.
        """
        await self._broker.quotas.unset(of_namespace(space))
        await self._broker.ages.unset(of_namespace(space))
        await Lifetimes(self._broker.ports.meta).remove(of_namespace(space))
        await self._broker.limits.remove(of_namespace(space))
        await Permissions(self._broker.ports.meta).forget_space(space)

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


def _granted_in(body: str) -> dict[str, list[str]]:
    """Actions by role, of the policies of a new namespace; what else they say is not kept. Raises Invalid."""
    try:
        given = json_in(body) if body.strip() else {}
    except ValueError:
        given = {}
    for name in ("auth_policies", "namespace_auth"):
        given = given.get(name) if isinstance(given, dict) else None
    if not isinstance(given, dict):
        return {}
    for role, actions in given.items():
        check_grant(role, actions)
    return given


def _field(request: web.Request) -> str:
    return _FIELDS[request.match_info["policy"]]

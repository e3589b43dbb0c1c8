"""Permissions by HTTP; `N` is the path of a namespace, `T` of a topic.

GET    N/permissions                      {role: [actions]}
POST   N/permissions/{role}               ["produce", "consume"]: these, and no others any more
DELETE N/permissions/{role}
GET    N/permissions/subscription         {subscription: [roles]}
POST   N/permissions/subscription/{sub}   ["role", ...]: the only roles that may use it
DELETE N/permissions/{sub}/{role}
GET    T/permissions                      those of the topic and of its namespace
POST   T/permissions/{role}               as above, for all partitions
DELETE T/permissions/{role}               412 if the topic has none for this role

Where rights are not enforced, as in a cluster without settings for that, every change is answered with 501.
"""

from __future__ import annotations

from aiohttp import web

from sluice.actors.ownership.names import check_name, quoted, unquoted
from sluice.actors.policies.namespaces import check_role, check_roles
from sluice.actors.policies.permissions import Permissions
from sluice.actors.policies.policy_records import of_namespace, of_topic
from sluice.cluster.admin.broker import Broker, space_of, topic_of
from sluice.cluster.admin.topics import NAMESPACE, TOPIC
from sluice.cluster.http.guard import Handler
from sluice.cluster.http.responses import large
from sluice.cluster.http.server import body_of, json_in
from sluice.storage.errors import Invalid


class PermissionsByHttp:
    """The routes of permissions."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._permissions = broker, Permissions(broker.ports.meta)

    def routes(self) -> list[web.RouteDef]:
        of_subscription = f"{NAMESPACE}/permissions/subscription"
        return [
            web.get(f"{NAMESPACE}/permissions", large(self._of_namespace)),
            web.get(of_subscription, large(self._of_subscriptions)),
            web.get(f"{TOPIC}/permissions", large(self._of_topic)),
            web.post(f"{of_subscription}/{{subscription}}", self._changes(self._grant_subscription)),
            web.delete(f"{NAMESPACE}/permissions/{{subscription}}/{{role}}", self._changes(self._revoke_subscription)),
            *(web.post(f"{base}/permissions/{{role}}", self._changes(self._grant)) for base in (TOPIC, NAMESPACE)),
            *(web.delete(f"{base}/permissions/{{role}}", self._changes(self._revoke)) for base in (TOPIC, NAMESPACE)),
        ]

    async def _of_namespace(self, request: web.Request) -> web.Response:
        await self._broker.namespaces.policies(space_of(request))
        return web.json_response((await self._permissions.read(of_namespace(space_of(request)))).roles)

    async def _of_subscriptions(self, request: web.Request) -> web.Response:
        await self._broker.namespaces.policies(space_of(request))
        told = (await self._permissions.read(of_namespace(space_of(request)))).subscriptions
        return web.json_response({unquoted(name): roles for name, roles in told.items()})

    async def _of_topic(self, request: web.Request) -> web.Response:
        topic = topic_of(request)
        told = dict((await self._permissions.read(of_namespace(space_of(request)))).roles)
        for role, actions in (await self._permissions.read(of_topic(topic))).roles.items():
            told[role] = sorted({*told.get(role, ()), *actions})
        return web.json_response(told)

    def _changes(self, handler: Handler) -> Handler:
        """Apply a change here before the answer; other processes see it within moments."""

        async def handle(request: web.Request) -> web.StreamResponse:
            if self._broker.permissions is None:
                reason = "Authorization is not enabled: whoever may connect may do everything"
                return web.json_response({"reason": reason}, status=501)
            await self._broker.namespaces.policies(space_of(request))
            answer = await handler(request)
            await self._broker.permissions.refresh()
            return answer

        return handle

    async def _grant(self, request: web.Request) -> web.Response:
        name, role = _name(request), check_role(request.match_info["role"])
        await self._permissions.grant(name, role, _names_in(await body_of(request), "actions"))
        return web.Response(status=204)

    async def _revoke(self, request: web.Request) -> web.Response:
        name, role = _name(request), request.match_info["role"]
        if "topic" in request.match_info and role not in (await self._permissions.read(name)).roles:
            raise Invalid("Permissions are not set at the topic level")
        await self._permissions.revoke(name, role)
        return web.Response(status=204)

    async def _grant_subscription(self, request: web.Request) -> web.Response:
        roles = check_roles(_names_in(await body_of(request), "roles"))
        if not roles:
            raise Invalid("name a role that may use the subscription")
        await self._permissions.grant_subscription(space_of(request), _subscription(request), roles)
        return web.Response(status=204)

    async def _revoke_subscription(self, request: web.Request) -> web.Response:
        role = request.match_info["role"]
        await self._permissions.revoke_subscription(space_of(request), _subscription(request), role)
        return web.Response(status=204)


def _name(request: web.Request) -> str:
    """Return the name of the record for a path; as with Pulsar a topic need not exist yet. Raises Invalid."""
    return of_topic(topic_of(request)) if "topic" in request.match_info else of_namespace(space_of(request))


def _subscription(request: web.Request) -> str:
    return check_name("subscription", quoted(request.match_info["subscription"]))


def _names_in(body: str, what: str) -> list[str]:
    """A list of names as JSON. Raises Invalid."""
    try:
        given = json_in(body)
    except ValueError:
        given = None
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise Invalid(f'the body is a list of {what} as JSON, for example ["produce", "consume"]')
    return given

"""Policies by HTTP: those that a topic has are shown, none can be changed, and none is silently accepted.

GET    .../{topic}/deduplicationEnabled                                   from the topic's settings
GET    .../{topic}/schemaValidationEnforced[?applied=true]                false, or what its namespace says
GET    .../{topic}/{policy}, /admin/v2/namespaces/public/default/{policy}   204: it is not set
DELETE of the same                                                        204: it is not set any more
everything else                                                           405, in one line
"""

from __future__ import annotations

from aiohttp import web

from sluice.cluster.admin.broker import Broker, applied, named, not_offered, space_of
from sluice.cluster.admin.topics import NAMESPACE, TOPIC

POLICIES = (
    "autoSubscriptionCreation", "autoTopicCreation",
    "deduplicationSnapshotInterval", "delayedDelivery", "dispatcherPauseOnAckStatePersistent",
    "entryFilters", "inactiveTopicPolicies", "maxMessageSize", "maxSubscriptionsPerTopic", "maxTopicsPerNamespace",
    "maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnSubscription", "maxUnackedMessagesPerConsumer",
    "maxUnackedMessagesPerSubscription", "offloadPolicies", "persistence", "replicatorDispatchRate", "resourcegroup",
    "schemaCompatibilityStrategy", "schemaValidationEnforced",
    "subscribeRate", "subscriptionDispatchRate", "subscriptionExpirationTime", "subscriptionTypesEnabled", "properties",
    "shadowTopics", "deduplication", "subscriptionAuthMode", "antiAffinity", "encryptionRequired",
)  # fmt: skip
"""Those that are never set here."""
_OF_NOTHING: dict[str, object] = {
    "properties": {},
    "shadowTopics": [],
    "maxTopicsPerNamespace": 0,
    "dispatcherPauseOnAckStatePersistent": False,
}
"""What is answered where it is not nothing but empty."""


class PolicyRoutes:
    """The routes of other policies. The last one answers every path that no other route answers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[web.RouteDef]:
        names = f"{{policy:{'|'.join(POLICIES)}}}"
        return [
            web.get(f"{TOPIC}/deduplicationEnabled", self._deduplication),
            web.get(f"{TOPIC}/schemaValidationEnforced", self._enforced),
            web.get(f"{TOPIC}/replication", self._unset),
            web.get(f"{TOPIC}/{names}", self._unset),
            web.delete(f"{TOPIC}/{names}", self._unset),
            web.get(f"{NAMESPACE}/{names}", self._unset_for_all),
            web.delete(f"{NAMESPACE}/{names}", self._unset_for_all),
            web.route("*", "/admin/{rest:.*}", not_offered),
            web.route("*", "/lookup/{rest:.*}", not_offered),
        ]

    async def _deduplication(self, request: web.Request) -> web.Response:
        return web.json_response((await self._broker.settings(named(request))).deduplication_enabled)

    async def _enforced(self, request: web.Request) -> web.Response:
        await self._broker.settings(which := named(request))
        return web.json_response(applied(request) and (await self._broker.namespaces.of_topic(which.topic)).enforced)

    async def _unset(self, request: web.Request) -> web.Response:
        await self._broker.settings(named(request))
        return _not_set(request)

    async def _unset_for_all(self, request: web.Request) -> web.Response:
        await self._broker.namespaces.policies(space_of(request))
        return _not_set(request)


def _not_set(request: web.Request) -> web.Response:
    """Answer for a policy that is not set. Some of Pulsar's tools need a document for that; the others get 204."""
    document = _OF_NOTHING.get(request.match_info.get("policy", "")) if request.method == "GET" else None
    return web.Response(status=204) if document is None else web.json_response(document)

"""Paths of things that exist once here: a tenant, a namespace, a cluster, a broker.

GET  /admin/v2/tenants | tenants/public
GET  /admin/v2/namespaces/public
GET  /admin/v2/namespaces/public/default        its policies: what Pulsar calls the defaults
GET  .../namespaces/public/default/bundles | clusters
PUT  .../namespaces/public/default/unload       all clients connect again
GET  /admin/v2/clusters | clusters/sluice
GET  /admin/v2/brokers | brokers/{cluster} | brokers/leaderBroker | health | ready | version
GET  /admin/v2/brokers/configuration | configuration/values | configuration/runtime
GET  /lookup/v2/topic/[non-]persistent/public/default/{topic}[/bundle]
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from aiohttp import web

from sluice.actors.messages import Ping, SendAway
from sluice.actors.ownership.names import unquoted
from sluice.actors.policies.permissions import Permissions
from sluice.actors.policies.policy_records import of_namespace
from sluice.actors.policies.retention import THRESHOLDS, Lifetimes
from sluice.cluster.admin.broker import Broker, named, not_offered, space_of
from sluice.cluster.admin.lifetimes import retention_shown
from sluice.cluster.admin.namespaces import CLUSTER
from sluice.cluster.admin.topics import NAMESPACE
from sluice.cluster.admin.whole_namespaces import BUNDLE, WHOLE
from sluice.cluster.gateway.addresses import Addresses
from sluice.cluster.http.responses import large
from sluice.storage.errors import NotFound

LOOKUP = "/lookup/v2/topic/{kind:(non-)?persistent}/{tenant}/{namespace}/{topic}"


class BrokerRoutes:
    """The routes of tenants, clusters and brokers."""

    def __init__(self, broker: Broker, addresses: Addresses) -> None:
        self._broker, self._at = broker, addresses

    def routes(self) -> list[web.RouteDef]:
        brokers = "/admin/v2/brokers"
        return [
            web.get(NAMESPACE, large(self._policies)),
            web.get(f"{NAMESPACE}/bundles", self._bundles),
            web.get(f"{NAMESPACE}/{{what:clusters|replication}}", self._clusters_of),
            web.put(f"{NAMESPACE}/unload", self._unload),
            _said("/admin/v2/clusters", [CLUSTER]),
            web.get("/admin/v2/clusters/{cluster}", self._cluster),
            web.get(f"{brokers}/leaderBroker", self._leader),
            web.get(f"{brokers}/health", self._health),
            web.get(f"{brokers}/ready", self._health),
            web.get(f"{brokers}/version", self._version),
            _said(f"{brokers}/configuration", []),
            _said(f"{brokers}/configuration/values", {}),
            _said(f"{brokers}/configuration/runtime", {}),
            web.get(f"{brokers}/internal-configuration", not_offered),
            web.get(f"{brokers}/{{check:backlog-quota-check|backlogQuotaCheck}}", not_offered),
            web.get(brokers, self._brokers),
            web.get(f"{brokers}/{{cluster}}", self._brokers),
            web.get(LOOKUP, self._lookup),
            web.get(f"{LOOKUP}/bundle", self._bundle),
        ]

    # -- tenants, namespaces, clusters ----------------------------------------------------------------------------

    async def _policies(self, request: web.Request) -> web.Response:
        policies = await self._broker.namespaces.policies(space_of(request))
        granted = await Permissions(self._broker.ports.meta).read(of_namespace(space_of(request)))
        roles = {
            "namespace_auth": granted.roles,
            "destination_auth": {},
            "subscription_auth_roles": {unquoted(name): each for name, each in granted.subscriptions.items()},
        }
        document = {"auth_policies": roles, "replication_clusters": [CLUSTER], "bundles": _bundles(), "deleted": False}
        own: dict[str, Any] = {
            "schema_compatibility_strategy": policies.compatibility,
            "deduplicationEnabled": policies.deduplication,
        }
        said = await Lifetimes(self._broker.ports.meta).read(of_namespace(space_of(request)))
        if said.retention is not None:
            own["retention_policies"] = retention_shown(said.retention)
        if said.ttl_ms is not None:
            own["message_ttl_in_seconds"] = said.ttl_ms // 1000
        names = ("offload_threshold", "offload_threshold_in_seconds", "offload_deletion_lag_ms", "compaction_threshold")
        values = said.thresholds()
        own |= {name: values[setting] for name, setting in zip(names, THRESHOLDS, strict=True) if setting in values}
        return web.json_response({**document, **own, "schema_validation_enforced": policies.enforced})

    async def _bundles(self, request: web.Request) -> web.Response:
        await self._broker.namespaces.policies(space_of(request))
        return web.json_response(_bundles())

    async def _clusters_of(self, request: web.Request) -> web.Response:
        await self._broker.namespaces.policies(space_of(request))
        return web.json_response([CLUSTER])

    async def _unload(self, request: web.Request) -> web.Response:
        for topic in await self._broker.topics_in(space_of(request)):
            await self._broker.ask_gateways(SendAway(topic=topic))
        return web.Response(status=204)

    async def _cluster(self, request: web.Request) -> web.Response:
        _check("cluster", request.match_info["cluster"], CLUSTER)
        urls = {"serviceUrl": self._at.http, "serviceUrlTls": self._at.http_tls, "brokerServiceUrl": self._at.pulsar}
        return web.json_response({**urls, "brokerServiceUrlTls": self._at.pulsar_tls, "peerClusterNames": None})

    # -- brokers --------------------------------------------------------------------------------------------------

    async def _brokers(self, request: web.Request) -> web.Response:
        """Whichever cluster is named, as with Pulsar."""
        return web.json_response([self._at.broker])

    async def _leader(self, request: web.Request) -> web.Response:
        return web.json_response({"brokerId": self._at.broker, "serviceUrl": self._at.http})

    async def _health(self, request: web.Request) -> web.Response:
        await self._broker.ask_controller(Ping(), patience=0)
        return web.Response(text="ok")

    async def _version(self, request: web.Request) -> web.Response:
        return web.Response(text=f"sluice-{version('sluice')}")

    # -- lookups --------------------------------------------------------------------------------------------------

    async def _lookup(self, request: web.Request) -> web.Response:
        """This broker, for every topic; the topic is made when a client produces or subscribes."""
        named(request)
        urls = {"brokerUrl": self._at.pulsar, "brokerUrlTls": self._at.pulsar_tls, "nativeUrl": self._at.pulsar}
        return web.json_response({**urls, "httpUrl": self._at.http, "httpUrlTls": self._at.http_tls})

    async def _bundle(self, request: web.Request) -> web.Response:
        named(request)
        return web.Response(text=WHOLE)


def _bundles() -> dict[str, Any]:
    return {"boundaries": list(BUNDLE), "numBundles": 1}


def _check(kind: str, given: str, known: str) -> None:
    """Raises NotFound for everything but the one that there is."""
    if given != known:
        raise NotFound(f"{kind.capitalize()} {given[:40]} does not exist: there is only {known}")


def _said(path: str, answer: Any) -> web.RouteDef:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response(answer)

    return web.get(path, handle)

"""The table of Pulsar's paths: what the port for its tools and the admin port answer alike."""

from __future__ import annotations

from aiohttp import web

from cluster.pulsar.admin.addresses import Addresses
from cluster.pulsar.admin.broker import Broker
from cluster.pulsar.admin.changes import Changes
from cluster.pulsar.admin.fixed import Fixed
from cluster.pulsar.admin.lifetimes import LifetimesByHttp
from cluster.pulsar.admin.messages import Messages
from cluster.pulsar.admin.namespaces import NamespacesByHttp
from cluster.pulsar.admin.policies import Policies
from cluster.pulsar.admin.quotas import QuotasByHttp
from cluster.pulsar.admin.schemas import SchemasByHttp
from cluster.pulsar.admin.statistics import Shapes
from cluster.pulsar.admin.subscriptions import Subscriptions
from cluster.pulsar.admin.topics import Topics
from cluster.pulsar.admin.whole_namespaces import WholeNamespaces


def pulsar_routes(broker: Broker, addresses: Addresses) -> list[web.RouteDef]:
    """Every route; the last one refuses what there is not, so whoever has routes of his own puts them before these."""
    return [
        *Topics(broker, Shapes(addresses)).routes(),
        *Subscriptions(broker).routes(),
        *Changes(broker).routes(),
        *Messages(broker).routes(),
        *SchemasByHttp(broker).routes(),
        *Fixed(broker, addresses).routes(),
        *NamespacesByHttp(broker).routes(),
        *WholeNamespaces(broker).routes(),
        *QuotasByHttp(broker).routes(),
        *LifetimesByHttp(broker).routes(),
        *Policies(broker).routes(),
    ]

"""The table of Pulsar's paths, which the port for its tools and the admin port share."""

from __future__ import annotations

from aiohttp import web

from cluster.pulsar.admin.addresses import Addresses
from cluster.pulsar.admin.broker import Broker
from cluster.pulsar.admin.brokers import BrokerRoutes
from cluster.pulsar.admin.changes import TopicChangeRoutes
from cluster.pulsar.admin.lifetimes import LifetimesByHttp
from cluster.pulsar.admin.limits import LimitsByHttp
from cluster.pulsar.admin.messages import Messages
from cluster.pulsar.admin.namespaces import NamespacesByHttp
from cluster.pulsar.admin.permissions import PermissionsByHttp
from cluster.pulsar.admin.policies import PolicyRoutes
from cluster.pulsar.admin.quotas import QuotasByHttp
from cluster.pulsar.admin.schemas import SchemasByHttp
from cluster.pulsar.admin.statistics import PulsarStats
from cluster.pulsar.admin.subscriptions import Subscriptions
from cluster.pulsar.admin.thresholds import ThresholdsByHttp
from cluster.pulsar.admin.topics import Topics
from cluster.pulsar.admin.whole_namespaces import WholeNamespaces


def pulsar_routes(broker: Broker, addresses: Addresses) -> list[web.RouteDef]:
    """Every route; the last one refuses what there is not, so whoever has routes of his own puts them before these."""
    return [
        *Topics(broker, PulsarStats(addresses, broker.ports.clock)).routes(),
        *Subscriptions(broker).routes(),
        *TopicChangeRoutes(broker).routes(),
        *Messages(broker).routes(),
        *SchemasByHttp(broker).routes(),
        *BrokerRoutes(broker, addresses).routes(),
        *NamespacesByHttp(broker).routes(),
        *WholeNamespaces(broker).routes(),
        *QuotasByHttp(broker).routes(),
        *LifetimesByHttp(broker).routes(),
        *ThresholdsByHttp(broker).routes(),
        *PermissionsByHttp(broker).routes(),
        *LimitsByHttp(broker).routes(),
        *PolicyRoutes(broker).routes(),
    ]

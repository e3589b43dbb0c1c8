"""The table of Pulsar's paths, which the port for its tools and the admin port share."""

from __future__ import annotations

from aiohttp import web

from sluice.cluster.admin.broker import Broker
from sluice.cluster.admin.brokers import BrokerRoutes
from sluice.cluster.admin.changes import TopicChangeRoutes
from sluice.cluster.admin.lifetimes import LifetimesByHttp
from sluice.cluster.admin.limits import LimitsByHttp
from sluice.cluster.admin.messages import Messages
from sluice.cluster.admin.metrics import Metrics
from sluice.cluster.admin.namespaces import NamespacesByHttp
from sluice.cluster.admin.permissions import PermissionsByHttp
from sluice.cluster.admin.policies import PolicyRoutes
from sluice.cluster.admin.quotas import QuotasByHttp
from sluice.cluster.admin.schemas import SchemasByHttp
from sluice.cluster.admin.statistics import PulsarStats
from sluice.cluster.admin.subscriptions import Subscriptions
from sluice.cluster.admin.thresholds import ThresholdsByHttp
from sluice.cluster.admin.topics import Topics
from sluice.cluster.admin.whole_namespaces import WholeNamespaces
from sluice.cluster.gateway.addresses import Addresses


def pulsar_routes(broker: Broker, addresses: Addresses) -> list[web.RouteDef]:
    """Return every route. The last one refuses unknown paths, so further routes must be added before these."""
    return [
        *Metrics(broker).routes(),
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

"""Every path by HTTP by every kind of role. The table has a row for each; a new path without a row fails."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from sluice.actors.policies.authorization import Authorization, Forbidden
from sluice.actors.policies.namespaces import Namespaces
from sluice.actors.policies.permission_cache import PermissionCache
from sluice.actors.policies.permissions import Permissions
from sluice.actors.policies.policy_records import of_namespace, of_topic
from sluice.cluster.admin.rights import ROWS, check_rights
from sluice.cluster.admin.server_routes import OPEN_PATHS, AdminHttp
from sluice.storage.errors import SluiceError
from tests.sim.world import World

ROLES = ("root", "watcher", "chief", "writer", "reader", "clerk", "everywhere", "stranger", "nobody")
"""As in tests.actors.pulsar.test_rights."""
ALL = " ".join(ROLES)
CHIEF, LOOKING, EITHER = "root chief", "root watcher chief", "root watcher chief writer reader clerk everywhere"
TABLE = """
all: GET /admin/v2/clusters
all: GET /admin/v2/brokers/health
all: GET /admin/v2/brokers/ready
all: GET /admin/v2/brokers/version
all: GET /admin/v2/brokers/internal-configuration
all: GET /admin/v2/brokers/{check}
all: * /admin/{rest}
all: * /lookup/{rest}

root watcher: GET /admin/v2/tenants
root watcher: GET /admin/v2/tenants/{tenant}
root watcher: GET /admin/v2/clusters/{cluster}
root watcher: GET /admin/v2/brokers
root watcher: GET /admin/v2/brokers/{cluster}
root watcher: GET /admin/v2/brokers/leaderBroker
root watcher: GET /admin/v2/brokers/configuration
root watcher: GET /admin/v2/brokers/configuration/values
root watcher: GET /admin/v2/brokers/configuration/runtime
root watcher: GET /metrics
root watcher: GET /metrics/
root watcher: GET /watch/subscriptions
root watcher: GET /watch/cluster
root: PUT /admin/v2/tenants/{tenant}
root: POST /admin/v2/tenants/{tenant}
root: DELETE /admin/v2/tenants/{tenant}

looking: GET /admin/v2/namespaces/{tenant}
looking: GET N
looking: GET N/bundles
looking: GET N/{what}
looking: GET N/permissions
looking: GET N/permissions/subscription
looking: GET N/{policy}
looking: GET N/{limit}
looking: GET N/{threshold}
looking: GET T/{threshold}
looking: GET N/backlogQuotaMap
looking: GET N/retention
looking: GET N/messageTTL
looking: GET T/permissions
looking: GET T/replication
looking: GET T/{policy}
looking: GET T/{limit}
looking: GET T/backlogQuotaMap
looking: GET T/retention
looking: GET T/messageTTL
looking: GET T/deduplicationEnabled
looking: GET T/schemaValidationEnforced

chief: PUT N/{threshold}
chief: DELETE N/{threshold}
chief: POST T/{threshold}
chief: DELETE T/{threshold}
chief: POST N/{limit}
chief: DELETE N/{limit}
chief: POST T/{limit}
chief: DELETE T/{limit}
chief: PUT N
chief: PUT N/{policy}
chief: PUT N/unload
chief: PUT N/{bundle}/unload
chief: DELETE N
chief: DELETE N/{policy}
chief: DELETE N/retention
chief: DELETE N/messageTTL
chief: DELETE N/backlogQuota
chief: POST N/{policy}
chief: POST N/retention
chief: POST N/messageTTL
chief: POST N/backlogQuota
chief: POST N/permissions/{role}
chief: POST N/permissions/subscription/{subscription}
chief: DELETE N/permissions/{role}
chief: DELETE N/permissions/{subscription}/{role}
chief: PUT T
chief: PUT T/partitions
chief: PUT T/unload
chief: PUT T/offload
chief: PUT T/compaction
chief: POST T/erase
chief: DELETE T
chief: DELETE T/partitions
chief: DELETE T/{policy}
chief: DELETE T/retention
chief: DELETE T/messageTTL
chief: DELETE T/backlogQuota
chief: POST T/partitions
chief: POST T/terminate
chief: POST T/terminate/partitions
chief: POST T/createMissedPartitions
chief: POST T/retention
chief: POST T/messageTTL
chief: POST T/backlogQuota
chief: POST T/permissions/{role}
chief: DELETE T/permissions/{role}
chief: DELETE SCHEMA/schema

root chief writer: POST SCHEMA/schema

root watcher chief everywhere: GET /admin/v2/persistent/{tenant}/{namespace}
root watcher chief everywhere: GET /admin/v2/persistent/{tenant}/{namespace}/partitioned
root watcher chief everywhere: GET /admin/v2/non-persistent/{tenant}/{namespace}
root watcher chief everywhere: GET /admin/v2/non-persistent/{tenant}/{namespace}/partitioned
root watcher chief everywhere: GET N/topics
chief: POST N/unsubscribe/{subscription}
chief: POST N/clearBacklog/{subscription}
chief: POST N/clearBacklog
chief: POST N/{bundle}/unsubscribe/{subscription}
chief: POST N/{bundle}/clearBacklog/{subscription}
chief: POST N/{bundle}/clearBacklog

root watcher chief reader clerk everywhere: GET T/subscriptions
root watcher chief reader clerk everywhere: GET T/lastMessageId
root watcher chief reader clerk everywhere: GET T/messageid/{time}
root chief reader clerk everywhere: GET T/ledger/{ledger}/entry/{entry}
root chief reader clerk everywhere: GET T/examinemessage
root chief clerk: GET S/position/{number}
root chief clerk: POST T/all_subscription/expireMessages/{number}
root chief clerk: PUT S
root chief clerk: DELETE S
root watcher chief clerk: GET S/properties
root chief clerk: PUT S/properties
root watcher chief clerk: GET S/explain
root watcher chief clerk: GET S/{verb}
root watcher chief clerk: GET /watch/events
root watcher chief clerk: GET /watch/past
root chief clerk: POST S/skip/{number}
root chief clerk: POST S/skip_all
root chief clerk: POST S/resetcursor
root chief clerk: POST S/resetcursor/{number}
root chief clerk: POST S/expireMessages/{number}
root chief clerk: POST S/delayed/{what}
root chief clerk: POST S/parked/{what}

either: GET LOOKUP
either: GET LOOKUP/bundle
either: GET T/partitions
either: GET T/stats
either: GET T/partitioned-stats
either: GET T/internalStats
either: GET T/partitioned-internalStats
either: GET T/internal-info
either: GET T/compaction
either: GET T/offload
either: GET T/erase
either: GET SCHEMA/schema
either: GET SCHEMA/schema/{version}
either: GET SCHEMA/schemas
root chief writer reader clerk everywhere: POST SCHEMA/compatibility
root chief writer reader clerk everywhere: POST SCHEMA/version
"""
SHORT = {
    "N": "/admin/v2/namespaces/{tenant}/{namespace}",
    "T": "/admin/v2/persistent/{tenant}/{namespace}/{topic}",
    "S": "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}",
    "SCHEMA": "/admin/v2/schemas/{tenant}/{namespace}/{topic}",
    "LOOKUP": "/lookup/v2/topic/{kind}/{tenant}/{namespace}/{topic}",
}
WORDS = {"all": ALL, "looking": LOOKING, "chief": CHIEF, "either": EITHER}
VALUES = {
    "tenant": ["sales"], "namespace": ["eu"], "topic": ["orders"], "subscription": ["kept"], "role": ["till"],
    "kind": ["persistent"], "bundle": ["0x00000000_0xffffffff"], "cluster": ["sluice"], "rest": ["v3/x"],
    "check": ["backlog-quota-check"], "verb": ["pending"], "policy": ["deduplication", "persistence"],
    "limit": ["publishRate"],
    "threshold": ["compactionThreshold"],
    "what": ["clusters", "cancel", "redrive"],
}  # fmt: skip


def rows() -> Iterator[tuple[str, str, str]]:
    """(method, path, who may)"""
    for line in TABLE.strip().splitlines():
        if line:
            who, asked = line.split(": ")
            method, path = asked.split()
            short, slash, rest = path.partition("/")
            yield method, SHORT[short] + slash + rest if short in SHORT else path, WORDS.get(who, who)


def application() -> web.Application:
    """All routes of a cluster, which are never called."""
    admin = AdminHttp(MagicMock(), controller="c", data_dir=MagicMock(), port=0)
    app = web.Application()
    app.add_routes(admin._routes())
    return app


def asked(app: web.Application, method: str, path: str) -> web.Request:
    """A request that goes to a path of the table."""
    names = re.findall(r"{(\w+)}", path)
    for values in itertools.product(*(VALUES.get(name, ["1"]) for name in names)):
        filled = path
        for name, value in zip(names, values, strict=True):
            filled = filled.replace(f"{{{name}}}", value, 1)
        query = "?topic=sales..eu..orders&subscription=kept" if path.startswith("/watch/") else ""
        request = make_mocked_request("GET" if method == "*" else method, filled + query, app=app)
        found = asyncio.run(app.router.resolve(request))
        request._match_info = found
        if found.route.resource is not None and found.route.resource.canonical == path:
            return request
    raise AssertionError(f"nothing leads to {method} {path}")


def test_every_path_has_a_row() -> None:
    known = {(method, path) for method, path, _ in rows()}
    routes = {(route.method, route.resource.canonical) for route in application().router.routes() if route.resource}
    wanted = {(method, path) for method, path in routes if method != "HEAD" and path not in OPEN_PATHS}
    assert wanted == known
    assert set(ROWS) - {("", "")} == known, "rows without a path"


async def _granted(world: World) -> PermissionCache:
    meta = world.client("tool").meta
    said = Permissions(meta)
    await Namespaces(meta).create_tenant("sales", ("chief",))
    await Namespaces(meta).create_tenant("other", ("stranger",))
    await said.grant(of_topic("sales..eu..orders"), "writer", ["produce"])
    for role in ("reader", "clerk"):
        await said.grant(of_topic("sales..eu..orders"), role, ["consume"])
    await said.grant(of_namespace("sales/eu"), "everywhere", ["consume"])
    await said.grant_subscription("sales/eu", "kept", ["clerk"])
    return PermissionCache(world.client("gateway"), Authorization(("root",), ("watcher",)))


def test_every_path_by_every_role() -> None:
    app = application()
    requests = [(asked(app, method, path), method, path, who.split()) for method, path, who in rows()]

    async def scenario(world: World) -> None:
        cache, wrong = await _granted(world), list[Any]()
        for request, method, path, permitted in requests:
            for role in ROLES:
                try:
                    await check_rights(cache, (role,), request)
                    told = True
                except Forbidden:
                    told = False
                if told != (role in permitted):
                    wrong.append((role, method, path, told))
        assert wrong == []

    World(1).play(scenario)


@pytest.mark.parametrize(
    "path",
    [
        "/admin/v2/namespaces/..%2fsales/eu",
        "/admin/v2/namespaces/sales/e%2fu",
        "/admin/v2/persistent/sales/eu%2forders/x/stats",
        "/admin/v2/persistent/sales/eu/a%2fb/stats",
        "/admin/v2/persistent/sales..eu/x/orders/stats",
        "/admin/v2/tenants/%00",
    ],
)
def test_names_that_are_none_are_refused(path: str) -> None:
    app = application()
    request = make_mocked_request("GET", path, app=app)
    request._match_info = asyncio.run(app.router.resolve(request))

    async def scenario(world: World) -> None:
        cache = await _granted(world)
        with pytest.raises(SluiceError) as told:
            await check_rights(cache, ("everywhere", "stranger"), request)
        assert isinstance(told.value, ValueError)

    World(1).play(scenario)

"""Which right each path by HTTP needs; a path that has no row here is for superusers alone.

The rows are those of Pulsar, but for two. To make all messages of all subscriptions count as done needs the right for
those subscriptions that have roles of their own as well. And schemas can be seen by those who produce or consume.
`T` is the path of a topic, `S` of a subscription on it, `N` of a namespace.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import get_args

from aiohttp import web

from sluice.actors.ownership.names import check_name, check_space, quoted
from sluice.actors.policies.audited import DONE, FAILED, REFUSED, Audit, Audited
from sluice.actors.policies.authorization import EVERY, NO_PROXIES, Forbidden, Needed, Wish, of_space, of_topic
from sluice.actors.policies.permission_cache import PermissionCache
from sluice.actors.pulsar.topic_names import said_name
from sluice.cluster.admin.broker import named, space_of, subscription_of

_T, _N = "/admin/v2/persistent/{tenant}/{namespace}/{topic}", "/admin/v2/namespaces/{tenant}/{namespace}"
_SHORT = {
    "T": _T,
    "S": f"{_T}/subscription/{{subscription}}",
    "N": _N,
    "N/B": f"{_N}/{{bundle}}",
    "SCHEMA": "/admin/v2/schemas/{tenant}/{namespace}/{topic}",
    "LOOKUP": "/lookup/v2/topic/{kind}/{tenant}/{namespace}/{topic}",
    "ALL": "/admin/v2/persistent/{tenant}/{namespace}",
    "NONE": "/admin/v2/non-persistent/{tenant}/{namespace}",
    "BROKERS": "/admin/v2/brokers",
}
_ROWS = {
    "": """
        GET /admin/v2/clusters; GET BROKERS /ready /health /version
        * /admin/{rest} /lookup/{rest}
        GET BROKERS /internal-configuration /{check}
    """,
    "superuser": """
        GET /admin/v2/tenants /admin/v2/tenants/{tenant} /admin/v2/clusters/{cluster}
        PUT /admin/v2/tenants/{tenant}; POST /admin/v2/tenants/{tenant}; DELETE /admin/v2/tenants/{tenant}
        GET BROKERS . /{cluster} /leaderBroker /configuration /configuration/values /configuration/runtime
        GET /metrics /metrics/ /watch/subscriptions /watch/cluster
    """,
    "administrator": """
        GET /admin/v2/namespaces/{tenant}
        GET N . /bundles /{what} /permissions /permissions/subscription /{policy}
        GET N /{limit} /backlogQuotaMap /retention /messageTTL
        PUT N . /{policy} /unload; PUT N/B /unload; DELETE N . /{policy} /retention /messageTTL /backlogQuota
        POST N /{limit}; DELETE N /{limit}; GET T /{limit}; POST T /{limit}; DELETE T /{limit}
        POST N /{policy} /retention /messageTTL /backlogQuota /permissions/{role}
        POST N /permissions/subscription/{subscription}
        DELETE N /permissions/{role} /permissions/{subscription}/{role}
        PUT T . /partitions /unload /offload /compaction
        GET N /{threshold}; PUT N /{threshold}; DELETE N /{threshold}
        GET T /{threshold}; POST T /{threshold}; DELETE T /{threshold}
        DELETE T . /partitions /{policy} /retention /messageTTL /backlogQuota
        POST T /partitions /terminate /terminate/partitions /createMissedPartitions /erase
        POST T /retention /messageTTL /backlogQuota /permissions/{role}; DELETE T /permissions/{role}
        GET T /permissions /replication /{policy} /backlogQuotaMap /retention /messageTTL
        GET T /deduplicationEnabled /schemaValidationEnforced
        DELETE SCHEMA /schema
    """,
    "produce": "POST SCHEMA /schema",
    "consume": """
        GET ALL . /partitioned; GET NONE . /partitioned; GET N /topics
        POST N /unsubscribe/{subscription} /clearBacklog/{subscription}; POST N /clearBacklog
        POST N/B /unsubscribe/{subscription} /clearBacklog/{subscription}; POST N/B /clearBacklog
        GET T /subscriptions /lastMessageId /messageid/{time}
        POST T /all_subscription/expireMessages/{number}
        PUT S .; DELETE S .
        GET S /properties /explain /{verb}; PUT S /properties
        POST S /skip/{number} /skip_all /resetcursor /resetcursor/{number} /expireMessages/{number}
        POST S /delayed/{what} /parked/{what}
        GET /watch/events /watch/past
        GET T /ledger/{ledger}/entry/{entry} /examinemessage; GET S /position/{number}
    """,
    "either": """
        GET LOOKUP . /bundle
        GET T /partitions /stats /partitioned-stats /internalStats /partitioned-internalStats /internal-info
        GET T /compaction /offload /erase
        GET SCHEMA /schema /schema/{version} /schemas; POST SCHEMA /compatibility /version
    """,
}
ORIGINAL_PRINCIPAL = "X-Original-Principal"
"""The header by which a proxy of Pulsar's says for whom it asks."""
_ALL_SUBSCRIPTIONS = ("/clearBacklog", "/all_subscription/expireMessages/{number}")
_CONTENT = ("/ledger/{ledger}/entry/{entry}", "/examinemessage", "/position/{number}")
"""Where messages are read, which viewers do not."""


def _rows() -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for needs, text in _ROWS.items():
        assert needs in ("", *get_args(Needed))
        for line in text.replace(";", "\n").split("\n"):
            method, *paths = line.split() or [""]
            base = _SHORT[paths.pop(0)] if paths and paths[0] in _SHORT else ""
            for path in paths:
                found[method, base + path.removeprefix(".")] = needs
    return found


ROWS = _rows()
"""The right that is needed, by method and path; "" where it is enough to be known."""


def wish_of(request: web.Request) -> Wish | None:
    """Return the right that a request needs; None if it needs none. Raises Invalid, NotFound."""
    resource = request.match_info.route.resource
    if resource is None:  # there is no such path
        return None
    method, path = "GET" if request.method == "HEAD" else request.method, resource.canonical
    needs = ROWS.get((method, path), ROWS.get(("*", path), "superuser"))
    looks = method == "GET" and not path.endswith(_CONTENT)
    at = request.match_info
    for right in get_args(Needed):
        if right == needs:
            break
    else:
        return None
    if right == "superuser":
        return Wish(right, looks=looks)
    subscription = EVERY if path.endswith(_ALL_SUBSCRIPTIONS) else ""
    if "subscription" in at and right == "consume":
        subscription = subscription_of(request)
    if path in ("/watch/events", "/watch/past"):
        topic = check_name("topic", request.query.get("topic", ""))
        return of_topic(right, topic, quoted(request.query.get("subscription", "")), looks=True)
    if "namespace" not in at:
        check_space("tenant", at["tenant"])
        return Wish(right, tenant=at["tenant"], looks=looks)
    check_space("namespace", space_of(request))
    if "topic" in at:
        return of_topic(right, named(request).topic, subscription, looks=looks)
    return of_space(right, space_of(request), subscription, looks=looks)


def write_down(audit: Audit, roles: Sequence[str], request: web.Request, answer: web.StreamResponse) -> None:
    """Tell an audit of a request that would change something, or was refused."""
    refused = answer.status in (401, 403)
    if request.method in ("GET", "HEAD") and not refused:
        return
    resource, at = request.match_info.route.resource, request.match_info
    path = request.path if resource is None else resource.canonical
    for short, base in (("subscription", _SHORT["S"]), ("topic", _T), ("namespace", _N)):
        if path.startswith(base):
            path = short + path.removeprefix(base)
            break
    for name in ("role", "policy", "limit", "threshold", "number", "what", "tenant"):
        path = path.replace(f"{{{name}}}", at.get(name, ""))
    space = "/".join(at[name] for name in ("tenant", "namespace") if name in at)
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    reason = ""
    if answer.status >= 400 and isinstance(answer, web.Response) and answer.content_type == "application/json":
        reason = str(json.loads(answer.text or "{}").get("reason", ""))
    audit(
        Audited(
            role=",".join(roles),
            address="{}:{}".format(*peer) if peer else request.remote or "",
            what=f"{request.method} {path}",
            topic=said_name(f"{space}/{at['topic']}") if "topic" in at else space,
            subscription=at.get("subscription", ""),
            outcome=DONE if answer.status < 400 else REFUSED if refused else FAILED,
            reason=reason,
        )
    )


async def check_rights(permissions: PermissionCache | None, roles: Sequence[str], request: web.Request) -> None:
    """Raises Forbidden if one with these roles may not ask for this, Invalid, NotFound, Unavailable."""
    if permissions is None:
        return
    if ORIGINAL_PRINCIPAL in request.headers:
        raise Forbidden(NO_PROXIES)
    if (wish := wish_of(request)) is not None:
        await permissions.check(roles, wish)

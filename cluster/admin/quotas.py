"""Backlog quotas by HTTP, of a namespace and of a topic (`N` is either's path).

GET    N/backlogQuotaMap       {"destination_storage": {"limitSize": bytes, "policy": P, ...}}, {} where none is set
POST   N/backlogQuota          set it: {"limitSize": bytes, "policy": P}, with ?backlogQuotaType=destination_storage
DELETE N/backlogQuota          there is none any more
The same with ?backlogQuotaType=message_age and {"limitTime": seconds, "policy": P}.

P is `producer_request_hold`, `producer_exception` or `consumer_backlog_eviction`, by which what is too old or too much
counts as done. A limit of the other kind is refused with 405.
"""

from __future__ import annotations

from aiohttp import web

from sluice.actors.policies.backlog_quotas import Quota
from sluice.actors.policies.policy_records import of_namespace
from sluice.cluster.admin.broker import Broker, applied, space_of
from sluice.cluster.admin.topics import NAMESPACE, TOPIC
from sluice.cluster.http.server import body_of, number_of, object_in
from sluice.storage.errors import Invalid

BY_SIZE, BY_AGE = "destination_storage", "message_age"
NO_LIMIT = -1
_COMPLAINT = 'the body is a quota, for example {"limitSize": 1048576, "policy": "producer_request_hold"}'


class QuotasByHttp:
    """The routes of backlog quotas."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._kinds = broker, {BY_SIZE: broker.quotas, BY_AGE: broker.ages}

    def routes(self) -> list[web.RouteDef]:
        return [
            route
            for base in (NAMESPACE, TOPIC)
            for route in (
                web.get(f"{base}/backlogQuotaMap", self._show),
                web.post(f"{base}/backlogQuota", self._set),
                web.delete(f"{base}/backlogQuota", self._unset),
            )
        ]

    async def _show(self, request: web.Request) -> web.Response:
        names = [(await self._broker.recorded(request))[0]]
        if applied(request):
            names.append(of_namespace(space_of(request)))
        shown = {}
        for kind, quotas in self._kinds.items():
            found = [quota for name in names if (quota := await quotas.read(name)) is not None]
            if found:
                shown[kind] = _shown(kind, found[0])
        return web.json_response(shown)

    async def _set(self, request: web.Request) -> web.Response:
        name, _ = await self._broker.recorded(request)
        kind, given = _kind(request), object_in(await body_of(request), _COMPLAINT)
        policy, field = given.get("policy"), "limitSize" if kind == BY_SIZE else "limitTime"
        other = given.get("limitTime" if kind == BY_SIZE else "limitSize", NO_LIMIT)
        if other not in (NO_LIMIT, None):
            return web.json_response({"reason": "Sluice offers a limit of one kind at a time"}, status=405)
        if not isinstance(policy, str):
            raise Invalid("the body must have a policy, for example producer_request_hold")
        limit = given.get(field, given.get("limit", NO_LIMIT) if kind == BY_SIZE else NO_LIMIT)
        number = number_of(str(limit), f"{field} is a number of {'bytes' if kind == BY_SIZE else 'seconds'}, not {{}}")
        await self._kinds[kind].set(name, Quota(number, policy))
        return web.Response(status=204)

    async def _unset(self, request: web.Request) -> web.Response:
        kind = _kind(request)
        name, _ = await self._broker.recorded(request)
        await self._kinds[kind].unset(name)
        return web.Response(status=204)


def _kind(request: web.Request) -> str:
    """Raises Invalid for a kind of quotas that there is not."""
    kind = request.query.get("backlogQuotaType", BY_SIZE)
    if kind not in (BY_SIZE, BY_AGE):
        raise Invalid(f"there are quotas of type {BY_SIZE} and {BY_AGE}, not {kind[:40]}")
    return kind


def _shown(kind: str, quota: Quota) -> dict[str, object]:
    size, seconds = (quota.limit, NO_LIMIT) if kind == BY_SIZE else (NO_LIMIT, quota.limit)
    return {"limit": size, "limitSize": size, "limitTime": seconds, "policy": quota.policy}

"""Limits by HTTP, of a namespace and of a topic (`N` is either's path).

GET, POST and DELETE  N/publishRate    {"publishThrottlingRateInMsg": M, "publishThrottlingRateInByte": B}, of a second
                      N/dispatchRate   {"dispatchThrottlingRateInMsg": M, "dispatchThrottlingRateInByte": B,
                                       "ratePeriodInSecond": S}
                      of a namespace  N/maxProducersPerTopic | maxConsumersPerTopic | maxConsumersPerSubscription
                      of a topic      N/maxProducers | maxConsumers | maxConsumersPerSubscription
                                      a number; 0 is no limit

Where nothing is set GET answers 204. Of a topic, with ?applied=true, it tells what holds: its own, or its namespace's.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from sluice.actors.policies.limits import NONE, Rate
from sluice.actors.policies.policy_records import of_namespace
from sluice.cluster.admin.broker import Broker, applied, space_of
from sluice.cluster.admin.topics import NAMESPACE, TOPIC
from sluice.cluster.http.server import body_of, number_of, object_in
from sluice.storage.errors import Invalid

RATES = {"publishRate": "publish_rate", "dispatchRate": "dispatch_rate"}
OF_NAMESPACE = {
    "maxProducersPerTopic": "producers",
    "maxConsumersPerTopic": "consumers",
    "maxConsumersPerSubscription": "consumers_per_subscription",
}
OF_TOPIC = {
    "maxProducers": "producers",
    "maxConsumers": "consumers",
    "maxConsumersPerSubscription": "consumers_per_subscription",
}
_FIELDS = RATES | OF_NAMESPACE | OF_TOPIC


class LimitsByHttp:
    """The routes of limits."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[web.RouteDef]:
        return [
            route
            for base, names in ((NAMESPACE, OF_NAMESPACE), (TOPIC, OF_TOPIC))
            for path in (f"{base}/{{limit:{'|'.join((*RATES, *names))}}}",)
            for route in (web.get(path, self._show), web.post(path, self._set), web.delete(path, self._unset))
        ]

    async def _show(self, request: web.Request) -> web.Response:
        names = [(await self._broker.recorded(request))[0]]
        if applied(request):
            names.append(of_namespace(space_of(request)))
        for name in names:
            if (value := getattr(await self._broker.limits.read(name), _field(request))) is not None:
                return web.json_response(_shown(request.match_info["limit"], value))
        return web.Response(status=204)

    async def _set(self, request: web.Request) -> web.Response:
        name, _ = await self._broker.recorded(request)
        limit, body = request.match_info["limit"], await body_of(request)
        value = _rate_in(limit, body) if limit in RATES else number_of(body, f"{limit} is a number, not {{}}")
        await self._broker.limits.change(name, **{_field(request): value})
        return web.Response(status=204)

    async def _unset(self, request: web.Request) -> web.Response:
        name, _ = await self._broker.recorded(request)
        if await self._broker.limits.read(name) != NONE:
            await self._broker.limits.change(name, **{_field(request): None})
        return web.Response(status=204)


def _field(request: web.Request) -> str:
    return _FIELDS[request.match_info["limit"]]


def _words(limit: str) -> tuple[str, str]:
    kind = limit.removesuffix("Rate")
    return f"{kind}ThrottlingRateInMsg", f"{kind}ThrottlingRateInByte"


def _rate_in(limit: str, body: str) -> Rate:
    """Raises Invalid."""
    messages, size = _words(limit)
    complaint = f'the body is a rate, for example {{"{messages}": 1000, "{size}": 1048576}}'
    given = object_in(body, complaint)
    if given.get("relativeToPublishRate"):
        raise Invalid("Sluice does not offer rates that are relative to the publish rate")
    numbers = [given.get(messages, -1), given.get(size, -1), given.get("ratePeriodInSecond", 1)]
    if not all(type(number) is int for number in numbers):
        raise Invalid(complaint)
    return Rate(max(numbers[0], -1), max(numbers[1], -1), numbers[2])


def _shown(limit: str, value: Any) -> Any:
    if not isinstance(value, Rate):
        return value
    told: dict[str, Any] = dict(zip(_words(limit), msgspec.structs.astuple(value), strict=False))
    return (
        told | {"relativeToPublishRate": False, "ratePeriodInSecond": value.period_s} if "dispatch" in limit else told
    )

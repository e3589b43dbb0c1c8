"""Subscriptions by HTTP; paths below /admin/v2/persistent/public/default/{topic}.

    PUT    .../subscription/{sub}              create, from where the body says: {"ledgerId": L, "entryId": E}; earliest
           is -1 twice, latest 2^63-1 twice, and so is no body. 409 if there is one of that name. It is on all
           partitions: with an id, which wants the name of one, it begins at the latest on the others.
           ?replicated=true is refused with 405. {"properties": {...}} are kept with it.
    GET    .../subscription/{sub}/properties   those that are kept
    PUT    .../subscription/{sub}/properties   {"name": "value"}, in place of those that were kept
    DELETE .../subscription/{sub}?force=true   412 while consumers are connected, unless forced
    POST   .../subscription/{sub}/skip/{n} | skip_all
    POST   .../subscription/{sub}/resetcursor/{ms}    to a time
    POST   .../subscription/{sub}/resetcursor         to an id; with "isExcluded": true behind it
    POST   .../subscription/{sub}/expireMessages/{seconds}
    POST   .../all_subscription/expireMessages/{seconds}

All of them are answered without a body, as Pulsar's tools want it.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from sluice.actors.dispatcher.operator.seek import named_position
from sluice.actors.messages import (
    ReadEnds,
    RemoveSubscription,
    Seek,
    SetProperties,
    Stats,
    SubscriptionSettings,
    request_of,
)
from sluice.actors.messages.settings import check_properties
from sluice.cluster.admin.broker import Broker, Named, forced, named, subscription_of
from sluice.cluster.admin.topics import TOPIC
from sluice.cluster.http.guard import Handler
from sluice.cluster.http.server import body_of, json_in, number_of
from sluice.storage.errors import Conflict, Invalid, NotFound
from sluice.storage.format.position import MAX_ENTRY, MAX_LEDGER

SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"
EARLIEST, LATEST = -1, (1 << 63) - 1


class Subscriptions:
    """The routes of subscriptions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[web.RouteDef]:
        return [
            web.put(SUBSCRIPTION, self._create),
            web.delete(SUBSCRIPTION, self._remove),
            web.get(f"{SUBSCRIPTION}/properties", self._properties),
            web.put(f"{SUBSCRIPTION}/properties", self._set_properties),
            web.post(f"{SUBSCRIPTION}/skip/{{number}}", self._verb("skip", "messages")),
            web.post(f"{SUBSCRIPTION}/skip_all", self._verb("clear_backlog")),
            web.post(f"{SUBSCRIPTION}/resetcursor/{{number}}", self._verb("seek", "time")),
            web.post(f"{SUBSCRIPTION}/resetcursor", self._reset),
            web.post(f"{SUBSCRIPTION}/expireMessages/{{number}}", self._expire),
            web.post(f"{TOPIC}/all_subscription/expireMessages/{{number}}", self._expire_all),
        ]

    async def admin(self, request: web.Request, verb: str, arguments: dict[str, Any]) -> list[Any]:
        """The answers of the owners of the subscription that a path names, to one verb."""
        return await self._broker.rows(named(request), subscription_of(request), request_of(verb, arguments))

    def _verb(self, verb: str, argument: str | None = None) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            arguments = {} if argument is None else {argument: number_of(request.match_info["number"])}
            await self.admin(request, verb, arguments)
            return web.Response(status=204)

        return handle

    async def _create(self, request: web.Request) -> web.Response:
        which, name = named(request), subscription_of(request)
        count = (await self._broker.settings(which)).partitions
        body = await body_of(request)
        if request.query.get("replicated", "").lower() == "true":
            return web.json_response({"reason": "Sluice does not offer replicated subscriptions"}, status=405)
        properties = _properties_in(body)
        start, excluded = _start_of(body)
        if isinstance(start, str) and which.partition is None and count > 1:
            raise Invalid("a message id needs one partition: name it, or give earliest or latest")
        if name in await self._broker.subscriptions(which.topic):
            raise Conflict(f"Subscription already exists for topic: {name}")
        partition = which.partition or 0
        at = Named(which.topic, partition)
        if isinstance(start, str):  # before anything is made: who asks again would hear that it is there
            start = await self._behind(at, start) if excluded else start
            named_position(start, await self._broker.ask_owner(which.topic, partition, None, ReadEnds()))
        for number in range(count):
            # Where a message id is sought below, all is wanted until then: the seek may fail.
            all_of_it = start == EARLIEST or (isinstance(start, str) and number == partition)
            settings = SubscriptionSettings(initial_position="earliest" if all_of_it else "latest")
            await self._broker.directory.dispatcher(which.topic, number, name, settings, [])
        if properties:
            await self._broker.rows(Named(which.topic, None), name, SetProperties(properties=properties))
        if isinstance(start, str):
            await self._broker.rows(at, name, Seek(message_id=start))
        return web.Response(status=204)

    async def _existing(self, request: web.Request) -> tuple[Named, str]:
        """Topic and subscription of a path. Raises NotFound."""
        which, name = named(request), subscription_of(request)
        await self._broker.settings(which)
        if name not in await self._broker.subscriptions(which.topic):
            raise NotFound(f"topic {which.topic!r} has no subscription {name!r}")
        return which, name

    async def _properties(self, request: web.Request) -> web.Response:
        which, name = await self._existing(request)
        first = Named(which.topic, which.partition or 0)
        (row,) = await self._broker.rows(first, name, Stats())
        return web.json_response(row.get("subscriptionProperties", {}))

    async def _set_properties(self, request: web.Request) -> web.Response:
        which, name = await self._existing(request)
        properties = _properties_in(await body_of(request), whole=True)
        await self._broker.rows(which, name, SetProperties(properties=properties))
        return web.Response(status=204)

    async def _remove(self, request: web.Request) -> web.Response:
        which, name = named(request), subscription_of(request)
        await self._broker.settings(which)
        remove = RemoveSubscription(topic=which.topic, subscription=name, force=forced(request))
        await self._broker.ask_controller(remove)
        self._broker.directory.invalidate(which.topic)
        return web.Response(status=204)

    async def _reset(self, request: web.Request) -> web.Response:
        which, name = named(request), subscription_of(request)
        start, excluded = _start_of(await body_of(request))
        if isinstance(start, str) and which.partition is None and (await self._broker.settings(which)).has_partitions:
            raise Invalid("a message id belongs to one partition: name it, or give earliest or latest")
        if not isinstance(start, str):
            start = "earliest" if start == EARLIEST else "latest"
        await self._seek(which, name, start, excluded=excluded)
        return web.Response(status=204)

    async def _seek(self, which: Named, subscription: str, start: str, *, excluded: bool) -> None:
        if excluded and start.partition(":")[1]:
            start = await self._behind(which, start)
        await self._broker.rows(which, subscription, Seek(message_id=start))

    async def _behind(self, which: Named, start: str) -> str:
        """The id that follows a message, or a whole batch."""
        from sluice.cluster.admin.messages import entry_at

        ledger, _, entry = start.partition(":")
        found = await entry_at(self._broker, which, int(ledger), int(entry))
        return f"{ledger}:{found.first + found.count}"

    async def _expire(self, request: web.Request) -> web.Response:
        await self.admin(request, "expire", self._before(request))
        return web.Response(status=204)

    async def _expire_all(self, request: web.Request) -> web.Response:
        which, before = named(request), self._before(request)
        await self._broker.settings(which)
        for name in await self._broker.subscriptions(which.topic):
            await self._broker.rows(which, name, request_of("expire", before))
        return web.Response(status=204)

    def _before(self, request: web.Request) -> dict[str, Any]:
        age = number_of(request.match_info["number"]) * 1000
        return {"before": max(self._broker.ports.clock.now() - age, 0)}


def _properties_in(body: str, *, whole: bool = False) -> dict[str, str]:
    """The properties of a subscription that a body has under their name, or that it is. Raises Invalid."""
    try:
        given = json_in(body) if body.strip() else None
    except ValueError:
        given = None
    if not whole:
        given = (given.get("properties") or {}) if isinstance(given, dict) else {}
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise Invalid('the properties must be texts by name, for example {"team": "billing"}')
    check_properties(given)
    return given


def _start_of(body: str) -> tuple[int | str, bool]:
    """Parse the target of a cursor: EARLIEST, LATEST or a message id as verbs have it; and whether behind it. Raises
    Invalid.
    """
    try:
        given = json_in(body) if body.strip() else None
        if given is None:
            given = {"ledgerId": LATEST, "entryId": LATEST}
        if given in ("earliest", "latest"):
            return (EARLIEST if given == "earliest" else LATEST), False
        ledger, entry, index = given["ledgerId"], given["entryId"], given.get("batchIndex") or 0
        excluded = given.get("isExcluded") is True or given.get("excluded") is True
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Invalid('the body must be a message id, for example {"ledgerId": -1, "entryId": -1}') from None
    for edge in (EARLIEST, LATEST):
        if ledger == entry == edge:
            return edge, False
    if not all(type(number) is int for number in (ledger, entry, index)):
        raise Invalid("a message id is made of numbers")
    row = entry + max(index, 0)
    if not (0 <= ledger <= MAX_LEDGER and 0 <= row <= MAX_ENTRY):
        raise Invalid("there is no such message id")
    return f"{ledger}:{row}", excluded

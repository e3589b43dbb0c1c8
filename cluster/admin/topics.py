"""Topics by HTTP.

GET    /admin/v2/persistent/public/default                    topics, partitions by their names
GET    .../partitioned                                        topics of several partitions
GET    /admin/v2/namespaces/public/default/topics             as the first
GET    /admin/v2/non-persistent/public/default[/partitioned]  none: every topic is persistent
PUT    .../{topic}                                            create, with one partition; 409 if it is there
PUT    .../{topic}/partitions                                 create; the body is the number of partitions
GET    .../{topic}/partitions                                 their number; 0 is a topic without
DELETE .../{topic}[/partitions]?force=true                    412 while clients are connected, unless forced
GET    .../{topic}/stats | partitioned-stats                  of a topic with partitions both are the sums
GET    .../{topic}/internalStats | partitioned-internalStats | internal-info
GET    .../{topic}/subscriptions
PUT    .../{topic}/unload                                     its clients connect again
POST   .../{topic}/createMissedPartitions                     nothing to do: a topic has all of its partitions
"""

from __future__ import annotations

import json

from aiohttp import web

from sluice.actors.messages import RemoveTopic, SendAway
from sluice.actors.ownership.names import unquoted
from sluice.actors.pulsar.topic_names import full_name, full_names
from sluice.cluster.admin.broker import Broker, Named, forced, named, space_of, topic_of
from sluice.cluster.admin.statistics import Partition, PulsarStats, internal, merged
from sluice.cluster.http.responses import in_turns, large
from sluice.cluster.http.server import body_of, json_in, number_of, object_in
from sluice.storage.errors import Conflict, Invalid, NotFound

BASE = "/admin/v2/persistent/{tenant}/{namespace}"
TOPIC = f"{BASE}/{{topic}}"
NON_PERSISTENT = "/admin/v2/non-persistent/{tenant}/{namespace}"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"


class Topics:
    """The routes of topics."""

    def __init__(self, broker: Broker, shapes: PulsarStats) -> None:
        self._broker, self._shapes = broker, shapes

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(BASE, large(self._list)),
            web.get(f"{BASE}/partitioned", large(self._partitioned)),
            web.get(f"{NAMESPACE}/topics", large(self._list)),
            web.get(NON_PERSISTENT, self._none),
            web.get(f"{NON_PERSISTENT}/partitioned", self._none),
            web.put(TOPIC, self._create_plain),
            web.put(f"{TOPIC}/partitions", self._create),
            web.get(f"{TOPIC}/partitions", self._partitions),
            web.delete(TOPIC, self._delete),
            web.delete(f"{TOPIC}/partitions", self._delete),
            web.get(f"{TOPIC}/stats", large(self._stats)),
            web.get(f"{TOPIC}/partitioned-stats", large(self._stats)),
            web.get(f"{TOPIC}/internalStats", large(self._internal)),
            web.get(f"{TOPIC}/partitioned-internalStats", large(self._internal)),
            web.get(f"{TOPIC}/internal-info", large(self._internal)),
            web.get(f"{TOPIC}/subscriptions", large(self._subscriptions)),
            web.put(f"{TOPIC}/unload", self._unload),
            web.post(f"{TOPIC}/createMissedPartitions", self._nothing_missed),
        ]

    # -- which there are ------------------------------------------------------------------------------------------

    async def _list(self, request: web.Request) -> web.Response:
        names = full_names(await self._broker.topics_in(space_of(request)))
        wanted = request.query.get("mode", "").upper() != "NON_PERSISTENT"
        return web.json_response(names if wanted else [])

    async def _none(self, request: web.Request) -> web.Response:
        """Every topic is persistent."""
        await self._broker.topics_in(space_of(request))
        return web.json_response([])

    async def _partitioned(self, request: web.Request) -> web.Response:
        known = await self._broker.topics_in(space_of(request))
        return web.json_response([full_name(name) for name, settings in known.items() if settings.has_partitions])

    async def _partitions(self, request: web.Request) -> web.Response:
        which, count = named(request), 0
        try:
            settings = await self._broker.settings(which)
            count = settings.partitions if settings.has_partitions and which.partition is None else 0
        except NotFound:
            if request.query.get("checkAllowAutoCreation", "").lower() != "true":
                raise
        return web.json_response({"partitions": count, "deleted": False})

    async def _create_plain(self, request: web.Request) -> web.Response:
        topic = topic_of(request)
        _no_properties(await body_of(request))
        await self._broker.create(topic, 0)
        return web.Response(status=204)

    async def _create(self, request: web.Request) -> web.Response:
        topic, body = topic_of(request), await body_of(request)
        if body.lstrip().startswith("{"):
            body = _partitions_in(body)
        partitions = number_of(body.strip().strip('"'), "the body is the number of partitions, not {}")
        if partitions == 0:
            raise Invalid("Number of partitions should be more than 0")
        await self._broker.create(topic, partitions)
        return web.Response(status=204)

    async def _delete(self, request: web.Request) -> web.Response:
        """Delete a topic with its subscriptions, as Pulsar does. Connected clients prevent that unless it is forced."""
        which, force = named(request), forced(request)
        settings = await self._broker.settings(which)
        if which.partition is None and settings.has_partitions and not request.path.endswith("/partitions"):
            raise Conflict(
                f"{full_name(which.topic)} is a partitioned topic, instead of calling delete topic, please call "
                "delete-partitioned-topic."
            )
        if which.partition is not None and settings.has_partitions:
            raise Invalid(f"a partition cannot be deleted alone: delete topic {which.topic}")
        if not force:
            await self._check_unused(which)
        await self._broker.ask_controller(RemoveTopic(topic=which.topic, force=True))
        self._broker.directory.invalidate(which.topic)
        return web.Response(status=204)

    async def _check_unused(self, which: Named) -> None:
        producers = consumers = 0
        for partition in await self._known(which):
            producers += len(partition.clients["producers"])
            consumers += sum(int(row.get("consumersCount", 0)) for row in partition.subscriptions.values())
            consumers += sum(1 for client in partition.clients["consumers"] if client["reader"])
        if producers or consumers:
            raise Invalid(f"Topic has {producers} connected producers and {consumers} connected consumers; use force")

    async def _unload(self, request: web.Request) -> web.Response:
        which = named(request)
        await self._broker.settings(which)
        await self._broker.ask_gateways(SendAway(topic=which.topic, partition=which.partition))
        return web.Response(status=204)

    async def _nothing_missed(self, request: web.Request) -> web.Response:
        await self._broker.settings(named(request))
        return web.Response(status=204)

    # -- statistics -----------------------------------------------------------------------------------------------

    async def _subscriptions(self, request: web.Request) -> web.Response:
        which = named(request)
        await self._broker.settings(which)
        return web.json_response([unquoted(name) for name in await self._broker.subscriptions(which.topic)])

    async def _stats(self, request: web.Request) -> web.Response:
        which = named(request)
        settings = await self._broker.settings(which)
        made = {}
        async for each in in_turns(await self._known(which)):
            made[each.name] = self._shapes.topic(each, settings)
        if (quota := self._broker.quotas.that_holds(which.topic)) is not None:
            made = {name: {**row, "backlogQuotaLimitSize": quota.limit} for name, row in made.items()}
        if (quota := self._broker.ages.that_holds(which.topic)) is not None:
            made = {name: {**row, "backlogQuotaLimitTime": quota.limit} for name, row in made.items()}
        if which.partition is not None or (not settings.has_partitions and request.path.endswith("/stats")):
            return web.json_response(next(iter(made.values())))
        shown = request.query.get("perPartition", "true").lower() == "true"
        return web.json_response(merged(made, shown=shown))

    async def _internal(self, request: web.Request) -> web.Response:
        which = named(request)
        settings = await self._broker.settings(which)
        known = in_turns(await self._known(which))
        made = {each.name: internal(each.row, each.subscriptions) async for each in known}
        if which.partition is not None or not settings.has_partitions:
            return web.json_response(next(iter(made.values())))
        return web.json_response(
            {"metadata": {"partitions": settings.partitions, "deleted": False}, "partitions": made}
        )

    async def _known(self, which: Named) -> list[Partition]:
        """Return all that is known of the partitions that are named."""
        names = await self._broker.subscriptions(which.topic)
        several = (await self._broker.settings(which)).has_partitions
        rows, *answers = await self._broker.statistics(which, *names)
        clients, made = await self._broker.clients(which), []
        for number, row in enumerate(rows):
            partition = int(row["partition"])
            subscriptions = {unquoted(name): answer[number] for name, answer in zip(names, answers, strict=True)}
            name = full_name(which.topic, partition if several else None)
            here = clients.get(partition, {"producers": [], "consumers": []})
            made.append(Partition(name, row, subscriptions, here))
        return made


def _no_properties(body: str) -> None:
    """Raises Invalid where properties of a topic are given, which nobody would keep."""
    try:
        given = json_in(body) if body.strip() else None
    except ValueError:
        raise Invalid("the body is empty, or the properties of the topic as JSON") from None
    if given:
        raise Invalid("properties of topics are not kept")


def _partitions_in(body: str) -> str:
    """The number of partitions where they come with properties. Raises Invalid."""
    given = object_in(body, "the body is the number of partitions, alone or as JSON with properties")
    _no_properties(json.dumps(given.get("properties")))
    return str(given.get("partitions"))

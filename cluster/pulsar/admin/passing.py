"""Topics that are not persistent, by HTTP; paths below /admin/v2/non-persistent/public/default.

GET .                            those that clients use now
GET ./partitioned                none
GET ./{topic}/partitions         0: there are no partitions of one
GET ./{topic}/stats              while clients use it, else 404; subscriptions count what was dropped
PUT ./{topic}[/partitions]       405: it is there when a client uses it
GET /lookup/v2/topic/non-persistent/public/default/{topic}[/bundle]      as of any other topic
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from actors.messages import PassingHere
from actors.names import unquoted
from actors.pulsar.passing import KIND, passing_place
from cluster.pulsar.admin.broker import Broker, space_of
from cluster.pulsar.admin.statistics import TYPES, publisher
from storage.errors import NotFound

SPACE = "/admin/v2/non-persistent/{tenant}/{namespace}"
TOPIC = f"{SPACE}/{{topic}}"
ELSEWHERE = "a topic that is not persistent is there while clients use it, and has no partitions: none is created"


class PassingByHttp:
    """These routes, but for the lookups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[web.RouteDef]:
        """See the module."""
        return [
            web.get(SPACE, self._list),
            web.get(f"{SPACE}/partitioned", self._none),
            web.get(f"{TOPIC}/partitions", self._partitions),
            web.get(f"{TOPIC}/stats", self._stats),
            web.put(TOPIC, self._create),
            web.put(f"{TOPIC}/partitions", self._create),
        ]

    async def _known(self) -> dict[str, Any]:
        """What the gateways tell of each topic; as a rule one has them all."""
        told = [json.loads(reply.json)["topics"] for reply in await self._broker.ask_gateways(PassingHere())]
        return {name: of for topics in told for name, of in topics.items()}

    async def _list(self, request: web.Request) -> web.Response:
        space = space_of(request)
        await self._broker.topics_in(space)
        return web.json_response(sorted(name for name in await self._known() if name.startswith(f"{KIND}{space}/")))

    async def _none(self, request: web.Request) -> web.Response:
        await self._broker.topics_in(space_of(request))
        return web.json_response([])

    async def _partitions(self, request: web.Request) -> web.Response:
        await self._broker.namespaces.policies(space_of(request))
        _name(request)
        return web.json_response({"partitions": 0, "deleted": False})

    async def _stats(self, request: web.Request) -> web.Response:
        name = _name(request)
        of = (await self._known()).get(name)
        if of is None:
            raise NotFound(f"no client uses topic {name} now")
        clients = await self._broker.clients(name, 0)
        subscriptions = {
            unquoted(own): {
                **row,
                "type": TYPES[row["type"]],
                "consumers": [one for one in clients["consumers"] if one["subscription"] == unquoted(own)],
            }
            for own, row in of["subscriptions"].items()
        }
        publishers = [publisher(one) for one in clients["producers"]]
        return web.json_response({**of, "publishers": publishers, "subscriptions": subscriptions})

    async def _create(self, request: web.Request) -> web.Response:
        return web.json_response({"reason": ELSEWHERE}, status=405)


def _name(request: web.Request) -> str:
    """The topic that a path names, as gateways have it. Raises Invalid."""
    return passing_place(KIND + "{tenant}/{namespace}/{topic}".format(**request.match_info)).topic

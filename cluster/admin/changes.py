"""Permanent changes of a topic by HTTP; paths below /admin/v2/persistent/public/default/{topic}.

POST .../partitions              more partitions; the body is their number. 422 if that is fewer than there are
POST .../terminate               no more messages; the id of the last one. 405 of a topic with partitions
POST .../terminate/partitions    the same of every partition, by its number; 405 of a topic that has none
PUT .../offload                  closed ledgers before an id leave for the object store; 409 while some do
GET .../offload                  how that stands
PUT .../compaction               the last message of each key is kept as a table; 409 while that is being done
GET .../compaction               how that stands; of all partitions where none is named
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from sluice.actors.messages import AddPartitions, Compact, CompactionStatus, Ends, Offload, OffloadStatus, Terminate
from sluice.actors.pulsar.topic_names import full_name
from sluice.cluster.admin.broker import Broker, Named, named, topic_of
from sluice.cluster.admin.messages import last_id
from sluice.cluster.admin.topics import TOPIC
from sluice.cluster.http.server import MAX_NUMBER, body_of, number_of, object_in
from sluice.storage.errors import Conflict, Invalid
from sluice.storage.format.position import ledger_of


class TopicChangeRoutes:
    """The routes that change a topic for good."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(f"{TOPIC}/partitions", self._add_partitions),
            web.post(f"{TOPIC}/terminate", self._terminate),
            web.post(f"{TOPIC}/terminate/partitions", self._terminate_all),
            web.put(f"{TOPIC}/offload", self._offload),
            web.get(f"{TOPIC}/offload", self._offload_status),
            web.put(f"{TOPIC}/compaction", self._compact),
            web.get(f"{TOPIC}/compaction", self._compaction_status),
        ]

    async def _add_partitions(self, request: web.Request) -> web.Response:
        topic = topic_of(request)
        text = (await body_of(request)).strip().strip('"')
        wanted = number_of(text, "the body is the number of partitions, not {}")
        count = await self._partitions(topic)
        if wanted < count:
            reason = f"Desired partitions {wanted} can't be less than the current partitions {count}."
            return web.json_response({"reason": reason}, status=422)
        await self._broker.ask_controller(AddPartitions(topic=topic, partitions=wanted))
        await self._broker.directory.settings_now(topic)
        return web.Response(status=204)

    async def _terminate(self, request: web.Request) -> web.Response:
        which = named(request)
        settings = await self._broker.settings(which)
        if settings.has_partitions and which.partition is None:
            return web.json_response({"reason": "Termination of a partitioned topic is not allowed"}, status=405)
        return web.json_response(
            await self._end(which, wire_partition=which.partition if settings.has_partitions else -1)
        )

    async def _terminate_all(self, request: web.Request) -> web.Response:
        topic = topic_of(request)
        settings = await self._broker.settings(Named(topic, None))
        if not settings.has_partitions:
            reason = "Termination of a non-partitioned topic is not allowed using partitioned-terminate"
            return web.json_response({"reason": f"{reason}, please use terminate commands"}, status=405)
        partitions = range(settings.partitions)
        ends = await asyncio.gather(*(self._end(Named(topic, partition), partition) for partition in partitions))
        return web.json_response({str(partition): end for partition, end in zip(partitions, ends, strict=True)})

    async def _offload(self, request: web.Request) -> web.Response:
        which = named(request)
        before = object_in(await body_of(request), "the body is a message id").get("ledgerId")
        if not isinstance(before, int) or isinstance(before, bool) or not 0 <= before <= MAX_NUMBER:
            raise Invalid("a message id has a ledgerId, which is a number")
        if (await self._offloading(which, Offload())).asked:
            raise Conflict("Offload already in progress")
        await self._offloading(which, Offload(before=before))
        return web.Response(status=204)

    async def _offload_status(self, request: web.Request) -> web.Response:
        status = await self._offloading(named(request), Offload())
        word = (
            "ERROR" if status.error else "RUNNING" if status.asked else "SUCCESS" if status.offloaded_ledgers else None
        )
        left = status.first_left
        first = {"ledgerId": ledger_of(left), "entryId": 0, "partitionIndex": -1} if left >= 0 else None
        return web.json_response(
            {"status": word or "NOT_RUN", "lastError": status.error, "firstUnoffloadedMessage": first}
        )

    async def _offloading(self, which: Named, request: Offload) -> OffloadStatus:
        """Ask the owner of one partition. Raises Conflict for a topic that has partitions, unless the path names one of
        them.
        """
        settings = await self._broker.settings(which)
        if settings.has_partitions and which.partition is None:
            raise Conflict(f"Topic {full_name(which.topic)} has partitions: name one of them")
        status: OffloadStatus = await self._broker.ask_owner(which.topic, which.partition or 0, None, request)
        return status

    async def _compact(self, request: web.Request) -> web.Response:
        which = named(request)
        if any(status.asked for status in await self._compaction(which, Compact())):
            raise Conflict("Compaction already in progress")
        await self._compaction(which, Compact(ask=True))
        return web.Response(status=204)

    async def _compaction_status(self, request: web.Request) -> web.Response:
        found = await self._compaction(named(request), Compact())
        error = next((status.error for status in found if status.error), "")
        asked, done = any(one.asked or one.running for one in found), all(one.done for one in found)
        word = "ERROR" if error else "RUNNING" if asked else "SUCCESS" if done else "NOT_RUN"
        return web.json_response({"status": word, "lastError": error})

    async def _compaction(self, which: Named, request: Compact) -> list[CompactionStatus]:
        """Ask one partition, or all of them."""
        return list((await self._broker.replies(which, None, request)).values())

    async def _partitions(self, topic: str) -> int:
        """How many a topic has. Raises Conflict where it is one without."""
        settings = await self._broker.settings(Named(topic, None))
        if not settings.has_partitions:
            raise Conflict(f"Topic {full_name(topic)} is not the partitioned topic.")
        return settings.partitions

    async def _end(self, which: Named, wire_partition: int | None) -> dict[str, Any]:
        """Take no more messages on a partition. told: its number as clients have it in ids."""
        ends: Ends = await self._broker.ask_owner(which.topic, which.partition or 0, None, Terminate())
        return {**await last_id(self._broker, which, ends), "partitionIndex": wire_partition}

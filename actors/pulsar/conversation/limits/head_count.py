"""How many producers and consumers a topic has at all gateways, where a policy limits that.

Others are asked only if there is such a limit. Two who come at the same time at two gateways may both find room for the
last one; then there is one too many.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, TypeVar

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import ClientsHere, DescribeCluster
from sluice.actors.policies.limits import LimitRecords
from sluice.actors.ports import Address, Net, Ports, Unknown
from sluice.actors.ports.wire import Reply, Request
from sluice.actors.pulsar.codec.protocol import ServerError
from sluice.actors.pulsar.refusals import CommandRefused
from sluice.actors.pulsar.topic_names import TopicPartition
from sluice.storage.errors import SluiceError

R = TypeVar("R", bound=Reply)
ASK_MS = 5_000


async def answers_of(net: Net, gateways: Iterable[Address], request: Request[R], timeout: int) -> list[R]:
    """Return the answers of the gateways that answer. A refusal, as by an earlier version, hides no other answer."""

    async def one(gateway: Address) -> R | Unknown:
        try:
            return await net.call(gateway, request, timeout)
        except SluiceError as error:
            return Unknown(str(error))

    replies = await asyncio.gather(*(one(gateway) for gateway in gateways))
    return [reply for reply in replies if not isinstance(reply, Unknown)]


class HeadCount:
    """Counts who is on a topic at all gateways, and refuses who comes when that is enough."""

    def __init__(self, ports: Ports, directory: Directory, limits: LimitRecords) -> None:
        self._ports, self._directory, self._limits = ports, directory, limits

    async def check_producer(self, tp: TopicPartition) -> None:
        """Raise CommandRefused if there is no room for one more, Unavailable."""
        most = self._limits.that_hold(tp.topic).producers if self._limits.any else None
        if most and len((await self._present(tp))["producers"]) >= most:
            raise CommandRefused(ServerError.PRODUCER_BUSY, "Topic reached max producers limit")

    async def check_consumer(self, tp: TopicPartition, subscription: str) -> None:
        """subscription: as its client calls it. Raises CommandRefused, Unavailable."""
        limits = self._limits.that_hold(tp.topic) if self._limits.any else None
        if limits is None or not (limits.consumers or limits.consumers_per_subscription):
            return
        present = (await self._present(tp))["consumers"]
        same = [one for one in present if one["subscription"] == subscription]
        if limits.consumers and len(present) >= limits.consumers:
            raise CommandRefused(ServerError.CONSUMER_BUSY, "Topic reached max consumers limit")
        if limits.consumers_per_subscription and len(same) >= limits.consumers_per_subscription:
            raise CommandRefused(ServerError.CONSUMER_BUSY, "Subscription reached max consumers limit")

    async def others(self) -> list[Address]:
        """Return every gateway that runs."""
        told = json.loads((await self._directory.ask_controller(DescribeCluster())).json)
        return [row["address"] for row in told["actors"] if row["kind"] == "gateway" and row["address"]]

    async def _present(self, tp: TopicPartition) -> dict[str, list[dict[str, Any]]]:
        """Collect the producers and consumers connected to a partition, at all gateways that answer."""
        request = ClientsHere(topic=tp.topic, partition=tp.partition)
        gateways = dict.fromkeys([*await self.others(), self._ports.me])
        found: dict[str, list[dict[str, Any]]] = {"producers": [], "consumers": []}
        for reply in await answers_of(self._ports.net, gateways, request, ASK_MS):
            for kind, rows in json.loads(reply.json).items():
                found[kind] += rows
        return found

"""The questions of the HTTP ports to the cluster: topics, subscriptions, owners, and which clients are connected."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

from aiohttp import web

from sluice.actors.lookup.directory import ANSWER_TIMEOUT, OWNER_PATIENCE, Directory
from sluice.actors.messages import (
    ClientsHere,
    CreateTopic,
    DescribeCluster,
    ListSubscriptions,
    ListTopics,
    Stats,
    TopicSettings,
    shown,
)
from sluice.actors.ownership.names import check_name, namespace_of, quoted
from sluice.actors.policies.backlog_quotas import Quotas
from sluice.actors.policies.limits import LimitRecords
from sluice.actors.policies.namespaces import Namespaces
from sluice.actors.policies.permission_cache import PermissionCache
from sluice.actors.policies.policy_records import AGES, of_namespace, of_topic
from sluice.actors.ports import Address, Clock, Ports, Unknown
from sluice.actors.ports.wire import Request
from sluice.actors.pulsar.conversation.limits.head_count import answers_of
from sluice.actors.pulsar.topic_names import listed, new_settings, split_name, topic_name, topics_in
from sluice.storage.errors import Conflict, Corrupt, Fenced, Invalid, NotFound, SluiceError, Unavailable

CALL_TIMEOUT = 15_000
ASKED, PAUSE_MS = 16, 10
"""For one answer so many owners are asked at once. Each answers in a turn of its loop, which others wait for; so the
next one is asked after a pause, which is as long as the answer before it took, and so long at most.
"""


class Named(NamedTuple):
    """A topic that a path names, and which of its partitions, if it names one."""

    topic: str
    partition: int | None


class Turns:
    """The turns in which owners are asked for one answer."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._free = clock, asyncio.Semaphore(ASKED)

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        async with self._free:
            began = self._clock.monotonic()
            yield
            await self._clock.sleep(min(max(self._clock.monotonic() - began, 1), PAUSE_MS))


class Broker:
    """Asks the controller and the owners. here: the gateway of this process, if there is one; quotas, ages: its own.

    permissions: None where everybody may do everything.
    """

    def __init__(
        self,
        ports: Ports,
        controller: Address,
        directory: Directory | None = None,
        here: Address = "",
        quotas: Quotas | None = None,
        ages: Quotas | None = None,
        permissions: PermissionCache | None = None,
    ) -> None:
        self.ports, self.controller, self._here = ports, controller, here
        self.directory = directory or Directory(ports, controller)
        self.namespaces = Namespaces(ports.meta)
        self.permissions = permissions
        self.limits = LimitRecords(ports.meta)
        self.quotas = Quotas(ports.meta) if quotas is None else quotas
        self.ages = Quotas(ports.meta, AGES) if ages is None else ages

    async def ask_controller(self, request: Request[Any], *, patience: int = OWNER_PATIENCE) -> Any:
        return await self.directory.ask_controller(request, patience=patience)

    async def ask_gateways(self, request: Request[Any]) -> list[Any]:
        """The answers of all gateways; a cluster that serves no client of Pulsar has none."""
        return await answers_of(self.ports.net, await self.gateways(), request, CALL_TIMEOUT)

    async def gateways(self) -> list[Address]:
        """Every gateway that runs: where Pulsar's clients are connected."""
        description = json.loads((await self.ask_controller(DescribeCluster())).json)
        running = [row["address"] for row in description["actors"] if row["kind"] == "gateway"]
        return [address for address in dict.fromkeys([*running, self._here]) if address]

    async def clients(self, named: Named) -> dict[int, dict[str, list[dict[str, Any]]]]:
        """The producers and consumers that are connected to the gateways that answer, by partition, of all or of the
        one that is named; of one without clients nothing. Each gateway is asked once.
        """
        found: dict[int, dict[str, list[dict[str, Any]]]] = {}
        for reply in await self.ask_gateways(ClientsHere(topic=named.topic, partition=named.partition)):
            for kind, rows in json.loads(reply.json).items():
                for row in rows:
                    at = row.pop("partition", named.partition)  # a gateway of an earlier version does not say it
                    found.setdefault(at, {"producers": [], "consumers": []})[kind].append(row)
        return found

    # -- topics ---------------------------------------------------------------------------------------------------

    async def topics(self) -> dict[str, TopicSettings]:
        return dict((await self.ask_controller(ListTopics())).topics)

    async def topics_in(self, space: str) -> dict[str, TopicSettings]:
        """Return the topics of a namespace, by name. Raises NotFound if there is no such namespace."""
        if space in await self.namespaces.all_of():
            return topics_in(space, await self.topics())
        return listed(await self.topics(), space)

    async def settings(self, named: Named) -> TopicSettings:
        """The settings of a topic that is there now, with the partition that is named. Raises NotFound."""
        settings = await self.directory.settings_now(named.topic)
        if named.partition is not None and named.partition >= settings.partitions:
            raise NotFound(f"topic {named.topic} has no partition {named.partition}")
        return settings

    async def recorded(self, request: web.Request) -> tuple[str, TopicSettings]:
        """The name of the records of the topic or namespace that a path names, and what it was made with.

        Raises NotFound.
        """
        if "topic" not in request.match_info:
            await self.namespaces.policies(space_of(request))
            return of_namespace(space_of(request)), TopicSettings()
        which = named(request)
        return of_topic(which.topic), await self.settings(which)

    async def create(self, topic: str, partitions: int) -> None:
        """Make a topic; partitions: 0 is one without. Raises Conflict if there is one of that name, Invalid."""
        with contextlib.suppress(NotFound):
            await self.directory.settings_now(topic)
            raise Conflict(f"This topic already exists: {topic}")
        policies = await self.namespaces.policies(namespace_of(topic)[0])
        settings = new_settings(await self.directory.bookies(), policies, partitions)
        await self.ask_controller(CreateTopic(topic=topic, settings=settings))

    async def subscriptions(self, topic: str) -> list[str]:
        """The names of a topic's. Raises NotFound."""
        return list((await self.ask_controller(ListSubscriptions(topic=topic))).names)

    # -- owners ---------------------------------------------------------------------------------------------------

    async def owner(self, topic: str, partition: int, subscription: str | None = None) -> Address:
        """Find the address of a partition's owner, or of a subscription's owner on it. Raises NotFound."""
        if subscription is None:
            return await self.directory.topic(topic, partition)
        return await self.directory.dispatcher(topic, partition, subscription)

    async def ask_owner(self, topic: str, partition: int, subscription: str | None, request: Request[Any]) -> Any:
        return await self.directory.ask_owner(topic, partition, subscription, request)

    async def rows(
        self, named: Named, subscription: str | None, request: Request[Any], turns: Turns | None = None
    ) -> list[Any]:
        """Return the values of `replies` as plain values."""
        return [shown(reply) for reply in (await self.replies(named, subscription, request, turns)).values()]

    async def replies(
        self, named: Named, subscription: str | None, request: Request[Any], turns: Turns | None = None
    ) -> dict[int, Any]:
        """The answers of the owners of all partitions, or of the partition that is named.

        turns: shared by several questions for one answer, which ask few owners together.
        """
        count, turns = (await self.settings(named)).partitions, turns or Turns(self.ports.clock)
        partitions = range(count) if named.partition is None else [named.partition]

        async def one(partition: int) -> Any:
            async with turns.one():
                return await self.ask_owner(named.topic, partition, subscription, request)

        return dict(zip(partitions, await asyncio.gather(*map(one, partitions)), strict=True))

    async def some(self, topic: str, subscription: str | None, request: Request[Any]) -> list[dict[str, Any] | None]:
        """The answers of all owners; None of those that do not answer now, or cannot be started."""
        count = (await self.directory.settings(topic)).partitions

        async def known(partition: int) -> Address | None:
            try:
                return await self.owner(topic, partition, subscription)
            except (Unavailable, Fenced, Corrupt):
                return None

        owners = await asyncio.gather(*map(known, range(count)))
        return await self.told(owners, request, ANSWER_TIMEOUT)

    async def told(
        self, owners: Iterable[Address | None], request: Request[Any], timeout: int
    ) -> list[dict[str, Any] | None]:
        """The answers of owners; None of those that are not known, refuse, or do not answer within `timeout`
        milliseconds. Few of each process are asked at once, so that one that hangs holds up its own alone.
        """
        turns: dict[str, Turns] = {}
        until = self.ports.clock.monotonic() + timeout

        async def one(owner: Address | None) -> dict[str, Any] | None:
            if owner is None:
                return None
            async with turns.setdefault(owner.partition("/")[0], Turns(self.ports.clock)).one():
                if (left := until - self.ports.clock.monotonic()) <= 0:
                    return None
                try:
                    reply = await self.ports.net.call(owner, request, left)
                except SluiceError:
                    return None  # one that is still finding its feet has nothing to tell; the others have
            if isinstance(reply, Unknown):
                self.ports.spawn(self.directory.suspect(owner), "suspect")
                return None
            return dict(shown(reply))

        return list(await asyncio.gather(*map(one, owners)))

    async def statistics(self, named: Named, *subscriptions: str) -> list[list[dict[str, Any]]]:
        """The statistics of the partitions that are named, and of subscriptions on them, in this order."""
        turns = Turns(self.ports.clock)
        asked = (self.rows(named, name, Stats(), turns) for name in (None, *subscriptions))
        return list(await asyncio.gather(*asked))


# -- what a path names ------------------------------------------------------------------------------------------------


def applied(request: web.Request) -> bool:
    """Whether of a topic that has no record what its namespace says is meant."""
    return "topic" in request.match_info and request.query.get("applied", "").lower() == "true"


def space_of(request: web.Request) -> str:
    """The namespace that a path names, which may not be there."""
    return "{tenant}/{namespace}".format(**request.match_info)


def named(request: web.Request) -> Named:
    """The topic that a path names, and the partition if it names one. Raises Invalid, NotFound."""
    if "/" in request.match_info["topic"]:
        raise Invalid("a topic's name has no slash")
    return Named(*split_name("persistent://{tenant}/{namespace}/{topic}".format(**request.match_info)))


def topic_of(request: web.Request) -> str:
    """The same where a partition is not enough. Raises Invalid, NotFound."""
    return topic_name("{tenant}/{namespace}/{topic}".format(**request.match_info))


def subscription_of(request: web.Request) -> str:
    """The subscription that a path names. Raises Invalid."""
    return check_name("subscription", quoted(request.match_info["subscription"]))


async def not_offered(request: web.Request) -> web.Response:
    reason = f"Sluice does not offer {request.method} {request.path[:200]}"
    return web.json_response({"reason": reason}, status=405)


def forced(request: web.Request) -> bool:
    """Whether to delete also while clients are connected."""
    return request.query.get("force", "").lower() == "true"

"""The controller: starts actors, watches them, and replaces the dead.

It only suggests. Two controllers at once, a late order of an old one, an owner that was replaced although it lived:
none of these can break a promise, because every owner is fenced by its epoch in the metadata. So the controller
keeps no state of its own that matters: the metadata says what exists, and the processes say what runs.

`actors/controller/catalog.py` reads and writes the records of topics. `actors/controller/supervisor.py` starts the
actors, watches them and replaces the dead. A bookie that cannot be started stops nobody else.
`actors/controller/bookie_failure_detector.py` says when it is lost for good; then the topics copy what it held
(`actors/controller/auditor.py`). The controller also tells topics which bookies are full. The bookies are those of the
settings and those that ever served, whose cookies are in the metadata, because a shorter list in the settings must not
hide data. Keepers and operators of pools of workers ask it as well (`actors/controller/pools.py`).

From time to time the controller lets bookies forget released ledgers (`actors/ledger/garbage_collection.py`), and
wakes closed owners that have something to do (`actors/controller/closed_owners.py`). Unused subscriptions that are not
durable are deleted (`actors/controller/unused_subscriptions.py`). Two controllers may do each of these at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from sluice.actors.controller.auditor import ReplicationAuditor
from sluice.actors.controller.bookie_failure_detector import LOST_AFTER_MS
from sluice.actors.controller.catalog import TopicCatalog, check_dead_letters, check_growth, check_settings
from sluice.actors.controller.closed_owners import ClosedOwners
from sluice.actors.controller.draining import NodeDrainer
from sluice.actors.controller.gateway_keeper import GatewayKeeper
from sluice.actors.controller.idle_owners import IdleOwners
from sluice.actors.controller.running import Running
from sluice.actors.controller.schema_registry import TopicSchemas
from sluice.actors.controller.supervisor import CALLER_PATIENCE, Supervisor, state_of
from sluice.actors.controller.unused_subscriptions import UnusedSubscriptions
from sluice.actors.dispatcher.delivery.subscription import PartitionSubscription, settings_in
from sluice.actors.ledger.garbage_collection import collect_garbage
from sluice.actors.messages import (
    AddBookies,
    AddPartitions,
    BookieList,
    BookiesAdded,
    Configure,
    CreateTopic,
    DeleteSubscription,
    DeleteTopic,
    DescribeCluster,
    Done,
    DrainNode,
    ListBookies,
    ListSubscriptions,
    ListTopics,
    Located,
    LocateSubscription,
    LocateTopic,
    NodeDrain,
    PrepareDeletion,
    RemoveSubscription,
    RemoveTopic,
    RemoveUnused,
    StartGateways,
    SubscriptionList,
    SubscriptionSettings,
    Suspect,
    Text,
    TopicList,
    TopicSettings,
)
from sluice.actors.messages.settings import check_subscription, check_values, dead_letter_topic, plain_settings
from sluice.actors.ownership.names import check_name
from sluice.actors.ports import Address, Places, Ports, Unknown
from sluice.actors.ports.wire import Request
from sluice.actors.runtime.waiting import Backoff
from sluice.storage.errors import Corrupt, Invalid, NotFound, SluiceError, Unavailable

CALL_TIMEOUT = 10_000
LEFTOVERS_MS = 600_000
"""Ten minutes: leftovers cost only space."""
FIRST_LEFTOVERS_MS = 60_000
"""A new controller looks sooner: ledgers that no record knows are an alarm, and a restored store has just begun."""
COOKIES = "bookies/"
COOKIES_FIRST_MS, COOKIES_MOST_MS = 100, 5_000


class Controller(TopicSchemas):
    """Knows the bookies, and the address of every partition and subscription that is in use."""

    def __init__(
        self,
        ports: Ports,
        *,
        bookies: list[str],
        lost_after_ms: int = LOST_AFTER_MS,
        leftovers_ms: int = LEFTOVERS_MS,
        close_idle_after_ms: int = 0,
        gateways: bool = False,
        described: Mapping[str, Any] | None = None,
    ) -> None:
        """close_idle_after_ms: see IdleOwners. gateways: every machine has one, for clients of Pulsar.

        described: what it says of the cluster beside what it knows itself, for people.
        """
        super().__init__(ports)
        assert ports.places is not None
        self._places: Places = ports.places
        self._bookies = bookies
        self._described = dict(described or {})
        self._catalog = TopicCatalog(ports.meta, ports.log, ports.clock)
        self._supervisor = Supervisor(ports, self._places, lost_after_ms)
        self._auditor = ReplicationAuditor(
            ports, self._supervisor.lost, self._partitions, lambda: self._drainer.leaving()
        )
        self._drainer = NodeDrainer(ports, self._places, self._supervisor, self._auditor, self._most_copies)
        self._gateways = (
            GatewayKeeper(ports, self._places, self._supervisor, self._drainer.spared) if gateways else None
        )
        self._unused = UnusedSubscriptions(ports, self._supervisor, self._changes)
        self._idle = IdleOwners(
            ports, self._places, self._supervisor, close_idle_after_ms, self._catalog.settings, self._is_changing
        )
        self._closed = ClosedOwners(ports, self._supervisor, self._idle.wake)
        self._leftovers_ms = leftovers_ms
        self._unknown: dict[str, list[int]] = {}
        """By bookie, the ledgers that it held at the last garbage collection and no record knows."""
        self._deleting: dict[str, str] = {}
        """Topics that are being deleted, and what of them goes at present: subscriptions, then partitions."""
        self._unsubscribing: dict[tuple[str, str], None] = {}
        self._growing: dict[str, TopicSettings] = {}
        """Topics that are given more partitions, with the settings that they are to have. Who knows the number of a new
        one finds it; nobody is told of it yet."""
        self._configured: dict[str, tuple[Address, Configure]] = {}
        """By name of a dispatcher: where it is known to work with which settings."""

    async def start(self) -> None:
        """Find what runs already, start the bookies that do not, and begin to watch.

        Where bookies run already, nobody waits for the others: an owner may have died as well. Raises what the first
        bookie's start raises if not one bookie can be had.
        """
        await self._drainer.resume()
        await self._supervisor.adopt()
        entries = [self._supervisor.want("bookie", {"bookie": bookie}) for bookie in await self._known_bookies()]
        if not any(entry.address for entry in entries):
            errors = [error for error in await self._supervisor.try_all(entries) if error is not None]
            if entries and len(errors) == len(entries):
                raise errors[0]
        self.ports.spawn(self._supervisor.watch(), "watch")
        if self._gateways is not None:
            self.ports.spawn(self._gateways.run(), "gateways")
        self.ports.spawn(self._auditor.run(), "replication auditor")
        self.ports.spawn(self._collect_leftovers(), "leftovers")
        self.ports.spawn(self._idle.run(), "idle")
        self.ports.spawn(self._closed.run(), "closed owners")

    async def _known_bookies(self) -> list[str]:
        """Return the bookies of the settings, then the others that have a cookie, if the cookies can be read now."""
        try:
            return list(dict.fromkeys([*self._bookies, *await self._served()]))
        except Unavailable as error:
            self.ports.log("cookies_unknown", error=str(error))
            self.ports.spawn(self._want_served(), "cookies")
            return self._bookies

    async def _served(self) -> list[str]:
        return [key.removeprefix(COOKIES).partition("/")[0] for key in await self.ports.meta.keys(COOKIES)]

    async def _want_served(self) -> None:
        """Have those run as well that ever served, as soon as it is known which they are."""
        wait, served = Backoff(self.ports, COOKIES_FIRST_MS, COOKIES_MOST_MS), None
        while served is None:
            await wait.pause()
            with contextlib.suppress(Unavailable):
                served = await self._served()
        for bookie in served:
            self._supervisor.want("bookie", {"bookie": bookie})

    async def on_suspect(self, request: Suspect) -> Done:
        """A caller got no answer from an actor: ping it; answers when it has been replaced, if that was needed."""
        await self._supervisor.suspect(request.address)
        return Done()

    async def on_drain_node(self, request: DrainNode) -> NodeDrain:
        return await self._drainer.ask(request)

    async def _most_copies(self) -> tuple[int, str]:
        """The largest ensemble of a topic, and which topic that is; 0 without topics."""
        every = await self._catalog.all()
        return max(((settings.ensemble, topic) for topic, settings in every.items()), default=(0, ""))

    async def on_start_gateways(self, request: StartGateways) -> Done:
        if self._gateways is not None:
            await self._gateways.start_all()
        return Done()

    # -- lost bookies, and what they left ---------------------------------------------------------------------------

    async def _collect_leftovers(self) -> None:
        """Let the bookies forget ledgers that no partition names any more; for ever."""
        pause = min(FIRST_LEFTOVERS_MS, self._leftovers_ms)
        while True:
            await self.ports.clock.sleep(pause)
            try:
                collected = await collect_garbage(self.ports, self._bookie_list())
            except SluiceError as error:
                self.ports.log("garbage_collection_waits", error=str(error))
                continue
            pause = self._leftovers_ms
            if collected.deleted:
                self.ports.log("garbage_collected", ledgers=collected.deleted)
            if collected.unknown != self._unknown:
                self.ports.log("unknown_ledgers", ledgers=collected.unknown)
            self._unknown = collected.unknown

    async def _partitions(self, everything: bool) -> list[tuple[str, Address]]:
        """See actors.controller.auditor. A topic whose record is damaged is one that does not answer."""
        for topic in await self._catalog.names() if everything else list(self._catalog.damaged):
            try:
                settings = await self._catalog.settings(topic)
            except (NotFound, Corrupt):
                continue  # deleted meanwhile, or not to be read
            if topic not in self._deleting:
                await self._supervisor.try_all(self._topic_entries(topic, settings))
        known = [(entry.name, entry.address) for entry in self._supervisor.of_kind("topic")]
        return [*known, *((topic, "") for topic in self._catalog.damaged)]

    async def on_add_bookies(self, request: AddBookies) -> BookiesAdded:
        """See messages.AddBookies. Raises what the first failed start raises."""
        wanted = [check_name("bookie", bookie) for bookie in request.ids]
        new = [bookie for bookie in wanted if self._supervisor.find("bookie", {"bookie": bookie}) is None]
        await self._supervisor.ensure_all([self._supervisor.want("bookie", {"bookie": bookie}) for bookie in new])
        return BookiesAdded(ids=new)

    # -- questions ------------------------------------------------------------------------------------------------

    async def on_create_topic(self, request: CreateTopic) -> Done:
        """See messages.CreateTopic. Raises Unavailable while a topic of the name is deleted: what is there still is not
        what is asked for, and goes.
        """
        check_name("topic", request.topic, short=True)
        if request.topic in self._deleting:
            raise Unavailable(f"topic {request.topic!r} is being deleted")
        lost = self._supervisor.lost()
        check_settings(request.settings, len([key for key in self._bookie_ids() if key not in lost]))
        await self._catalog.create(request.topic, request.settings)
        return Done()

    async def on_add_partitions(self, request: AddPartitions) -> Done:
        """See messages.AddPartitions.

        What every subscription has on the new partitions is there before anybody is told of them: else it would miss
        what is published before its consumers come. If this ends halfway nothing is changed, and it can be asked again.
        """
        topic = request.topic
        number, settings = await self._catalog.record(topic)
        alone = settings.partitioned and request.partitions == 1
        wanted = msgspec.structs.replace(settings, partitions=request.partitions, partitioned=alone)
        check_growth(topic, settings, wanted)
        if topic in self._deleting or topic in self._growing:
            raise Unavailable(f"topic {topic!r} is being {'deleted' if topic in self._deleting else 'changed'}")
        if self._is_changing(topic):
            raise Unavailable(f"a subscription of {topic!r} is being deleted")
        self._growing[topic] = wanted
        try:
            await self._spread(topic, settings.partitions, wanted)
            if wanted != settings:
                await self._catalog.replace(topic, number, wanted)
                await self._spread(topic, settings.partitions, wanted)  # who subscribed when this began
        finally:
            del self._growing[topic]
        return Done()

    async def _spread(self, topic: str, first: int, settings: TopicSettings) -> None:
        """Start the partitions from `first` on, and on them every subscription, as it is on the others."""
        await self._ensure_all(self._topic_entries(topic, settings)[first:])
        for subscription in await self._catalog.subscriptions(topic):
            key = PartitionSubscription(topic, 0, subscription).key
            record = await self.ports.meta.read(key)
            if record is None:
                continue  # it is being deleted, or made
            plain = plain_settings(settings_in(key, record.value))
            entries = self._dispatcher_entries(topic, subscription, plain, range(first, settings.partitions))
            await self._ensure_all(entries)

    async def _ensure_all(self, entries: list[Running]) -> None:
        try:
            await self._supervisor.ensure_all(entries)
        except SluiceError:
            self._forget_unstarted(entries)
            raise

    def _forget_unstarted(self, entries: list[Running]) -> None:
        """They cannot be started as it is: do not go on trying."""
        for entry in entries:
            if not entry.address and entry.starting is None:
                self._supervisor.remove(entry)

    def _dispatcher_entries(
        self, topic: str, subscription: str, plain: dict[str, Any], partitions: Iterable[int]
    ) -> list[Running]:
        place = {"topic": topic, "subscription": subscription, "subscription_settings": plain}
        return [self._supervisor.want("dispatcher", {**place, "partition": p}) for p in partitions]

    def _topic_entries(
        self, topic: str, settings: TopicSettings, partitions: Iterable[int] | None = None
    ) -> list[Running]:
        """Return the entries of these partitions, or of all. Raises NotFound if a number is outside the topic."""
        plain, every = plain_settings(settings), range(settings.partitions)
        if outside := [partition for partition in partitions or () if partition not in every]:
            raise NotFound(f"there is no partition {outside[0]}; there are {len(every)}")
        place = {"topic": topic, "topic_settings": plain}
        return [
            self._supervisor.want("topic", {**place, "partition": partition})
            for partition in (every if partitions is None else partitions)
        ]

    def _bookie_ids(self) -> list[str]:
        return [entry.settings["bookie"] for entry in self._supervisor.of_kind("bookie")]

    async def on_locate_topic(self, request: LocateTopic) -> Located:
        """See messages.LocateTopic. Raises Unavailable while the partitions are deleted: no owner may start then."""
        settings = await self._catalog.settings(request.topic)
        if self._deleting.get(request.topic) == "partitions":
            raise Unavailable(f"topic {request.topic!r} is being deleted")
        awaited, grown = request.awaited, self._growing.get(request.topic, settings)
        entries = self._topic_entries(request.topic, grown, awaited if request.only else None)
        if request.only and awaited is not None:
            awaited = list(range(len(entries)))
        addresses = await self._supervisor.ensure_some_of(entries, awaited)
        return Located(addresses=addresses, settings=msgspec.json.encode(settings).decode())

    async def on_locate_subscription(self, request: LocateSubscription) -> Located:
        """See messages.LocateSubscription. Raises Unavailable while the subscription, or its topic, is deleted.

        Consumers that are sent away come back at once, and must not create the subscription again meanwhile. Raises
        Unavailable also while the topic grows: a subscription created then might miss a partition.
        """
        self._check_stays(request)
        topic = await self._topic_of(request)
        self._check_stays(request)  # who begins to delete from here on knows what is wanted
        return await self._locate_dispatchers(request, topic)

    def _check_stays(self, request: LocateSubscription) -> None:
        if request.settings is not None:
            self._check_not_growing(request.topic)
        if self._goes(request.topic, request.subscription):
            raise Unavailable(f"subscription {request.subscription!r} of {request.topic!r} is being deleted")

    def _check_not_growing(self, topic: str) -> None:
        if topic in self._growing:
            raise Unavailable(f"topic {topic!r} is being given more partitions")

    def _goes(self, topic: str, subscription: str) -> bool:
        """Whether a subscription, or its topic, is being deleted."""
        return topic in self._deleting or (topic, subscription) in self._unsubscribing

    def _is_changing(self, topic: str) -> bool:
        going = any(name == topic for name, _ in self._unsubscribing)
        return going or topic in self._deleting or topic in self._growing

    def _changes(self, topic: str, subscription: str) -> bool:
        return self._goes(topic, subscription) or topic in self._growing

    async def _topic_of(self, request: LocateSubscription) -> TopicSettings:
        """The settings of the topic. Raises NotFound without the subscription, if that is not to be made; else Invalid
        if it cannot be.
        """
        topic = await self._catalog.settings(request.topic)
        if request.settings is None:
            await self._catalog.check_subscription_exists(request.topic, request.subscription)
        else:
            check_name("subscription", request.subscription)
            await self._check_wanted(request, request.settings)
            check_dead_letters(request.topic, request.subscription, request.settings)
            if request.settings.max_redeliver_count:
                target = dead_letter_topic(request.topic, request.subscription, request.settings)
                await self._catalog.check_can_be_made(target)
        return topic

    async def _check_wanted(self, request: LocateSubscription, settings: SubscriptionSettings) -> None:
        """Raises Invalid for settings that cannot work. Settings that the caller does not mean may be others where the
        subscription is there: then only its owner knows whether all of them work together.
        """
        try:
            check_subscription(settings)
        except Invalid:
            if request.said is None or request.subscription not in await self._catalog.subscriptions(request.topic):
                raise
            check_values(settings)

    async def _locate_dispatchers(self, request: LocateSubscription, topic: TopicSettings) -> Located:
        plain = plain_settings(request.settings or SubscriptionSettings())
        entries = self._dispatcher_entries(request.topic, request.subscription, plain, range(topic.partitions))
        try:
            addresses = await self._supervisor.ensure_some_of(entries, request.awaited, waits=request.waits)
        except (Invalid, NotFound) as error:
            self._forget_unstarted(entries)
            there = request.awaited is None or min(request.awaited, default=0) < topic.partitions
            if isinstance(error, NotFound) and request.settings is not None and there:
                raise Unavailable(f"{error}; ask again") from error  # one of its name was deleted, this one is made
            raise
        if (settings := request.settings) is not None and request.said != []:  # nothing said: nothing changes
            wanted = Configure(settings=settings, said=request.said)
            awaited = range(topic.partitions) if request.awaited is None else request.awaited
            others = [
                number
                for number in awaited
                if number in range(len(entries))
                and addresses[number]
                and self._configured.get(entries[number].name) != (addresses[number], wanted)
            ]
            work = [self._configure(entries[n], addresses[n], wanted) for n in others] if request.waits else []
            for number, address in zip(others, await _all(work) or [""] * len(others), strict=True):
                addresses[number] = address
        return Located(addresses=addresses, settings=msgspec.json.encode(topic).decode())

    async def _configure(self, entry: Running, address: Address, wanted: Configure) -> Address:
        """Have a dispatcher work with these settings; where it is then. Raises Conflict while it has consumers.

        Only the dispatcher knows what it has: it may have been made with others long ago.
        """
        answer = await self._ask(address, wanted)
        plain = plain_settings(answer.settings)
        if entry.settings.get("subscription_settings") != plain:  # else it keeps those that all its partitions share
            entry.settings["subscription_settings"] = plain
        if answer.changed:
            await self._supervisor.suspect(address)  # it ended, to begin again with them
        now = await self._supervisor.ensure(entry, CALLER_PATIENCE)
        if now == address:  # another one may have been begun with what somebody else asked for at the same time
            self._configured[entry.name] = (now, wanted)
        return now

    async def on_list_bookies(self, request: ListBookies) -> BookieList:
        return self._bookie_list()

    def _bookie_list(self) -> BookieList:
        known = [
            entry
            for entry in self._supervisor.of_kind("bookie")
            if entry.address and not entry.misses and not entry.away
        ]
        return BookieList(
            ids=[entry.settings["bookie"] for entry in known],
            addresses=[entry.address for entry in known],
            read_only=[entry.settings["bookie"] for entry in known if entry.refuses],
            leaving=list(self._drainer.leaving()),
            frames=self._supervisor.frames,
        )

    async def _ask(self, address: Address, request: Request[Any]) -> Any:
        reply = await self.ports.net.call(address, request, CALL_TIMEOUT)
        if isinstance(reply, Unknown):
            raise Unavailable(f"{address} does not answer: {reply.reason}")
        return reply

    async def on_list_topics(self, request: ListTopics) -> TopicList:
        return TopicList(topics=await self._catalog.all())

    async def on_list_subscriptions(self, request: ListSubscriptions) -> SubscriptionList:
        return SubscriptionList(names=await self._catalog.subscriptions(request.topic))

    async def on_remove_subscription(self, request: RemoveSubscription) -> Done:
        await self._delete_subscription(request.topic, request.subscription, request.force)
        return Done()

    async def _delete_subscription(self, topic: str, subscription: str, force: bool) -> None:
        with self._deletion_of(topic, subscription):
            self._check_not_growing(topic)  # what comes to be on new partitions would stay
            request = LocateSubscription(topic=topic, subscription=subscription)
            located = await self._locate_dispatchers(request, await self._topic_of(request))
            owners = dict(enumerate(located.addresses))
            beyond = await self._catalog.beyond(topic, subscription)
            with self._reaching(topic, await self._catalog.settings(topic), beyond):
                left = self._dispatcher_entries(topic, subscription, plain_settings(SubscriptionSettings()), beyond)
                owners |= zip(beyond, await self._supervisor.ensure_all(left, CALLER_PATIENCE), strict=True)
                await self._forget(topic, subscription, owners, DeleteSubscription(force=force))

    @contextlib.contextmanager
    def _reaching(self, topic: str, settings: TopicSettings, beyond: list[int]) -> Iterator[None]:
        """Within the block the owners of partitions that a topic was to get (ascending) can be found. Raises
        Unavailable if it is given them just now.
        """
        if not beyond:
            yield
            return
        self._check_not_growing(topic)
        self._growing[topic] = msgspec.structs.replace(settings, partitions=beyond[-1] + 1, partitioned=False)
        try:
            yield
        finally:
            del self._growing[topic]

    async def on_remove_unused(self, request: RemoveUnused) -> Done:
        owners = await self._unused.owners(request.topic, request.subscription)
        with self._deletion_of(request.topic, request.subscription), contextlib.suppress(Invalid):  # it is in use
            await self._forget(request.topic, request.subscription, owners, DeleteSubscription(only_unused=True))
        return Done()

    @contextlib.contextmanager
    def _deletion_of(self, topic: str, subscription: str) -> Iterator[None]:
        """Refuse to locate the subscription during the block. Raises Unavailable if a deletion is under way already."""
        if (topic, subscription) in self._unsubscribing:
            raise Unavailable(f"subscription {subscription!r} of {topic!r} is being deleted")
        self._unsubscribing[topic, subscription] = None
        try:
            yield
        finally:
            self._unsubscribing.pop((topic, subscription), None)

    async def _forget(
        self, topic: str, subscription: str, owners: Mapping[int, Address], request: DeleteSubscription
    ) -> None:
        """Have owners, by partition, delete their part of a subscription, and end them.

        One that refuses keeps all parts: before the first one goes all have agreed, and from then on nobody attaches.
        If this, or an owner, ends halfway or does not answer, some parts remain; partition 0 is the last, so that its
        owner finds a subscription that is not durable unused again. Raises what the first one refuses with.
        """
        try:
            await self._ask_all(owners.values(), PrepareDeletion(deletion=request))
        except SluiceError:
            with contextlib.suppress(SluiceError):  # else they do not wait longer than a minute
                await self._ask_all(owners.values(), PrepareDeletion(deletion=request, withdrawn=True))
            raise

        async def end(partition: int) -> None:
            place = {"topic": topic, "partition": partition, "subscription": subscription}
            record = PartitionSubscription(topic, partition, subscription).key
            await self._end_for_good("dispatcher", place, owners[partition], request, record)

        await _all(end(partition) for partition in owners if partition)
        if 0 in owners:
            await end(0)

    async def _ask_all(self, addresses: Iterable[Address], request: Request[Any]) -> None:
        await _all(self._ask(address, request) for address in addresses)

    async def on_remove_topic(self, request: RemoveTopic) -> Done:
        topic, force = request.topic, request.force
        await self._subscriptions_to_delete(topic, force)
        if topic in self._deleting:
            raise Unavailable(f"topic {topic!r} is being deleted")
        self._check_not_growing(topic)
        self._deleting[topic] = "subscriptions"
        try:
            await self._until_subscribed(topic)
            for subscription in await self._subscriptions_to_delete(topic, force):
                await self._delete_subscription(topic, subscription, force=True)
            owners = await self._owners_to_delete(topic)
            self._deleting[topic] = "partitions"
            for partition, address in owners.items():
                place = {"topic": topic, "partition": partition}
                await self._end_for_good("topic", place, address, DeleteTopic(force=force))
            if not await self._places.acts():  # the next one may be through with it, and the topic be made again
                raise Unavailable("this controller may have been replaced meanwhile; delete again")
            await self._catalog.remove(topic)
        finally:
            self._deleting.pop(topic, None)
        return Done()

    async def _owners_to_delete(self, topic: str) -> dict[int, Address]:
        """By partition, also of those that the topic was to get when that ended halfway."""
        owners = dict(enumerate((await self.on_locate_topic(LocateTopic(topic=topic))).addresses))
        beyond = await self._catalog.partitions_beyond(topic)
        with self._reaching(topic, await self._catalog.settings(topic), beyond):
            left = self._topic_entries(topic, self._growing[topic], beyond) if beyond else []
            return owners | dict(zip(beyond, await self._supervisor.ensure_all(left, CALLER_PATIENCE), strict=True))

    async def _subscriptions_to_delete(self, topic: str, force: bool) -> list[str]:
        """Return the subscriptions of a topic that is to be deleted. Raises Invalid if there are any, unless forced."""
        subscriptions = await self._catalog.subscriptions(topic)
        if subscriptions and not force:
            raise Invalid(f"topic {topic} has subscriptions ({', '.join(subscriptions)}); use force")
        return subscriptions

    async def _until_subscribed(self, topic: str) -> None:
        """Wait for who begins to subscribe just now: what is not there yet when the topic's subscriptions are deleted
        would be found by the next topic of its name. Raises what such a start raises, and Unavailable if it takes long.
        """
        beginning = [entry for entry in self._supervisor.of_kind("dispatcher") if entry.settings["topic"] == topic]
        for error in await self._supervisor.try_all(beginning, CALLER_PATIENCE):
            if error is not None and not isinstance(error, Invalid | NotFound):  # else it has left nothing
                raise error

    async def _end_for_good(
        self, kind: str, place: dict[str, Any], address: Address, request: Request[Any], record: str | None = None
    ) -> None:
        """Let an actor delete its data, and end it. record: its metadata key, if that is deleted too."""
        entry = self._supervisor.find(kind, place)
        if entry is not None:
            # No ping may find it dead and start it again, which would create again the data that it served.
            self._supervisor.remove(entry)
            self._configured.pop(entry.name, None)
        try:
            reply = await self.ports.net.call(address, request, CALL_TIMEOUT)
        except SluiceError:
            if entry is not None:
                self._supervisor.remember(entry)
            raise
        # The actor may have ended with its work before it could answer, or be at it still: it stays forgotten.
        if isinstance(reply, Unknown) and (record is None or await self.ports.meta.read(record) is not None):
            raise Unavailable(f"{address} does not answer: {reply.reason}; delete again")
        await self._places.stop(address)

    async def on_describe_cluster(self, request: DescribeCluster) -> Text:
        lost = self._supervisor.lost()
        description = {
            "controller": self.ports.me,
            **self._described,
            "lostBookies": list(lost),
            "drained": self._drainer.nodes(),
            "underReplicated": self._auditor.under_replicated(),
            "workerPools": self.pools_in_short(),
            "unknownLedgers": {bookie: len(ledgers) for bookie, ledgers in self._unknown.items()},
            "actors": [
                {
                    "kind": entry.kind,
                    "name": entry.name,
                    "address": entry.address,
                    "state": state_of(entry, lost),
                    "restarts": entry.restarts,
                    "misses": entry.misses,
                    "problem": self._supervisor.problem_of(entry),
                }
                for entry in self._supervisor.all()
            ]
            + [_damaged_topic(topic, problem) for topic, problem in self._catalog.damaged.items()],
        }
        return Text(json=json.dumps(description))


def _damaged_topic(topic: str, problem: str) -> dict[str, Any]:
    """A row for operators, as of an actor: nobody can start an owner of this topic."""
    row = {"kind": "topic", "name": f"topic/{topic}", "address": "", "state": "damaged"}
    return {**row, "restarts": 0, "misses": 0, "problem": problem}


async def _all(work: Iterable[Awaitable[Any]]) -> list[Any]:
    """Side by side, to the end of each. Raises what the first one raises."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes

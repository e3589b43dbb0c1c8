"""The controller: starts actors, watches them, and replaces the dead.

It only suggests. Two controllers at once, a late order of an old one, an owner that was replaced although it lived:
none of these can break a promise, because every owner is fenced by its epoch in the metadata. So the controller
keeps no state of its own that matters: what exists is in the metadata, what runs is asked of the places.

A dead process is seen at once (the first call to it says so, and whoever notices reports it with `Suspect`); a frozen
one answers nothing and is given up after MISSES pings in a row. An actor is pinged by one call at a time, so that a
stall of the controller itself counts as one miss, and a host by at most SAMPLE of its actors each PING_MS: when one of
them is given up, the others in its process are looked at without waiting for their turn.

A bookie that cannot be started stops nobody else. `actors/losses.py` says when it is lost for good; then the topics
copy what it held (`actors/mending.py`). The bookies are those of the settings and those that ever served, which their
cookies in the metadata tell: a shorter list in the settings must not hide data.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from actors.actor import Actor
from actors.losses import LOST_AFTER_MS, Losses
from actors.mending import Mending
from actors.messages import (
    Admin,
    BookieList,
    CreateTopic,
    DeleteTopic,
    Done,
    ListBookies,
    Located,
    LocateSubscription,
    LocateTopic,
    Manage,
    Ping,
    SubscriptionSettings,
    Suspect,
    Text,
    TopicSettings,
)
from actors.messages.settings import check_subscription
from actors.ports import Address, Places, Ports, Unknown
from actors.signal import Signal
from actors.wire import Request
from storage.errors import Conflict, Corrupt, Fenced, Invalid, NotFound, SluiceError, Unavailable

PING_MS, PING_TIMEOUT, MISSES = 500, 1_500, 3
SAMPLE = 16
SWEEP_MS = 1_000
CALL_TIMEOUT = 10_000
START_TRIES = 50
RETRY_MS = 100
COOKIES = "bookies/"


@dataclass(slots=True)
class Running:
    """One actor that should run. address is empty while it is being started.

    leaving: the address that it had and whether its process is frozen, until that one is ended.
    """

    kind: str
    name: str
    settings: dict[str, Any]
    address: Address = ""
    leaving: tuple[Address, bool] | None = None
    misses: int = 0
    restarts: int = 0
    starting: Signal | None = None
    looking: Signal | None = None
    problem: str = ""


class Controller(Actor):
    """Knows the bookies, and an address for every topic partition and subscription that is in use."""

    def __init__(self, ports: Ports, *, bookies: list[str], lost_after_ms: int = LOST_AFTER_MS) -> None:
        super().__init__(ports)
        assert ports.places is not None
        self._places: Places = ports.places
        self._bookies = bookies
        self._running: dict[str, Running] = {}
        self._losses = Losses(lost_after_ms)
        self._mending = Mending(ports, self._lost, self._partitions)
        self._deleting: dict[str, None] = {}
        self._swept: dict[str, int] = {}
        self._turn = 0
        self._verbs: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "topics": self._topics,
            "subscriptions": self._subscriptions,
            "delete_topic": self._delete_topic,
            "delete_subscription": self._delete_subscription,
            "add_bookies": self._add_bookies,
            "status": self._status,
        }

    async def start(self) -> None:
        """Find what runs already, start the bookies that do not, and begin to watch.

        Raises what the first bookie's start raises if not one bookie can be had.
        """
        for kind, address, settings in await self._places.inventory():
            if kind in ("bookie", "topic", "dispatcher"):
                key = _key(kind, settings)
                self._running[key] = Running(kind, key, settings, address)
        entries = [self._want("bookie", {"bookie": bookie}) for bookie in await self._known_bookies()]
        errors = [error for error in await self._try_all(entries) if error is not None]
        if entries and len(errors) == len(entries):
            raise errors[0]
        self.ports.spawn(self._watch(), "watch")
        self.ports.spawn(self._mending.run(), "mend")

    async def _known_bookies(self) -> list[str]:
        """Those of the settings, then those that have a cookie besides."""
        try:
            keys = await self.ports.meta.keys(COOKIES)
        except Unavailable as error:
            self.ports.log("cookies_unknown", error=str(error))
            keys = []
        served = [key.removeprefix(COOKIES).partition("/")[0] for key in keys]
        return list(dict.fromkeys([*self._bookies, *served]))

    # -- what runs ------------------------------------------------------------------------------------------------

    def _want(self, kind: str, settings: dict[str, Any]) -> Running:
        key = _key(kind, settings)
        if key not in self._running:
            self._running[key] = Running(kind, key, settings)
        return self._running[key]

    async def _ensure(self, entry: Running) -> Address:
        """The address of an actor, started if need be. Raises what its start raises."""
        while entry.starting is not None:
            await entry.starting.wait(self.ports)
        if not entry.address:
            done = entry.starting = Signal()
            try:
                if entry.leaving is not None:
                    await self._places.stop(entry.leaving[0], frozen=entry.leaving[1])
                    entry.leaving = None
                entry.address = await self._start(entry)
                entry.misses, entry.problem = 0, ""
                if entry.kind == "bookie":
                    self._losses.back(entry.settings["bookie"])
            except SluiceError as error:
                entry.problem = str(error)
                if entry.kind == "bookie":
                    now = self.ports.clock.monotonic()
                    self._losses.failed(entry.settings["bookie"], now, refused=isinstance(error, Corrupt))
                raise
            finally:
                entry.starting = None
                done.set()
        return entry.address

    async def _ensure_all(self, entries: list[Running]) -> list[Address]:
        """The addresses of several actors, started side by side. Raises what the first failed start raises."""
        for error in await self._try_all(entries):
            if error is not None:
                raise error
        return [await self._ensure(entry) for entry in entries]

    async def _try_all(self, entries: list[Running]) -> list[SluiceError | None]:
        """Start several actors side by side; returns why each could not be started, None if it runs."""
        errors: list[SluiceError | None] = [None] * len(entries)
        left = [number for number, entry in enumerate(entries) if not entry.address]
        done = Signal()

        async def one(number: int) -> None:
            try:
                await self._ensure(entries[number])
            except SluiceError as error:
                errors[number] = error
            finally:
                left.remove(number)
                if not left:
                    done.set()

        for number in list(left):
            self.ports.spawn(one(number), "start")
        if left:
            await done.wait(self.ports)
        return errors

    async def _start(self, entry: Running) -> Address:
        for attempt in range(START_TRIES):
            try:
                incarnation = f"{entry.kind}-{attempt}-{self.ports.rng.randrange(1 << 40):010x}"
                address = await self._places.start(entry.kind, incarnation, entry.settings)
                self.ports.log("started", key=entry.name, address=address)
                return address
            except (Unavailable, Fenced) as error:
                entry.problem = str(error)
                self.ports.log("start_waits", key=entry.name, error=str(error))
                if entry.kind == "bookie" and attempt >= 2:
                    raise
                await self.ports.clock.sleep(RETRY_MS)
        raise Unavailable(f"{entry.name} cannot be started: {entry.problem}")

    async def _watch(self) -> None:
        while True:
            await self.ports.clock.sleep(PING_MS)
            self._turn += 1
            hosts: dict[str, list[Running]] = {}
            for entry in list(self._running.values()):
                if entry.address:
                    hosts.setdefault(_host(entry.address), []).append(entry)
                elif entry.starting is None and self._may_start(entry):
                    self.ports.spawn(self._try_ensure(entry), "restart")
            for entries in hosts.values():
                first = self._turn * SAMPLE % len(entries) if len(entries) > SAMPLE else 0
                for entry in [*entries, *entries][first : first + min(SAMPLE, len(entries))]:
                    self.ports.spawn(self._look(entry, entry.address), "ping")

    def _may_start(self, entry: Running) -> bool:
        return entry.kind != "bookie" or self._losses.may_start(entry.settings["bookie"], self.ports.clock.monotonic())

    async def _look(self, entry: Running, address: Address) -> None:
        """Ping one actor; replace it if it is gone, or was silent too often. Who comes meanwhile waits for that."""
        if entry.looking is not None:
            await entry.looking.wait(self.ports)
            return
        done = entry.looking = Signal()
        try:
            reply = await self._ping(address)
        finally:
            entry.looking = None
            done.set()
        if entry.address != address:
            return
        if not isinstance(reply, Unknown):
            entry.misses = 0
            return
        entry.misses += 1
        if reply.gone or entry.misses >= MISSES:
            self._sweep(address)
            await self._replace(entry, address, frozen=not reply.gone)

    def _sweep(self, address: Address) -> None:
        """One actor of a process was given up: look at the others in it."""
        host, now = _host(address), self.ports.clock.monotonic()
        if now - self._swept.get(host, now - SWEEP_MS) < SWEEP_MS:
            return
        self._swept = {name: at for name, at in self._swept.items() if now - at < SWEEP_MS} | {host: now}
        for other in list(self._running.values()):
            if other.address != address and _host(other.address) == host:
                self.ports.spawn(self._look(other, other.address), "sweep")

    async def _ping(self, address: Address) -> Done | Unknown:
        try:
            return await self.ports.net.call(address, Ping(), PING_TIMEOUT)
        except SluiceError as error:
            return Unknown(str(error), gone=True)

    async def _replace(self, entry: Running, address: Address, *, frozen: bool) -> None:
        self.ports.log("replacing", key=entry.name, address=address, frozen=frozen)
        entry.address, entry.misses, entry.leaving = "", 0, (address, frozen)
        entry.restarts += 1
        if entry.kind == "bookie":
            self._losses.down(entry.settings["bookie"], self.ports.clock.monotonic())
        await self._try_ensure(entry)

    async def _try_ensure(self, entry: Running) -> None:
        try:
            await self._ensure(entry)
        except SluiceError as error:
            self.ports.log("start_failed", key=entry.name, error=str(error))

    async def on_suspect(self, request: Suspect) -> Done:
        """Somebody got no answer; look, and answer when it was replaced if it had to be."""
        for entry in list(self._running.values()):
            if entry.address == request.address:
                await self._look(entry, request.address)
        return Done()

    # -- lost bookies ---------------------------------------------------------------------------------------------

    def _lost(self) -> tuple[str, ...]:
        return self._losses.lost(self.ports.clock.monotonic())

    async def _partitions(self, everything: bool) -> list[tuple[str, Address]]:
        """See mending.Partitions."""
        if everything:
            for key in await self.ports.meta.keys("topic/"):
                topic = key.removeprefix("topic/")
                try:
                    settings = await self._topic_settings(topic)
                except NotFound:
                    continue  # deleted meanwhile
                if topic not in self._deleting:
                    await self._try_all(self._topic_entries(topic, settings))
        return [(name, entry.address) for name, entry in sorted(self._running.items()) if entry.kind == "topic"]

    async def _add_bookies(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Start bookies with these ids as well; fine if they run. Raises what the first failed start raises."""
        wanted = [str(bookie) for bookie in arguments["bookies"]]
        new = [bookie for bookie in wanted if _key("bookie", {"bookie": bookie}) not in self._running]
        await self._ensure_all([self._want("bookie", {"bookie": bookie}) for bookie in new])
        return {"added": new}

    # -- questions ------------------------------------------------------------------------------------------------

    async def on_create_topic(self, request: CreateTopic) -> Done:
        """See messages.CreateTopic."""
        lost = self._lost()
        check_settings(request.settings, len([key for key in self._bookie_ids() if key not in lost]))
        value = msgspec.json.encode(request.settings)
        if not await self.ports.meta.create(topic_key(request.topic), 1, value):
            known = await self._topic_settings(request.topic)
            if known != request.settings:
                raise Conflict(f"topic {request.topic} exists with other settings")
        return Done()

    async def _topic_settings(self, topic: str) -> TopicSettings:
        record = await self.ports.meta.read(topic_key(topic))
        if record is None:
            raise NotFound(f"there is no topic {topic!r}")
        return msgspec.json.decode(record.value, type=TopicSettings)

    def _topic_entries(self, topic: str, settings: TopicSettings) -> list[Running]:
        plain = msgspec.to_builtins(settings)
        return [
            self._want("topic", {"topic": topic, "partition": partition, "topic_settings": plain})
            for partition in range(settings.partitions)
        ]

    def _bookie_ids(self) -> list[str]:
        return [entry.settings["bookie"] for entry in self._running.values() if entry.kind == "bookie"]

    async def on_locate_topic(self, request: LocateTopic) -> Located:
        """See messages.LocateTopic."""
        settings = await self._topic_settings(request.topic)
        addresses = await self._ensure_all(self._topic_entries(request.topic, settings))
        return Located(addresses=addresses, settings=msgspec.json.encode(settings).decode())

    async def on_locate_subscription(self, request: LocateSubscription) -> Located:
        """See messages.LocateSubscription."""
        topic = await self._topic_settings(request.topic)
        if request.settings is None:
            known = await self.ports.meta.keys(f"subscription/{request.topic}/")
            if not any(key.endswith(f"/{request.subscription}") for key in known):
                raise NotFound(f"topic {request.topic!r} has no subscription {request.subscription!r}")
        if request.settings is not None:
            check_subscription(request.settings)
        wanted = msgspec.to_builtins(request.settings or SubscriptionSettings())
        place = {"topic": request.topic, "subscription": request.subscription, "subscription_settings": wanted}
        entries = [self._want("dispatcher", {**place, "partition": p}) for p in range(topic.partitions)]
        try:
            addresses = await self._ensure_all(entries)
        except (Invalid, NotFound):
            for entry in entries:  # it cannot be started as it is: do not go on trying
                if not entry.address:
                    self._running.pop(_key(entry.kind, entry.settings), None)
            raise
        for entry, address in zip(entries, addresses, strict=True):
            if request.settings is not None and entry.settings["subscription_settings"] != wanted:
                await self._ask(address, Admin(verb="settings", arguments=json.dumps(wanted)))
                entry.settings["subscription_settings"] = wanted
        return Located(addresses=addresses)

    async def on_list_bookies(self, request: ListBookies) -> BookieList:
        """See messages.ListBookies."""
        known = sorted(
            (entry.settings["bookie"], entry.address)
            for entry in self._running.values()
            if entry.kind == "bookie" and entry.address and entry.misses == 0
        )
        return BookieList(ids=[bookie for bookie, _ in known], addresses=[address for _, address in known])

    async def on_manage(self, request: Manage) -> Text:
        """See messages.Manage."""
        handler = self._verbs.get(request.verb)
        if handler is None:
            raise Invalid(f"unknown verb {request.verb!r}; there are {', '.join(sorted(self._verbs))}")
        return Text(json=json.dumps(await handler(json.loads(request.arguments))))

    async def _ask(self, address: Address, request: Request[Any]) -> Any:
        reply = await self.ports.net.call(address, request, CALL_TIMEOUT)
        if isinstance(reply, Unknown):
            raise Unavailable(f"{address} does not answer: {reply.reason}")
        return reply

    async def _topics(self, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        rows = []
        for key in await self.ports.meta.keys("topic/"):
            name = key.removeprefix("topic/")
            rows.append({"topic": name, **msgspec.to_builtins(await self._topic_settings(name))})
        return rows

    async def _subscriptions(self, arguments: dict[str, Any]) -> list[str]:
        topic = str(arguments["topic"])
        await self._topic_settings(topic)
        keys = await self.ports.meta.keys(f"subscription/{topic}/")
        return sorted({key.rsplit("/", 1)[1] for key in keys})

    async def _delete_subscription(self, arguments: dict[str, Any]) -> dict[str, Any]:
        topic, subscription = str(arguments["topic"]), str(arguments["subscription"])
        located = await self.on_locate_subscription(LocateSubscription(topic=topic, subscription=subscription))
        for partition, address in enumerate(located.addresses):
            key = _key("dispatcher", {"topic": topic, "partition": partition, "subscription": subscription})
            # Nobody may find it dead and start it again, which would make the subscription anew.
            entry = self._running.pop(key, None)
            try:
                await self._ask(address, Admin(verb="delete", arguments=json.dumps(arguments)))
            except SluiceError:
                if entry is not None:
                    self._running.setdefault(key, entry)
                raise
            await self._places.stop(address)
        return {"deleted": subscription}

    async def _delete_topic(self, arguments: dict[str, Any]) -> dict[str, Any]:
        topic, force = str(arguments["topic"]), bool(arguments.get("force", False))
        subscriptions = await self._subscriptions({"topic": topic})
        if subscriptions and not force:
            raise Invalid(f"topic {topic} has subscriptions ({', '.join(subscriptions)}); use force")
        self._deleting[topic] = None
        try:
            for subscription in subscriptions:
                await self._delete_subscription({"topic": topic, "subscription": subscription, "force": True})
            located = await self.on_locate_topic(LocateTopic(topic=topic))
            for partition, address in enumerate(located.addresses):
                await self._ask(address, DeleteTopic(force=force))
                await self._end("topic", {"topic": topic, "partition": partition})
            await self.ports.meta.remove(topic_key(topic))
        finally:
            self._deleting.pop(topic, None)
        return {"deleted": topic}

    async def _end(self, kind: str, settings: dict[str, Any]) -> None:
        entry = self._running.pop(_key(kind, settings), None)
        if entry is not None and entry.address:
            await self._places.stop(entry.address)

    async def _status(self, arguments: dict[str, Any]) -> dict[str, Any]:
        lost = self._lost()
        return {
            "controller": self.ports.me,
            "lostBookies": list(lost),
            "underReplicated": self._mending.under_replicated(),
            "actors": [
                {
                    "kind": entry.kind,
                    "name": entry.name,
                    "address": entry.address,
                    "state": _state(entry, lost),
                    "restarts": entry.restarts,
                    "misses": entry.misses,
                    "problem": entry.problem,
                }
                for _, entry in sorted(self._running.items())
            ],
        }


def _state(entry: Running, lost: tuple[str, ...]) -> str:
    if entry.kind == "bookie" and entry.settings["bookie"] in lost:
        return "lost"
    return "running" if entry.address else "starting"


def _host(address: Address) -> str:
    return address.partition("/")[0]


def topic_key(topic: str) -> str:
    """The metadata key of a topic's settings."""
    return f"topic/{topic}"


def check_settings(settings: TopicSettings, bookies: int) -> None:
    """Refuse a topic that could never be written: 1 <= ack_quorum <= write_quorum <= ensemble <= bookies."""
    if settings.partitions < 1:
        raise Invalid(f"a topic has at least 1 partition, not {settings.partitions}")
    if not 1 <= settings.ack_quorum <= settings.write_quorum <= settings.ensemble:
        raise Invalid("the quorums must satisfy 1 <= ack_quorum <= write_quorum <= ensemble")
    if settings.ensemble > bookies:
        raise Invalid(f"an ensemble of {settings.ensemble} needs as many bookies; this cluster has {bookies}")


def _key(kind: str, settings: dict[str, Any]) -> str:
    parts = (settings.get(name) for name in ("bookie", "topic", "partition", "subscription"))
    return "/".join([kind, *(str(part) for part in parts if part is not None)])

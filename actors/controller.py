"""The controller: starts actors, watches them, and replaces the dead.

It only suggests. Two controllers at once, a late order of an old one, an owner that was replaced although it lived:
none of these can break a promise, because every owner is fenced by its epoch in the metadata. So the controller
keeps no state of its own that matters: what exists is in the metadata, what runs is asked of the places.

A dead process is seen at once (the first call to it says so, and whoever notices reports it with `Suspect`); a frozen
one answers nothing and is given up after MISSES pings in a row.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from actors.actor import Actor
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
from actors.ports import Address, Places, Ports, Unknown
from actors.signal import Signal
from actors.wire import Request
from storage.errors import Conflict, Fenced, Invalid, NotFound, SluiceError, Unavailable

PING_MS, PING_TIMEOUT, MISSES = 500, 1_500, 3
CALL_TIMEOUT = 10_000
START_TRIES = 50
RETRY_MS = 100
STORE_TRIES = 20


@dataclass(slots=True)
class Running:
    """One actor that should run. address is empty while it is being started."""

    kind: str
    name: str
    settings: dict[str, Any]
    address: Address = ""
    misses: int = 0
    restarts: int = 0
    starting: Signal | None = None
    problem: str = ""
    last_error: SluiceError | None = field(default=None)


class Controller(Actor):
    """Knows the bookies, and an address for every topic partition and subscription that is in use."""

    def __init__(self, ports: Ports, *, bookies: list[str]) -> None:
        super().__init__(ports)
        assert ports.places is not None
        self._places: Places = ports.places
        self._bookies = bookies
        self._running: dict[str, Running] = {}
        self._verbs: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "topics": self._topics,
            "subscriptions": self._subscriptions,
            "delete_topic": self._delete_topic,
            "delete_subscription": self._delete_subscription,
            "status": self._status,
        }

    async def start(self) -> None:
        """Find what runs already, start the bookies that do not, and begin to watch."""
        for kind, address, settings in await self._places.inventory():
            if kind not in ("controller", "admin"):
                key = _key(kind, settings)
                self._running[key] = Running(kind, key, settings, address)
        for bookie in self._bookies:
            self._want("bookie", {"bookie": bookie})
        await self._ensure_all(list(self._running.values()))
        self.ports.spawn(self._watch(), "watch")

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
                entry.address = await self._start(entry)
                entry.misses, entry.problem = 0, ""
            except SluiceError as error:
                entry.problem = str(error)
                raise
            finally:
                entry.starting = None
                done.set()
        return entry.address

    async def _ensure_all(self, entries: list[Running]) -> list[Address]:
        """The addresses of several actors, started side by side. Raises what the first failed start raises."""
        for entry in entries:
            if not entry.address and entry.starting is None:
                self.ports.spawn(self._try_ensure(entry), "start")
        return [await self._ensure(entry) for entry in entries]

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
            for entry in list(self._running.values()):
                if entry.address:
                    self.ports.spawn(self._look(entry, entry.address), "ping")
                elif entry.starting is None:
                    self.ports.spawn(self._try_ensure(entry), "restart")

    async def _look(self, entry: Running, address: Address) -> None:
        """Ping one actor; replace it if it is gone, or was silent too often."""
        reply = await self._ping(address)
        if entry.address != address:
            return
        if not isinstance(reply, Unknown):
            entry.misses = 0
            return
        entry.misses += 1
        if reply.gone or entry.misses >= MISSES:
            await self._replace(entry, address, frozen=not reply.gone)

    async def _ping(self, address: Address) -> Done | Unknown:
        try:
            return await self.ports.net.call(address, Ping(), PING_TIMEOUT)
        except SluiceError as error:
            return Unknown(str(error), gone=True)

    async def _replace(self, entry: Running, address: Address, *, frozen: bool) -> None:
        self.ports.log("replacing", key=entry.name, address=address, frozen=frozen)
        entry.address, entry.misses = "", 0
        entry.restarts += 1
        await self._places.stop(address, frozen=frozen)
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

    # -- questions ------------------------------------------------------------------------------------------------

    async def on_create_topic(self, request: CreateTopic) -> Done:
        """See messages.CreateTopic."""
        check_settings(request.settings, len(self._bookies))
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

    async def on_locate_topic(self, request: LocateTopic) -> Located:
        """See messages.LocateTopic."""
        settings = await self._topic_settings(request.topic)
        plain = msgspec.to_builtins(settings)
        entries = [
            self._want("topic", {"topic": request.topic, "partition": partition, "topic_settings": plain})
            for partition in range(settings.partitions)
        ]
        addresses = await self._ensure_all(entries)
        return Located(addresses=addresses, settings=msgspec.json.encode(settings).decode())

    async def on_locate_subscription(self, request: LocateSubscription) -> Located:
        """See messages.LocateSubscription."""
        topic = await self._topic_settings(request.topic)
        if request.settings is None:
            known = await self.ports.meta.keys(f"subscription/{request.topic}/")
            if not any(key.endswith(f"/{request.subscription}") for key in known):
                raise NotFound(f"topic {request.topic!r} has no subscription {request.subscription!r}")
        wanted = msgspec.to_builtins(request.settings or SubscriptionSettings())
        place = {"topic": request.topic, "subscription": request.subscription, "subscription_settings": wanted}
        entries = [self._want("dispatcher", {**place, "partition": p}) for p in range(topic.partitions)]
        addresses = await self._ensure_all(entries)
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
            await self._ask(address, Admin(verb="delete", arguments=json.dumps(arguments)))
            await self._end("dispatcher", {"topic": topic, "partition": partition, "subscription": subscription})
        return {"deleted": subscription}

    async def _delete_topic(self, arguments: dict[str, Any]) -> dict[str, Any]:
        topic, force = str(arguments["topic"]), bool(arguments.get("force", False))
        subscriptions = await self._subscriptions({"topic": topic})
        if subscriptions and not force:
            raise Invalid(f"topic {topic} has subscriptions ({', '.join(subscriptions)}); use force")
        for subscription in subscriptions:
            await self._delete_subscription({"topic": topic, "subscription": subscription, "force": True})
        located = await self.on_locate_topic(LocateTopic(topic=topic))
        for partition, address in enumerate(located.addresses):
            await self._ask(address, DeleteTopic(force=force))
            await self._end("topic", {"topic": topic, "partition": partition})
        await self.ports.meta.remove(topic_key(topic))
        return {"deleted": topic}

    async def _end(self, kind: str, settings: dict[str, Any]) -> None:
        entry = self._running.pop(_key(kind, settings), None)
        if entry is not None and entry.address:
            await self._places.stop(entry.address)

    async def _status(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {
            "controller": self.ports.me,
            "actors": [
                {
                    "kind": entry.kind,
                    "name": entry.name,
                    "address": entry.address,
                    "state": "running" if entry.address else "starting",
                    "restarts": entry.restarts,
                    "misses": entry.misses,
                    "problem": entry.problem,
                }
                for _, entry in sorted(self._running.items())
            ],
        }


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

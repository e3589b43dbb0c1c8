"""A cache of owners' addresses from the controller, for producers, consumers and dispatchers.

Owners that are looked for at the same time are asked for in one question, so that a consumer of a thousand partitions
costs the controller a few. The owner of one partition, which needs no other, is told of that one alone (`only`).

An address in here is a hint. A caller that finds it dead calls `suspect`, which forgets it and tells the controller;
the next question brings the new owner. Safety never rests on this: owners are fenced by epochs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec

from sluice.actors.messages import (
    BookieList,
    CreateTopic,
    Done,
    ListBookies,
    LocateSubscription,
    LocateTopic,
    RemoveUnused,
    SubscriptionSettings,
    Suspect,
    TopicSettings,
)
from sluice.actors.messages.settings import shared_settings
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.ports.wire import R, Request
from sluice.actors.runtime.waiting import Backoff, SingleFlight
from sluice.storage.errors import Fenced, NotFound, SluiceError, Unavailable

ANSWER_TIMEOUT, OWNER_PATIENCE = 15_000, 30_000
RETRY_FIRST, RETRY_MOST = 50, 1_000
LOCATE_TIMEOUT = 30_000
"""Milliseconds that the controller may take to start an owner and let it recover."""
BOOKIES_TIMEOUT = 1_000
"""Milliseconds that it has to tell who asked before which bookies there are."""


_Question = tuple[str, str | None, bytes]
"""Topic; subscription, or None for the topic's own owners; with which settings it is to work, and which of them are
said (see messages.Configure), as JSON, or empty for those that it has.
"""
_NONE: dict[int, Address] = {}


class KnownOwners:
    """Addresses of owners: by topic; by subscription, or None for the topic's own; and by partition.

    Each is found by its address as well: where a process has ended, ten thousand are suspected in turn.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str | None, dict[int, Address]]] = {}
        self._whose: dict[Address, tuple[str, str | None, int]] = {}
        self._asked: dict[Address, bytes] = {}
        self._same: dict[bytes, bytes] = {}
        """The different settings asked of all dispatchers, each stored once: there are few."""

    def __len__(self) -> int:
        return len(self._whose)

    def get(self, topic: str, subscription: str | None, partition: int) -> Address:
        """The owner of a partition; empty if it is not known."""
        return self.addresses(topic, subscription).get(partition, "")

    def addresses(self, topic: str, subscription: str | None) -> dict[int, Address]:
        """Return the known addresses of all partitions. The caller must not change them."""
        return self._known.get(topic, {}).get(subscription, _NONE)

    def add(self, topic: str, subscription: str | None, found: dict[int, Address]) -> None:
        """Record the current owners of some partitions."""
        known = self._known.setdefault(topic, {}).setdefault(subscription, {})
        for partition, address in found.items():
            before = known.get(partition, "")
            self._whose.pop(before, None)
            known[partition] = address
            self._whose[address] = (topic, subscription, partition)
            self._gone([before])

    def replace(self, topic: str, subscription: str | None, found: dict[int, Address]) -> None:
        """Record the current owners, and forget all others of the topic or subscription."""
        before = self._known.get(topic, {}).pop(subscription, _NONE)
        for address in before.values():
            self._whose.pop(address, None)
        self.add(topic, subscription, found)
        self._gone(before.values())

    def forget_subscriptions(self, topic: str) -> None:
        """Nothing is known of them any more."""
        for subscription in list(self._known.get(topic, ())):
            if subscription is not None:
                self.replace(topic, subscription, _NONE)
                del self._known[topic][subscription]

    def discard(self, topic: str) -> None:
        """Nothing is known of the topic any more."""
        for known in self._known.pop(topic, {}).values():
            for address in known.values():
                self._whose.pop(address, None)
            self._gone(known.values())

    def work_with(self, settings: bytes, addresses: Sequence[Address]) -> None:
        """Record the settings that these known dispatchers work with; see _Question."""
        if settings:
            self._asked |= dict.fromkeys(addresses, self._same.setdefault(settings, settings))

    def asked(self, address: Address) -> bytes:
        """Return the settings last asked of a dispatcher that are in force; they end when its settings change."""
        return self._asked.get(address, b"")

    def _gone(self, addresses: Iterable[Address]) -> None:
        for address in addresses:
            if address not in self._whose:
                self._asked.pop(address, None)

    def suspect(self, address: Address) -> None:
        """Forget the owner at an address."""
        self._asked.pop(address, None)
        if (whose := self._whose.pop(address, None)) is not None:
            topic, subscription, partition = whose
            del self._known[topic][subscription][partition]


class Directory:
    """Addresses of topics and dispatchers, by name."""

    def __init__(self, ports: Ports, controller: Address, *, only: bool = False) -> None:
        """only: the user is of one partition, and is told nothing of the others."""
        self._ports = ports
        self._controller = controller
        self._only = only
        self._knows_bookies = False
        self._known = KnownOwners()
        self._settings: dict[str, TopicSettings] = {}
        self._settings_now = SingleFlight(ports, self._ask_settings, "settings")
        self._owners = SingleFlight(ports, self._ask_owners, "owners")
        self._wanted: dict[_Question, dict[int, None]] = {}
        """The partitions that the next question of each sort is to ask for."""

    async def topic(self, topic: str, partition: int) -> Address:
        """The owner of a partition. Raises NotFound, Unavailable."""
        while not (address := self._known.get(topic, None, partition)):
            await self._look_up((topic, None, b""), partition)
        return address

    def known_topic(self, topic: str, partition: int) -> Address:
        """The owner of a partition as far as it is known; empty if it is not."""
        return self._known.get(topic, None, partition)

    async def _look_up(self, question: _Question, partition: int) -> None:
        """Ask for an owner, with all who ask at this moment. It may not be there yet when the answer is."""
        self._wanted.setdefault(question, {})[partition] = None
        await self._owners(question)

    async def _ask_owners(self, question: _Question) -> None:
        try:
            await self._find_owners(question)
        except NotFound:  # a topic that was made again may have fewer partitions than the one that is known
            self._settings.pop(question[0], None)
            raise

    async def _find_owners(self, question: _Question) -> None:
        topic, subscription, new = question
        wanted = sorted(self._wanted.pop(question))
        if subscription is None:
            await self._locate(topic, wanted)
            found = self._known.addresses(topic, None)
        else:
            settings, said = msgspec.json.decode(new, type=_Asked) if new else (None, None)
            asked: dict[str, Any] = {"settings": settings, "said": said, **_named(wanted)}
            request = LocateSubscription(topic=topic, subscription=subscription, **asked)
            found = _present(enumerate((await self._ask(request)).addresses))
            self._known.replace(topic, subscription, found)
            self._known.work_with(new, [found[partition] for partition in wanted if partition in found])
        if not any(partition in found for partition in wanted):
            raise Unavailable(f"the controller names no owner of partition {wanted[0]} of {topic!r}")

    async def _locate(self, topic: str, partitions: list[int]) -> None:
        reply = await self._ask(LocateTopic(topic=topic, only=self._only, **_named(partitions)))
        if self._only and len(reply.addresses) == len(partitions):
            self._known.add(topic, None, _present(zip(partitions, reply.addresses, strict=True)))
        else:
            self._known.replace(topic, None, _present(enumerate(reply.addresses)))
        self._settings[topic] = shared_settings(msgspec.json.decode(reply.settings, type=TopicSettings))

    async def settings_now(self, topic: str) -> TopicSettings:
        """The same as `settings`, of a topic that may have been deleted meanwhile, and made again."""
        return await self._settings_now(topic)

    async def _ask_settings(self, topic: str) -> TopicSettings:
        before = self._settings.get(topic)
        try:
            await self._locate(topic, [0])
        except NotFound:
            self.invalidate(topic)
            raise
        if before not in (None, self._settings[topic]):
            self._known.forget_subscriptions(topic)
        return self._settings[topic]

    async def settings(self, topic: str) -> TopicSettings:
        """The settings of a topic, with its number of partitions. Raises NotFound, Unavailable."""
        await self.topic(topic, 0)
        return self._settings.get(topic) or await self.settings_now(topic)

    def known_settings(self, topic: str) -> TopicSettings | None:
        """The settings of a topic as they are known; None if they are not."""
        return self._settings.get(topic)

    async def settings_within(self, topic: str, patience: int, *, now: bool = False) -> TopicSettings:
        """The settings of a topic; a controller that is being replaced is waited for, for `patience` milliseconds.

        now: its number of partitions may have risen since somebody asked here. Raises NotFound, Unavailable.
        """
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST, patience)
        while True:
            try:
                return await (self.settings_now(topic) if now else self.settings(topic))
            except Unavailable as error:
                self._ports.log("settings_wait", topic=topic, error=str(error))
                await wait.pause_after(error)

    async def join(
        self, topic: str, subscription: str, settings: SubscriptionSettings, said: Sequence[str] | None = None
    ) -> TopicSettings:
        """The topic's settings now, as `settings_now`, and what is known of its dispatchers, in one question; a
        subscription that is new is created with `settings`. said: see messages.Configure.
        """
        before = self._settings.get(topic)
        meant = None if said is None else list(said)
        request = LocateSubscription(topic=topic, subscription=subscription, settings=settings, said=meant, waits=False)
        try:
            located = await self._ask(request)
        except NotFound:
            self.invalidate(topic)
            raise
        now = shared_settings(msgspec.json.decode(located.settings, type=TopicSettings))
        if before not in (None, now):
            self.invalidate(topic)
        self._settings[topic] = now
        found = _present(enumerate(located.addresses))
        self._known.replace(topic, subscription, found)
        self._known.work_with(_encoded(settings, said), list(found.values()))
        return now

    async def dispatcher(
        self,
        topic: str,
        partition: int,
        subscription: str,
        settings: SubscriptionSettings | None = None,
        said: Sequence[str] | None = None,
    ) -> Address:
        """The dispatcher of a subscription on one partition; created with `settings` if it is new, and else made to
        work with them. said: see messages.Configure. Raises Conflict while that cannot change, Invalid, NotFound,
        Unavailable.
        """
        question = (topic, subscription, b"" if settings is None else _encoded(settings, said))
        address = self._known.get(topic, subscription, partition)
        changes = settings is not None and (said is None or len(said) > 0)
        if address and changes and self._known.asked(address) != question[2]:
            await self._look_up(question, partition)
        while not (address := self._known.get(topic, subscription, partition)):
            await self._look_up(question, partition)
        return address

    async def dispatcher_again(
        self, topic: str, partition: int, subscription: str, settings: SubscriptionSettings
    ) -> Address:
        """The same for a consumer that comes back. It asks for no settings, because others may have been chosen since.
        A subscription that was deleted meanwhile is created again with `settings`.
        """
        try:
            return await self.dispatcher(topic, partition, subscription)
        except NotFound:
            return await self.dispatcher(topic, partition, subscription, settings, [])

    async def create(self, topic: str, settings: TopicSettings) -> None:
        """Create a topic; fine if it exists with these settings. Raises Conflict, Invalid, Unavailable."""
        await self._ask(CreateTopic(topic=topic, settings=settings))

    async def remove_unused(self, topic: str, subscription: str) -> None:
        """Delete a subscription that is not durable, if no consumer uses it. Raises SluiceErrors."""
        await self._ask(RemoveUnused(topic=topic, subscription=subscription))

    async def bookies(self) -> BookieList:
        """Return the bookies that can be written to now. Raises Unavailable, soon if an earlier answer can be used: a
        writer that replaces a failed bookie does not wait for a controller that is lost with it.
        """
        answer = await self._ask(ListBookies(), BOOKIES_TIMEOUT if self._knows_bookies else LOCATE_TIMEOUT)
        self._knows_bookies = True
        return answer

    async def _ask(self, request: Request[R], timeout: int = LOCATE_TIMEOUT) -> R:
        reply = await self._ports.net.call(self._controller, request, timeout)
        if isinstance(reply, Unknown):
            raise Unavailable(f"the controller does not answer: {reply.reason}")
        return reply

    async def ask(self, address: Address, request: Request[R], timeout: int = ANSWER_TIMEOUT) -> R:
        """The answer of the actor at an address. Raises Unavailable without one, and suspects the address."""
        reply = await self._ports.net.call(address, request, timeout)
        if isinstance(reply, Unknown):
            await self.suspect(address)
            raise Unavailable(f"{address} does not answer: {reply.reason}")
        return reply

    async def ask_owner(
        self,
        topic: str,
        partition: int,
        subscription: str | None,
        request: Request[R],
        *,
        timeout: int = ANSWER_TIMEOUT,
        patience: int = OWNER_PATIENCE,
    ) -> R:
        """The answer of the owner of a partition, or of a subscription on it; if the one that is known does not answer
        or is none any more, of the one after it, who is asked for `patience` milliseconds.

        What may not be done twice is asked once, of whom the controller names now. Raises Unavailable, Fenced: then it
        may have been done; NotFound, and what the owner refuses with.
        """
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST, patience)
        if not request.repeatable:
            self.invalidate(topic)
        while True:
            address = ""
            try:
                if subscription is None:
                    address = await self.topic(topic, partition)
                else:
                    address = await self.dispatcher(topic, partition, subscription)
                return await self.ask(address, request, timeout)
            except (Unavailable, Fenced) as error:
                if isinstance(error, Fenced) and address:
                    await self.suspect(address)
                if address and not request.repeatable:
                    raise
                await wait.pause_after(error)

    async def ask_controller(
        self, request: Request[R], *, timeout: int = ANSWER_TIMEOUT, patience: int = OWNER_PATIENCE
    ) -> R:
        """The controller's answer. One that is being replaced, and what it cannot do now, is waited for, for `patience`
        milliseconds; 0: it is asked once.

        What is to be removed and is gone at a later try was removed by an earlier one. Raises Unavailable, and what is
        refused.
        """
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST, patience)
        tried = False
        while True:
            try:
                return await self._ask(request, timeout)
            except Unavailable as error:
                await wait.pause_after(error)
            except NotFound:
                if not (tried and request.removes):
                    raise
                return cast(R, Done())
            tried = True

    def invalidate(self, topic: str) -> None:
        """The topic was deleted, or is another one now."""
        self._settings.pop(topic, None)
        self._known.discard(topic)

    async def suspect(self, address: Address) -> None:
        """Forget an address that did not answer, and let the controller check it if it can."""
        self._known.suspect(address)
        with contextlib.suppress(SluiceError):  # a hint: the next question for the owner is asked of it anyway
            await self._ports.net.call(self._controller, Suspect(address=address), LOCATE_TIMEOUT)


_Asked = tuple[SubscriptionSettings, list[str] | None]


def _encoded(settings: SubscriptionSettings, said: Sequence[str] | None) -> bytes:
    """The last part of a question."""
    return msgspec.json.encode((settings, None if said is None else list(said)))


def _present(addresses: Iterable[tuple[int, Address]]) -> dict[int, Address]:
    """Return the known addresses by partition, without the empty ones."""
    return {partition: address for partition, address in addresses if address}


def _named(partitions: list[int]) -> dict[str, Any]:
    """How a question names them; a controller of an earlier version knows one alone."""
    return {"partition": partitions[0]} if len(partitions) == 1 else {"partitions": partitions}

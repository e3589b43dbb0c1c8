"""Finds closed owners that have something to do, by the records: they are woken.

An owner that runs finds that out itself, and one that closes says when it will be (actors.controller.idle_owners). But
operators change policies while it is closed, and a new controller knows nothing of those that closed before: it may be
that a whole cluster was stopped. So the record of each partition is read now and then, and it says
(`actors/topic/background/closed.py`): retention deletes a ledger, one is to leave for the object store, operators
asked for something, or messages that a subscription waits for are too old or too many. A subscription that is not
durable is woken as well: its owner finds out whether it is to be deleted (`actors/dispatcher/operator/deletion.py`).
Where there is nothing to do nobody is woken.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.actors.controller.supervisor import Supervisor
from sluice.actors.dispatcher.delivery.subscription import PartitionSubscription, settings_in
from sluice.actors.ledger.record import PartitionRecord, record_key, unpack_record
from sluice.actors.messages import TopicSettings
from sluice.actors.ownership.names import namespace_of
from sluice.actors.ownership.record_scan import Found, MetaOfOneLook, scan, value_in
from sluice.actors.policies.expiry import ExpiryLimits, expiry_of
from sluice.actors.policies.policy_records import AGES, LIFETIMES, QUOTAS, of_topic
from sluice.actors.policies.retention import Retention, retention_of, thresholds_of
from sluice.actors.ports import Ports
from sluice.actors.topic.background.closed import has_expired, has_work
from sluice.storage.errors import Corrupt, NotFound, SluiceError, Unavailable
from sluice.storage.format.position import EARLIEST

LOOK_MS = 600_000
"""Ten minutes: each record is read."""
PAUSE_MS = 50
"""Between the records that are read together: everything else goes first."""
PARTITIONS, SUBSCRIPTIONS = "partition/", "subscription/"
KINDS = (LIFETIMES, QUOTAS, AGES)
Wake = Callable[[str, dict[str, Any]], None]
_Held = tuple[Retention, TopicSettings, ExpiryLimits]
"""Retention, the settings with their thresholds, and the limits of expiry."""


@dataclass(slots=True)
class _Closed:
    """The closed owners of a partition: the topic's own, and those of the subscriptions listed."""

    place: dict[str, Any]
    owner: bool = False
    subscriptions: list[str] = field(default_factory=list)


class _Policies:
    """The policies of topics during one look. Topics of a namespace with equal settings and no records of their own
    share one answer.
    """

    def __init__(self, meta: MetaOfOneLook) -> None:
        self._meta = meta
        self._shared: dict[tuple[str, TopicSettings], _Held] = {}

    async def get(self, record: PartitionRecord) -> _Held:
        """For the topic of a partition. Raises Unavailable, Corrupt."""
        topic, made = record.topic, record.settings
        if any(self._meta.lists(kind + of_topic(topic)) for kind in KINDS):
            return await self._find(topic, made)
        shared = namespace_of(topic)[0], made
        if shared not in self._shared:
            self._shared[shared] = await self._find(topic, made)
        return self._shared[shared]

    async def _find(self, topic: str, made: TopicSettings) -> _Held:
        kept = await retention_of(self._meta, topic, made)
        return kept, await thresholds_of(self._meta, topic, made), await expiry_of(self._meta, topic, made)


class ClosedOwners:
    """wake: has an owner of a kind run at this place, unless what it serves has gone meanwhile."""

    def __init__(self, ports: Ports, supervisor: Supervisor, wake: Wake) -> None:
        self._ports, self._supervisor, self._wake = ports, supervisor, wake
        self._durable: set[str] = set()
        """Keys of subscriptions that are known to be durable. The owner of one that is not durable never closes."""

    async def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            await self._ports.clock.sleep(LOOK_MS)
            try:
                await self._look()
            except SluiceError as error:
                self._ports.log("closed_owners_wait", error=str(error))

    async def _look(self) -> None:
        policies = _Policies(await MetaOfOneLook.scan(self._ports.meta, KINDS))
        closed = self._closed(await self._ports.meta.keys(PARTITIONS), await self._ports.meta.keys(SUBSCRIPTIONS))
        async for group in scan(self._ports.meta, list(closed)):
            await asyncio.gather(*(self._look_at(closed[key], found, policies) for key, found in group))
            await self._ports.clock.sleep(PAUSE_MS)

    def _closed(self, partitions: Sequence[str], subscriptions: Sequence[str]) -> dict[str, _Closed]:
        """By the key of its record, what is closed of each partition, if anything is."""
        self._durable.intersection_update(subscriptions)
        found: dict[str, _Closed] = {}
        for key in partitions:
            _, topic, partition = key.split("/")
            place = {"topic": topic, "partition": int(partition)}
            if self._supervisor.find("topic", place) is None:
                found[key] = _Closed(place, owner=True)
        for key in subscriptions:
            _, topic, partition, name = key.split("/")
            place = {"topic": topic, "partition": int(partition)}
            if self._supervisor.find("dispatcher", {**place, "subscription": name}) is None:
                found.setdefault(record_key(topic, int(partition)), _Closed(place)).subscriptions.append(name)
        return found

    async def _look_at(self, closed: _Closed, found: Found, policies: _Policies) -> None:
        with self._passing_over():
            value = value_in(found)
            record = None if value is None else unpack_record(value)
            with self._passing_over():
                if closed.owner and record is not None and await self._has_work(record, policies):
                    self._wake("topic", closed.place)
            for name in closed.subscriptions:
                with self._passing_over():
                    await self._look_at_subscription(closed.place, name, record, policies)

    @contextlib.contextmanager
    def _passing_over(self) -> Iterator[None]:
        """Pass over a record that cannot be read: it goes just now, or its owner says what is wrong, or the store says
        nothing of it, and may at the next look.
        """
        try:
            yield
        except (NotFound, Corrupt):
            pass
        except Unavailable as error:
            self._ports.log("closed_owner_waits", error=str(error))

    async def _look_at_subscription(
        self, place: dict[str, Any], name: str, record: PartitionRecord | None, policies: _Policies
    ) -> None:
        identity = PartitionSubscription(place["topic"], place["partition"], name)
        if await self._concerns(identity, record, policies):
            self._wake("dispatcher", {**place, "subscription": name})

    async def _has_work(self, record: PartitionRecord, policies: _Policies) -> bool:
        kept, settings, _ = await policies.get(record)
        return has_work(record, self._ports.clock.now(), kept, settings)

    async def _concerns(
        self, identity: PartitionSubscription, record: PartitionRecord | None, policies: _Policies
    ) -> bool:
        """Whether the owner of a subscription would find something to do."""
        if identity.key not in self._durable:
            found = await self._ports.meta.read(identity.key)
            if found is None:
                return False
            if not settings_in(identity.key, found.value).durable:
                return True
            self._durable.add(identity.key)
        if record is None:
            return False
        mark = record.subscriptions.get(identity.subscription, EARLIEST)
        _, _, limits = await policies.get(record)
        return has_expired(record, mark, limits, self._ports.clock.now())

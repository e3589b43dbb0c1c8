"""Backlog quotas: how many bytes may wait on a partition before its producers are kept out, and for how many seconds.

A record each, `quota/namespace/<tenant>/<namespace>` and `quota/topic/<topic>`, those of age below `quota-age/`; that
of the topic goes before that of its namespace. Either may say that the oldest messages count as done instead, which
actors.pulsar.expiry carries out. They change seldom, so every gateway keeps all of them and looks again now and then: a
store that is away keeps no producer out.

What waits is measured by the owner of the partition, who knows how far each subscription has come. Kept out are clients
of Pulsar, by their gateway: as with Pulsar when they come, and those that are there every CHECK_MS. What is on its way
when a quota is reached is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from actors.directory import Directory
from actors.messages import BacklogSize, MeasureBacklog
from actors.names import namespace_of
from actors.ports import Meta, Ports
from actors.pulsar.fields import ServerError
from actors.pulsar.records import QUOTAS, decoded, of_namespace, of_topic, revise, value_of
from actors.pulsar.refusals import Refused
from actors.topic_client import TopicClient
from storage.errors import Invalid, SluiceError

CHECK_MS = 5_000
"""So often producers are looked at, and quotas that were set elsewhere are seen."""
MOST = 1 << 50
CODES = {
    "producer_request_hold": ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR,
    "producer_exception": ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION,
}
"""What a producer that is kept out is told, by the policy: with the first clients wait, with the second they fail."""
EVICTION = "consumer_backlog_eviction"
"""The policy by which producers go on, and what is too old or too much counts as done."""


class Quota(msgspec.Struct, frozen=True):
    """limit: bytes behind the slowest subscription of a partition, or seconds. policy: a key of CODES, or EVICTION."""

    limit: int
    policy: str

    def __post_init__(self) -> None:
        if self.policy not in (*CODES, EVICTION):
            raise Invalid(f"there is no policy {self.policy[:40]!r}: use {', '.join(CODES)} or {EVICTION}")
        if not 0 <= self.limit <= MOST:
            raise Invalid(f"a quota is a number of bytes or seconds, not {self.limit}")


class Quotas:
    """The records below a prefix, and what is known of them. Names and prefixes: actors.pulsar.records."""

    def __init__(self, meta: Meta, prefix: str = QUOTAS) -> None:
        self._meta, self._prefix = meta, prefix
        self._known: dict[str, Quota] = {}

    def __bool__(self) -> bool:
        """Whether there is one, as far as it is known here."""
        return bool(self._known)

    def that_holds(self, topic: str) -> Quota | None:
        """For a topic, as far as it is known here; None if there is none."""
        space, _ = namespace_of(topic)
        return self._known.get(of_topic(topic)) or self._known.get(of_namespace(space))

    async def look(self) -> None:
        """Learn all of them. Raises Unavailable, Corrupt."""
        names = [key.removeprefix(self._prefix) for key in await self._meta.keys(self._prefix)]
        found = {name: await self.read(name) for name in names}
        self._known = {name: quota for name, quota in found.items() if quota is not None}

    async def read(self, name: str) -> Quota | None:
        """One of them, None if it is not set. Raises Unavailable, Corrupt."""
        value = await value_of(self._meta, self._prefix + name)
        return None if value is None else decoded(value, Quota, f"the backlog quota of {name}")

    async def set(self, name: str, quota: Quota) -> None:
        """It holds from now on, elsewhere within CHECK_MS. Raises Unavailable."""
        value = msgspec.json.encode(quota)
        await revise(self._meta, self._prefix + name, lambda _: value, f"the backlog quota of {name} is")
        await self.look()

    async def unset(self, name: str) -> None:
        """There is none any more. Raises Unavailable."""
        await self._meta.remove(self._prefix + name)
        await self.look()


class Producer(Protocol):
    """One that is connected here."""

    def give_way(self) -> None:
        """It is to come again."""


class Backlogs:
    """Keeps producers out. producers: those that are connected here, by topic and partition."""

    def __init__(
        self,
        ports: Ports,
        directory: Directory,
        quotas: Quotas,
        ages: Quotas,
        producers: Mapping[tuple[str, int], Sequence[Producer]],
    ) -> None:
        self._ports, self._directory, self._producers = ports, directory, producers
        self._quotas, self._ages = quotas, ages

    async def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            try:
                await self.look()
            except SluiceError as error:
                self._ports.log("quotas_unknown", error=str(error))
            await self._ports.clock.sleep(CHECK_MS)

    async def look(self) -> None:
        """Send those away that would be kept out if they came now. Raises Unavailable, Corrupt."""
        await self._quotas.look()
        await self._ages.look()
        for topic, partition in list(self._producers):
            try:
                await self.check(topic, partition)
            except Refused:
                for producer in list(self._producers.get((topic, partition), ())):
                    producer.give_way()
            except SluiceError as error:
                self._ports.log("backlog_unknown", topic=topic, partition=partition, error=str(error))

    async def check(self, topic: str, partition: int) -> None:
        """Raises Refused if a quota keeps producers out of this partition, Unavailable if that is not known now."""
        size, age = self._quotas.that_holds(topic), self._ages.that_holds(topic)
        size, age = (None if one is not None and one.policy == EVICTION else one for one in (size, age))
        if size is None and age is None:
            return
        before = 0 if age is None else max(self._ports.clock.now() - age.limit * 1000, 0)
        owner = TopicClient(self._ports, self._directory, topic, partition)
        told: BacklogSize = await owner.ask(MeasureBacklog(before=before))
        for quota, reached in ((size, size is not None and told.bytes >= size.limit), (age, told.old)):
            if quota is not None and reached:
                raise Refused(CODES[quota.policy], "Cannot create producer on topic with backlog quota exceeded")

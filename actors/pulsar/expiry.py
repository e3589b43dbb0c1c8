"""Messages count as done that are older than is said of their topic, or of its namespace, by a time to live
(actors.lifetimes) or a quota of age that evicts (actors.pulsar.quotas); and the oldest ones behind a durable
subscription where more wait than a quota of size allows that evicts.

Every gateway looks every EXPIRE_MS: two that do it at once do no more than one. What a topic was made with, the owners
of its subscriptions see to by themselves.
"""

from __future__ import annotations

from actors.directory import Directory
from actors.lifetimes import Lifetimes, ttl_of
from actors.messages import ExpireMessages, FindExcess, ListSubscriptions, ListTopics, SkipTo
from actors.ports import Ports
from actors.pulsar.quotas import EVICTION, Quotas
from actors.pulsar.records import AGES
from storage.errors import SluiceError

EXPIRE_MS = 60_000
LEFT = 0.9
"""Of a quota of size that is reached, so much is left, as with Pulsar: not every look is to find it reached again."""


class Expiry:
    """Asks the owners of subscriptions."""

    def __init__(self, ports: Ports, directory: Directory) -> None:
        self._ports, self._directory = ports, directory
        self._lifetimes = Lifetimes(ports.meta)
        self._sizes, self._ages = Quotas(ports.meta), Quotas(ports.meta, AGES)

    async def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            await self.look()
            await self._ports.clock.sleep(EXPIRE_MS)

    async def look(self) -> None:
        """Once. What cannot be asked now waits for the next time."""
        try:
            said = await self._lifetimes.everything()
            await self._sizes.look()
            await self._ages.look()
            if not any(one.ttl_ms for one in said.values()) and not self._ages and not self._sizes:
                return
            for topic, settings in (await self._directory.ask_controller(ListTopics())).topics.items():
                if times := [time for time in (ttl_of(said, topic, settings), self._most_age(topic)) if time]:
                    await self._expire(topic, settings.partitions, min(times))
                if (most := _evicts(self._sizes, topic)) is not None:
                    await self._evict(topic, settings.partitions, most)
        except SluiceError as error:
            self._ports.log("expiry_waits", error=str(error))

    def _most_age(self, topic: str) -> int:
        """Milliseconds after which messages are evicted, 0 if they are not."""
        return (_evicts(self._ages, topic) or 0) * 1000

    async def _expire(self, topic: str, partitions: int, ttl: int) -> None:
        before = max(self._ports.clock.now() - ttl, 0)
        try:
            names = (await self._directory.ask_controller(ListSubscriptions(topic=topic))).names
            for name, partition in ((name, partition) for name in names for partition in range(partitions)):
                await self._directory.ask_owner(topic, partition, name, ExpireMessages(before=before))
        except SluiceError as error:
            self._ports.log("expiry_waits", topic=topic, error=str(error))

    async def _evict(self, topic: str, partitions: int, most: int) -> None:
        question = FindExcess(limit=most, keep=int(most * LEFT))
        try:
            for partition in range(partitions):
                found = await self._directory.ask_owner(topic, partition, None, question)
                for name in found.subscriptions:
                    await self._directory.ask_owner(topic, partition, name, SkipTo(position=found.position))
        except SluiceError as error:
            self._ports.log("expiry_waits", topic=topic, error=str(error))


def _evicts(quotas: Quotas, topic: str) -> int | None:
    """The limit of a quota by which messages of a topic are evicted, None if there is none."""
    quota = quotas.that_holds(topic)
    return quota.limit if quota is not None and quota.policy == EVICTION else None

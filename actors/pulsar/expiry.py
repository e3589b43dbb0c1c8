"""Messages that are older than is said of their topic, or of its namespace, count as done: by a time to live
(actors.lifetimes), or by a quota of age that evicts (actors.pulsar.quotas).

Every gateway looks every EXPIRE_MS: two that do it at once do no more than one. What a topic was made with, the owners
of its subscriptions see to by themselves.
"""

from __future__ import annotations

from actors.directory import Directory
from actors.lifetimes import Lifetimes, ttl_of
from actors.messages import ExpireMessages, ListSubscriptions, ListTopics
from actors.ports import Ports
from actors.pulsar.quotas import EVICTION, Quotas
from actors.pulsar.records import AGES
from storage.errors import SluiceError

EXPIRE_MS = 60_000


class Expiry:
    """Asks the owners of subscriptions."""

    def __init__(self, ports: Ports, directory: Directory) -> None:
        self._ports, self._directory = ports, directory
        self._lifetimes, self._ages = Lifetimes(ports.meta), Quotas(ports.meta, AGES)

    async def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            await self.look()
            await self._ports.clock.sleep(EXPIRE_MS)

    async def look(self) -> None:
        """Once. What cannot be asked now waits for the next time."""
        try:
            said = await self._lifetimes.everything()
            await self._ages.look()
            if not any(one.ttl_ms for one in said.values()) and not self._ages:
                return
            for topic, settings in (await self._directory.ask_controller(ListTopics())).topics.items():
                if times := [time for time in (ttl_of(said, topic, settings), self._evicted(topic)) if time]:
                    await self._expire(topic, settings.partitions, min(times))
        except SluiceError as error:
            self._ports.log("expiry_waits", error=str(error))

    def _evicted(self, topic: str) -> int:
        """Milliseconds after which messages are evicted, 0 if they are not."""
        age = self._ages.that_holds(topic)
        return age.limit * 1000 if age is not None and age.policy == EVICTION else 0

    async def _expire(self, topic: str, partitions: int, ttl: int) -> None:
        before = max(self._ports.clock.now() - ttl, 0)
        try:
            names = (await self._directory.ask_controller(ListSubscriptions(topic=topic))).names
            for name, partition in ((name, partition) for name in names for partition in range(partitions)):
                await self._directory.ask_owner(topic, partition, name, ExpireMessages(before=before))
        except SluiceError as error:
            self._ports.log("expiry_waits", topic=topic, error=str(error))

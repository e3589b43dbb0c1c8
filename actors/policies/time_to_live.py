"""Messages count as done that are older than is said of their topic, or of its namespace, by a time to live
(actors.policies.retention) or a quota of age that evicts (actors.policies.backlog_quotas); and the oldest ones behind a
subscription where more wait than a quota of size allows that evicts.

Every gateway looks every EXPIRE_MS: two that do it at once do no more than one. What a topic was made with, the owners
of its subscriptions see to by themselves.
"""

from __future__ import annotations

from actors.directory import Directory
from actors.messages import EvictExcess, ExpireMessages, ListSubscriptions, ListTopics, Skipped
from actors.policies.backlog_quotas import EVICTION, Quotas
from actors.policies.policy_records import AGES
from actors.policies.retention import Lifetimes, ttl_of
from actors.ports import Ports
from actors.wire import Request
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
                    before = max(self._ports.clock.now() - min(times), 0)
                    await self._ask(topic, settings.partitions, ExpireMessages(before=before))
                if (most := _evicts(self._sizes, topic)) is not None:
                    await self._ask(topic, settings.partitions, EvictExcess(limit=most, keep=int(most * LEFT)))
        except SluiceError as error:
            self._ports.log("expiry_waits", error=str(error))

    def _most_age(self, topic: str) -> int:
        """Milliseconds after which messages are evicted, 0 if they are not."""
        return (_evicts(self._ages, topic) or 0) * 1000

    async def _ask(self, topic: str, partitions: int, question: Request[Skipped]) -> None:
        """The owners of all subscriptions of a topic."""
        try:
            names = (await self._directory.ask_controller(ListSubscriptions(topic=topic))).names
            for name, partition in ((name, partition) for name in names for partition in range(partitions)):
                await self._directory.ask_owner(topic, partition, name, question)
        except SluiceError as error:
            self._ports.log("expiry_waits", topic=topic, error=str(error))


def _evicts(quotas: Quotas, topic: str) -> int | None:
    """The limit of a quota by which messages of a topic are evicted, None if there is none."""
    quota = quotas.that_holds(topic)
    return quota.limit if quota is not None and quota.policy == EVICTION else None

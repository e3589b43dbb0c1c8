"""Keeps producers out when a backlog quota is reached (`actors/policies/backlog_quotas.py`).

What waits is measured by the owner of the partition, who knows how far each subscription has come. Kept out are clients
of Pulsar, by their gateway: as with Pulsar when they come, and those that are there every CHECK_MS. What is on its way
when a quota is reached is stored. A store that is away keeps no producer out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sluice.actors.lookup.directory import Directory
from sluice.actors.lookup.topic_client import TopicClient
from sluice.actors.messages import BacklogSize, MeasureBacklog
from sluice.actors.policies.backlog_quotas import CHECK_MS, EVICTION, HOLDS, Quotas
from sluice.actors.policies.limits import LimitRecords
from sluice.actors.ports import Ports
from sluice.actors.pulsar.codec.protocol import ServerError
from sluice.actors.pulsar.refusals import CommandRefused
from sluice.storage.errors import SluiceError

_ERRORS = (
    ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR,
    ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION,
)
CODES = dict(zip(HOLDS, _ERRORS, strict=True))
"""The error for a producer that is kept out, by the policy."""


class ThrottledProducer(Protocol):
    """A producer that is connected here."""

    def give_way(self) -> None:
        """Send the producer away: its client is to come again."""


class Backlogs:
    """Keeps producers out. producers: those that are connected here, by topic and partition. limits: looked at as well,
    for those who keep them.
    """

    def __init__(
        self,
        ports: Ports,
        directory: Directory,
        quotas: Quotas,
        ages: Quotas,
        producers: Mapping[tuple[str, int], Sequence[ThrottledProducer]],
        limits: LimitRecords | None = None,
    ) -> None:
        self._ports, self._directory, self._producers = ports, directory, producers
        self._limits = limits
        self._quotas, self._ages = quotas, ages

    async def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            try:
                await self.enforce()
            except SluiceError as error:
                self._ports.log("quotas_unknown", error=str(error))
            await self._ports.clock.sleep(CHECK_MS)

    async def enforce(self) -> None:
        """Send those away that would be kept out if they came now. Raises Unavailable."""
        damaged = [*await self._quotas.refresh(), *await self._ages.refresh()]
        if self._limits is not None:
            damaged += await self._limits.refresh()
        for error in damaged:
            self._ports.log("quota_unknown", error=str(error))
        if not (self._quotas.any or self._ages.any):
            return
        for topic, partition in list(self._producers):
            try:
                await self.check(topic, partition)
            except CommandRefused:
                for producer in list(self._producers.get((topic, partition), ())):
                    producer.give_way()
            except SluiceError as error:
                self._ports.log("backlog_unknown", topic=topic, partition=partition, error=str(error))

    async def check(self, topic: str, partition: int) -> None:
        """Raise CommandRefused if a quota keeps producers out, Unavailable if that is not known now."""
        size, age = self._quotas.that_holds(topic), self._ages.that_holds(topic)
        size, age = (None if one is not None and one.policy == EVICTION else one for one in (size, age))
        age = age if age is not None and age.limit else None
        if size is None and age is None:
            return
        before = 0 if age is None else max(self._ports.clock.now() - age.limit * 1000, 0)
        owner = TopicClient(self._ports, self._directory, topic, partition)
        measured: BacklogSize = await owner.ask(MeasureBacklog(before=before))
        for quota, reached in ((size, size is not None and measured.bytes >= size.limit), (age, measured.old)):
            if quota is not None and reached:
                raise CommandRefused(CODES[quota.policy], "Cannot create producer on topic with backlog quota exceeded")

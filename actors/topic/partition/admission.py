"""Admits producers: it asks about earlier ones, records who has exclusive access, and tells those who lost it."""

from __future__ import annotations

import msgspec

from sluice.actors.ledger.record import Holder, PartitionRecord
from sluice.actors.messages import OpenProducer, ProducersHere
from sluice.actors.messages.producing import ProducerNews
from sluice.actors.ports import Ports, Unknown
from sluice.actors.runtime.waiting import Signal
from sluice.actors.topic.partition.access import Access, Ask, Wait
from sluice.actors.topic.partition.managed_ledger import ManagedLedger
from sluice.actors.topic.partition.producers import Producers
from sluice.storage.errors import SluiceError, Unavailable

LIVENESS_MS = 2_000
"""The time for a home to answer whether a producer is still there."""
WAIT_MS = 2_000
"""A producer that waits for its turn is answered after so long, and asks again."""


class Admission:
    """Admits producers to one partition."""

    def __init__(self, ports: Ports, log: ManagedLedger, producers: Producers, topic: str, partition: int) -> None:
        self._ports, self._log, self._producers = ports, log, producers
        self._topic, self._partition = topic, partition
        self._access = Access()
        self._left = Signal()

    def restore(self) -> None:
        """Take over what the record says."""
        self._access.restore(self._log.record.exclusivity, self._ports.clock.monotonic())

    @property
    def occupied(self) -> bool:
        """Whether a producer is open that would be missed."""
        now = self._ports.clock.monotonic()
        return any(one.home or self._access.is_heard(one, now) for one in self._access.present)

    async def admit(self, request: OpenProducer) -> int | None:
        """Let a producer in; the partition's epoch if it has that to itself, -1 if it shares it, None: it has to wait,
        and to ask again, which it is told at once when it comes. Raises Conflict, Fenced, Unavailable.
        """
        clock, asked = self._ports.clock, False
        until = clock.monotonic() + (WAIT_MS if self._access.in_line(request.incarnation) else 0)
        while True:
            verdict = self._access.judge(request, clock.monotonic(), asked=asked)
            if isinstance(verdict, Ask):
                await self._look_after(verdict.holders)
                asked = True
            elif isinstance(verdict, Wait):
                left = until - clock.monotonic()
                if left <= 0:
                    return None
                self._left.clear()
                await self._left.wait(self._ports, left)
            else:
                return await self._enter(request)

    async def _enter(self, request: OpenProducer) -> int:
        ended = self._access.enter(request, self._ports.clock.monotonic())
        if request.access == "shared":
            return -1
        self._producers.end_others(request.producer)
        self._tell_all(ended, "taken")
        epoch = self._access.epoch
        if self._log.record.exclusivity != self._access.durable:  # also if an earlier call of this producer writes it
            try:
                await self._log.metadata.update(self._with_access)
            except SluiceError:
                self._access.withdraw(request.incarnation)
                self._left.set()
                raise
        if self._access.holder is None or self._access.holder.incarnation != request.incarnation:
            raise Unavailable(f"producer {request.producer!r} lost the topic meanwhile; ask again")
        return epoch

    def _with_access(self, record: PartitionRecord) -> PartitionRecord:
        return msgspec.structs.replace(record, exclusivity=self._access.durable)

    def over(self) -> None:
        """Let all producers leave: the partition takes no more messages. Those not reached learn it when they send."""
        self._tell_all(self._access.present, "over")

    def leave(self, incarnation: str) -> None:
        """Let a producer leave, or stop waiting."""
        if self._access.leave(incarnation):
            self._left.set()

    async def _look_after(self, holders: list[Holder]) -> None:
        """Forget producers that are gone."""
        now = self._ports.clock.monotonic()
        for home in sorted({holder.home for holder in holders}):
            mine = [holder for holder in holders if holder.home == home]
            heard = [one.incarnation for one in mine if self._access.is_heard(one, now)]
            there = await self._ask(home, mine) if home else heard
            for holder in mine:
                if holder.incarnation not in there:
                    self._producers.end(holder.name, holder.incarnation)
                    self.leave(holder.incarnation)

    def _tell_all(self, holders: list[Holder], news: ProducerNews) -> None:
        for home in sorted({one.home for one in holders} - {""}):
            self._ports.spawn(self._tell(home, [one for one in holders if one.home == home], news), news)

    async def _tell(self, home: str, holders: list[Holder], news: ProducerNews) -> None:
        await self._ask(home, holders, news)

    async def _ask(self, home: str, holders: list[Holder], news: ProducerNews = "none") -> list[str]:
        request = ProducersHere(
            topic=self._topic,
            partition=self._partition,
            incarnations=[one.incarnation for one in holders],
            news=news,
        )
        try:
            reply = await self._ports.net.call(home, request, LIVENESS_MS)
        except SluiceError:  # it is none, or none any more
            return []
        return [] if isinstance(reply, Unknown) else reply.incarnations

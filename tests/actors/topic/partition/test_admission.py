"""A producer that has to wait for a partition is told so at once, and then waits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from sluice.actors.ledger.record import PartitionRecord
from sluice.actors.messages import AccessMode, OpenProducer, ProducersHere, ProducersPresent, TopicSettings
from sluice.actors.topic.partition.admission import WAIT_MS, Admission


class Patient:
    """A gateway whose producers are all there, and a clock that goes on while somebody waits."""

    def __init__(self) -> None:
        self.now = 0
        self.waited: list[int] = []
        self.clock = self.net = self

    def monotonic(self) -> int:
        return self.now

    def timer(self, milliseconds: int, ring: Any) -> Any:
        self.waited.append(milliseconds)
        self.now += milliseconds
        ring()
        return SimpleNamespace(cancel=lambda: None)

    async def call(self, to: str, request: ProducersHere, timeout: int) -> ProducersPresent:
        return ProducersPresent(incarnations=request.incarnations)


class Record:
    """A partition's record."""

    def __init__(self) -> None:
        self.record = PartitionRecord(topic="t", partition=0, settings=TopicSettings())
        self.metadata = self
        self.writable = asyncio.Event()
        self.writable.set()

    async def update(self, change: Any) -> None:
        """Write a change once the store answers again."""
        await self.writable.wait()
        self.record = change(self.record)


async def test_waiting_producer_is_told_so_at_once() -> None:
    ports: Any = Patient()
    log: Any = Record()
    producers: Any = SimpleNamespace(end_others=lambda name: None)
    admission = Admission(ports, log, producers, "t", 0)

    def wants(name: str, access: AccessMode) -> OpenProducer:
        return OpenProducer(producer=name, incarnation=name, home="g", access=access, topic_epoch=None)

    assert await admission.admit(wants("a", "exclusive")) == 0
    assert await admission.admit(wants("b", "wait_for_exclusive")) is None
    assert ports.waited == []
    assert await admission.admit(wants("b", "wait_for_exclusive")) is None
    assert sum(ports.waited) == WAIT_MS
    admission.leave("a")
    assert await admission.admit(wants("b", "wait_for_exclusive")) == 1


async def test_no_epoch_is_told_before_it_is_durable() -> None:
    """Nor to a repetition: what a producer was told must not lie above what the next owner finds."""
    ports: Any = Patient()
    log: Any = Record()
    admission = Admission(ports, log, cast(Any, SimpleNamespace(end_others=lambda name: None)), "t", 0)
    request = OpenProducer(producer="a", incarnation="a", home="g", access="exclusive", topic_epoch=None)
    log.writable.clear()
    both = [asyncio.create_task(admission.admit(request)) for _ in range(2)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(one.done() for one in both)
    log.writable.set()
    assert [await one for one in both] == [0, 0]
    assert log.record.exclusivity.epoch == 0

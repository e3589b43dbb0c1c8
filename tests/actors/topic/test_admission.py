"""Who has to wait for a partition is told so at once, and then waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from actors.ledger.record import Exclusivity
from actors.messages import AccessMode, OpenProducer, ProducersHere, ProducersPresent
from actors.topic.admission import WAIT_MS, Admission


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
        self.record = SimpleNamespace(exclusivity=Exclusivity(-1, None))
        self.metadata = self

    async def update(self, change: Any) -> None:
        """It is written."""


async def test_who_waits_is_told_so_at_once() -> None:
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

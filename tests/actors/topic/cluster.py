"""A small simulated cluster for tests of the ledger protocol and the topic: real bookies, a topic, clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np
import pyarrow as pa

from sluice.actors.bookie.bookie import Bookie
from sluice.actors.bookie.journal import segment_name
from sluice.actors.messages import (
    BookieList,
    IndexRead,
    OpenProducer,
    ProducerOpened,
    Publish,
    Published,
    ReadIndex,
    ReadPayload,
    TopicSettings,
)
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.ports.wire import Blob
from sluice.actors.topic.partition.hooks import BackgroundJob, ProcessResources
from sluice.actors.topic.topic import Topic
from sluice.cluster.launch.topic_rooms import topic_resources
from sluice.storage.errors import Conflict, Fenced, NotFound, Overloaded, Unavailable
from sluice.storage.format.batch import decode_body, make_batch
from sluice.storage.format.frame import NEWEST, Run, make_run
from tests.sim.world import World

J = TypeVar("J", bound=BackgroundJob)

TIMEOUT = 20_000


def make_test_run(values: Sequence[str], *, producer: str = "p", first: int = 0, due: int = 0, now: int = 1000) -> Run:
    """A run whose payloads and keys are the given values; `due` delays all of it."""
    columns = {"key": pa.array([v.encode() for v in values]), "payload": pa.array([v.encode() for v in values])}
    if due:
        columns["deliver_at"] = pa.array(np.full(len(values), due, np.int64))
    batch = make_batch(pa.table(columns), now=now, producer=producer, first_sequence=first)
    return make_run(batch)


def values_of(payload: memoryview | bytes, delayed: bool, shape: int, count: int) -> list[str]:
    """The values back from a payload."""
    rows = decode_body(memoryview(payload)[count * (12 if delayed else 4) :], shape, count)
    return [value.decode() for value in rows.column("payload").to_pylist()]


@dataclass
class Cluster:
    """Bookies b0, b1, ... and partitions of topic "t" in a world."""

    world: World
    bookies: int = 3
    settings: TopicSettings = field(default_factory=TopicSettings)
    addresses: dict[str, Address] = field(default_factory=dict)
    owners: int = 0
    current: Address = ""
    hidden: list[str] = field(default_factory=list)
    resources: ProcessResources = field(default_factory=topic_resources)
    frames: int = NEWEST

    async def start(self) -> Address:
        """Start the bookies and a first owner; returns the owner's address."""
        for number in range(self.bookies):
            await self.start_bookie(f"b{number}")
        return await self.start_owner()

    async def start_bookie(self, name: str) -> None:
        """A new bookie on its own machine."""
        self.addresses[name] = await self.world.start(
            name, lambda ports: Bookie(ports, bookie_id=name), disk=name
        )  # fmt: skip

    async def restart_bookie(self, name: str) -> None:
        """The bookie comes back on its old disk."""
        while True:
            try:
                self.addresses[name] = await self.world.restart(name)
                return
            except Unavailable:
                await self.world.loop.pause(50)

    async def list_bookies(self) -> BookieList:
        """Return the list that the controller would answer."""
        names = sorted(name for name in self.addresses if name not in self.hidden and self.world.is_up(name))
        return BookieList(ids=names, addresses=[self.addresses[name] for name in names], frames=self.frames)

    async def start_owner(self, partition: int = 0) -> Address:
        """One more owner of the partition, on a machine of its own; an earlier one is not told."""
        self.owners += 1
        self.current = await self.world.start(f"owner{self.owners}", lambda ports: self.make_topic(ports, partition))
        return self.current

    async def replace_owner(self) -> Address:
        """A new owner, started again until the start succeeds."""
        while True:
            try:
                return await self.start_owner()
            except (Fenced, Unavailable):
                await self.world.loop.pause(50)

    def make_topic(self, ports: Ports, partition: int = 0) -> Topic:
        """The actor of an owner."""
        return Topic(
            ports,
            topic="t",
            partition=partition,
            settings=self.settings,
            bookies=self.list_bookies,
            resources=self.resources,
        )

    def flip(self, ledger: int, run: int) -> None:
        """Flip a byte of a run on every bookie that has it: nobody can read it. To flip it again mends it."""
        for name in sorted(self.addresses):
            bookie = cast(Bookie, self.world.process(name).actor)
            row = bookie.store.index._tail.get(ledger, {}).get(run)
            if row is not None:
                self.world.disk(name).files[segment_name(row.segment)].data[row.offset + row.size - 3] ^= 1

    def topic(self) -> Topic:
        """The newest owner's actor."""
        return cast(Topic, self.world.process(f"owner{self.owners}").actor)

    def job(self, kind: type[J]) -> J:
        """The newest owner's background job of a kind."""
        return next(job for job in self.topic()._maintenance._make_jobs().jobs if isinstance(job, kind))


class TestProducer:
    """A producer that publishes one run after another and retries until it is answered."""

    __test__ = False

    def __init__(self, ports: Ports, to: Address, name: str = "p", incarnation: str = "1") -> None:
        self.ports = ports
        self.to = to
        self.name = name
        self.incarnation = incarnation
        self.session = 0
        self.next = 0
        self.places: list[tuple[int, Published]] = []

    @classmethod
    async def opened(cls, ports: Ports, to: Address, name: str = "p", incarnation: str = "1") -> TestProducer:
        """Make a producer with a session."""
        made = cls(ports, to, name, incarnation)
        await made.open()
        return made

    async def open(self) -> ProducerOpened:
        """Open a session, trying until there is an answer."""
        while True:
            reply = await self.open_once()
            if reply is not None:
                return reply
            await self.ports.clock.sleep(50)

    async def open_once(self) -> ProducerOpened | None:
        """One attempt to open a session; None without an answer."""
        try:
            request = OpenProducer(producer=self.name, incarnation=self.incarnation)
            reply = await self.ports.net.call(self.to, request, TIMEOUT)
        except Unavailable:
            return None
        if isinstance(reply, Unknown):
            return None
        self.session = reply.session
        self.next = max(self.next, reply.last_sequence + 1)
        return reply

    def request(self, run: Run, first: int) -> Publish:
        """The publish of a run under a sequence."""
        return Publish(
            producer=self.name, session=self.session, first_sequence=first, count=run.count, delayed=run.delayed,
            shape=run.shape, crc=run.crc, payload=Blob(run.payload),
        )  # fmt: skip

    async def send(self, run: Run, first: int, timeout: int = TIMEOUT) -> Published:
        """One attempt after another until it is confirmed. Raises Fenced and what else is final."""
        while True:
            try:
                reply = await self.ports.net.call(self.to, self.request(run, first), timeout)
                if not isinstance(reply, Unknown):
                    return reply
            except (Unavailable, Overloaded, Conflict):
                pass
            await self.ports.clock.sleep(50)

    async def publish(self, count: int, now: int = 1000) -> Published:
        """Publish the next `count` messages, valued `name-sequence`."""
        first = self.next
        values = [f"{self.name}-{n}" for n in range(first, first + count)]
        run = make_test_run(values, producer=self.name, first=first, now=now)
        reply = await self.send(run, first)
        self.next = first + count
        self.places.append((first, reply))
        return reply


async def read_all(ports: Ports, to: Address, start: int = -1, limit: int = 1000) -> list[tuple[int, int, str]]:
    """Everything in the topic, as (ledger, entry, value), by ReadIndex and ReadPayload."""
    found: list[tuple[int, int, str]] = []
    while True:
        reply = await insist(ports, to, start, limit)
        for run in reply.runs:
            payload = await payload_of(ports, to, run.ledger, run.first_entry)
            for row, value in enumerate(values_of(payload, run.delayed, run.shape, run.count)):
                found.append((run.ledger, run.first_entry + row, value))
        if reply.resume == start or (not reply.runs and not reply.ended):
            return found
        start = reply.resume


async def insist(ports: Ports, to: Address, start: int, limit: int = 1000, wait: int = 0) -> IndexRead:
    """ReadIndex until there is an answer."""
    while True:
        try:
            reply = await ports.net.call(to, ReadIndex(start=start, limit=limit, wait=wait), TIMEOUT)
            if not isinstance(reply, Unknown):
                return reply
        except Unavailable:
            pass
        await ports.clock.sleep(50)


async def insist_once(ports: Ports, to: Address, start: int, limit: int) -> IndexRead | None:
    """One ReadIndex that waits for news; None without an answer."""
    try:
        reply = await ports.net.call(to, ReadIndex(start=start, limit=limit, wait=500), 3000)
    except (Unavailable, Fenced, NotFound):
        return None
    return None if isinstance(reply, Unknown) else reply


async def payload_of(ports: Ports, to: Address, ledger: int, entry: int) -> memoryview:
    """ReadPayload until there is an answer, then the bytes."""
    while True:
        try:
            reply = await ports.net.call(to, ReadPayload(ledger=ledger, entry=entry), TIMEOUT)
            if not isinstance(reply, Unknown):
                data = reply.payload.data or await ports.net.fetch(reply.payload)
                if data is not None:
                    return data
        except Unavailable:
            pass
        await ports.clock.sleep(50)

"""Bookies start again over their disks with the right, an empty, a foreign or an older metadata store; garbage goes.

A topic is written, and some of its ledgers are released. Everything ends, and starts with another metadata store:

* an empty one, or one of another cluster: no bookie that has served starts;
* an older one of the same cluster: a new topic gets no number under which a disk has runs, and its runs are its own.

Each time the garbage of those that serve is collected. Then the right store is back, and every run that was confirmed
and not released is read, byte for byte (S1, S3).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa

from sluice.actors.bookie import Bookie, BookieSettings
from sluice.actors.bookie.cookie import CLUSTER
from sluice.actors.ledger.garbage_collection import collect_garbage
from sluice.actors.ledger.partition_metadata import PartitionMetadata
from sluice.actors.ledger.record import Fragment, LedgerRecord, LedgerState, PartitionRecord
from sluice.actors.messages import AddRun, BookieList, ReadRun, TopicSettings
from sluice.actors.ownership.ids import LedgerIds
from sluice.actors.ports import Ports, Unknown
from sluice.actors.ports.wire import Blob, Reply, Request
from sluice.storage.errors import Corrupt, Unavailable
from sluice.storage.format.batch import make_batch
from sluice.storage.format.frame import Header, Run, encode_head, make_run
from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.course import Course, CourseWorld

BOOKIES = ("b0", "b1", "b2")
RUNS = 3
TRIES = 100
SETTINGS = BookieSettings(segment_bytes=3_000, checkpoint_runs=8, min_free_bytes=0, reserve_bytes=400)

T = TypeVar("T")
R = TypeVar("R", bound=Reply)


class _Course(Course):
    """One run. told: the writer and number of each confirmed run that is still owed, by ledger and run."""

    counted = ("runs", "refused", "collected", "released")

    def __init__(self, world: World, faults: list[Fault]) -> None:
        super().__init__(world, faults)
        self.told: dict[tuple[int, int], Run] = {}

    async def run(self) -> None:
        """The right store, another one, and the right one again."""
        world = self.world
        world.meta.records[CLUSTER] = [b"c1"]
        self.nemesis.begin()
        await self.start_all("c1")
        older = self.copy()
        for _ in range(self.rng.randrange(1, 4)):
            await self.write("orders", self.rng.randrange(1, 5))
            if self.rng.random() < 0.5:
                older = self.copy()
        right = self.copy()
        self.end_all()
        what = self.rng.choice(("empty", "other", "older", "older"))
        world.record("course", what)
        world.meta.records = {"empty": {}, "other": {CLUSTER: [b"c2"]}, "older": older}[what]
        if what == "older":
            await self.start_all("c1")
            held = {ledger for ledger, _ in self.told}
            fresh = await self.write("news", self.rng.randrange(1, 30))
            assert not held & fresh, f"S14: the numbers {sorted(held & fresh)} are given twice for one disk"
            await self.read_all()
        else:
            for bookie in BOOKIES:
                await self.refused(bookie, self.rng.choice(("c1", "c2")))
        await self.collect_all()
        self.end_all()
        world.meta.records = right
        await self.start_all("c1")
        await self.nemesis.heal()
        await self.collect_all()
        await self.read_all()

    def copy(self) -> dict[str, list[bytes]]:
        """A backup of the metadata."""
        return {key: list(versions) for key, versions in self.world.meta.records.items()}

    async def start_all(self, cluster: str) -> None:
        """Start every bookie on its disk; try again where one cannot reach the store."""
        for bookie in BOOKIES:
            await self.insist(partial(self.start, bookie, cluster))

    async def start(self, bookie: str, cluster: str) -> str:
        """One bookie."""

        def make(ports: Ports) -> Bookie:
            return Bookie(ports, bookie_id=bookie, settings=SETTINGS, cluster=cluster)

        return await self.world.start(bookie, make, disk=bookie)

    async def refused(self, bookie: str, cluster: str) -> None:
        """A bookie whose disk has served must not start here."""
        for _ in range(TRIES):
            try:
                await self.start(bookie, cluster)
            except Corrupt:
                self.counters["refused"] += 1
                return
            except Unavailable:
                await self.world.loop.pause(20)
                continue
            raise AssertionError(f"S1: {bookie} serves under a metadata store that does not know its disk")
        raise AssertionError(f"L1: {bookie} gets no answer of the metadata store")

    def end_all(self) -> None:
        """Every bookie ends; some machines lose their power."""
        for bookie in BOOKIES:
            self.world.crash(bookie)

    async def write(self, topic: str, ledgers: int) -> set[int]:
        """Write closed ledgers of a topic on all bookies, and release some; returns all their numbers."""
        ports = self.world.client("owner")
        metadata = PartitionMetadata(ports, topic, 0, lambda reason: None)
        await self.insist(lambda: metadata.acquire(TopicSettings()))
        ids, made = LedgerIds(), set[int]()
        for _ in range(ledgers):
            number = await self.insist(partial(ids.allocate, ports, 0))
            made.add(number)
            ledger = LedgerRecord(
                id=number, state=LedgerState.CLOSED, ensemble=3, write_quorum=3, ack_quorum=3,
                fragments=(Fragment(0, 0, BOOKIES),), last_run=RUNS - 1, last_entry=2 * RUNS - 1,
            )  # fmt: skip
            await self.insist(partial(metadata.update, partial(_with, ledger=ledger)))
            for run in range(RUNS):
                await self.add(ports, topic, number, run, metadata.record.epoch)
            if self.rng.random() < 0.3:
                self.counters["released"] += 1
                self.told = {key: value for key, value in self.told.items() if key[0] != number}
                await self.insist(partial(metadata.update, partial(_without, number=number)))
        return made

    async def add(self, ports: Ports, topic: str, ledger: int, run: int, epoch: int) -> None:
        """Store a run on every bookie."""
        made = _make(topic, ledger, run)
        header = Header(ledger, run, run * 2, made.count, epoch, -1, topic, run * 2, made.delayed, made.shape, made.crc)
        head = encode_head(header, len(made.payload))
        for bookie in BOOKIES:
            await self.ask(ports, bookie, AddRun(ledger=ledger, epoch=epoch, head=head, payload=Blob(made.payload)))
        self.told[ledger, run] = made
        self.counters["runs"] += 1

    async def collect_all(self) -> None:
        """One garbage collection."""
        ports = self.world.client("collector")
        up = [bookie for bookie in BOOKIES if self.world.is_up(bookie)]
        bookies = BookieList(ids=up, addresses=[self.world.process(bookie).address for bookie in up])
        self.counters["collected"] += sum(
            map(len, (await self.insist(lambda: collect_garbage(ports, bookies))).deleted.values())
        )

    async def read_all(self) -> None:
        """Every run that is owed, from each bookie."""
        ports = self.world.client("reader")
        for (ledger, run), made in sorted(self.told.items()):
            for bookie in BOOKIES:
                reply = await self.ask(ports, bookie, ReadRun(ledger=ledger, run=run))
                assert reply.payload is not None, f"S1: run {run} of ledger {ledger} is gone from {bookie}"
                payload = await ports.net.fetch(reply.payload)
                assert payload is not None, "L1: a payload is gone"
                assert bytes(payload) == bytes(made.payload), f"S3: run {run} of ledger {ledger} has other bytes"

    async def ask(self, ports: Ports, bookie: str, request: Request[R]) -> R:
        """The answer of a bookie, however often it takes."""

        async def once() -> R:
            reply = await ports.net.call(self.world.process(bookie).address, request, 1_000)
            if isinstance(reply, Unknown):
                raise Unavailable(reply.reason)
            return reply

        return await self.insist(once)

    async def insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something that may be done again until it was done."""
        for _ in range(TRIES):
            try:
                return await work()
            except Unavailable:
                await self.world.loop.pause(20)
        raise AssertionError("L1: no answer in a hundred tries")


def _with(record: PartitionRecord, *, ledger: LedgerRecord) -> PartitionRecord:
    return record.with_new_ledger(ledger)


def _without(record: PartitionRecord, *, number: int) -> PartitionRecord:
    return record.without_ledgers([number])


def _make(topic: str, ledger: int, run: int) -> Run:
    rows = pa.table({"key": [b"k", b"k"], "payload": [f"{topic} {ledger} {run}".encode() * 9] * 2})
    return make_run(make_batch(rows, now=1, producer=topic, first_sequence=run * 2))


class RestoredWorld(CourseWorld):
    """See the module."""

    name = "restored"
    kinds = ["loss", "delay", "repeat", "late", "torn", "slow_disk", "meta_503", "meta_lost_answer", "meta_slow"]
    favourites: Sequence[str] = ()
    course = _Course

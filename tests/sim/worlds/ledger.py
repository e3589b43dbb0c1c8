"""One partition on a few bookies: is anything confirmed ever lost, changed, stored twice or out of order?

Producers publish runs and repeat them until they are told where they stand. Bookies crash, restart, pause, slow down
and fail; owners crash, pause and come back, and at times several of them live at once. A reader follows the log
meanwhile. Then everything heals, the producers finish, and the whole log is read once more:

S1   every confirmed message stands where its producer was told, with its bytes
S3   whatever the reader was ever shown stands there in the end, unchanged (so nothing above the confirmed was shown)
S4   no message stands twice
S7   the messages of a producer stand in the order of their sequences, without gaps
S14  the chain: one ledger open at most, ids ascend, ends settled; each run on at least ack_quorum bookies, and alike
S15  runs of an older epoch stand before those of a newer one
L1   once all is well, every publish is confirmed and the log can be read in bounded time
L7   no ledger stays in recovery
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgpack
import numpy as np
import pyarrow as pa

from sluice.actors.bookie import Bookie, BookieSettings
from sluice.actors.ledger.record import LedgerRecord, LedgerState, PartitionRecord, decode_record, record_key
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import IndexRead, ReadIndex, ReadPayload, ReadRun, TopicSettings
from sluice.actors.ports import Ports, Unknown
from sluice.actors.producer.batches import Outgoing
from sluice.actors.producer.producer import PartitionProducer, ProducerConfig
from sluice.actors.producer.waves import Waves
from sluice.storage.errors import SluiceError
from sluice.storage.format.batch import decode_body, make_batch
from sluice.storage.format.checked_payload import payload_crc
from sluice.storage.format.frame import decode_head
from sluice.storage.format.position import EARLIEST, position, show
from tests.sim.faults import Fault, Nemesis
from tests.sim.world import World
from tests.sim.worlds.registry import Registry

TOPIC = "orders"
HEALED_MS = 180_000
ASKED = 5
"""After healing everything must be done in so much virtual time."""

DENSE = 0.05

BOOKIE = BookieSettings(
    segment_bytes=60_000,
    group_bytes=8_000,
    queue_bytes=200_000,
    checkpoint_runs=30,
    checkpoint_bytes=80_000,
    min_free_bytes=2_000,
    reserve_bytes=1_000,
)


@dataclass(frozen=True)
class Size:
    """How big this world is; drawn from the seed."""

    bookies: int
    settings: TopicSettings
    producers: int
    sends: int
    trouble_ms: int
    dense: bool
    """Everything happens twenty times as often: owners and bookies change while runs are on their way."""

    @classmethod
    def draw(cls, rng: random.Random) -> Size:
        """A random size."""
        ensemble = rng.choice((1, 2, 2, 3, 3, 4))
        write = rng.randint(1, ensemble)
        ack = rng.randint(1, write)
        settings = TopicSettings(
            ensemble=ensemble, write_quorum=write, ack_quorum=ack, roll_entries=rng.choice((10, 40, 5_000_000))
        )
        bookies, producers, sends = ensemble + rng.randrange(3), rng.randint(1, 3), rng.randint(3, 25)
        dense = rng.random() < 0.6
        trouble = rng.randint(1, 2_500 if dense else 25_000)
        return cls(bookies, settings, producers, sends, trouble, dense)


class LedgerWorld:
    """See the module."""

    name = "ledger"
    kinds = [
        "loss", "delay", "repeat", "late", "blob_loss", "no_hint", "partition", "pause", "crash", "power", "torn",
        "slow_disk", "failed_sync", "full_disk", "meta_503", "meta_lost_answer", "meta_late", "meta_slow",
        "cut_stores", "stores_403", "clock", "two_owners",
    ]  # fmt: skip
    favourites: Sequence[str] = ("two_owners", "crash", "partition")

    def __call__(self, world: World, faults: list[Fault], options: dict[str, str]) -> dict[str, int]:
        """Play a run."""
        course = self.course(world, faults)
        world.play(lambda _: course.run())
        return course.counters

    @staticmethod
    def course(world: World, faults: list[Fault]) -> Course:
        """Return the course that this world plays."""
        return Course(world, faults)


@dataclass(frozen=True)
class Told:
    """An answer to a producer: its batch stands from `first` on (-1: it stands, the place is forgotten)."""

    producer: int
    first_sequence: int
    count: int
    first: int


def _bookie(name: str, ports: Ports) -> Bookie:
    return Bookie(ports, bookie_id=name, settings=BOOKIE)


class Course:
    """One run. bytes_stay: a run has the same bytes, and so the same checksum, wherever it is read from."""

    bytes_stay = True

    def __init__(self, world: World, faults: list[Fault]) -> None:
        self.world = world
        self.rng = random.Random(f"course/{world.seed}")
        self.size = self.draw()
        self.nemesis = Nemesis(world, [fault.quickened(DENSE) for fault in faults] if self.size.dense else faults)
        self.told: list[Told] = []
        self.sent = [0] * self.size.producers
        self._clients: dict[int, tuple[Ports, Waves]] = {}
        """Two producers have one client."""
        self.shown: dict[int, tuple[int, int]] = {}
        """First position of each run that the reader saw, with its count and checksum."""
        self.counters = dict.fromkeys(
            ("confirmed messages", "shown runs", "owners", "ledgers", "fragments", "joint runs"), 0
        )

    def draw(self) -> Size:
        """How big this run is."""
        return Size.draw(self.rng)

    async def run(self) -> None:
        """Trouble, healing, checks."""
        await self._build()
        self.nemesis.begin()
        waits = [self._spawn_producer(number) for number in range(self.size.producers)]
        reader = self.world.client("reader")
        reader.spawn(self._follow(reader), "follow")
        await self.world.loop.pause(self.size.trouble_ms)
        await self.nemesis.heal()
        await self.world.within(HEALED_MS, self._all(waits), "L1: a publish is not confirmed")
        log = await self.world.within(
            HEALED_MS, self._audit(), "L7: the log cannot be read, or a ledger is not settled"
        )
        self._check_log(log)
        await self._check_chain(log)

    async def _audit(self) -> dict[int, list[bytes]]:
        """The whole log, read from an owner that was not replaced meanwhile."""
        while True:
            await self.world.loop.pause(100)
            record = self._record()
            if record.owner != self.registry.owners.get(0) or self._in_recovery(record):
                continue
            log = await self._read_all()
            if self._record().epoch == record.epoch:
                return log

    def _record(self) -> PartitionRecord:
        return decode_record(msgpack.unpackb(self.world.meta.records[record_key(TOPIC, 0)][-1]))

    def _in_recovery(self, record: PartitionRecord) -> bool:
        return any(ledger.state is LedgerState.IN_RECOVERY for ledger in record.ledgers)

    async def _build(self) -> None:
        world, size = self.world, self.size
        for number in range(size.bookies):
            name = f"bookie-{number}"
            await world.start(name, partial(_bookie, name), disk=name)
        address = "registry/registry.1"

        def make(ports: Ports) -> Registry:
            self.registry = Registry(ports, world, TOPIC, size.settings, address)
            return self.registry

        assert await world.start("registry", make) == address
        self.nemesis.roles["bookie"] = lambda: [name for name in world.names() if name.startswith("bookie-")]
        self.nemesis.roles["topic"] = lambda: [name for name in world.names() if name.startswith("topic-")]
        self.nemesis.revive["topic"] = self._stay_dead
        self.nemesis.special["two_owners"] = self._elect

    async def _stay_dead(self, name: str) -> None:
        """A dead owner does not come back; the registry starts another."""

    async def _elect(self, fault: Fault, rng: random.Random) -> None:
        await self.registry.replace(0)

    async def _all(self, waits: list[asyncio.Future[None]]) -> None:
        for wait in waits:
            await wait

    def _spawn_producer(self, number: int) -> asyncio.Future[None]:
        # Two producers of one client publish in waves.
        ports, waves = self._clients.get(number // 2) or self._client(number)
        done: asyncio.Future[None] = self.world.loop.create_future()

        async def work() -> None:
            await self._produce(ports, waves, number)
            done.set_result(None)

        ports.spawn(work(), "produce")
        return done

    def _client(self, number: int) -> tuple[Ports, Waves]:
        ports = self.world.client(f"producer-{number}")
        self._clients[number // 2] = ports, Waves(ports)
        return self._clients[number // 2]

    async def _produce(self, ports: Ports, waves: Waves, number: int) -> None:
        rng = random.Random(f"producer/{self.world.seed}/{number}")
        directory = Directory(ports, self.registry.ports.me)
        config = ProducerConfig(TOPIC, 0, f"p{number}", f"p{number}-1")
        producer = PartitionProducer(ports, directory, config, waves=waves)
        while True:
            try:
                await producer.open()
                break
            except SluiceError as error:
                ports.log("open failed", error=str(error))
        for _ in range(self.size.sends):
            count = rng.choice((1, 1, 2, 5, 20))
            filler = bytes(rng.choice((0, 10, 900)))
            first = self.sent[number]
            self.sent[number] += count
            rows = self.rows(number, first, count, filler)
            batch = make_batch(rows, now=ports.clock.now(), producer=f"p{number}", first_sequence=first)

            def done(rows: object, at: int, error: SluiceError | None, first: int = first, count: int = count) -> None:
                if error is not None:
                    raise AssertionError(f"L1: a publish was refused: {error!r}")
                self.told.append(Told(number, first, count, at))

            producer.send(Outgoing(batch, first, np.arange(count), done))
            await ports.clock.sleep(rng.choice((0, 2, 5, 30) if self.size.dense else (0, 5, 100, 1500)))
        await producer.flush()

    def rows(self, producer: int, first: int, count: int, filler: bytes) -> pa.Table:
        """The messages first, first+1, ... of a producer; `names_of` finds their numbers again."""
        return pa.table(
            {
                "key": [b"%d-%d" % (producer, row % 3) for row in range(count)],
                "payload": [b"%d %d " % (producer, first + row) + filler for row in range(count)],
            }
        )

    def names_of(self, rows: pa.RecordBatch) -> list[bytes]:
        """Return the name of each message: its producer and its number."""
        return [bytes(value) for value in rows.column("payload").to_pylist()]

    def who_sent(self, names: list[bytes]) -> list[tuple[int, int]]:
        """Return the producer's number and the own one of each message."""
        return [(int(producer), int(number)) for producer, number, *_ in (name.split() for name in names)]

    async def _follow(self, ports: Ports) -> None:
        """Read the log as it grows, from each owner in turn."""
        directory = Directory(ports, self.registry.ports.me)
        start = EARLIEST
        while True:
            try:
                reply = await self._index(ports, directory, start, wait=300)
            except SluiceError:
                await ports.clock.sleep(50)
                continue
            for run in reply.runs:
                self._show(position(run.ledger, run.first_entry), run.count, run.crc)
            start = max(start, reply.resume)
            await ports.clock.sleep(20)

    async def _index(self, ports: Ports, directory: Directory, start: int, wait: int = 0) -> IndexRead:
        address = await directory.topic(TOPIC, 0)
        reply = await ports.net.call(address, ReadIndex(start=start, limit=50, wait=wait), 3_000)
        if isinstance(reply, Unknown):
            await directory.suspect(address)
            return IndexRead(runs=[], resume=start)
        return reply

    def _show(self, first: int, count: int, crc: int) -> None:
        crc = crc if self.bytes_stay else 0
        known = self.shown.setdefault(first, (count, crc))
        assert known == (count, crc), f"S3: the run at {show(first)} was {known}, and is {(count, crc)}"
        self.counters["shown runs"] += 1

    async def _read_all(self) -> dict[int, list[bytes]]:
        """The whole log: the payloads of each run, by its first position, in order."""
        ports = self.world.client("auditor")
        directory = Directory(ports, self.registry.ports.me)
        log: dict[int, list[bytes]] = {}
        start = EARLIEST
        while True:
            try:
                reply = await self._index(ports, directory, start)
                for run in reply.runs:
                    first = position(run.ledger, run.first_entry)
                    log[first] = await self._payload(ports, directory, run.ledger, run.first_entry, run.crc)
                    self._show(first, run.count, run.crc)
            except SluiceError as error:
                ports.log("audit waits", error=str(error))
                await ports.clock.sleep(100)
                continue
            if reply.last_confirmed >= 0 and reply.resume > reply.last_confirmed:
                return log
            start = max(start, reply.resume)
            await ports.clock.sleep(10)

    async def _payload(self, ports: Ports, directory: Directory, ledger: int, entry: int, crc: int) -> list[bytes]:
        address = await directory.topic(TOPIC, 0)
        reply = await ports.net.call(address, ReadPayload(ledger=ledger, entry=entry), 5_000)
        while isinstance(reply, Unknown):
            await directory.suspect(address)
            address = await directory.topic(TOPIC, 0)
            reply = await ports.net.call(address, ReadPayload(ledger=ledger, entry=entry), 5_000)
        payload = await ports.net.fetch(reply.payload)
        assert payload is not None, "L1: a payload is gone in peace"
        assert payload_crc(payload) == reply.crc, f"S18: the payload of {ledger}:{entry} does not fit"
        assert reply.crc == crc or not self.bytes_stay, f"S18: the payload of {ledger}:{entry} is another one"
        rows = decode_body(payload[reply.count * (12 if reply.delayed else 4) :], reply.shape, reply.count)
        return self.names_of(rows)

    def _check_log(self, log: dict[int, list[bytes]]) -> None:
        """S1, S3, S4, S7."""
        values: dict[int, tuple[int, int]] = {}
        following: dict[int, int] = {}
        for first in sorted(log):
            for offset, payload in enumerate(log[first]):
                producer, sequence = map(int, payload.split()[:2])
                expected = following.get(producer, 0)
                assert sequence >= expected, f"S4: message {producer}-{sequence} stands twice, again at {show(first)}"
                assert sequence == expected, (
                    f"S7: {producer}-{sequence} at {show(first)} follows {producer}-{expected - 1}"
                )
                following[producer] = sequence + 1
                values[first + offset] = (producer, sequence)
        for told in self.told:
            self.counters["confirmed messages"] += told.count
            for offset in range(told.count):
                sequence = told.first_sequence + offset
                lost = f"S1: message {told.producer}-{sequence} was confirmed"
                assert sequence < following.get(told.producer, 0), f"{lost} and is not in the log"
                if told.first >= 0:
                    found = values.get(told.first + offset)
                    assert found == (told.producer, sequence), (
                        f"{lost} at {show(told.first + offset)}; there is {found}"
                    )
        for first, (count, _) in self.shown.items():
            assert len(log.get(first, ())) == count, f"S3: the reader saw {show(first)}, it is not in the log"
        assert sum(told.count for told in self.told) == sum(self.sent), "L1: a publish has no outcome"

    async def _check_chain(self, log: dict[int, list[bytes]]) -> None:
        """S14, S15, L7 by looking into the record and onto the bookies."""
        record = self._record()
        self.counters["owners"] = record.epoch
        ids = [ledger.id for ledger in record.ledgers]
        assert ids == sorted(set(ids)), f"S14: the chain is {ids}"
        for ledger in record.ledgers[:-1]:
            assert ledger.state is LedgerState.CLOSED, f"S14: ledger {ledger.id} is {ledger.state} and not the last"
        ports = self.world.client("inspector")
        epoch = 0
        for ledger in record.ledgers:
            self.counters["ledgers"] += 1
            self.counters["fragments"] += len(ledger.fragments)
            epoch = await self._check_ledger(ports, ledger, log, epoch)

    async def _check_ledger(self, ports: Ports, ledger: LedgerRecord, log: dict[int, list[bytes]], epoch: int) -> int:
        runs = sorted(first for first in log if first >> 32 == ledger.id)
        if ledger.state is LedgerState.CLOSED:
            last = runs[-1] + len(log[runs[-1]]) - 1
            assert last == position(ledger.id, ledger.last_entry), f"S14: ledger {ledger.id} ends at {show(last)}"
            assert len(runs) == ledger.last_run + 1, f"S14: ledger {ledger.id} has {len(runs)} runs"
        for run, first in enumerate(runs) if ledger.fragments else ():
            copies, found = 0, epoch
            for bookie in ledger.write_set(run):
                head = await self._head(ports, bookie, ledger.id, run)
                if head is None:
                    continue
                header = decode_head(head)
                copies += 1
                found = max(found, header.epoch)
                assert position(header.ledger, header.first_entry) == first, f"S14: {bookie} has another run {run}"
                crc = header.crc if self.bytes_stay else 0
                assert (header.count, crc) == self.shown[first], f"S3: {bookie} has other bytes of {show(first)}"
                parts = header.parts
                # A gateway numbers the batches of a client, not their messages.
                if not any(name.startswith("pulsar.") for name, _, _ in parts):
                    said = [(int(name[1:]), at + row) for name, at, count in parts for row in range(count)]
                    assert said == self.who_sent(log[first]), f"S7: {bookie} names other producers of {show(first)}"
                if header.segments:
                    self.counters["joint runs"] += 1
                assert header.epoch >= epoch, f"S15: run {run} of {ledger.id} is of {header.epoch}, after {epoch}"
            assert copies >= ledger.ack_quorum, f"S14: run {run} of ledger {ledger.id} has {copies} copies"
            epoch = found
        return epoch

    async def _head(self, ports: Ports, bookie: str, ledger: int, run: int) -> bytes | None:
        request = ReadRun(ledger=ledger, run=run)
        for _ in range(ASKED):  # a store that was slow before the peace may still hold up a bookie that starts
            reply = await ports.net.call(self.world.process(bookie).address, request, 5_000)
            if not isinstance(reply, Unknown):
                break
        assert not isinstance(reply, Unknown), f"L1: {bookie} does not answer in peace"
        return reply.head

"""The world `history` in which keys are forgotten while all of it goes wrong.

Somebody asks again and again that messages of a key be erased, while ledgers leave, owners crash between any two
steps and live beside their successors. Each message is known by its event time, which stays. A subscription holds all
messages and gives them back again and again, and at the end they come once more. All checks of that world hold: a
reader finds a message as it was, or finds that it was erased. And these:

E1   a message is erased only if that was asked for its key
E2   once all is well, what was asked is done in bounded time
E3   then no object that the record names, and no bookie, has anything of the key in what was there when it was asked
E4   then no dispatcher sends anything of it from its memory
E5   then no gateway sends anything of it from its memory

One producer and some readers speak Pulsar's protocol to a gateway, which keeps the frames that it has stored.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa

from sluice.actors.consumer import payload as payloads
from sluice.actors.consumer.config import ConsumerCallbacks, ConsumerConfig
from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.dispatcher.delivery import unacked_runs as open_runs
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import Erase, EraseStatus, ListLedgers, SubscriptionSettings
from sluice.actors.ports import Ports, Unknown
from sluice.actors.pulsar.conversation.gateway import gateway
from sluice.actors.topic.background import erasing
from sluice.storage.errors import SluiceError
from sluice.storage.history.checked_parquet import read_group
from sluice.storage.history.part import decode_footer
from tests.sim.faults import Fault
from tests.sim.pipes import Pipes
from tests.sim.world import World
from tests.sim.worlds.clients import until_open
from tests.sim.worlds.erased_frames import GATEWAY, FrameProducer, FrameReader, PlainGateway
from tests.sim.worlds.history import HistoryCourse, HistoryWorld
from tests.sim.worlds.ledger import ASKED, HEALED_MS, TOPIC, Course, Size
from tests.sim.worlds.wire import Gone, Refusal

EVERY_MS = 1_500
KEPT_MS, FORGOTTEN_MS = 10_000, 30_000
MOST = 10_000
"""More messages than there are."""
OF_PRODUCER = 1_000_000
"""Event times of a producer's messages begin at its number times this."""


class ErasingWorld(HistoryWorld):
    """See the module."""

    name = "erasing"

    @staticmethod
    def course(world: World, faults: list[Fault]) -> Course:
        return ErasingCourse(world, faults)


class ErasingCourse(HistoryCourse):
    """One run."""

    back_ms, late_ms = 3_000, 2_000
    """The longest pauses of the consumer that gives everything back, and of the reader behind the gateway."""

    def __init__(self, world: World, faults: list[Fault]) -> None:
        super().__init__(world, faults)
        self.pipes = Pipes(world)
        self.asked: dict[bytes, None] = {}
        """Keys that somebody wanted to be erased, heard or not."""
        self.over = False
        self.holder: PartitionConsumer | None = None
        self.came: dict[int, bytes | None] = {}
        """The key of each message that the holder has, by its position."""

    def rows(self, producer: int, first: int, count: int, filler: bytes) -> pa.Table:
        numbers = range(first, first + count)
        return pa.table(
            {
                "key": [self._key(producer, number) for number in numbers],
                "payload": [b"%d %d " % (producer, number) + filler for number in numbers],
                "event_time": [producer * OF_PRODUCER + number for number in numbers],
            }
        )

    @staticmethod
    def _key(producer: int, number: int) -> bytes:
        return b"%d-%d" % (producer, number % 3)

    def names_of(self, rows: pa.RecordBatch | pa.Table) -> list[bytes]:
        found = []
        columns = (rows.column(name).to_pylist() for name in ("event_time", "key", "payload"))
        for time, key, payload in zip(*columns, strict=True):
            producer, number = divmod(time, OF_PRODUCER)
            name, wanted = b"%d %d " % (producer, number), self._key(producer, number)
            if key is None:
                assert wanted in self.asked, f"E1: message {name!r} of {wanted!r} was erased"
                assert payload == b"", f"E3: {name!r} has no key and is there"
            else:
                assert (key, payload[: len(name)]) == (wanted, name), f"S3: {name!r} is {key!r}, {payload!r}"
            found.append(name)
        return found

    async def run(self) -> None:
        eraser = self.world.client("eraser")
        eraser.spawn(self._erase(eraser, random.Random(f"erase/{self.world.seed}")), "erase")
        holder = self.world.client("holder")
        holder.spawn(self._hold(holder, random.Random(f"hold/{self.world.seed}")), "hold")
        with (
            patch.multiple(erasing, FORGOTTEN_MS=FORGOTTEN_MS, RETRY_MS=500),
            patch.object(open_runs, "KEPT_MS", KEPT_MS),
            patch.object(payloads, "KEPT_MS", KEPT_MS),
            patch.object(gateway, "KEPT_MS", KEPT_MS),
        ):
            await super().run()
            self.over = True
            await self.world.within(HEALED_MS, self._all_erased(), "E2: a key is not erased")
            await self._check_erased()
            await self.world.within(HEALED_MS, self._all_come(), "E4: not all messages come again")
            await self.world.within(HEALED_MS, self._all_read(), "E5: a gateway does not send all messages")

    def draw(self) -> Size:
        size = super().draw()
        settings = msgspec.structs.replace(size.settings, deduplication_enabled=True)
        return replace(size, settings=settings, producers=size.producers + 1)

    async def _build(self) -> None:
        await super()._build()
        await self.world.start(GATEWAY, lambda ports: PlainGateway(ports, GATEWAY, controller=self.registry.ports.me))
        reader = self.world.client("late reader")
        reader.spawn(self._read_late(reader, random.Random(f"late/{self.world.seed}")), "read")

    def _spawn_producer(self, number: int) -> asyncio.Future[None]:
        if number < self.size.producers - 1:
            return super()._spawn_producer(number)
        ports, done = self.world.client(f"p{number}"), self.world.loop.create_future()
        ports.spawn(self._send_frames(ports, number, done), "produce")
        return done

    async def _send_frames(self, ports: Ports, number: int, done: asyncio.Future[None]) -> None:
        rng = random.Random(f"producer/{self.world.seed}/{number}")
        producer = FrameProducer(ports, self.pipes, f"p{number}", rng)
        for _ in range(self.size.sends):
            first, counts = self.sent[number], rng.choices((1, 2, 5), k=rng.choice((1, 2, 4)))
            self.sent[number] += sum(counts)
            rows = self.rows(number, first, sum(counts), bytes(rng.choice((0, 10, 900))))
            ends = np.cumsum(counts).tolist()
            frames = [rows.slice(end - count, count) for end, count in zip(ends, counts, strict=True)]
            self.told += await producer.send(number, frames, first)
            await ports.clock.sleep(rng.choice((0, 2, 5, 30) if self.size.dense else (0, 5, 100, 1500)))
        done.set_result(None)

    async def _read_late(self, ports: Ports, rng: random.Random) -> None:
        """Read from the beginning again and again, through the gateway."""
        while not self.over:
            reader = FrameReader(self.pipes, "late reader", rng)
            try:
                await reader.open()
                await ports.clock.sleep(rng.randrange(self.late_ms))
            except (Gone, Refusal) as error:
                ports.log("not read", error=repr(error))
            reader.close()
            for rows in reader.rows:
                self.names_of(rows)
            await ports.clock.sleep(rng.randrange(self.late_ms))

    async def _all_read(self) -> None:
        """E5: a reader that comes to the gateway now finds each message as it is now."""
        rng, ports = random.Random(f"last/{self.world.seed}"), self.world.client("last reader")
        while True:
            reader = FrameReader(self.pipes, "last reader", rng)
            try:
                await reader.open()
                while reader.up and sum(map(len, reader.rows)) < sum(self.sent):
                    await ports.clock.sleep(100)
            except (Gone, Refusal) as error:
                ports.log("not read", error=repr(error))
            reader.close()
            for rows in reader.rows:
                self.names_of(rows)
                left = {*rows.column("key").to_pylist()} & {*self.asked}
                assert not left, f"E5: the gateway sends messages of {left} from its memory"
            if sum(map(len, reader.rows)) >= sum(self.sent):
                return
            await ports.clock.sleep(100)

    async def _hold(self, ports: Ports, rng: random.Random) -> None:
        """Hold all messages, and give them back again and again."""
        lives = 0
        while self.holder is None or not self.over:
            lives += 1
            self.holder = PartitionConsumer(
                ports,
                Directory(ports, "registry/registry.1"),
                ConsumerConfig(
                    topic=TOPIC,
                    partition=0,
                    subscription="held",
                    name="holder",
                    incarnation=f"holder-{lives}",
                    settings=SubscriptionSettings(initial_position="earliest"),
                    queue_size=MOST,
                ),
                ConsumerCallbacks(on_received=self._hold_part, on_event=lambda _, event: None),
            )
            await until_open(self.holder, ports)
            while not self.over and not self.holder.lease_over():
                await ports.clock.sleep(rng.randrange(self.back_ms))
                await self.holder.redeliver_all()

    def _hold_part(self, part: Received) -> None:
        self.names_of(part.rows)
        assert self.holder is not None
        self.came |= dict(zip(part.positions.tolist(), part.rows.column("key").to_pylist(), strict=True))
        self.holder.taken(part)

    async def _all_come(self) -> None:
        """E4: what is given back comes as it is now."""
        assert self.holder is not None
        self.came.clear()
        await self.holder.redeliver_all()
        while len(self.came) < sum(self.sent):
            await self.world.loop.pause(100)
        left = {*self.came.values()} & {*self.asked}
        assert not left, f"E4: the dispatcher sends messages of {left} from its memory"

    async def _erase(self, ports: Ports, rng: random.Random) -> None:
        """Ask again and again, for one of a few keys."""
        keys = [self._key(rng.randrange(self.size.producers), rng.randrange(3)) for _ in range(2)]
        directory = Directory(ports, "registry/registry.1")
        while True:
            await ports.clock.sleep(rng.randrange(EVERY_MS))
            if self.over:
                return
            key = keys[rng.randrange(len(keys))]
            self.asked[key] = None
            try:
                address = await directory.topic(TOPIC, 0)
                if isinstance(await ports.net.call(address, Erase(key=key), 3_000), Unknown):
                    await directory.suspect(address)
            except SluiceError as error:
                ports.log("erasing is not asked", error=str(error))

    async def _all_erased(self) -> None:
        """Ask once more for every key, and wait until that is done."""
        ports = self.world.client("controller of the data")
        directory = Directory(ports, "registry/registry.1")
        left: list[bytes | None] = [*sorted(self.asked), None]
        while left:
            try:
                address = await directory.topic(TOPIC, 0)
                reply: EraseStatus | Unknown = await ports.net.call(address, Erase(key=left[0]), 3_000)
            except SluiceError as error:
                ports.log("not asked", error=str(error))
                reply = Unknown(str(error))
            else:
                if isinstance(reply, Unknown):
                    await directory.suspect(address)
            if not isinstance(reply, Unknown) and (
                left[0] is not None or not reply.keys or self._waits_for_good(reply)
            ):
                left.pop(0)
            else:
                await ports.clock.sleep(200)
        self.counters["erased"] = sum(one.messages for one in self._record().erased)

    def _waits_for_good(self, reply: EraseStatus) -> bool:
        """Whether a bookie is waited for whose disk has failed."""
        return any(
            f"bookie {name}" in reply.error for name in self.nemesis.roles["bookie"]() if not self.world.is_up(name)
        )

    async def _check_erased(self) -> None:
        """E3."""
        erased_in: dict[int, None] = {}
        for ledger in self._record().ledgers:
            for part in ledger.offloaded.parts if ledger.offloaded else ():
                data = self.world.objects.objects[part.name]
                footer = decode_footer(data[part.size - part.footer_bytes :], part.size, part.footer_crc)
                for number, group in enumerate(footer.groups):
                    rows = read_group(footer, number, data[group.start : group.start + group.length])
                    keys = rows.column("key").to_pylist()
                    assert not {*keys} & {*self.asked}, f"E3: {part.name} has messages of an erased key"
                    said = rows.filter(rows.column("key").is_null()).column("again").to_pylist()
                    assert not any(said), f"E3: {part.name} says in a column what messages of an erased key were"
                    if None in keys:
                        erased_in[ledger.id] = None
        ports = self.world.client("looks at bookies")
        for name in self.world.alive("bookie-"):
            for _ in range(ASKED):
                reply = await ports.net.call(self.world.process(name).address, ListLedgers(), 5_000)
                if not isinstance(reply, Unknown):
                    break
            assert not isinstance(reply, Unknown), f"L1: {name} does not answer in peace"
            left = [ledger for ledger in reply.ledgers if ledger in erased_in]
            assert not left, f"E3: {name} has ledgers {left}, which held messages of an erased key"

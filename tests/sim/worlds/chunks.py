"""Large messages in chunks, in the world of the broker: programs that send and receive them come, die and go.

A chunk has few bytes here. In half of the runs each chunk is a run of its own, so a producer or an owner may end
between two. A message comes whole or not at all, the first deliveries of a key come in the order of its sends, an
acknowledgement that was confirmed is never forgotten, and in the end no chunk is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from unittest.mock import patch

from sluice.actors.producer import batches, producer
from sluice.actors.pulsar.codec import chunked
from sluice.cluster.base.loop import CallersLoop
from sluice.cluster.client import async_producer, chunk_joiner, producer_core, receipts
from sluice.cluster.client import options as consumer_settings
from sluice.cluster.client.async_client import AsyncClient
from sluice.cluster.client.async_consumer import AsyncConsumer
from sluice.cluster.client.message import Message
from sluice.storage.errors import SluiceError
from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.broker import BrokerWorld, Course

TOPIC, SUBSCRIPTION = "pictures", "gallery"
CHUNK_BYTES, KEYS, SENDS = 64, 3, 15
SIZES = (20, 65, 150, 400)
"""Bytes of a payload: whole, or up to seven chunks."""
LINGER_MS = 100
AGAIN_MS = 500
"""With one incomplete message at a time, each of the others waits so long for its turn, one after the other."""


@dataclass(frozen=True)
class Habits:
    """The programs of a run, drawn from the seed.

    most: incomplete messages at a consumer. negative: share of the messages that is given back. chunks_ms: so long the
    chunks of a message may take.
    """

    partitions: int
    nack_order: Literal["none", "key"]
    most: int
    queue: int
    negative: float
    lease_ms: int
    chunks_ms: int

    @classmethod
    def draw(cls, rng: random.Random, seed: int) -> Habits:
        """Some habits."""
        return cls(
            rng.choice((1, 2)),
            "key" if rng.random() < 0.5 else "none",
            rng.choice((1, 10, 10)),
            rng.choice((1, 3, 100)),
            rng.choice((0.0, 0.1)),
            rng.choice((3_000, 10_000)),
            random.Random(f"patience/{seed}").choice((2_000, 10_000, 60_000)),
        )

    @property
    def keeps_order(self) -> bool:
        """Whether no message is given back, or what is given back holds its key."""
        return self.nack_order == "key" or (self.most > 1 and not self.negative)


@dataclass
class Gallery:
    """Payloads, and what was said about them. A name is that of a sender, a key and a number."""

    payloads: dict[tuple[str, str, int], bytes] = field(default_factory=dict)
    confirmed: set[tuple[str, str, int]] = field(default_factory=set)
    received: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    done: set[tuple[str, str, int]] = field(default_factory=set)
    """Acknowledged durably: comes no more."""

    def add(self, name: tuple[str, str, int], size: int) -> bytes:
        """Make the payload of a message."""
        text = "/".join(map(str, name)) + "/"
        payload = self.payloads[name] = (text * (size // len(text) + 1))[: max(size, len(text))].encode()
        return payload

    def take(self, payload: bytes) -> tuple[str, str, int]:
        """Note a message that came."""
        sender, key, number, _ = payload.decode().split("/", 3)
        name = sender, key, int(number)
        assert payload == self.payloads[name], f"C1: {name} came as {payload!r}, not as {self.payloads[name]!r}"
        assert name not in self.done, f"S6: {name} came again after its acknowledgement was durable"
        self.received[sender, key].append(name[2])
        return name

    def missing(self) -> list[tuple[str, str, int]]:
        """Confirmed messages that never came."""
        return sorted(name for name in self.confirmed if name[2] not in self.received[name[:2]])


def _chance(world: World) -> random.Random:
    return random.Random(f"chunks/{world.seed}")


class Program:
    """One program with a client of its own."""

    def __init__(self, world: World, gallery: Gallery, habits: Habits, name: str) -> None:
        self.name = name
        self.calm = False
        self._world, self._gallery, self._habits = world, gallery, habits
        self._rng = random.Random(f"{name}/{world.seed}")
        self._ports = world.client(name)
        self._ports.spawn(self._run(), name)

    async def _run(self) -> None:
        raise NotImplementedError

    def _connect(self) -> AsyncClient:
        return AsyncClient(CallersLoop(), cast(Any, self._ports.net), ports=self._ports)

    async def _again(self, call: Any) -> Any:
        """Call until it succeeds."""
        while True:
            try:
                return await call()
            except SluiceError as error:
                self._ports.log("refused", error=str(error))
                await self._ports.clock.sleep(50)


class Sender(Program):
    """Sends numbered messages of its own keys, several at once, some without a key."""

    def __init__(self, *arguments: Any) -> None:
        self._numbers: dict[str, int] = defaultdict(int)
        super().__init__(*arguments)
        self.done: asyncio.Future[None] = self._world.loop.create_future()

    async def _run(self) -> None:
        client = self._connect()
        producer = await self._again(
            lambda: client.create_producer(TOPIC, self.name, chunking_enabled=True, send_timeout_millis=0)
        )
        sent = []
        for _ in range(SENDS):
            key = self._rng.choice(("", *(f"k{number}" for number in range(KEYS))))
            number, self._numbers[key] = self._numbers[key], self._numbers[key] + 1
            name = self.name, key, number
            payload = self._gallery.add(name, self._rng.choice(SIZES))
            sent.append((name, await producer.send_async(payload, partition_key=key or None)))
            await self._ports.clock.sleep(self._rng.choice((0, 0, 2, 100)))
        for name, receipt in sent:
            with contextlib.suppress(SluiceError):
                await receipt
                self._gallery.confirmed.add(name)
        self.done.set_result(None)


class Taker(Program):
    """Receives, thinks, acknowledges or gives back."""

    gone = False

    async def _run(self) -> None:
        client, habits = self._connect(), self._habits
        self.consumer: AsyncConsumer = await self._again(
            lambda: client.subscribe(
                TOPIC,
                SUBSCRIPTION,
                consumer_name=self.name,
                receiver_queue_size=habits.queue,
                max_pending_chunked_message=habits.most,
                expire_time_of_incomplete_chunked_message_ms=habits.chunks_ms,
            )
        )
        while not self.gone:
            message = await self._once(self.consumer.receive(1_000))
            if isinstance(message, Message):
                await self._finish(message)

    async def _finish(self, message: Message) -> None:
        name = self._gallery.take(message.data())
        await self._ports.clock.sleep(self._rng.choice((0, 1, 20, 300)))
        if not self.calm and self._rng.random() < self._habits.negative:
            await self._once(self.consumer.negative_acknowledge(message, delay_ms=self._rng.choice((0, 300))))
            return
        held = bool(message.batch.received.open.any())
        with contextlib.suppress(SluiceError):
            sure = self._rng.random() < 0.3
            await self.consumer.acknowledge(message, ack_receipt=sure)
            if held and sure:
                self._gallery.done.add(name)

    async def _once(self, work: Any) -> Any:
        """Return the result of some work, or None if it was refused."""
        try:
            return await work
        except SluiceError:
            return None

    def leave(self) -> None:
        """Close politely."""
        self.gone = True
        self._ports.spawn(self._close(), "close")

    async def _close(self) -> None:
        if hasattr(self, "consumer"):
            await self._once(self.consumer.close())
        self._world.stop(self._ports.me)


class ChunksCourse(Course):
    """A run of the broker's world with large messages on a topic of their own."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._rng = _chance(self.world)
        self.habits = Habits.draw(self._rng, self.world.seed)
        self.gallery = Gallery()
        self.world.record("gallery", str(self.habits))
        self._senders: list[Sender] = []
        self._takers: list[Taker] = []

    async def _begin_clients(self) -> None:
        await super()._begin_clients()
        admin = AsyncClient(
            CallersLoop(), cast(Any, self.world.client("painter").net), ports=self.world.client("painter")
        )
        while True:
            try:
                await admin.create_topic(TOPIC, self.habits.partitions, ensemble=1, write_quorum=1, ack_quorum=1)
                async with await admin.subscribe(
                    TOPIC,
                    SUBSCRIPTION,
                    consumer_name="admin",
                    initial_position="earliest",
                    nack_order=self.habits.nack_order,
                    lease_ms=self.habits.lease_ms,
                ):
                    break
            except SluiceError:
                await self.world.loop.pause(100)
        self._admin = admin
        for _ in range(2):
            self._send()
            self._take()
        self.world.background(self._come_and_go(), "come and go")

    def _send(self) -> None:
        self._senders.append(Sender(self.world, self.gallery, self.habits, f"sender-{len(self._senders)}"))

    def _take(self) -> None:
        self._takers.append(Taker(self.world, self.gallery, self.habits, f"taker-{len(self._takers)}"))

    async def _come_and_go(self) -> None:
        """Programs die, leave and come, at any moment."""
        while True:
            await self.world.loop.pause(self._rng.choice((5, 40, 300, 2_000)))
            if not self.nemesis.active:
                return
            takers, senders = self.world.alive("taker-"), self.world.alive("sender-")
            what = self._rng.random()
            if what < 0.2 and len(self._senders) < 8:
                if senders and self._rng.random() < 0.7:
                    self.world.crash(self._rng.choice(senders))
                self._send()
            elif takers and what < 0.5:
                self.world.crash(self._rng.choice(takers))
            elif takers and what < 0.6:
                name = self._rng.choice(takers)
                next(each for each in self._takers if each.name == name).leave()
            elif len(takers) < 4:
                self._take()

    async def _published(self) -> None:
        await super()._published()
        for taker in self._takers:
            taker.calm = True
        self._take()
        self._takers[-1].calm = True
        self._send()
        for sender in self._senders:
            if self.world.is_up(sender.name):
                await sender.done

    async def _rest(self) -> None:
        await super()._rest()
        while left := self.gallery.missing():
            self._told = f"{left} never came"
            await self.world.loop.pause(LINGER_MS)
        while True:
            with contextlib.suppress(SluiceError):
                rows = await self._admin.stats(TOPIC, SUBSCRIPTION)
                if not any(row["msgBacklog"] or row["unackedMessages"] for row in rows):
                    return
                self._told = f"chunks are left: {rows}"
            await self.world.loop.pause(LINGER_MS)

    def _judge(self) -> None:
        super()._judge()
        if self.habits.keeps_order:
            for (sender, key), numbers in self.gallery.received.items():
                first = list(dict.fromkeys(numbers))
                assert not key or first == sorted(first), f"S8: {sender}/{key} came as {first}"
        self._add("large messages", len(self.gallery.confirmed))
        self._add("takers", len(self._takers))


class ChunksWorld(BrokerWorld):
    """The world of the broker with messages in chunks."""

    name = "chunks"

    def __call__(self, world: World, faults: list[Fault], options: dict[str, str]) -> dict[str, int]:
        """Play a run."""
        singly = random.Random(f"runs/{world.seed}").random() < 0.5
        chunks_ms = Habits.draw(_chance(world), world.seed).chunks_ms
        with (
            patch.object(chunked, "CHUNK_BYTES", CHUNK_BYTES),
            patch.object(producer_core, "MAX_MESSAGE_BYTES", CHUNK_BYTES),
            patch.object(async_producer, "MAX_MESSAGE_BYTES", CHUNK_BYTES),
            patch.object(batches, "BODY_BYTES", 1 if singly else batches.BODY_BYTES),
            patch.object(producer, "RUN_BYTES", 1 if singly else batches.RUN_BYTES),
            patch.object(chunk_joiner, "AGAIN_MS", AGAIN_MS),
            patch.object(receipts, "CHUNKS_MS", chunks_ms),
            patch.object(consumer_settings, "CHUNKS_MS", chunks_ms),
        ):
            return super().__call__(world, faults, options)

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld.course."""
        return ChunksCourse(world, faults, options)

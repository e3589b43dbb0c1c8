"""Producers and consumers of the simulated worlds, which write down what they do and are told."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.actors.consumer.config import ConsumerCallbacks, ConsumerConfig
from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.consumer.revocations import TakingBack
from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import Event, SubscriptionSettings
from sluice.actors.ports import Ports
from sluice.actors.producer.batches import Outgoing, split
from sluice.actors.producer.producer import PartitionProducer, ProducerConfig
from sluice.actors.producer.waves import Waves
from sluice.actors.runtime.waiting import Signal
from sluice.loadgen.base import history
from sluice.storage.errors import Corrupt, Fenced, Invalid, SluiceError, Terminated
from sluice.storage.format.batch import make_batch
from sluice.storage.format.position import Positions
from tests.sim.world import Process, World
from tests.sim.worlds.past import SOMEBODY, History
from tests.sim.worlds.patience import Patience

KEYS = 5


@dataclass(frozen=True)
class Traffic:
    """The traffic of a world's clients, drawn from the seed."""

    topic: str
    partitions: int
    subscription: str
    settings: SubscriptionSettings
    controller: str
    sends: int
    delayed: float
    """Share of the messages that are delayed, by up to `delay_ms`."""
    delay_ms: int
    negative: float
    """Share of the parts that are given back once."""
    think_ms: int
    negative_delays: tuple[int, ...] = (0, 50, 1000)
    """What is given back comes again after one of these."""
    poison: int = 0
    """During the trouble a message whose number this divides is given back by everybody; 0: none is."""
    pauses_ms: tuple[int, ...] = (0, 2, 30, 400)
    """A producer waits one of these between two batches."""


class SimProducer:
    """Publishes numbered messages of its own keys, and writes down what it was told.

    mate: a producer of the same client, with which it publishes in waves.
    """

    def __init__(
        self,
        world: World,
        past: History,
        traffic: Traffic,
        number: int,
        machine: str | None = None,
        mate: SimProducer | None = None,
    ) -> None:
        self.name = f"producer-{number}"
        self.ports: Ports = world.client(self.name, machine=machine) if mate is None else mate.ports
        self.waves: Waves = Waves(self.ports) if mate is None else mate.waves
        self.done: asyncio.Future[None] = world.loop.create_future()
        self._past = past
        self._traffic = traffic
        self._rng = random.Random(f"{self.name}/{world.seed}")
        self._sequences = [0] * traffic.partitions
        self._numbers = [0] * KEYS
        directory = Directory(self.ports, traffic.controller)
        self._parts = [
            PartitionProducer(
                self.ports,
                directory,
                ProducerConfig(traffic.topic, partition, self.name, f"{self.name}-1"),
                waves=self.waves,
            )
            for partition in range(traffic.partitions)
        ]
        self.ports.spawn(self._run(), "produce")

    async def _run(self) -> None:
        for part in self._parts:
            await until_open(part, self.ports)
        for _ in range(self._traffic.sends):
            self._send()
            await self.ports.clock.sleep(self._rng.choice(self._traffic.pauses_ms))
        for part in self._parts:
            await part.flush()
        self.done.set_result(None)

    def _send(self) -> None:
        rng, traffic = self._rng, self._traffic
        count = rng.choice((1, 2, 8, 30))
        chosen = [rng.randrange(KEYS) for _ in range(count)]
        numbers = []
        for key in chosen:
            numbers.append(self._numbers[key])
            self._numbers[key] += 1
        now = self.ports.clock.now()
        due = [now + rng.randrange(1, traffic.delay_ms) if rng.random() < traffic.delayed else 0 for _ in range(count)]
        keys = [f"{self.name}/{key}".encode() for key in chosen]
        rows = pa.table(
            {"key": keys, "payload": [b"%d" % number for number in numbers], "deliver_at": pa.array(due, pa.int64())}
        )
        batch = make_batch(rows, now=now, producer=self.name)
        for partition, share, places in split(batch, traffic.partitions):
            first = self._sequences[partition]
            self._sequences[partition] += len(share)
            row = len(self._past.sends)
            for offset, place in enumerate(places.tolist()):
                self._past.sends.append(
                    [
                        self.name, partition, keys[place], numbers[place], first + offset, -1, history.INFO,
                        self._past.stamp(), 0, due[place],
                    ]
                )  # fmt: skip
            self._parts[partition].send(Outgoing(share, first, np.arange(len(share)), partial(self._told, row)))

    def _told(self, row: int, rows: npt.NDArray[np.int64], at: int, error: SluiceError | None) -> None:
        refused = isinstance(error, Corrupt | Invalid) and not isinstance(error, Terminated)
        assert not refused, f"L1: a publish was refused: {error}"
        moment = self._past.stamp()
        for offset in range(len(rows)):
            send = self._past.sends[row + offset]
            if error is None:
                send[5:7] = [at + offset if at >= 0 else 0, history.OK]
                self._past.confirmed(send[2], send[3])
            send[8] = moment


async def until_open(part: PartitionProducer | PartitionConsumer, ports: Ports) -> None:
    """Open it, as often as it takes; a producer whose topic was terminated is told so with whatever it sends."""
    while True:
        try:
            await part.open()
            return
        except Terminated as error:
            assert isinstance(part, PartitionProducer)
            part.close(error)
            return
        except SluiceError as error:
            ports.log("open failed", error=str(error))
            await ports.clock.sleep(100)


@dataclass(eq=False)
class SimConsumer:
    """One consumer object on every partition: takes parts, thinks, acknowledges, at times gives back, at times dies."""

    world: World
    past: History
    traffic: Traffic
    number: int
    calm: bool = False
    called: str = ""
    """Its name for the broker, if it is one of its own."""
    ranges: list[tuple[int, int]] = field(default_factory=list)
    machine: str | None = None
    """Where it is; by default on a machine of its own."""
    parts: list[PartitionConsumer] = field(default_factory=list)
    gone: bool = False

    def __post_init__(self) -> None:
        self.name = f"consumer-{self.number}"
        self.rng = random.Random(f"{self.name}/{self.world.seed}")
        self.ports = self.world.client(self.name, machine=self.machine)
        self.queue: deque[Received] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._acked = Signal()
        self._patience = Patience(self.world, self.name)
        self._lives = 1
        self.unconfirmed: list[list[list[Any]]] = [[] for _ in range(self.traffic.partitions)]
        """By partition: acknowledgements that are not known to be durable yet."""
        self._directory = Directory(self.ports, self.traffic.controller)
        self._receiver_queue = self.rng.choice((1, 3, 10, 100))
        self.parts += [self._part(partition) for partition in range(self.traffic.partitions)]
        for partition in range(self.traffic.partitions):
            self.ports.spawn(self._open(partition), "open")
        self.ports.spawn(self._work(), "work")
        self.ports.spawn(self._confirm(), "confirm")

    def _part(self, partition: int) -> PartitionConsumer:
        """Make the consumer of a partition. Names repeat; only the incarnation tells consumers apart."""
        return PartitionConsumer(
            self.ports,
            self._directory,
            ConsumerConfig(
                topic=self.traffic.topic,
                partition=partition,
                subscription=self.traffic.subscription,
                name=self.called or f"worker-{self.number % 4}",
                incarnation=f"{self.name}-{self._lives}",
                settings=self.traffic.settings,
                queue_size=self._receiver_queue,
                ranges=self.ranges,
            ),
            ConsumerCallbacks(
                on_received=self.received,
                on_event=partial(self.told),
                taking_back=TakingBack(taken_back=partial(self.taken_back, partition)),
            ),
        )

    async def _open(self, partition: int) -> None:
        """Open a partition. A consumer that gives up tries again, with another incarnation."""
        while not self.gone:
            try:
                await self._patience.wait(until_open(self.parts[partition], self.ports), calm=self.calm)
                return
            except TimeoutError:
                self.parts[partition].begin_close()
                self._lives += 1
                self.parts[partition] = self._part(partition)

    def unanswered(self) -> bool:
        """Whether it waits for the confirmation of an acknowledgement."""
        return any(self.unconfirmed)

    def received(self, part: Received) -> None:
        """A part arrived."""
        consumer = self.parts[part.partition]
        assert consumer._queued <= consumer._queue_size, (
            f"S11: {consumer._queued} messages for {consumer._queue_size} permits"
        )
        if not self._notes_late:
            self._note(part)
        self.queue.append(part)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    @property
    def _notes_late(self) -> bool:
        """Whether a receipt is recorded only when it is seen: with this order a message may be taken back before."""
        return self.traffic.settings.nack_order == "key"

    def _note(self, part: Received) -> None:
        moment = self.past.stamp()
        keys = part.rows.column("key").to_pylist()
        numbers = [int(value) for value in part.rows.column("payload").to_pylist()]
        for row in range(len(part)):
            self.past.receives.append(
                [
                    self.name, part.session, part.partition, int(part.positions[row]), keys[row], numbers[row],
                    int(part.redeliveries[row]), part.epoch, int(part.dispatch[row]), moment,
                ]
            )  # fmt: skip

    def taken_back(self, partition: int, positions: Positions) -> None:
        """The dispatcher asked for these, and has them again."""
        moment = self.past.stamp()
        for position in positions.tolist():
            session = self.parts[partition].session
            self.past.acks.append([self.name, session, partition, position, moment, 0, True])

    def told(self, partition: int, event: Event) -> None:
        """The session has something to say."""
        if event.kind == "failed":
            raise AssertionError(f"L5: a consumer failed: {self.parts[partition].failed!r}")

    async def _work(self) -> None:
        while True:
            while not self.queue:
                self._wake = self.world.loop.create_future()
                await self._wake
            part = self.queue.popleft()
            consumer = self.parts[part.partition]
            consumer.taken(part)
            part.shown = len(part)
            if self._notes_late:
                if self.gone or not part.open.any():  # whoever has closed is shown nothing any more
                    continue
                self._note(part)
            thinking = 1 if self.calm else self.rng.randrange(self.traffic.think_ms)
            if not self.calm and self.rng.random() < 0.02:
                thinking = 5_000
            if thinking:
                await self.ports.clock.sleep(thinking)
            rows = self.rng.sample(range(len(part)), len(part)) if self.rng.random() < 0.3 else list(range(len(part)))
            cut = self.rng.randrange(len(rows) + 1) if not self.calm else len(rows)
            for piece in (rows[:cut], rows[cut:]):
                for rotten in self._sorted_out(part, np.array(piece, np.int64)):
                    await self._finish(consumer, part, *rotten)

    def _sorted_out(self, part: Received, rows: npt.NDArray[np.int64]) -> list[tuple[npt.NDArray[np.int64], bool]]:
        """The rows, and those that are poison apart."""
        if not self.traffic.poison or self.calm:
            return [(rows, False)]
        numbers = np.array([int(number) for number in part.rows.column("payload").to_pylist()])
        bad = numbers[rows] % self.traffic.poison == 0
        return [(rows[bad], True), (rows[~bad], False)]

    async def _finish(
        self, consumer: PartitionConsumer, part: Received, rows: npt.NDArray[np.int64], poison: bool
    ) -> None:
        rows = rows[part.open[rows]]
        if not len(rows):
            return
        keys = part.rows.column("key").to_pylist()
        numbers = part.rows.column("payload").to_pylist()
        negative = poison or (not self.calm and self.rng.random() < self.traffic.negative)
        moment = self.past.stamp()
        for position in part.positions[rows].tolist():
            ack = [self.name, part.session, part.partition, position, moment, 0, negative]
            self.past.acks.append(ack)
            if not negative:
                self.unconfirmed[part.partition].append(ack)
        if negative:
            await self._give_back(consumer, part, rows)
        else:
            self.past.finish([(keys[row], int(numbers[row])) for row in rows.tolist()])
            consumer.acknowledge(part, rows)
            self._acked.set()

    async def _give_back(self, consumer: PartitionConsumer, part: Received, rows: npt.NDArray[np.int64]) -> None:
        delay, life = self.rng.choice(self.traffic.negative_delays), consumer._generation
        moment = self.past.stamp()
        backs = [
            [part.partition, position, moment, delay, seen, -1]
            for position, seen in zip(part.positions[rows].tolist(), part.redeliveries[rows].tolist(), strict=True)
        ]
        self.past.hand_backs += backs
        try:
            confirmed = await self._patience.wait(consumer.negative_acknowledge(part, rows, delay), calm=self.calm)
        except TimeoutError:
            await self._until_said(consumer)
            return
        if (
            confirmed and consumer._generation == life
        ):  # else its session was lost, and the messages were others' already
            moment = self.past.stamp()
            for back in backs:
                back[-1] = moment

    async def _until_said(self, consumer: PartitionConsumer) -> None:
        """Wait, with `nack_order=key`, for confirmed hand-backs: only a consumer that waits is promised an order."""
        while self._notes_late and (consumer._hand_backs.lowest() is not None or consumer._revocations._awaited):
            await self.ports.clock.sleep(5)

    async def _confirm(self) -> None:
        """Now and then wait until all acknowledgements are durable, and write that down."""
        while True:
            await self._acked.wait(self.ports)
            self._acked.clear()
            await self.ports.clock.sleep(self.rng.choice((1, 5, 20, 300)))
            for part in self.parts:
                waiting = self.unconfirmed[part.partition]
                asked = len(waiting)
                try:
                    await self._patience.wait(part.wait_confirmed(), calm=self.calm)
                except (SluiceError, TimeoutError) as error:
                    self.ports.log("not confirmed", error=str(error))
                    if isinstance(error, Fenced):
                        waiting.clear()  # a session was lost: nobody promised anything about these
                    self._acked.set()
                    continue
                moment = self.past.stamp()
                for ack in waiting[:asked]:
                    ack[5] = moment
                del waiting[:asked]

    async def redeliver_all(self) -> None:
        """Give back everything that is not acknowledged, wherever it is."""
        for consumer in self.parts:
            moment = self.past.stamp()
            for part in list(consumer._holding._parts.values()):
                for position in part.positions[part.open].tolist():
                    self.past.acks.append([self.name, part.session, part.partition, position, moment, 0, True])
            with contextlib.suppress(TimeoutError):
                await self._patience.wait(consumer.redeliver_all(), calm=self.calm)

    def leave(self) -> None:
        """Close politely; what is held goes to the others."""
        if not self.gone:
            self.gone = True
            self.ports.spawn(self._close(), "close")

    async def _close(self) -> None:
        for part in self.parts:
            try:
                await self._patience.wait(part.close())
            except TimeoutError:
                await part.close()
            self.past.event(self.name, history.DETACH, partition=part.partition, ago=self.overdue(part.partition))
        self.world.stop(self.ports.me)

    def overdue(self, partition: int) -> int:
        """For how many milliseconds the lease has been over: what it held since then was not its own any more."""
        part = self.parts[partition]
        return part.lease.overdue()


def watch(world: World, past: History, topic: str, consumers: list[SimConsumer]) -> None:
    """Write down what the topic's dispatchers and the world know of consumers' ends."""

    def hear(process: Process, event: str, fields: dict[str, object]) -> None:
        if event == "ended" and process.name.startswith("consumer-"):
            past.event(process.name, history.DEATH)
        elif event == "session_ended":
            assert process.placed is not None
            place = process.placed[1]
            if place["topic"] == topic:
                session = int(str(fields["session"]))
                past.event(SOMEBODY, history.EXPIRED, session=session, partition=int(place["partition"]))
        elif event == "session_lost" and process.name.startswith("consumer-"):
            consumer = next(known for known in consumers if known.name == process.name)
            partition = int(str(fields["partition"]))
            past.event(process.name, history.EXPIRED, partition=partition, ago=consumer.overdue(partition))

    world.ears.append(hear)

"""Producers of the gateway's world, as Pulsar's clients behave, and the history that they write."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import deque
from dataclasses import dataclass
from typing import Any

from sluice.actors.pulsar.codec.protocol import ServerError
from sluice.loadgen.base import history
from sluice.storage.format.position import position
from tests.sim.pipes import Pipes
from tests.sim.world import World
from tests.sim.worlds.clients import KEYS, Traffic
from tests.sim.worlds.manner import Manner
from tests.sim.worlds.past import History
from tests.sim.worlds.patience import Patience
from tests.sim.worlds.wire import BACKOFF_MS, Gone, Refusal, Wire, batch_frame, chunk_frames, damaged, partition_name

UNTOLD = (1 << 64) - 1


@dataclass
class _Pending:
    """A SEND without receipt. rows: where its messages stand in the history."""

    sequence: int
    frame: bytes
    rows: list[int]


_LANE = 1_000
"""The distance between the producer ids of a client's lanes."""


class WireProducerModel:
    """Publishes numbered messages of its own keys over one connection, and sends again what has no receipt.

    It has a producer on each partition for each lane.
    """

    def __init__(
        self, world: World, pipes: Pipes, past: History, traffic: Traffic, number: int, manner: Manner
    ) -> None:
        self.name = f"producer-{number}"
        self.done: asyncio.Future[None] = world.loop.create_future()
        self.ports = world.client(self.name)
        self.reconnected = self.refused = 0
        self._past, self._traffic, self._manner, self._world = past, traffic, manner, world
        self._rng = random.Random(f"{self.name}/{world.seed}")
        self._chance = random.Random(f"chunks/{self.name}/{world.seed}")
        self._patience = Patience(world, self.name)
        self._partitions = 0
        self._pending: dict[int, deque[_Pending]] = {}
        self._sequences: dict[int, int] = {}
        """Both by producer id."""
        self._unwritten: list[bytes] | None = None
        """Frames that go out together."""
        self._homes: dict[bytes, int] = {}
        """Where the messages of a key go: an order of theirs is one on a partition."""
        self._learn(traffic.partitions)
        self._numbers = [0] * KEYS
        self._open: set[int] = set()
        self._closed: set[int] = set()
        """What the gateway closed since it was asked for last."""
        self._ended: set[int] = set()
        """Producers whose partitions take no more messages."""
        self._left = traffic.sends
        self._wire = Wire(
            pipes, world.process(self.name), manner.gateways, self._rng, heard=self._heard, lost=self._open.clear
        )
        self.ports.spawn(self._live(), "live")
        self.ports.spawn(self._produce(), "produce")

    def _learn(self, partitions: int) -> None:
        """The topic has so many."""
        for partition in range(self._partitions, partitions):
            for lane in range(self._manner.lanes):
                self._pending[lane * _LANE + partition] = deque()
                self._sequences[lane * _LANE + partition] = 0
        self._partitions = max(self._partitions, partitions)

    async def _live(self) -> None:
        while not self.done.done():
            try:
                if not self._wire.up:
                    self.reconnected += 1
                    self._learn(await self._wire.connect(self._traffic.topic, self._partitions))
                elif self._manner.watchful:
                    self._learn(await self._wire.partitions(self._traffic.topic))
                for producer in list(self._pending):
                    if producer not in self._open | self._ended:
                        await self._begin(producer)
            except (Gone, Refusal) as error:
                self.ports.log("no producer", error=repr(error))
            await self.ports.clock.sleep(self._rng.choice(BACKOFF_MS))

    def _named(self, producer: int) -> str:
        return f"{self.name}.{producer // _LANE}" if producer >= _LANE else self.name

    async def _begin(self, producer: int) -> None:
        topic = partition_name(self._traffic.topic, producer % _LANE, self._partitions)
        epoch = {"epoch": self.reconnected} if self.reconnected > 1 else {}
        asked = {
            "topic": topic,
            "producer_id": producer,
            "producer_name": self._named(producer),
            "user_provided_name": False,
        }
        self._closed.discard(producer)
        try:
            await self._patience.wait(self._wire.ask("producer", **asked, **epoch))
        except TimeoutError:
            self._wire.forget("close_producer", producer_id=producer)
            return
        except Refusal as error:
            if error.code != ServerError.TOPIC_TERMINATED:
                raise
            self._ended.add(producer)
            self._pending[producer].clear()  # what became of it nobody is told
            return
        if not self._wire.up:
            raise Gone  # the connection ended behind the answer
        if producer in self._closed:
            return  # CLOSE_PRODUCER came right behind the answer
        self._open.add(producer)
        self._wire.write(b"".join(pending.frame for pending in self._pending[producer]))

    async def _produce(self) -> None:
        if self._manner.lanes > 1:
            await self._wait_for_open()
        while self._left:
            self._left -= 1
            self._send()
            await self.ports.clock.sleep(self._rng.choice(self._traffic.pauses_ms))
        while any(self._pending.values()):
            await self.ports.clock.sleep(20)
        self.done.set_result(None)

    async def _wait_for_open(self) -> None:
        """Wait a while for all producers, so that what they send is sent together."""
        for _ in range(300):
            if self._pending and len(self._open) == len(self._pending):
                break
            await self.ports.clock.sleep(10)

    def _send(self) -> None:
        rng, traffic = self._rng, self._traffic
        due = 0
        if rng.random() < traffic.delayed:
            due = self.ports.clock.now() + rng.randrange(1, traffic.delay_ms)
        count = 1 if due else rng.choice((1, 2, 8, 30) if self._manner.lanes == 1 else (1, 2, 4, 8))
        batches: dict[tuple[int, int], list[tuple[bytes, int]]] = {}
        for _ in range(count):
            key = rng.randrange(KEYS)
            name = f"{self.name}/{key}".encode()
            partition = self._homes.setdefault(name, zlib.crc32(name) % self._partitions)
            producer = key % self._manner.lanes * _LANE + partition
            batch = batches.setdefault((producer, key if self._manner.by_key else -1), [])
            batch.append((name, self._numbers[key]))
            self._numbers[key] += 1
        self._unwritten = None if self._manner.lanes == 1 else []
        for (producer, _), rows in batches.items():
            if producer not in self._ended:
                self._send_batch(producer, rows, due)
        if self._unwritten is not None:
            self._wire.write(b"".join(self._unwritten))

    def _send_batch(self, producer: int, rows: list[tuple[bytes, int]], due: int) -> None:
        first, now, chance = self._sequences[producer], self.ports.clock.now(), self._chance.random()
        if self._manner.deduplicated and not due and chance < 0.2:
            self._sequences[producer] += 1
            for frame, row in zip(chunk_frames(producer, first, rows, now=now), rows, strict=True):
                self._send_frame(producer, first, frame, [row], due)
            return
        if self._manner.lanes > 1:
            for number, row in enumerate(rows, first):
                frame = batch_frame(producer, number, [row], now=now, due=due, by_key=False)
                self._send_frame(producer, number, frame, [row], due)
            self._sequences[producer] += len(rows)
            return
        self._sequences[producer] += len(rows)
        frame = batch_frame(producer, first, rows, now=now, due=due, by_key=self._rng.random() < 0.5)
        self._send_frame(producer, first, frame, rows, due)

    def _send_frame(self, producer: int, first: int, frame: bytes, rows: list[tuple[bytes, int]], due: int) -> None:
        places, name, partition = [], self._named(producer), producer % _LANE
        for offset, (key, number) in enumerate(rows):
            places.append(len(self._past.sends))
            self._past.batches[key, number] = places[0]
            self._past.sends.append(
                [name, partition, key, number, first + offset, -1, history.INFO, self._past.stamp(), 0, due]
            )
        self._pending[producer].append(_Pending(first, frame, places))
        if producer in self._open:
            suffers = self._manner.deduplicated and self._chance.random() < 0.15
            sent = damaged(frame) if suffers else frame
            if self._unwritten is None:
                self._wire.write(sent)
            else:
                self._unwritten.append(sent)

    def _heard(self, name: str, body: Any, _: Any) -> None:
        if name == "send_receipt":
            self._receipt(body)
        elif name == "send_error" and self._manner.deduplicated and body.error == ServerError.CHECKSUM:
            self.refused += 1
            if self._manner.at_once:  # as the client in Java does
                self._wire.write(b"".join(pending.frame for pending in self._pending[body.producer_id]))
        elif name == "send_error":
            self._wire.hang_up()  # as the client in C++ does, at every error but that of a checksum
        elif name == "close_producer":
            self._open.discard(body.producer_id)
            self._closed.add(body.producer_id)

    def _receipt(self, body: Any) -> None:
        waiting = self._pending[body.producer_id]
        if not waiting or body.sequence_id < waiting[0].sequence:
            return  # of what was sent twice
        expected = waiting[0].sequence
        assert body.sequence_id == expected, f"S: the receipt of {body.sequence_id} came before that of {expected}"
        pending, moment = waiting.popleft(), self._past.stamp()
        at = body.message_id
        told = at.ledger != UNTOLD
        for offset, row in enumerate(pending.rows):
            send = self._past.sends[row]
            send[5:7] = [position(at.ledger, at.entry) + offset if told else 0, history.OK]
            send[8] = moment
            self._past.confirmed(send[2], send[3])

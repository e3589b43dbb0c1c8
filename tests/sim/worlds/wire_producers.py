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


class WireProducerModel:
    """Publishes numbered messages of its own keys over one connection, and sends again what has no receipt."""

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
        self._pending: list[deque[_Pending]] = []
        self._sequences: list[int] = []
        self._homes: dict[bytes, int] = {}
        """Where the messages of a key go: an order of theirs is one on a partition."""
        self._learn(traffic.partitions)
        self._numbers = [0] * KEYS
        self._open: set[int] = set()
        self._closed: set[int] = set()
        """What the gateway closed since it was asked for last."""
        self._ended: set[int] = set()
        """Partitions that take no more messages."""
        self._left = traffic.sends
        self._wire = Wire(
            pipes, world.process(self.name), manner.gateways, self._rng, heard=self._heard, lost=self._open.clear
        )
        self.ports.spawn(self._live(), "live")
        self.ports.spawn(self._produce(), "produce")

    def _learn(self, partitions: int) -> None:
        """The topic has so many."""
        for _ in range(self._partitions, partitions):
            self._pending.append(deque())
            self._sequences.append(0)
        self._partitions = max(self._partitions, partitions)

    async def _live(self) -> None:
        while not self.done.done():
            try:
                if not self._wire.up:
                    self.reconnected += 1
                    self._learn(await self._wire.connect(self._traffic.topic, self._partitions))
                elif self._manner.watchful:
                    self._learn(await self._wire.partitions(self._traffic.topic))
                for partition in range(self._partitions):
                    if partition not in self._open | self._ended:
                        await self._begin(partition)
            except (Gone, Refusal) as error:
                self.ports.log("no producer", error=repr(error))
            await self.ports.clock.sleep(self._rng.choice(BACKOFF_MS))

    async def _begin(self, partition: int) -> None:
        topic = partition_name(self._traffic.topic, partition, self._partitions)
        epoch = {"epoch": self.reconnected} if self.reconnected > 1 else {}
        asked = {"topic": topic, "producer_id": partition, "producer_name": self.name, "user_provided_name": False}
        self._closed.discard(partition)
        try:
            await self._patience.wait(self._wire.ask("producer", **asked, **epoch))
        except TimeoutError:
            self._wire.forget("close_producer", producer_id=partition)
            return
        except Refusal as error:
            if error.code != ServerError.TOPIC_TERMINATED:
                raise
            self._ended.add(partition)
            self._pending[partition].clear()  # what became of it nobody is told
            return
        if not self._wire.up:
            raise Gone  # the connection ended behind the answer
        if partition in self._closed:
            return  # CLOSE_PRODUCER came right behind the answer
        self._open.add(partition)
        self._wire.write(b"".join(pending.frame for pending in self._pending[partition]))

    async def _produce(self) -> None:
        while self._left:
            self._left -= 1
            self._send()
            await self.ports.clock.sleep(self._rng.choice(self._traffic.pauses_ms))
        while any(self._pending):
            await self.ports.clock.sleep(20)
        self.done.set_result(None)

    def _send(self) -> None:
        rng, traffic = self._rng, self._traffic
        due = 0
        if rng.random() < traffic.delayed:
            due = self.ports.clock.now() + rng.randrange(1, traffic.delay_ms)
        count = 1 if due else rng.choice((1, 2, 8, 30))
        batches: dict[tuple[int, int], list[tuple[bytes, int]]] = {}
        for _ in range(count):
            key = rng.randrange(KEYS)
            name = f"{self.name}/{key}".encode()
            partition = self._homes.setdefault(name, zlib.crc32(name) % self._partitions)
            batch = batches.setdefault((partition, key if self._manner.by_key else -1), [])
            batch.append((name, self._numbers[key]))
            self._numbers[key] += 1
        for (partition, _), rows in batches.items():
            if partition not in self._ended:
                self._send_batch(partition, rows, due)

    def _send_batch(self, partition: int, rows: list[tuple[bytes, int]], due: int) -> None:
        first, now, chance = self._sequences[partition], self.ports.clock.now(), self._chance.random()
        if self._manner.deduplicated and not due and chance < 0.2:
            self._sequences[partition] += 1
            for frame, row in zip(chunk_frames(partition, first, rows, now=now), rows, strict=True):
                self._send_frame(partition, first, frame, [row], due)
            return
        self._sequences[partition] += len(rows)
        frame = batch_frame(partition, first, rows, now=now, due=due, by_key=self._rng.random() < 0.5)
        self._send_frame(partition, first, frame, rows, due)

    def _send_frame(self, partition: int, first: int, frame: bytes, rows: list[tuple[bytes, int]], due: int) -> None:
        places = []
        for offset, (key, number) in enumerate(rows):
            places.append(len(self._past.sends))
            self._past.batches[key, number] = places[0]
            self._past.sends.append(
                [self.name, partition, key, number, first + offset, -1, history.INFO, self._past.stamp(), 0, due]
            )
        self._pending[partition].append(_Pending(first, frame, places))
        if partition in self._open:
            suffers = self._manner.deduplicated and self._chance.random() < 0.15
            self._wire.write(damaged(frame) if suffers else frame)

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

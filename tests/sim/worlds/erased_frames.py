"""Clients of a gateway in the world `erasing`: a producer whose frames the gateway keeps, and readers that come late.

Frames that a gateway reads together are those that it keeps, so the producer writes several at once.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pyarrow as pa

from sluice.actors.ports import Ports
from sluice.actors.pulsar.codec.frames import U32, encode_message
from sluice.actors.pulsar.codec.protocol import Metadata, Single, command, parse
from sluice.actors.pulsar.conversation.client_connection import ClientConnection
from sluice.storage.format.position import position
from tests.sim.pipes import End, Pipes
from tests.sim.worlds.gateway import SimGateway
from tests.sim.worlds.ledger import TOPIC, Told
from tests.sim.worlds.wire import BACKOFF_MS, Gone, Refusal, Stamp, Wire
from tests.sim.worlds.wire_producers import UNTOLD

GATEWAY = "gateway"
PERMITS = 1_000
EARLIEST, EXCLUSIVE = 1, 0


class PlainGateway(SimGateway):
    """A gateway that tells nothing but the wire."""

    async def accept(self, end: End, stamps: list[Stamp]) -> None:
        conversation = ClientConnection(self.gateway, end)
        end.choke = conversation.choke
        await end.attach(conversation)


class RowsWire(Wire):
    """A connection whose messages are rows: event_time, key (None without one) and payload."""

    def messages(self, told: Any, body: Any) -> pa.Table:
        metadata = parse(Metadata, body.metadata)
        found: list[tuple[Any, bytes]] = []
        payload, place = bytes(body.payload), 0
        if not metadata.HasField("num_messages"):
            found.append((metadata, payload))
        for _ in range(metadata.num_messages if not found else 0):
            size = U32.unpack_from(payload, place)[0]
            one = parse(Single, payload[place + 4 : place + 4 + size])
            place += 4 + size
            found.append((one, payload[place : place + one.payload_size]))
            place += one.payload_size
        return pa.table(
            {
                "event_time": [one.event_time for one, _ in found],
                "key": [one.partition_key if one.HasField("partition_key") else None for one, _ in found],
                "payload": [value for _, value in found],
            }
        )


class FrameProducer:
    """A producer that sends again what has no receipt, until it has one. name: that of its process as well."""

    def __init__(self, ports: Ports, pipes: Pipes, name: str, rng: random.Random) -> None:
        self._ports, self._name, self._rng, self._pipes = ports, name, rng, pipes
        self._open = False
        self._lives = 0
        self._waiting: dict[int, asyncio.Future[int]] = {}
        """The position that each sequence without receipt gets; -1 where the gateway does not know it."""
        process = pipes.world.process(name)
        self._wire = Wire(pipes, process, [GATEWAY], rng, heard=self._heard, lost=self._lost)

    async def send(self, number: int, tables: list[pa.Table], first: int) -> list[Told]:
        """Send each table as one frame, all of them at once, and wait for their receipts."""
        frames, told = [], []
        for rows in tables:
            frames.append((first, len(rows), _frame(first, rows, self._name, self._ports.clock.now())))
            first += len(rows)
        while frames:
            try:
                if not self._open:
                    await self._begin()
                self._waiting = {sequence: self._pipes.world.loop.create_future() for sequence, _, _ in frames}
                self._wire.write(b"".join(frame for _, _, frame in frames))
                while frames:
                    sequence, count, _ = frames[0]
                    told.append(Told(number, sequence, count, await self._waiting[sequence]))
                    frames.pop(0)
            except (Gone, Refusal) as error:
                self._ports.log("no receipt", error=repr(error))
                await self._ports.clock.sleep(self._rng.choice(BACKOFF_MS))
        return told

    async def _begin(self) -> None:
        """Connect and ask for a producer. Raises Gone, Refusal."""
        if not self._wire.up:
            await self._wire.connect(TOPIC, 1)
        self._lives += 1
        more = {"epoch": self._lives} if self._lives > 1 else {}
        self._open = True
        try:
            await self._wire.ask(
                "producer", topic=TOPIC, producer_id=0, producer_name=self._name, user_provided_name=True, **more
            )
        except BaseException:
            self._open = False
            raise
        if not self._open:
            raise Gone

    def _heard(self, name: str, body: Any, _: Any) -> None:
        if name == "send_receipt":
            waiting, at = self._waiting.get(body.sequence_id), body.message_id
            if waiting is not None and not waiting.done():
                waiting.set_result(-1 if at.ledger == UNTOLD else position(at.ledger, at.entry))
        elif name == "send_error":
            self._wire.hang_up()
        elif name == "close_producer":
            self._lost()

    def _lost(self) -> None:
        self._open = False
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Gone())
                waiting.exception()


class FrameReader:
    """A reader that begins at the topic's earliest message, once. rows: the tables that came."""

    def __init__(self, pipes: Pipes, name: str, rng: random.Random) -> None:
        self.rows: list[pa.Table] = []
        self._name = name
        self._wire = RowsWire(pipes, pipes.world.process(name), [GATEWAY], rng, heard=self._heard, lost=lambda: None)

    @property
    def up(self) -> bool:
        """Whether it is connected."""
        return self._wire.up

    async def open(self) -> None:
        """Raises Gone, Refusal."""
        await self._wire.connect(TOPIC, 1)
        await self._wire.ask(
            "subscribe",
            topic=TOPIC,
            subscription=f"reader-{self._name}",
            type=EXCLUSIVE,
            consumer_id=0,
            durable=False,
            initial_position=EARLIEST,
        )
        self._wire.say("flow", consumer_id=0, permits=PERMITS)

    def close(self) -> None:
        self._wire.hang_up()

    def _heard(self, name: str, _: Any, rows: Any) -> None:
        if name == "message":
            self.rows.append(rows)
            self._wire.say("flow", consumer_id=0, permits=len(rows))
        elif name == "close_consumer":
            self._wire.hang_up()


def _frame(first: int, rows: pa.Table, producer: str, now: int) -> bytes:
    """A SEND of a batch. first: the sequence of its first message."""
    last = first + len(rows) - 1
    metadata = Metadata(producer_name=producer.encode(), sequence_id=first, publish_time=now, num_messages=len(rows))
    told = command("send", producer_id=0, sequence_id=first, num_messages=len(rows))
    told.send.highest_sequence_id = metadata.highest_sequence_id = last
    parts: list[bytes] = []
    for number, row in enumerate(rows.to_pylist()):
        one = Single(
            payload_size=len(row["payload"]),
            partition_key=row["key"],
            event_time=row["event_time"],
            sequence_id=first + number,
        ).SerializeToString()
        parts += [U32.pack(len(one)), one, row["payload"]]
    return encode_message(told.SerializeToString(), metadata.SerializeToString(), b"".join(parts))

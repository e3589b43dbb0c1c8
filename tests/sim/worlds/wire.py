"""A model of Pulsar's clients: one connection, its requests and answers, and what is built on it.

It speaks frames as the client in C++ does: CONNECT, PARTITIONED_METADATA, LOOKUP, then PRODUCER or SUBSCRIBE; it pings
and hangs up when nobody answers; after a lost connection it connects again, to any gateway.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sluice.actors.pulsar.codec.frames import U32, Cutter, body_of, encode, encode_message
from sluice.actors.pulsar.codec.protocol import FIELD_OF, Command, Metadata, Single, command, parse
from sluice.actors.pulsar.conversation.gateway.acked_batch_sizes import open_rows
from sluice.storage.format.position import entry_of, ledger_of, position
from tests.sim.pipes import End, Pipes
from tests.sim.world import Process

PING_MS, ANSWER_MS = 10_000, 30_000
ERASED = -1
"""The number of a message whose payload is gone."""
BACKOFF_MS = (5, 50, 400)
VERSION = "Pulsar-CPP-v4.2.0"
ROLE = "role"
"""The method by which a client of these tests says who it is."""


class Gone(Exception):
    """The connection is over."""


class Refusal(Exception):
    """The gateway said no, with a code of Pulsar's."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Stamp:
    """The facts of a frame that the wire lacks, for the judge: see actors.consumer.unacked_messages.Received."""

    session: int
    epoch: int
    dispatch: list[int]


@dataclass(frozen=True)
class Message:
    """One message of a MESSAGE frame."""

    key: bytes
    number: int
    position: int
    dispatch: int


class Wire:
    """The connection of one client process. heard: told each command that answers no request. lost: it is over."""

    def __init__(
        self,
        pipes: Pipes,
        process: Process,
        servers: list[str],
        rng: random.Random,
        *,
        heard: Callable[[str, Any, Any], None],
        lost: Callable[[], None],
    ) -> None:
        self._pipes, self._process, self._servers, self._rng = pipes, process, servers, rng
        self._heard, self._lost = heard, lost
        self._end: End | None = None
        self._cutter = Cutter()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._requests = 0
        self._last = 0
        self.role = pipes.role
        """What it presents to a gateway that wants to know who it is."""
        self.stamps: list[Stamp] = []
        """Of the MESSAGE frames on the way, in order."""

    @property
    def up(self) -> bool:
        """Whether it is connected, as far as it knows."""
        return self._end is not None

    async def connect(self, topic: str, known: int) -> int:
        """Connect to some gateway and ask where the topic is; returns how many partitions it has, no fewer than are
        known. Raises Gone, Refusal.
        """
        await self.greet()
        partitions = await self.partitions(topic)
        assert partitions >= known, f"{partitions} partitions instead of {known}"
        for partition in range(partitions):
            name = partition_name(topic, partition, partitions)
            assert (await self.ask("lookup", topic=name)).url, f"no place for {name}"
        return partitions

    async def greet(self) -> None:
        """Connect to some gateway. Raises Gone."""
        found = await self._pipes.connect(self._process, self._rng.choice(self._servers))
        if found is None:
            raise Gone
        end, gateway = found
        self._cutter, self.stamps = Cutter(), []
        self._end, end.reader = end, _Ear(self, end)
        end._process.ports.spawn(self._keep(end), "keep")
        end.other._process.task(gateway.accept(end.other, self.stamps), "accept")
        presented = {"auth_method_name": ROLE, "auth_data": self.role.encode()} if self.role else {}
        self.say("connect", client_version=VERSION, protocol_version=20, **presented)
        await self._until("connected")

    async def partitions(self, topic: str) -> int:
        """How many the topic has by now. Raises Gone, Refusal."""
        return max(int((await self.ask("partition_metadata", topic=topic)).partitions), 1)

    async def _until(self, name: str) -> None:
        future = self._asked[-1] = self._pipes.world.loop.create_future()
        await self._answer(-1, future)

    async def ask(self, name: str, **values: Any) -> Any:
        """A request's answer. Raises Gone, Refusal."""
        self._requests += 1
        number = self._requests
        future = self._asked[number] = self._pipes.world.loop.create_future()
        self.say(name, request_id=number, **values)
        return await self._answer(number, future)

    def number(self, told: Callable[[Any], None]) -> int:
        """A request number of its own; told is called with the answer, if there is one."""
        self._requests += 1
        future = self._asked[self._requests] = self._pipes.world.loop.create_future()
        future.add_done_callback(lambda done: None if done.exception() is not None else told(done.result()))
        return self._requests

    def forget(self, name: str, **values: Any) -> None:
        """Close what was asked for in vain, as clients do to be sure that nothing is left of it."""
        self.say(name, request_id=self.number(lambda _: None), **values)

    @property
    def waits(self) -> bool:
        """Whether a request has no answer yet."""
        return any(not future.done() for future in self._asked.values())

    async def _answer(self, number: int, future: asyncio.Future[Any]) -> Any:
        timer = self._pipes.world.loop.after(ANSWER_MS, self._expire, number)
        try:
            return await future
        finally:
            timer.cancel()
            self._asked.pop(number, None)

    def _expire(self, number: int) -> None:
        future = self._asked.pop(number, None)
        if future is not None and not future.done():
            future.set_exception(Gone())
            self.hang_up()

    def say(self, name: str, **values: Any) -> None:
        """Send a command."""
        self.write(encode(command(name, **values)))

    def write(self, data: bytes) -> None:
        """Send bytes; they are lost if the connection is over."""
        if self._end is not None:
            self._end.write(data)

    async def _keep(self, end: End) -> None:
        clock = self._process.ports.clock
        self._last = clock.monotonic()
        while self._end is end:
            await clock.sleep(PING_MS)
            if self._end is end:
                if clock.monotonic() - self._last > 3 * PING_MS:
                    self.hang_up()
                else:
                    self.say("ping")

    def hang_up(self) -> None:
        """End the connection from here."""
        end = self._end
        if end is not None:
            end.close()
            self.ended(end)

    def ended(self, end: End) -> None:
        """An end of mine is over."""
        if self._end is not end:
            return
        self._end = None
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_exception(Gone())
                future.exception()
        self._lost()

    def came(self, chunk: bytes) -> None:
        """Bytes of the gateway."""
        self._last = self._process.ports.clock.monotonic()
        for frame in self._cutter.feed(chunk):
            told = parse(Command, frame.command)
            name = FIELD_OF[told.type]
            body = getattr(told, name)
            if name == "ping":
                self.say("pong")
            elif name == "connected":
                _settle(self._asked.get(-1), body, None)
            elif name == "message":
                self._heard(name, body, self.messages(body, body_of(frame.rest)))
            elif "request_id" in body.DESCRIPTOR.fields_by_name and body.HasField("request_id"):
                self._answered(name, body)
            elif name != "pong":
                self._heard(name, body, None)

    def messages(self, told: Any, body: Any) -> Any:
        """Return what a MESSAGE brings."""
        return _messages(told, body, self.stamps)

    def _answered(self, name: str, body: Any) -> None:
        future = self._asked.get(body.request_id)
        failed = "error" in body.DESCRIPTOR.fields_by_name and body.HasField("error")
        error = Refusal(body.error, f"{name}: {body.error} {body.message}") if failed else None
        if name in ("close_consumer", "close_producer"):
            self._heard(name, body, None)
        else:
            _settle(future, body, error)


class _Ear:
    """Reads one end; bytes of an earlier connection are nobody's."""

    def __init__(self, wire: Wire, end: End) -> None:
        self._wire, self._end = wire, end

    def data(self, chunk: bytes) -> None:
        """See tests.sim.pipes.Reader."""
        if self._wire._end is self._end:
            self._wire.came(chunk)

    def over(self) -> None:
        """See tests.sim.pipes.Reader."""
        self._wire.ended(self._end)


def _settle(future: asyncio.Future[Any] | None, body: Any, error: Exception | None) -> None:
    if future is None or future.done():
        return
    if error is not None:
        future.set_exception(error)
        future.exception()
    else:
        future.set_result(body)


def partition_name(topic: str, partition: int, partitions: int) -> str:
    """The name of a partition, as clients say it."""
    return f"{topic}-partition-{partition}" if partitions > 1 else topic


def batch_frame(producer: int, first: int, rows: list[tuple[bytes, int]], *, now: int, due: int, by_key: bool) -> bytes:
    """A SEND. rows: key and number of each message, numbered from `first`; several, or one of by_key, are a batch."""
    last = first + len(rows) - 1
    metadata = Metadata(producer_name=b"model", sequence_id=first, publish_time=now)
    told = command("send", producer_id=producer, sequence_id=first, num_messages=len(rows))
    if due:
        metadata.deliver_at_time = due
    if len(rows) == 1 and (due or not by_key):
        metadata.partition_key = rows[0][0]
        payload = b"%d" % rows[0][1]
    else:
        told.send.highest_sequence_id = metadata.highest_sequence_id = last
        metadata.num_messages = len(rows)
        parts = []
        for number, (key, value) in enumerate(rows):
            text = b"%d" % value
            one = Single(payload_size=len(text), partition_key=key, sequence_id=first + number).SerializeToString()
            parts += [U32.pack(len(one)), one, text]
        payload = b"".join(parts)
    return encode_message(told.SerializeToString(), metadata.SerializeToString(), payload)


def chunk_frames(producer: int, sequence: int, rows: list[tuple[bytes, int]], *, now: int) -> list[bytes]:
    """SENDs of a message in chunks, which have one sequence id. rows: what a consumer sees of each, as in a batch."""
    frames = []
    for chunk, (key, value) in enumerate(rows):
        metadata = Metadata(producer_name=b"model", sequence_id=sequence, publish_time=now, partition_key=key)
        metadata.uuid, metadata.num_chunks, metadata.chunk_id = b"model-%d" % sequence, len(rows), chunk
        told = command("send", producer_id=producer, sequence_id=sequence, num_messages=1, is_chunk=True)
        frames.append(encode_message(told.SerializeToString(), metadata.SerializeToString(), b"%d" % value))
    return frames


def damaged(frame: bytes) -> bytes:
    """A SEND that suffered on the way: its checksum does not fit."""
    return frame[:-1] + bytes([frame[-1] ^ 1])


def _messages(told: Any, body: Any, stamps: list[Stamp]) -> tuple[list[Message], Stamp]:
    """Return the messages of a MESSAGE command, and its stamp."""
    assert not body.damaged, "a frame whose checksum does not fit"
    metadata, stamp = parse(Metadata, body.metadata), stamps.pop(0)
    at = position(told.message_id.ledger, told.message_id.entry)
    found: list[tuple[bytes, bytes]] = []
    if metadata.HasField("num_messages"):
        payload, place = bytes(body.payload), 0
        for _ in range(metadata.num_messages):
            size = U32.unpack_from(payload, place)[0]
            one = parse(Single, payload[place + 4 : place + 4 + size])
            place += 4 + size
            found.append((one.partition_key, payload[place : place + one.payload_size]))
            place += one.payload_size
        assert place == len(payload), "bytes behind the last message of a batch"
    else:
        found.append((metadata.partition_key, bytes(body.payload)))
    there = np.flatnonzero(open_rows(told.ack_set)).tolist() if told.ack_set else range(len(found))
    rows = list(stamp.dispatch) * (len(there) if metadata.encryption_keys else 1)  # of these all are one row
    assert len(there) == len(rows), f"{len(there)} messages in a frame of {len(rows)} rows"
    messages = [
        Message(found[index][0], int(found[index][1] or ERASED), at + index, dispatch)
        for index, dispatch in zip(there, rows, strict=True)
    ]
    return messages, stamp


def message_id(at: int, open_rows: list[int] | None = None) -> dict[str, Any]:
    """The id of a frame, with the bits of the messages that are not acknowledged if only some are."""
    told: dict[str, Any] = {"ledger": ledger_of(at), "entry": entry_of(at)}
    if open_rows:
        bits = np.zeros(64 * (max(open_rows) // 64 + 1), np.uint8)
        bits[open_rows] = 1
        told["ack_set"] = np.packbits(bits, bitorder="little").view("<i8").tolist()
    return told

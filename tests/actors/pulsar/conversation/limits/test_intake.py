"""A connection is read only while there is room for what comes of it, and what it asked ends with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from sluice.actors.pulsar.codec.frames import U32, Buffer, encode, encode_message
from sluice.actors.pulsar.codec.protocol import Metadata, Schema, command
from sluice.actors.pulsar.codec.send_decoder import Send
from sluice.actors.pulsar.codec.vectorized_decoder import Sends
from sluice.actors.pulsar.conversation import client_connection, client_session
from sluice.actors.pulsar.conversation.client_connection import (
    FRAME_MS,
    KEEP_ALIVE_MS,
    ClientConnection,
)
from sluice.actors.pulsar.conversation.gateway.gateway import Gateway
from sluice.actors.pulsar.conversation.limits import intake
from sluice.actors.pulsar.conversation.limits.intake import (
    MOST_AT_ONCE,
    MOST_REQUESTS,
    MOST_REST_OF_MANY_MS,
    RESTS,
    SPEAKS_MS,
    TURN,
    TURN_OF_MANY,
    VECTORIZED_TURN,
)
from sluice.actors.pulsar.conversation.producing.wire_producer import WireProducer
from sluice.actors.pulsar.topic_names import TopicPartition
from sluice.actors.runtime.waiting import Signal
from tests.actors.pulsar.test_keep_alive import HELLO, Wire
from tests.sim.world import World

PING = encode(command("ping"))
LEAST = 2_000


class Slow(Wire):
    """A client that takes what it is written only when it is told to. Of LEAST bytes the connection hears of that."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: ClientConnection | None = None
        self.paused = self.reads = False
        self.size = self.most = 0

    def write(self, *data: Buffer) -> None:
        """See Link."""
        super().write(*data)
        self.size += 0 if self.reads else sum(map(len, data))
        self.most = max(self.size, self.most)
        if self.size > LEAST and self.connection is not None and not self.connection.intake.choked:
            self.connection.choke(True)

    def stopped(self) -> bool:
        """Whether nothing is read from it."""
        return self.paused

    def take(self) -> None:
        """Read all of it."""
        self.size = 0
        assert self.connection is not None
        self.connection.choke(False)

    def unsent(self) -> int:
        """See Link."""
        return self.size

    def pause(self) -> None:
        """See Link."""
        self.paused = True

    def resume(self) -> None:
        """See Link."""
        self.paused = False


class Stub:
    """A question that waits until it is told to answer."""

    def __init__(self) -> None:
        self.asked = self.cancelled = self.now = self.most = 0
        self.go = Signal()

    async def wait(self, world: World) -> None:
        """Be asked."""
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        answered = False
        try:
            await self.go.wait(world.client("stub"))
            answered = True
        finally:
            self.now -= 1
            self.cancelled += not answered


def played(scenario: Callable[[World, ClientConnection, Slow], Awaitable[None]], *, greeted: bool = True) -> None:
    """With a connection to a gateway that asks nobody."""

    async def main(world: World) -> None:
        wire = Slow()
        wire.connection = ClientConnection(Gateway(world.client("gateway"), "controller"), wire)
        if greeted:
            wire.connection.data(HELLO)
            await passes(world, 5)
            assert wire.said() == ["connected"]
        await scenario(world, wire.connection, wire)

    World(0).play(main)


async def passes(world: World, milliseconds: int) -> None:
    """Time goes on."""
    await world.client("clock").clock.sleep(milliseconds)


def lookups(count: int) -> bytes:
    return b"".join(encode(command("get_schema", topic="t", request_id=number)) for number in range(count))


def ask_stub(connection: ClientConnection, world: World, data: bytes = b"x") -> Stub:
    """Questions for a schema wait for this."""
    stub = Stub()

    async def get(topic: str, version: bytes) -> tuple[Any, bytes]:
        await stub.wait(world)
        return Schema(name="s", data=data, type=1), b"\0" * 8

    connection.gateway.schemas.get = get  # type: ignore[method-assign]
    return stub


def test_client_that_does_not_read_is_not_read() -> None:
    """The answers that wait stay few, whatever was asked at once; when they were taken it goes on, and none is lost."""

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        connection.data(PING * 5_000)
        await passes(world, 1_000)
        assert wire.stopped()
        assert wire.most < 2 * LEAST
        pongs = 0
        while wire.stopped():
            wire.take()
            await passes(world, 100)
            pongs += wire.said().count("pong")
        assert pongs + wire.said().count("pong") == 5_000
        assert wire.most < 2 * LEAST

    played(scenario)


def send(number: int, producer: int = 1) -> bytes:
    """A SEND of one message."""
    metadata = Metadata(producer_name=b"p", sequence_id=number, publish_time=1)
    asked = command("send", producer_id=producer, sequence_id=number, num_messages=1)
    return encode_message(asked.SerializeToString(), metadata.SerializeToString(), b"x")


class Topic:
    """A producer that counts the SENDs that it is handed, and wants those that were decoded together or does not."""

    ready, closed, tp = True, False, TopicPartition("t", 0, -1)

    def __init__(self, takes: bool) -> None:
        self._takes = takes
        self.most = self.all = 0
        self.sizes: list[int] = []
        """Bytes of what it was handed one by one, as they are counted."""

    def takes(self, sends: Sends) -> bool:
        """See WireProducer."""
        return self._takes

    def may_join(self) -> bool:
        """See WireProducer."""
        return False

    def send_vectorized(self, sends: Sends) -> None:
        """See WireProducer."""
        self._count(len(sends))

    def send(self, sends: list[Send], size: int) -> None:
        """See WireProducer."""
        self.sizes.append(size)
        self._count(len(sends))

    def _count(self, sends: int) -> None:
        self.most = max(self.most, sends)
        self.all += sends


@pytest.mark.parametrize(("vectorized", "most"), [(True, VECTORIZED_TURN), (False, TURN)])
def test_publisher_takes_turns_while_others_speak(vectorized: bool, most: int) -> None:
    """Alone all that was read is taken up at once; beside another connection no more than a turn, and the rest soon."""
    sends = b"".join(map(send, range(2_000)))

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        topic = Topic(vectorized)
        connection.producers[1] = cast(WireProducer, topic)
        await passes(world, SPEAKS_MS)
        connection.data(sends)
        assert (topic.most, topic.all) == (2_000, 2_000)
        other = ClientConnection(connection.gateway, Slow())
        other.data(HELLO)
        await passes(world, 5)
        topic.most = topic.all = 0
        connection.data(sends)
        assert (topic.most, topic.all) == (most, most)
        await passes(world, SPEAKS_MS)
        assert topic.all == 2_000

    played(scenario)


@pytest.mark.parametrize(("vectorized", "most"), [(True, TURN_OF_MANY), (False, TURN)])
@pytest.mark.parametrize("late", [0, 200])
def test_sends_of_many_producers_are_taken_up_in_turns(
    vectorized: bool, most: int, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where nobody else speaks, and the later the loop is, the longer each turn is waited for."""
    count = 10 * TURN_OF_MANY
    monkeypatch.setattr(client_connection, "MANY_PRODUCERS", count)

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        topic, clock = Topic(vectorized), connection.gateway.ports.clock
        connection.gateway.vectorized_from = 2 if vectorized else count + 1
        connection.producers = dict.fromkeys(range(count), cast(WireProducer, topic))
        await passes(world, SPEAKS_MS)
        sleep = clock.sleep
        monkeypatch.setattr(clock, "sleep", lambda ms: sleep(ms + late if ms == 1 else ms))
        began = world.loop.now
        connection.data(b"".join(send(1, producer) for producer in range(count)))
        assert topic.all == most
        while topic.all < count:
            before, at = topic.all, world.loop.now
            await passes(world, 1)
            while topic.all == before:
                await passes(world, 1)
            assert topic.all <= before + most
            assert world.loop.now - at >= min(RESTS * late, MOST_REST_OF_MANY_MS)
        assert world.loop.now > began

    played(scenario)


def test_client_waiting_for_its_turn_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway takes longer to serve what the client sent than a client may be silent, or a frame may take."""
    count = 200 * TURN_OF_MANY
    monkeypatch.setattr(client_connection, "MANY_PRODUCERS", count)

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        topic, clock = Topic(True), connection.gateway.ports.clock
        connection.producers = dict.fromkeys(range(count), cast(WireProducer, topic))
        sleep, began = clock.sleep, world.loop.now
        monkeypatch.setattr(clock, "sleep", lambda ms: sleep(1_000 if ms == 1 else ms))  # the loop is late
        last = send(2, 0)
        connection.data(b"".join(send(1, producer) for producer in range(count)) + last[:10])
        while topic.all < count:
            await passes(world, 1_000)
        assert world.loop.now - began > max(3 * KEEP_ALIVE_MS, 2 * FRAME_MS)
        assert not wire.closed
        connection.data(last[10:])
        assert topic.all == count + 1
        connection.producers = {}
        await passes(world, 4 * KEEP_ALIVE_MS)
        assert wire.closed, "who is silent afterwards has gone"

    played(scenario)


def test_requests_under_way_are_few() -> None:
    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        stub, wire.reads = ask_stub(connection, world), True
        connection.data(lookups(3 * MOST_REQUESTS))
        await passes(world, 1_000)
        assert wire.stopped()
        assert len(connection._asking) == MOST_REQUESTS
        stub.go.set()
        await passes(world, 5_000)
        assert not wire.stopped()
        assert stub.asked == 3 * MOST_REQUESTS
        assert stub.most == 1  # a schema may be large
        assert wire.said().count("get_schema_answer") == 3 * MOST_REQUESTS

    played(scenario)


def test_few_questions_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_session, "LARGE", frozenset())

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        stub = ask_stub(connection, world)
        connection.data(lookups(500))
        await passes(world, 100)
        assert stub.now == MOST_AT_ONCE

    played(scenario)


@pytest.mark.parametrize(
    ("large", "speak", "count", "least", "most"),
    [(False, True, MOST_REQUESTS, 1.25, 2), (True, True, MOST_REQUESTS, 3, 10), (False, False, TURN, 1, 1.1)],
    ids=["together", "one at a time", "alone"],
)
def test_busy_client_leaves_time_to_others(
    large: bool, speak: bool, count: int, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question keeps the event loop busy for a millisecond, and waits for one. least, most: ms for each in all."""
    monkeypatch.setattr(client_session, "LARGE", frozenset(("get_schema",)) if large else frozenset())

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        wire.reads, busy, other = True, 0, ClientConnection(connection.gateway, Slow())

        async def get(topic: str, version: bytes) -> tuple[Any, bytes]:
            nonlocal busy
            busy += 1
            world.loop.work(1)
            await passes(world, 1)
            return Schema(name="s", data=b"", type=1), b"\0" * 8

        connection.gateway.schemas.get = get  # type: ignore[method-assign]
        other.data(HELLO)
        await passes(world, 2 * SPEAKS_MS)
        began = world.loop.now
        connection.data(lookups(count))
        while busy < count:
            if speak:
                other.data(PING)
            await passes(world, 1)
        assert least <= (world.loop.now - began) / count < most

    played(scenario)


def test_handle_without_room_costs_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer or a consumer too many is refused before anybody is asked for its topic."""
    monkeypatch.setattr(client_session, "MOST_HANDLES", 0)

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        connection.data(encode(command("producer", topic="t", producer_id=1, request_id=1)))
        connection.data(encode(command("subscribe", topic="t", subscription="s", type=1, consumer_id=1, request_id=2)))
        await passes(world, 5)
        assert wire.said() == ["error", "error"]
        assert not len(connection.gateway.directory._known)

    played(scenario)


def test_requests_under_way_have_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "REQUEST_BYTES", 1_000)

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        ask_stub(connection, world)
        connection.data(lookups(500))
        await passes(world, 100)
        assert wire.stopped()
        assert 10 < len(connection._asking) < 200

    played(scenario)


def test_large_answers_wait_for_who_takes_them() -> None:
    """One is asked for at a time, and none while the earlier ones were not taken."""

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        stub = ask_stub(connection, world, b"x" * 10_000)
        stub.go.set()
        connection.data(lookups(50))
        await passes(world, 1_000)
        assert (stub.asked, stub.most) == (1, 1)
        wire.take()
        await passes(world, 1_000)
        assert (stub.asked, wire.paused) == (2, True)

    played(scenario)


def test_requests_end_with_the_connection() -> None:
    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        stub = ask_stub(connection, world)
        connection.data(lookups(3 * MOST_REQUESTS))
        await passes(world, 100)
        connection.over()
        await passes(world, 100)
        assert (stub.asked, stub.cancelled) == (1, 1)
        assert not connection._asking
        assert connection.gateway.held.total == 0
        assert not connection._read

    played(scenario)


def test_a_frame_that_does_not_end_ends_the_connection() -> None:
    """Although it grows, and though its client answers."""

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        wire.reads = True
        connection.data(U32.pack(1_000_000))
        for _ in range(FRAME_MS * 10 // KEEP_ALIVE_MS):
            await passes(world, KEEP_ALIVE_MS // 5)
            connection.data(b"x")
        assert wire.closed
        assert connection.gateway.held.total == 0

    played(scenario)


def test_all_connections_share_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that holds much is not read while all hold too much, and is read again when others have gone."""
    monkeypatch.setattr(intake, "BUFFER_BYTES", 1_000_000)
    monkeypatch.setattr(intake, "OWN_BYTES", 10_000)

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        other = Slow()
        second = ClientConnection(connection.gateway, other)
        second.data(HELLO)
        await passes(world, 10)
        connection.data(U32.pack(2_000_000) + b"x" * 900_000)
        assert not wire.stopped()
        second.data(U32.pack(2_000_000) + b"x" * 200_000)
        assert (wire.paused, other.paused) == (False, True)
        connection.over()
        await passes(world, 10)
        assert not other.paused
        assert connection.gateway.held.total == 200_004

    played(scenario)


def test_client_that_takes_its_answers_lives() -> None:
    """The client is not read meanwhile; a client that takes nothing counts as gone."""

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        connection.data(PING * 5_000)
        for _ in range(6):
            wire.size += 100_000
            await passes(world, KEEP_ALIVE_MS // 2)
            wire.size -= 100_100
            await passes(world, KEEP_ALIVE_MS // 2)
        assert not wire.closed
        await passes(world, 4 * KEEP_ALIVE_MS)
        assert wire.closed

    played(scenario)

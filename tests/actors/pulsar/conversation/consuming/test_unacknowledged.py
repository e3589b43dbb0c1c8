"""Messages that a client does not acknowledge are known by their ids alone, and the number of ids has a limit.

What a reader reads again is in test_readers.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.pulsar.codec.frames import encode
from sluice.actors.pulsar.codec.protocol import command
from sluice.actors.pulsar.conversation.client_connection import ClientConnection
from sluice.actors.pulsar.conversation.consuming.unacked_frames import MESSAGE_BYTES, PIECE_BYTES, TABLE_BYTES
from sluice.actors.pulsar.conversation.limits import unacked_bytes
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.wire import Wire, batch_frame, message_id

EXCLUSIVE, MANY, FAILOVER, KEYED = range(4)
BATCHES, SIZE = 20, 10
COUNT = BATCHES * SIZE
EVERYTHING = [*range(COUNT)]
READER = {"durable": False, "subscription": "reader"}


def kept() -> int:
    """Bytes of rows in everything that consumers hold."""
    gc.collect()
    return sum(each.kept for each in gc.get_objects() if isinstance(each, Received))


async def sent(clients: Clients, *, size: int = SIZE) -> Wire:
    """A connection that has sent all messages, in batches."""
    wire = await clients.join("c0", GATEWAYS[0])
    await clients.producer(wire, "till", SHARED)
    for first in range(0, COUNT, size):
        await send(clients, wire, range(first, first + size))
    return wire


async def send(clients: Clients, wire: Wire, numbers: range) -> None:
    """Send these as one batch, and wait for its receipt."""
    before = len(clients.receipts)
    rows = [(b"k", number) for number in numbers]
    wire.write(batch_frame(0, numbers[0], rows, now=clients.broker.ports.clock.now(), due=0, by_key=True))
    await clients.broker.until(lambda: len(clients.receipts) > before)


async def come(clients: Clients, count: int) -> None:
    """Wait until `count` messages have come, and 100 ms of quiet."""
    await clients.broker.until(lambda: len(clients.numbers("c0")) >= count)
    await clients.broker.quiet(100)


def redeliver(wire: Wire) -> None:
    """Give everything back that is not acknowledged."""
    wire.write(encode(command("redeliver", consumer_id=0)))


@pytest.mark.parametrize("size", [1, SIZE])
@pytest.mark.parametrize(
    ("kind", "more"), [(EXCLUSIVE, {}), (MANY, {}), (FAILOVER, {}), (KEYED, {}), (EXCLUSIVE, READER)]
)
def test_rows_are_let_go_and_come_again(kind: int, more: dict[str, Any], size: int) -> None:
    async def scenario(clients: Clients) -> None:
        before = kept()
        wire = await sent(clients, size=size)
        await clients.consumer(wire, kind, "a", **more)
        await come(clients, COUNT)
        assert kept() <= before
        redeliver(wire)
        wire.say("flow", consumer_id=0, permits=COUNT)
        await come(clients, 2 * COUNT)
        assert clients.numbers("c0") == EVERYTHING * 2
        assert kept() <= before

    with_gateways(scenario)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_rows_of_batches_that_were_cut_are_let_go(kind: int) -> None:
    """There is room for three messages at a time, so batches come in parts that are joined."""

    async def scenario(clients: Clients) -> None:
        before = kept()
        wire = await sent(clients)
        asked = {"topic": "orders", "subscription": "pulsar", "type": kind, "consumer_id": 0, "consumer_name": "a"}
        await wire.ask("subscribe", **asked, initial_position=1)
        while len(clients.numbers("c0")) < COUNT:
            wire.say("flow", consumer_id=0, permits=3)
            await clients.broker.quiet(50)
        assert clients.numbers("c0") == EVERYTHING
        assert kept() <= before

    with_gateways(scenario)


def few(monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    """A gateway has memory for so many pieces, each a part of its own, and a connection for a fifth of them anyway."""
    each = TABLE_BYTES + PIECE_BYTES + MESSAGE_BYTES
    monkeypatch.setattr(unacked_bytes, "MOST_BYTES", pieces * each)
    monkeypatch.setattr(unacked_bytes, "OWN_BYTES", pieces * each // 5)
    monkeypatch.setattr(unacked_bytes, "STEP", each)


async def floods(clients: Clients, kind: int, *consumers: str) -> list[Wire]:
    """Consumers of a subscription each, which acknowledge nothing; then everything is sent, one by one."""
    wires = []
    for name in consumers:
        wires.append(await clients.join(name, GATEWAYS[0]))
        await clients.consumer(wires[-1], kind, name, subscription=name)
    writer = await clients.join("writer", GATEWAYS[0])
    await clients.producer(writer, "till", SHARED)
    for number in EVERYTHING:
        await send(clients, writer, range(number, number + 1))
    await clients.broker.quiet(1_000)
    return wires


async def acknowledged(clients: Clients, wire: Wire, name: str) -> None:
    """A client acknowledges what it has, and what comes then, until it has everything."""
    done = 0
    while len(set(clients.numbers(name))) < COUNT:
        await clients.broker.until(lambda done=done: len(clients.ids.get(name, [])) > done)  # type: ignore[misc]
        ids, done = clients.ids[name][done:], len(clients.ids[name])
        await wire.ask("ack", consumer_id=0, message_id=[message_id(at) for at in ids])


@pytest.mark.parametrize("kind", [EXCLUSIVE, MANY, FAILOVER, KEYED])
def test_client_that_never_acks_gets_half_others_go_on(monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    """The client gets more once it acknowledges."""
    few(monkeypatch, 60)

    async def scenario(clients: Clients) -> None:
        [wire] = await floods(clients, kind, "c0")
        before = clients.numbers("c0")
        assert 10 <= len(before) < 100
        other = await clients.join("c1", GATEWAYS[0])
        await clients.consumer(other, kind, "b", subscription="other")
        await acknowledged(clients, other, "c1")
        assert clients.numbers("c0") == before
        await acknowledged(clients, wire, "c0")
        assert sorted(clients.numbers("c0")) == EVERYTHING

    with_gateways(scenario)


def test_leaving_client_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch, 60)

    async def scenario(clients: Clients) -> None:
        first, second = await floods(clients, EXCLUSIVE, "c0", "c1")
        before = len(clients.numbers("c1"))
        stats = await second.ask("consumer_stats", consumer_id=0)
        assert (stats.blocked, stats.unacked) == (True, before)
        await first.ask("close_consumer", consumer_id=0)
        await clients.broker.until(lambda: len(clients.numbers("c1")) > before)

    with_gateways(scenario)


def test_a_reader_that_never_acknowledges_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway forgets what the reader was sent first."""
    few(monkeypatch, 20)

    async def scenario(clients: Clients) -> None:
        wire = await sent(clients, size=1)
        await clients.consumer(wire, EXCLUSIVE, "a", **READER)
        await come(clients, COUNT)
        assert clients.numbers("c0") == EVERYTHING

    with_gateways(scenario)


@pytest.mark.parametrize("more", [{}, READER], ids=["consumer", "reader"])
def test_nothing_passes_what_is_given_back(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Later messages may go out in the very turn in which the command is read."""
    read = ClientConnection._redeliver

    def and_go_on(self: ClientConnection, asked: Any) -> None:
        read(self, asked)
        self.consumers[0].choke(False)

    monkeypatch.setattr(ClientConnection, "_redeliver", and_go_on)

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "till", SHARED)
        await clients.consumer(wire, EXCLUSIVE, "a", **more)
        await send(clients, wire, range(3))
        await come(clients, 3)
        actor: Any = clients.broker.world.process(GATEWAYS[0]).actor
        ((consumer,),) = actor.gateway.consumers.values()
        consumer.choke(True)
        await send(clients, wire, range(3, 6))
        await clients.broker.quiet(500)
        assert clients.numbers("c0") == [0, 1, 2]
        redeliver(wire)
        await come(clients, 9)
        assert clients.numbers("c0") == [0, 1, 2, *range(6)]

    with_gateways(scenario)

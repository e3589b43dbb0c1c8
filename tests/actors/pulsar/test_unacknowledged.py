"""What a client has and does not acknowledge is known by its ids alone; what it gives back is read again."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from actors.consumer.held import Received
from actors.pulsar.codec.frames import encode
from actors.pulsar.codec.protocol import command
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
    """So many messages have come."""
    await clients.broker.until(lambda: len(clients.numbers("c0")) >= count)
    await clients.broker.quiet(100)


def redeliver(wire: Wire, *ids: Any) -> None:
    """Give these back; none: all that are not acknowledged."""
    wire.write(encode(command("redeliver", consumer_id=0, message_ids=[*ids])))


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


def test_a_reader_reads_again_what_is_not_acknowledged() -> None:
    async def scenario(clients: Clients) -> None:
        wire = await sent(clients, size=1)
        await clients.consumer(wire, EXCLUSIVE, "a", **READER)
        await come(clients, COUNT)
        ids = [message_id(each.position) for each in clients.came["c0"]]
        wire.say("ack", consumer_id=0, ack_type=0, message_id=ids[10:20])
        redeliver(wire, ids[30], ids[25], ids[15])
        await come(clients, COUNT + 2)
        assert clients.numbers("c0")[COUNT:] == [25, 30]
        redeliver(wire)
        await come(clients, COUNT + 2 + COUNT - 10)
        assert clients.numbers("c0")[COUNT + 2 :] == [*range(10), *range(20, COUNT)]

    with_gateways(scenario)

"""A batch that passes through unread is one row here, and many messages to its client."""

from __future__ import annotations

import pytest

from sluice.actors.pulsar.codec.frames import encode_message
from sluice.actors.pulsar.codec.protocol import Metadata, Single, command
from tests.actors.pulsar.made import U32
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.wire import Wire, message_id

EXCLUSIVE, MANY, FAILOVER, KEYED = range(4)
SIZE = 10
SEALED = b"\x0a\x01k\x12\x01v"
"""An encryption key, its name and its value: for the gateway what is in the payload is not to be read."""


async def send_unread(clients: Clients, wire: Wire, first: int) -> None:
    """Send SIZE messages as one such batch, and wait for its receipt."""
    before = len(clients.receipts)
    metadata = Metadata(producer_name=b"model", sequence_id=first, publish_time=clients.broker.ports.clock.now())
    metadata.num_messages = SIZE
    metadata.encryption_keys.append(SEALED)
    told = command("send", producer_id=0, sequence_id=first, num_messages=SIZE)
    parts = []
    for number in range(first, first + SIZE):
        text = b"%d" % number
        one = Single(payload_size=len(text), partition_key=b"k", sequence_id=number).SerializeToString()
        parts += [U32.pack(len(one)), one, text]
    wire.write(encode_message(told.SerializeToString(), metadata.SerializeToString(), b"".join(parts)))
    await clients.broker.until(lambda: len(clients.receipts) > before)


@pytest.mark.parametrize(
    ("kind", "cumulative"),
    [(EXCLUSIVE, False), (EXCLUSIVE, True), (MANY, False), (FAILOVER, False), (FAILOVER, True), (KEYED, False)],
)
def test_a_part_of_an_unread_batch_is_not_the_whole(kind: int, cumulative: bool) -> None:
    """The batch comes again as a whole, until all of it is done."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.consumer(wire, kind, "a")
        await clients.producer(wire, "till", SHARED)
        await send_unread(clients, wire, 0)
        await clients.broker.until(lambda: len(clients.numbers("c0")) == SIZE)
        at = clients.ids["c0"][0]
        left = [*range(4, SIZE)]
        await wire.ask("ack", consumer_id=0, message_id=[message_id(at, left)], ack_type=int(cumulative))
        wire.say("redeliver", consumer_id=0)
        wire.say("flow", consumer_id=0, permits=SIZE)
        await clients.broker.until(lambda: len(clients.numbers("c0")) == 2 * SIZE)
        await wire.ask("ack", consumer_id=0, message_id=[message_id(at)], ack_type=int(cumulative))
        wire.say("redeliver", consumer_id=0)
        await clients.broker.quiet(1_000)
        assert clients.numbers("c0") == [*range(SIZE)] * 2

    with_gateways(scenario)


def test_bits_of_an_unread_batch_are_no_other_messages() -> None:
    """A part of it is acknowledged at a gateway that has never sent it: what lies behind it is not meant."""

    async def scenario(clients: Clients) -> None:
        first = await clients.join("c0", GATEWAYS[0])
        await clients.consumer(first, MANY, "a")
        await clients.producer(first, "till", SHARED)
        await send_unread(clients, first, 0)
        for _ in range(SIZE):
            await clients.send(first, "c0")
        await clients.broker.until(lambda: len(clients.numbers("c0")) == 2 * SIZE)
        at = clients.ids["c0"][0]
        clients.broker.world.crash(GATEWAYS[0])
        again = await clients.join("c1", GATEWAYS[1])
        asked = {"topic": "orders", "subscription": "pulsar", "type": MANY, "consumer_id": 0, "consumer_name": "b"}
        await again.ask("subscribe", **asked)
        again.say("ack", consumer_id=0, message_id=[message_id(at, [0, SIZE - 1])])
        again.say("flow", consumer_id=0, permits=1_000)
        await clients.broker.until(lambda: len(clients.numbers("c1")) == 2 * SIZE, 60_000)

    with_gateways(scenario)


def test_messages_of_unread_batches_take_room_at_the_client() -> None:
    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        asked = {"topic": "orders", "subscription": "pulsar", "type": MANY, "consumer_id": 0, "consumer_name": "a"}
        await wire.ask("subscribe", **asked, initial_position=1)
        await clients.producer(wire, "till", SHARED)
        for number in range(20):
            await send_unread(clients, wire, number * SIZE)
        wanted = 0
        for _ in range(5):
            wire.say("flow", consumer_id=0, permits=2 * SIZE)
            wanted += 2 * SIZE
            await clients.broker.until(lambda: len(clients.numbers("c0")) >= wanted)  # noqa: B023
            await clients.broker.quiet(300)
            assert len(clients.numbers("c0")) <= wanted + 3 * SIZE, "what is fetched before the size is known"

    with_gateways(scenario)


def test_the_last_message_is_the_last_one_of_an_unread_batch() -> None:
    """By which readers know whether there are more."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.consumer(wire, EXCLUSIVE, "a")
        await clients.producer(wire, "till", SHARED)
        await send_unread(clients, wire, 0)
        await clients.broker.until(lambda: len(clients.numbers("c0")) == SIZE)
        last = (await wire.ask("get_last_id", consumer_id=0)).last
        assert message_id(clients.ids["c0"][0]) == {"ledger": last.ledger, "entry": last.entry}
        assert last.batch_index == SIZE - 1

    with_gateways(scenario)

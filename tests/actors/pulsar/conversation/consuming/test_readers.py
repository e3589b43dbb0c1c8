"""A reader, which holds nothing but ids of what its client has: what is wanted again is read again."""

from __future__ import annotations

import pytest

from sluice.actors.pulsar.conversation.consuming import wire_consumer
from sluice.actors.pulsar.conversation.gateway.gateway import FORGET_MS
from sluice.storage.errors import Unavailable
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.wire import Wire, message_id

EXCLUSIVE = 0
EACH = 2
"""Messages of a ledger."""


async def reading(clients: Clients, count: int) -> Wire:
    """A client that has read so many messages, each a frame of its own."""
    wire = await clients.join("c0", GATEWAYS[0])
    start = {"ledger": 0, "entry": 0}
    await clients.consumer(wire, EXCLUSIVE, "r", durable=False, subscription="r", start_message_id=start)
    await clients.producer(wire, "till", SHARED)
    for _ in range(count):
        await clients.send(wire, "c0")
    await clients.broker.until(lambda: clients.numbers("c0") == [*range(count)])
    return wire


def test_redelivery_comes_before_later_messages() -> None:
    async def scenario(clients: Clients) -> None:
        wire = await reading(clients, 7)
        done = [message_id(clients.ids["c0"][number]) for number in (1, 4)]
        await wire.ask("ack", consumer_id=0, message_id=done)
        wire.say("redeliver", consumer_id=0)
        await clients.send(wire, "c0")
        await clients.broker.until(lambda: len(clients.numbers("c0")) == 13)
        assert clients.numbers("c0")[7:] == [0, 2, 3, 5, 6, 7]
        assert clients.redeliveries["c0"] == [0] * 7 + [1] * 5 + [0]

    with_gateways(scenario, topic={"roll_entries": EACH})


def test_single_messages_come_again() -> None:
    """Acknowledged messages do not come again."""

    async def scenario(clients: Clients) -> None:
        wire = await reading(clients, 5)
        ids = [message_id(at) for at in clients.ids["c0"]]
        await wire.ask("ack", consumer_id=0, message_id=[ids[2]])
        for _ in range(2):
            wire.say("redeliver", consumer_id=0, message_ids=[ids[3], ids[2], ids[1]])
            many = len(clients.numbers("c0")) + 2
            await clients.broker.until(lambda many=many: len(clients.numbers("c0")) == many)  # type: ignore[misc]
        assert clients.numbers("c0")[5:] == [1, 3, 1, 3]
        assert clients.redeliveries["c0"][5:] == [1, 1, 2, 2]

    with_gateways(scenario, topic={"roll_entries": EACH})


def test_unsent_messages_are_redelivered_once() -> None:
    """The client has room for some of it alone."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "till", SHARED)
        for _ in range(6):
            await clients.send(wire, "c0")
        asked = {"topic": "orders", "subscription": "r", "type": EXCLUSIVE, "consumer_id": 0, "consumer_name": "r"}
        await wire.ask("subscribe", **asked, durable=False, start_message_id={"ledger": 0, "entry": 0})
        wire.say("flow", consumer_id=0, permits=3)
        await clients.broker.until(lambda: clients.numbers("c0") == [0, 1, 2])
        wire.say("redeliver", consumer_id=0)
        wire.say("flow", consumer_id=0, permits=1_000)
        await clients.broker.until(lambda: clients.numbers("c0")[-1:] == [5])
        assert clients.numbers("c0") == [0, 1, 2, *range(6)]

    with_gateways(scenario, topic={"roll_entries": EACH})


def test_messages_that_come_again_take_room_as_well() -> None:
    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "till", SHARED)
        asked = {"topic": "orders", "subscription": "r", "type": EXCLUSIVE, "consumer_id": 0, "consumer_name": "r"}
        await wire.ask("subscribe", **asked, durable=False, start_message_id={"ledger": 0, "entry": 0})
        wire.say("flow", consumer_id=0, permits=10)
        for _ in range(4):
            await clients.send(wire, "c0")
        await clients.broker.until(lambda: clients.numbers("c0") == [*range(4)])
        wire.say("redeliver", consumer_id=0)
        await clients.broker.until(lambda: len(clients.numbers("c0")) == 8)
        for _ in range(6):
            await clients.send(wire, "c0")
        await clients.broker.quiet(1_000)
        assert clients.numbers("c0")[8:] == [4, 5]
        wire.say("flow", consumer_id=0, permits=4)
        await clients.broker.until(lambda: clients.numbers("c0")[8:] == [*range(4, 10)])

    with_gateways(scenario)


@pytest.mark.parametrize("again", [False, True])
def test_a_reader_that_closed_asks_for_nothing(again: bool) -> None:
    """Not for what nobody can read just now either, however long that lasts."""

    async def scenario(clients: Clients) -> None:
        wire, network = await reading(clients, 3), clients.broker.world.network
        for _ in range(3):  # what it has read is forgotten
            await clients.broker.quiet(FORGET_MS)
        network.refusals["ReadPayload"] = (1.0, (Unavailable("not now"),))
        if again:
            wire.say("redeliver", consumer_id=0)
        else:
            await clients.consumer(wire, EXCLUSIVE, "late", consumer_id=1, durable=False, subscription="late")
            wire.say("flow", consumer_id=1, permits=10)
        await clients.broker.until(lambda: network.counters.get("refused ReadPayload", 0) > 2)
        for number in range(1 if again else 2):
            await wire.ask("close_consumer", consumer_id=number)
        await clients.broker.quiet(100)
        asked = network.counters["refused ReadPayload"]
        await clients.broker.quiet(20_000)
        assert network.counters["refused ReadPayload"] == asked
        network.refusals.clear()

    with_gateways(scenario)


def test_reader_that_never_acknowledges_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that the reader got long before count as done."""
    monkeypatch.setattr(wire_consumer, "MOST_UNACKNOWLEDGED", 4)

    async def scenario(clients: Clients) -> None:
        wire = await reading(clients, 9)
        wire.say("redeliver", consumer_id=0)
        await clients.send(wire, "c0")
        await clients.broker.until(lambda: clients.numbers("c0")[-1:] == [9])
        again = clients.numbers("c0")[9:-1]
        assert again == [*range(9)][-len(again) :]
        assert 2 <= len(again) <= 4

    with_gateways(scenario)

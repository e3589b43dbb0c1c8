"""A reader that sought a message goes on there when it comes back, whatever it says then."""

from __future__ import annotations

import pytest

from sluice.actors.pulsar.conversation.consuming.reader_seeks import MOST_SEEKS, Seeks
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.wire import Refusal, Wire, message_id

EXCLUSIVE = 0


async def _reader_at_its_end(clients: Clients, name: str) -> Wire:
    """Three messages, and a reader that has them."""
    wire = await clients.join("c0", GATEWAYS[0])
    await clients.consumer(wire, EXCLUSIVE, "r", durable=False, subscription=name)
    await clients.producer(wire, "till", SHARED)
    for _ in range(3):
        await clients.send(wire, "c0")
    await clients.broker.until(lambda: clients.numbers("c0") == [0, 1, 2])
    return wire


@pytest.mark.parametrize("name", ["reader", "der Leser/2"])
def test_goes_on_there(name: str) -> None:
    async def scenario(clients: Clients) -> None:
        wire = await _reader_at_its_end(clients, name)
        await wire.ask("seek", consumer_id=0, message_id=message_id(clients.came["c0"][1].position))
        await clients.consumer(wire, EXCLUSIVE, "r", durable=False, subscription=name)
        await clients.broker.until(lambda: len(clients.numbers("c0")) >= 5)
        assert clients.numbers("c0") == [0, 1, 2, 1, 2]

    with_gateways(scenario)


async def _begins_at_the_beginning(clients: Clients, name: str) -> None:
    """A later reader of that name gets every message, wherever an earlier one was moved to."""
    wire = await clients.join(name, GATEWAYS[0])
    await clients.consumer(wire, EXCLUSIVE, "r", durable=False, subscription="reader")
    await clients.broker.until(lambda: clients.numbers(name)[-1:] == [2])
    assert clients.numbers(name) == [0, 1, 2]


def test_a_reader_that_closes_leaves_no_seek() -> None:
    async def scenario(clients: Clients) -> None:
        wire = await _reader_at_its_end(clients, "reader")
        await wire.ask("seek", consumer_id=0, message_id=message_id(clients.came["c0"][2].position))
        await wire.ask("close_consumer", consumer_id=0)
        await clients.consumer(wire, EXCLUSIVE, "r", durable=False, subscription="reader")
        await clients.broker.until(lambda: len(clients.numbers("c0")) > 3 and clients.numbers("c0")[-1] == 2)
        assert clients.numbers("c0") == [0, 1, 2, 0, 1, 2]
        await wire.ask("close_consumer", consumer_id=0)
        await _begins_at_the_beginning(clients, "c1")

    with_gateways(scenario)


def test_a_connection_that_ends_leaves_no_seek() -> None:
    async def scenario(clients: Clients) -> None:
        wire = await _reader_at_its_end(clients, "reader")
        await wire.ask("seek", consumer_id=0, message_id=message_id(clients.came["c0"][2].position))
        wire.hang_up()
        await _begins_at_the_beginning(clients, "c1")

    with_gateways(scenario)


def test_another_reader_of_that_name_takes_no_seek() -> None:
    """The one that was moved is on its way back, and another one is there before it."""

    async def scenario(clients: Clients) -> None:
        wire = await _reader_at_its_end(clients, "reader")
        await wire.ask("seek", consumer_id=0, message_id=message_id(clients.came["c0"][2].position))
        await _begins_at_the_beginning(clients, "c1")

    with_gateways(scenario)


def test_seeks_are_kept_for_so_many_readers() -> None:
    """A client that seeks with ever new readers and brings none back: the earliest seeks are forgotten."""
    seeks, reader = Seeks(), ("orders", 0, "reader")
    for number in range(MOST_SEEKS + 5):
        seeks.remember(number, reader, 7)
    assert [seeks.start(number, reader) for number in (0, 4, 5, MOST_SEEKS + 4)] == [None, None, 7, 7]
    assert seeks.start(5, ("orders", 1, "reader")) is None
    seeks.arrived(5, 6)
    assert seeks.start(5, reader) == 7, "it was moved again meanwhile"
    seeks.arrived(5, 7)
    assert seeks.start(5, reader) is None


def test_a_subscription_that_fails_forgets_no_seek() -> None:
    async def scenario(clients: Clients) -> None:
        wire = await _reader_at_its_end(clients, "reader")
        await wire.ask("seek", consumer_id=0, message_id=message_id(clients.came["c0"][1].position))
        with pytest.raises(Refusal):
            await clients.consumer(wire, EXCLUSIVE, "r" * 1_000, durable=False, subscription="reader")
        await clients.consumer(wire, EXCLUSIVE, "r", durable=False, subscription="reader")
        await clients.broker.until(lambda: len(clients.numbers("c0")) >= 5)
        assert clients.numbers("c0") == [0, 1, 2, 1, 2]

    with_gateways(scenario)

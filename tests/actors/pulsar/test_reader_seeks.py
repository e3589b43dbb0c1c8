"""A reader that sought a message goes on there when it comes back, whatever it says then."""

from __future__ import annotations

import pytest

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

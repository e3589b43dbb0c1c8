"""Producers that are connected when their topic is terminated."""

from __future__ import annotations

import pytest

from sluice.actors.messages import Ends, Terminate
from sluice.actors.ports import Unknown
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.wire import Refusal


async def terminated(clients: Clients) -> Ends:
    """Terminate the topic; return its ends."""
    broker = clients.broker
    reply = await broker.ports.net.call(await broker.directory.topic("orders", 0), Terminate(), 10_000)
    assert not isinstance(reply, Unknown)
    return reply


def test_connected_producer_learns_of_the_end() -> None:
    async def scenario(clients: Clients) -> None:
        wires = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        for number, wire in enumerate(wires):
            await clients.producer(wire, f"p{number}", SHARED)
        await clients.send(wires[0], "c0")
        await terminated(clients)
        await clients.broker.until(lambda: sorted(clients.ended) == ["c0", "c1"])
        for number, wire in enumerate(wires):
            with pytest.raises(Refusal, match="takes no more messages"):
                await clients.producer(wire, f"p{number}", SHARED, epoch=1)

    with_gateways(scenario)

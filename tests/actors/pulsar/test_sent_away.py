"""Clients that are to come back with a consumer, while it is open and while it is being opened."""

from __future__ import annotations

import asyncio

import pytest

from actors.pulsar.clients import send_away
from actors.pulsar.fields import ServerError
from tests.actors.pulsar.two_gateways import GATEWAYS, Clients, with_gateways
from tests.sim.worlds.gateway import SimGateway
from tests.sim.worlds.wire import Refusal

MANY = 1


def unload(clients: Clients) -> None:
    actor = clients.broker.world.process(GATEWAYS[0]).actor
    assert isinstance(actor, SimGateway)
    send_away(actor.gateway, "orders", None)


def test_who_is_subscribed_is_told_to_come_back() -> None:
    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c", GATEWAYS[0])
        await clients.consumer(wire, MANY, "c")
        unload(clients)
        await clients.broker.until(lambda: clients.sent_away == ["c"])

    with_gateways(scenario)


def test_who_is_not_subscribed_yet_is_refused() -> None:
    """An answer that it is subscribed would be wrong, and nobody would ever serve it."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c", GATEWAYS[0])
        await clients.consumer(await clients.join("other", GATEWAYS[1]), MANY, "other")
        dispatchers = clients.broker.world.alive("dispatcher-")
        for name in dispatchers:
            clients.broker.world.pause(name)
        opening = asyncio.ensure_future(clients.consumer(wire, MANY, "c"))
        await clients.broker.quiet(100)
        unload(clients)
        for name in dispatchers:
            clients.broker.world.resume(name)
        with pytest.raises(Refusal) as refusal:
            await opening
        assert refusal.value.code == ServerError.SERVICE_NOT_READY
        assert clients.sent_away == []
        await clients.consumer(wire, MANY, "c", consumer_id=1)

    with_gateways(scenario)

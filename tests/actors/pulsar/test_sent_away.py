"""Clients that are to come back with a consumer, while it is open and while it is being opened."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from sluice.actors.pulsar.codec.protocol import ServerError
from sluice.actors.pulsar.conversation.client_session import ClientSession
from sluice.actors.pulsar.conversation.gateway.clients import send_away
from sluice.storage.errors import Corrupt, Invalid, SluiceError
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.gateway import SimGateway
from tests.sim.worlds.wire import Refusal

MANY = 1


def unload(clients: Clients) -> None:
    actor = clients.broker.world.process(GATEWAYS[0]).actor
    assert isinstance(actor, SimGateway)
    send_away(actor.gateway, "orders", None)


async def refused_meanwhile(clients: Clients, owners: str, opening: Coroutine[Any, Any, Any]) -> None:
    """Owners take their time to answer, and the topic is unloaded meanwhile."""
    frozen = clients.broker.world.alive(owners)
    for name in frozen:
        clients.broker.world.pause(name)
    answer = asyncio.ensure_future(opening)
    await clients.broker.quiet(100)
    unload(clients)
    for name in frozen:
        clients.broker.world.resume(name)
    with pytest.raises(Refusal) as refusal:
        await answer
    assert refusal.value.code == ServerError.SERVICE_NOT_READY


def test_subscribed_client_is_told_to_come_back() -> None:
    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c", GATEWAYS[0])
        await clients.consumer(wire, MANY, "c")
        unload(clients)
        await clients.broker.until(lambda: clients.sent_away == ["c"])

    with_gateways(scenario)


def test_client_not_subscribed_yet_is_refused() -> None:
    """An answer that it is subscribed would be wrong, and nobody would ever serve it."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c", GATEWAYS[0])
        await clients.consumer(await clients.join("other", GATEWAYS[1]), MANY, "other")
        await refused_meanwhile(clients, "dispatcher-", clients.consumer(wire, MANY, "c"))
        assert clients.sent_away == []
        await clients.consumer(wire, MANY, "c", consumer_id=1)

    with_gateways(scenario)


@pytest.mark.parametrize("reason", [Invalid("1 consumers are connected"), Corrupt("the record cannot be read")])
def test_failed_unsubscribe_tells_client_to_come_back(monkeypatch: pytest.MonkeyPatch, reason: SluiceError) -> None:
    """The consumer has left by then, and would wait for messages for ever. A client that is told before the refusal
    takes that for the end that it has asked for.
    """
    said: list[str] = []
    say = ClientSession.say

    def listen(session: ClientSession, name: str, **values: Any) -> None:
        said.append(name)
        say(session, name, **values)

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c", GATEWAYS[0])
        await clients.consumer(wire, MANY, "c")
        await clients.producer(wire, "p", SHARED)
        monkeypatch.setattr(ClientSession, "say", listen)
        clients.broker.world.network.refusals["RemoveSubscription"] = (1.0, (reason,))
        with pytest.raises(Refusal):
            await wire.ask("unsubscribe", consumer_id=0)
        clients.broker.world.network.refusals.clear()
        await clients.broker.until(lambda: clients.sent_away == ["c"])
        assert [name for name in said if name in ("error", "close_consumer")] == ["error", "close_consumer"]
        await clients.consumer(wire, MANY, "c")
        await clients.send(wire, "c")
        await clients.broker.until(lambda: clients.numbers("c") == [0])

    with_gateways(scenario)


def test_a_producer_is_told_when_it_is_there() -> None:
    async def scenario(clients: Clients) -> None:
        wire = await clients.join("p", GATEWAYS[0])
        await clients.producer(wire, "p", SHARED)
        unload(clients)
        await clients.broker.until(lambda: clients.ended == ["p"])
        await refused_meanwhile(clients, "topic-", clients.producer(wire, "p", SHARED))
        assert clients.ended == ["p"]
        await clients.producer(wire, "p", SHARED)
        await clients.send(wire, "p")

    with_gateways(scenario)

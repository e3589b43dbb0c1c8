"""Operators' decisions about parked keys hold in the order of their answers."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.actors.dispatcher import Dispatcher
from sluice.actors.lookup.topic_client import FOREVER_MS
from sluice.actors.messages import Ends, request_of
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import Unavailable
from tests.scenarios.key_shared.broker import Broker, Client, play

PARKS: dict[str, Any] = {"dead_letter_policy": "park", "nack_order": "key", "max_redeliver_count": 1}


async def failed(broker: Broker, client: Client) -> None:
    """Let the first message of a key fail for good, with a second one waiting behind it."""
    await broker.publish("k", "k")
    await broker.until(lambda: len(client.got) == 1)
    for _ in range(2):
        await client.nack(client.got[-1])
        client.parts[0].taken(client.got[-1].part)
        await broker.quiet(500)
    assert (await broker.stats())["parkedKeys"] == 1


def test_redriven_key_is_not_discarded() -> None:
    """The discard waited for the topic, its caller gave up, and then the key was redriven."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", queue=1, acking=False, taking=False)
        await failed(broker, client)
        actor = broker.world.process(broker.world.alive("dispatcher-")[0]).actor
        assert isinstance(actor, Dispatcher)
        log, begun, answered, refused = actor.parts.context.log, Signal(), Signal(), Signal()
        ends, address = actor.parts.context.log.ends, await broker.address()

        async def late(patience: int = FOREVER_MS, subscription: str = "") -> Ends:
            begun.set()
            await answered.wait(broker.ports)
            return await ends(patience, subscription)

        async def discard() -> None:
            with pytest.raises(Unavailable, match="decided about meanwhile"):
                await broker.ports.net.call(address, request_of("discard", {"key": "k"}), 60_000)
            refused.set()

        log.ends = late  # type: ignore[method-assign]
        broker.ports.spawn(discard(), "discard")
        await begun.wait(broker.ports)
        log.ends = ends  # type: ignore[method-assign]
        assert (await broker.admin("redrive", key="k"))["messages"] == 2
        answered.set()
        await refused.wait(broker.ports)
        assert (await broker.stats())["msgBacklog"] == 2
        client.taking = client.acking = True
        client.ack()
        client.parts[0].taken(client.got[-1].part)
        await broker.until(lambda: client.got[-1].number == 1)

    play(scenario, lease_ms=20_000, **PARKS)

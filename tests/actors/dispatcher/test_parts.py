"""The parts of a dispatcher that only sends messages and takes acknowledgements."""

from __future__ import annotations

from functools import cached_property

from sluice.actors.delayed.tracker import IndexOnDemand
from sluice.actors.dispatcher import Dispatcher
from sluice.actors.dispatcher.dispatcher import Components
from sluice.actors.messages import Stats, Text
from tests.scenarios.key_shared.broker import Broker, play

LATE = {name for name, kind in vars(Components).items() if isinstance(kind, cached_property)}


def parts_of(broker: Broker) -> Components:
    actor = broker.world.process(broker.world.alive("dispatcher-")[0]).actor
    assert isinstance(actor, Dispatcher)
    return actor.parts


def test_unneeded_parts_of_a_subscription_are_not_made() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1")
        await broker.publish("a", "b")
        await broker.until(lambda: len(client.got) == 2)
        await broker.quiet(10_000)
        parts = parts_of(broker)
        assert {"delayed", "dead_letters"} <= LATE
        assert LATE & vars(parts).keys() == set()
        tracker = parts.context.tracker
        assert isinstance(tracker._inner, IndexOnDemand)
        assert tracker._inner._index is None
        for _ in range(2):
            assert isinstance(await broker.ports.net.call(await broker.address(), Stats(), 1_000), Text)
        assert LATE & vars(parts).keys() == {"delayed"}
        assert tracker._inner._index is None

    play(scenario)

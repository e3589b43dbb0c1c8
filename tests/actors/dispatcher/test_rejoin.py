"""Consumers come back to a new owner, which needs the topic's answer first and knows of messages done meanwhile."""

from __future__ import annotations

import pytest

from sluice.actors.messages import Explain
from sluice.storage.errors import Conflict, Corrupt, Invalid, NotFound, Overloaded, SluiceError
from tests.actors.key_shared.driver import keys_by_owners
from tests.scenarios.key_shared.broker import Broker, Client, play

LEASE_MS = 6_000
"""Longer than a call that nobody answers."""
X = keys_by_owners(("c1",), ("c2",))["c1", "c2"][0]
"""A key that goes from c1 to c2 when c2 joins."""


async def new_owner(broker: Broker) -> None:
    """End the dispatcher's process; another one takes over."""
    broker.world.network.faults.gone_hint = 1.0
    broker.world.crash(next(name for name in broker.world.alive("dispatcher-")))
    await broker.stats()


async def holding(broker: Broker) -> tuple[Client, Client]:
    """Let c1 give back the first messages of a key and hold the last, while the key belongs to c2."""
    first = await broker.join("c1", acking=False)
    for _ in range(4):
        await broker.publish(X)
    await broker.until(lambda: len(first.got) == 4)
    second = await broker.join("c2", acking=False)
    await first.nack(*first.got[:3])
    return first, second


@pytest.mark.parametrize("refusal", [NotFound, Corrupt, Overloaded, Conflict, Invalid])
def test_refusal_by_the_topic_keeps_dispatch_closed(refusal: type[SluiceError]) -> None:
    """Only the topic's index, and no error of the topic, shows which keys returning consumers hold."""

    async def scenario(broker: Broker) -> None:
        first, second = await holding(broker)
        broker.world.network.refusals["ReadRowIndex"] = (1.0, (refusal("not now"),))
        await new_owner(broker)
        await broker.quiet(3 * LEASE_MS)
        assert broker.world.network.counters["refused ReadRowIndex"] > 3
        assert second.got == []
        assert "not now" in str(await broker.ask(Explain(key=X.encode())))
        broker.world.network.refusals.clear()
        await broker.quiet(3 * LEASE_MS)
        assert second.got == [], "c1 still holds a message of its key"
        first.ack()
        await broker.until(lambda: len(second.got) == 3)

    play(scenario, lease_ms=LEASE_MS, look_ahead_per_subscription=2)


@pytest.mark.parametrize("done_by", ["clear", "another"])
def test_done_message_does_not_return_with_its_holder(done_by: str) -> None:
    async def scenario(broker: Broker) -> None:
        first = await broker.join("c1", acking=False)
        await broker.publish("a", "b", "c")
        await broker.until(lambda: len(first.got) == 3)
        second = await broker.join("c2", acking=False)
        if done_by == "clear":
            await broker.admin("clear_backlog")
        else:
            second.parts[0].acknowledge(first.got[0].part)
            first.got[0].part.open[:] = True  # the holder was not asked
            await second.parts[0].wait_confirmed()
        await new_owner(broker)
        await broker.until(lambda: first.parts[0].epoch == second.parts[0].epoch == 2, 3 * LEASE_MS)
        await broker.quiet(500)
        assert (await broker.consumer_stats())["c1"]["unackedMessages"] == 3
        await first.close()
        await broker.quiet(2 * LEASE_MS)
        assert second.got == []
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario, lease_ms=LEASE_MS)

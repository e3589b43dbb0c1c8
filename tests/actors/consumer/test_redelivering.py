"""Everything is given back while a delivery is on its way: what has not arrived is void, and counts for nothing."""

from __future__ import annotations

from tests.actors.key_shared.driver import keys_by_owners
from tests.scenarios.key_shared.broker import Broker, play
from tests.sim.net import LinkFaults

X = keys_by_owners(("c1",), ("c2",))["c1", "c2"][0]
"""A key that goes from c1 to c2 when c2 joins."""


def test_message_on_its_way_does_not_join_its_new_holder() -> None:
    """The key has moved by then: a copy that still arrives would make two holders. Latency is all it takes."""

    async def scenario(broker: Broker) -> None:
        first = await broker.join("c1", acking=False)
        await broker.publish("other")
        await broker.until(lambda: len(first.got) == 1)
        broker.world.network.pairs["broker", "c1"] = LinkFaults(delay_ms=(400, 400))
        await broker.publish(X, X)
        await broker.quiet(20)
        assert len(first.got) == 1, "they are on their way"
        second = await broker.join("c2", acking=False)
        broker.world.background(first.redeliver_all(), "redeliver")
        await broker.until(lambda: second.came().count(X) == 2)
        await broker.quiet(2_000)
        assert X not in first.came()
        assert [message.again for message in second.got if message.key == X] == [0, 0]

    play(scenario)


def test_only_what_was_seen_counts_as_redelivered() -> None:
    async def scenario(broker: Broker) -> None:
        broker.world.network.faults.delay_ms = (40, 40)
        client = await broker.join("c1", acking=False)
        await broker.publish(X)
        for _ in range(3):
            await client.redeliver_all()
        await broker.until(lambda: len(client.got) == 1)
        assert client.got[0].again == 0, "nobody has seen it before"
        await client.redeliver_all()
        await broker.until(lambda: len(client.got) == 2)
        assert client.got[1].again == 1
        client.ack()
        await broker.quiet(500)
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario, max_redeliver_count=1)


def test_void_deliveries_cost_no_permits() -> None:
    async def scenario(broker: Broker) -> None:
        broker.world.network.faults.delay_ms = (20, 20)
        client = await broker.join("c1", queue=4, acking=False)
        for _ in range(5):
            await broker.publish("a", "b", "c", "d", "e", "f")
            await client.redeliver_all()
        await broker.quiet(500)
        client.acking = True
        client.ack()
        await broker.until(lambda: broker.seen() == 30)
        await broker.quiet(500)
        assert (await broker.stats())["msgBacklog"] == 0
        assert (await broker.consumer_stats())["c1"]["availablePermits"] == 4

    play(scenario)

"""Dead letters of messages that clients of Pulsar sent: they leave like all others, and are read by such clients."""

from __future__ import annotations

import pytest

from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients
from tests.scenarios.key_shared.broker import SUBSCRIPTION, TOPIC, Broker, play

ONE = 0


@pytest.mark.parametrize("batches", [[1, 1, 1], [3], [1, 2]])
def test_dead_letter_of_a_pulsar_client_leaves_alone(batches: list[int]) -> None:
    """Alone, whatever batch it came in; and its key goes on."""

    async def scenario(broker: Broker) -> None:
        clients = Clients(broker)
        await clients.open()
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "till", SHARED)
        consumer = await broker.join("c", acking=False)
        for count in batches:
            await clients.send_batch(wire, "c0", count)
        await broker.until(lambda: len(consumer.got) == 3)
        await consumer.nack(*consumer.got)
        await broker.until(lambda: len(consumer.got) == 6)
        await consumer.nack(*consumer.got[3:])
        reader = await clients.join("c1", GATEWAYS[1])
        await clients.consumer(reader, ONE, "c1", topic=f"{TOPIC}-{SUBSCRIPTION}-DLQ")
        await broker.until(lambda: len(clients.numbers("c1")) == 3, 20_000)
        assert (clients.numbers("c1"), clients.frames["c1"]) == ([0, 1, 2], 3)
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario, max_redeliver_count=1)

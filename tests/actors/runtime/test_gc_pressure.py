"""Objects that end are counted, for the collector of cycles."""

from __future__ import annotations

from sluice.actors.pulsar.conversation.client_connection import ClientConnection
from sluice.actors.runtime.gc_pressure import CLIENT, CONNECTION, LET_GO, OWNER
from sluice.actors.runtime.host import HostedActor
from tests.actors.pulsar.test_keep_alive import Wire, played
from tests.scenarios.key_shared.broker import Broker, play
from tests.sim.helpers import Counter
from tests.sim.world import World


def test_a_consumer_that_leaves_is_counted() -> None:
    async def scenario(broker: Broker) -> None:
        young, client = await broker.join("young"), await broker.join("c")
        before = LET_GO.blocks
        await young.close()
        assert LET_GO.blocks == before, "the next look finds it"
        LET_GO.looked()
        await client.close()
        assert LET_GO.blocks == before + CLIENT

    play(scenario)


def test_a_connection_that_ends_is_counted_once() -> None:
    async def scenario(world: World, connection: ClientConnection, wire: Wire) -> None:
        LET_GO.looked()
        before = LET_GO.blocks
        connection.over()
        connection.over()
        assert LET_GO.blocks == before + CONNECTION

    played(scenario)


def test_an_owner_that_ends_is_counted_once() -> None:
    async def scenario(world: World) -> None:
        ports = world.client("c")
        hosted = HostedActor(Counter(ports), lambda name, error: None, ports.spawn)
        before = LET_GO.blocks
        LET_GO.looked()
        hosted.end("closed")
        hosted.end("its process ends")
        assert LET_GO.blocks == before + OWNER

    World(1).play(scenario)

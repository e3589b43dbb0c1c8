"""A producer that has nothing to say for hours goes on where it left off."""

from __future__ import annotations

import numpy as np

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import Closed, CloseIdle, Done, Located, LocateTopic, Suspect
from sluice.actors.ports import Ports
from sluice.actors.producer.batches import Outgoing
from sluice.actors.producer.producer import PartitionProducer, ProducerConfig
from sluice.actors.runtime.host import Actor
from sluice.actors.topic.partition.producers import FORGET_MS
from sluice.storage.errors import SluiceError
from sluice.storage.format.position import position
from tests.actors.producer.test_split import made
from tests.actors.topic.cluster import Cluster, read_all
from tests.sim.world import World


class Locator(Actor):
    """Says where the owner of the partition is."""

    def __init__(self, ports: Ports, cluster: Cluster) -> None:
        super().__init__(ports)
        self.cluster = cluster

    async def on_locate_topic(self, _: LocateTopic) -> Located:
        """The newest one."""
        return Located(addresses=[self.cluster.current])

    async def on_suspect(self, _: Suspect) -> Done:
        """Noted."""
        return Done()


def test_a_silent_producer_goes_on_where_it_was_forgotten() -> None:
    """The topic was closed meanwhile, and its record does not know the producer any more."""
    came: list[tuple[int, SluiceError | None]] = []

    async def run(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        place = await world.start("locator", lambda ports: Locator(ports, cluster), fixed=True)
        ports = world.client("client")
        producer = PartitionProducer(ports, Directory(ports, place), ProducerConfig("t", 0, "p", "p-1"))
        await producer.open()
        for first in (0, 3):
            if first:
                await world.loop.pause(FORGET_MS + 1)
                assert await ports.net.call(cluster.current, CloseIdle(idle_ms=0), 5_000) == Closed(closed=True)
                await cluster.replace_owner()
            producer.send(Outgoing(made(3), first, np.arange(3), lambda _, at, error: came.append((at, error))))
            await world.within(60_000, producer.flush(), "the owner takes what comes next")
        assert [error for _, error in came] == [None, None]
        assert came[0][0] == position(1, 0)
        assert len(await read_all(ports, cluster.current)) == 6

    World(1).play(run)

"""Messages that wait behind a slow owner go in one run, also if only the end of each batch has a number of its own."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import Located, LocateTopic, OpenProducer, ProducerOpened, Publish, Published
from sluice.actors.ports import Ports
from sluice.actors.producer.batches import Outgoing
from sluice.actors.producer.producer import PartitionProducer, ProducerConfig
from sluice.actors.runtime.host import Actor
from sluice.actors.runtime.waiting import Signal
from sluice.storage.format.position import position
from tests.actors.producer.test_split import made
from tests.sim.world import World

APART = 1 << 16


class Owner(Actor):
    """The owner of a partition, who answers the first run when it is told to."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self.runs: list[tuple[int, int]] = []
        self.came, self.go_on = Signal(), Signal()

    async def on_locate_topic(self, _: LocateTopic) -> Located:
        """Answer that the topic is here."""
        return Located(addresses=[self.ports.me])

    async def on_open_producer(self, _: OpenProducer) -> ProducerOpened:
        """A session."""
        return ProducerOpened(session=7, last_sequence=-1, epoch=2)

    async def on_publish(self, asked: Publish) -> Published:
        """Stored, as far as the producer knows."""
        stored = sum(count for _, count in self.runs)
        self.runs.append((asked.first_sequence, asked.count))
        self.came.set()
        await self.go_on.wait(self.ports)
        return Published(ledger=1, first_entry=stored, count=asked.count)


@pytest.mark.parametrize("only_end", [True, False])
def test_batches_with_gaps_join_if_only_their_ends_count(only_end: bool) -> None:
    """The run ends with the last number, and each batch learns its own place."""
    sizes, places, owners = [2, 3, 1, 4], {}, []

    async def run(world: World) -> None:
        def owner(ports: Ports) -> Owner:
            owners.append(Owner(ports))
            return owners[0]

        address = await world.start("owner", owner, fixed=True)
        ports = world.client("client")
        producer = PartitionProducer(ports, Directory(ports, address), ProducerConfig("t", 0, "p", "p-1"))
        await producer.open()
        for number, size in enumerate(sizes):

            def done(rows: np.ndarray, first: int, error: object, number: int = number) -> None:
                places[number] = (first, error)

            first = (number + 1) * APART - size
            producer.send(Outgoing(made(size), first, np.arange(size), done, only_end=only_end))
            if not number:
                await owners[0].came.wait(ports)
        owners[0].go_on.set()
        await producer.flush()
        producer.close()

    World(1).play(run)
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    assert places == {number: (position(1, start), None) for number, start in enumerate(starts)}
    alone = [(number * APART - size, size) for number, size in enumerate(sizes, 1)]
    assert owners[0].runs == ([alone[0], (4 * APART - 8, 8)] if only_end else alone)

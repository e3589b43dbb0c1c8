"""A limit on the appends of one connection at once; a stuck one keeps the others waiting only for a while."""

from __future__ import annotations

import asyncio

import numpy as np

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import Publish, Published
from sluice.actors.ports import Ports
from sluice.actors.producer.producer import Outgoing, PartitionProducer, ProducerConfig
from sluice.actors.producer.waves import MOST_APPENDS, PATIENCE_MS, AppendTurn, AppendTurns, Waves
from tests.actors.producer.test_gathering import Owner
from tests.actors.producer.test_split import made
from tests.sim.world import World

COUNT = 3 * MOST_APPENDS


class Slow(Owner):
    """An owner that takes a while for each run."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self.under_way = self.most = 0

    async def on_publish(self, asked: Publish) -> Published:
        """Stored after a while."""
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.runs.append((asked.first_sequence, asked.count))
        await self.ports.clock.sleep(20)
        self.under_way -= 1
        return Published(ledger=1, first_entry=0, count=asked.count)


def test_so_many_partitions_are_appended_to_at_once() -> None:
    """Messages that come while a partition waits for its turn join those that wait."""
    owners: list[Slow] = []
    confirmed = []

    async def run(world: World) -> None:
        def owner(ports: Ports) -> Slow:
            owners.append(Slow(ports))
            return owners[0]

        address = await world.start("owner", owner, fixed=True)
        ports = world.client("client")
        waves, directory = Waves(ports), Directory(ports, address)
        producers = [
            PartitionProducer(ports, directory, ProducerConfig("t", number, "p", "p-1"), waves=waves)
            for number in range(COUNT)
        ]
        await asyncio.gather(*(producer.open() for producer in producers))
        for sequence in range(3):
            for producer in producers:
                producer.send(Outgoing(made(1), sequence, np.arange(1), lambda *outcome: confirmed.append(outcome)))
            await ports.clock.sleep(1)
        for producer in producers:
            await producer.flush()
            producer.close()

    World(1).play(run)
    assert len(confirmed) == 3 * COUNT
    assert owners[0].most == MOST_APPENDS
    assert sorted(count for _, count in owners[0].runs) == [1] * MOST_APPENDS + [2] * MOST_APPENDS + [3] * (
        COUNT - MOST_APPENDS
    )


def test_an_append_that_is_stuck_counts_for_a_while() -> None:
    async def run(world: World) -> None:
        ports = world.client("client")
        turns, begun = AppendTurns(ports, most=2), list[AppendTurn]()

        async def begin() -> None:
            begun.append(await turns.begin())

        for _ in range(6):
            ports.spawn(begin(), "append")
        await ports.clock.sleep(PATIENCE_MS - 1)
        assert len(begun) == 2
        begun[0].end()
        begun[0].end()
        await ports.clock.sleep(0)
        assert len(begun) == 3
        await ports.clock.sleep(2)
        assert len(begun) == 4, "the second has lost patience; the first has ended already"
        begun[1].end()
        await ports.clock.sleep(1)
        assert len(begun) == 4, "it did not count any more"

    World(1).play(run)

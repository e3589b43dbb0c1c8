"""Results of several messages go together, all of one message's to a partition in one run, and are refused alone."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pyarrow as pa

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import Located, LocateTopic, Published, PublishResults, TopicSettings
from sluice.actors.ports import Ports
from sluice.actors.producer.results import Publication, ResultPublisher, ResultRows
from sluice.actors.runtime.host import Actor
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import Conflict
from sluice.storage.format.batch import make_batch
from sluice.storage.format.position import position
from tests.sim.world import World

REFUSED = position(1, 3)


class Owner(Actor):
    """The owner of all partitions of both topics, who refuses one message."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self.runs: list[list[int]] = []

    async def on_locate_topic(self, asked: LocateTopic) -> Located:
        """Answer that the topic is here."""
        settings = TopicSettings(partitions=2, deduplication_enabled=True)
        return Located(addresses=[self.ports.me] * 2, settings=msgspec.json.encode(settings).decode())

    async def on_publish_results(self, asked: PublishResults) -> Published:
        """Stored, as far as the publisher knows."""
        if REFUSED in asked.positions:
            raise Conflict("it was finished before")
        self.runs.append(asked.positions.tolist())
        return Published(ledger=1, first_entry=0, count=asked.count)


def played(rows: Callable[[], list[ResultRows]], messages: int) -> tuple[list[Owner], list[Publication[int]]]:
    """Messages of two partitions of the source, in turn; returns them in the order in which they ended."""
    owners: list[Owner] = []
    ended: list[Publication[int]] = []

    async def run(world: World) -> None:
        def owner(ports: Ports) -> Owner:
            owners.append(Owner(ports))
            return owners[0]

        address = await world.start("owner", owner, fixed=True)
        ports, done = world.client("client"), Signal()
        publisher = ResultPublisher(ports, Directory(ports, address), "t", "s")

        def on_end(some: list[Publication[int]]) -> None:
            ended.extend(some)
            done.set()

        sent = [Publication(number, number % 2, position(1, number)) for number in range(messages)]
        await publisher.publish(sent, rows(), on_end)
        while len(ended) < messages:
            done.clear()
            await done.wait(ports)

    World(1).play(run)
    return owners, ended


def made(numbers: list[int], keys: list[str]) -> ResultRows:
    batch = make_batch(pa.table({"key": keys, "payload": ["p"] * len(keys)}), now=1, producer="")
    return ResultRows("out", batch, np.array(numbers))


def test_each_message_ends_when_all_of_its_rows_are_confirmed() -> None:
    """Eight messages, each with three rows of other keys, so most of them in both partitions of the output."""
    numbers = [number for number in range(8) for _ in range(3)]
    keys = [f"{number}-{place}" for number in range(8) for place in range(3)]
    owners, ended = played(lambda: [made(numbers, keys)], 8)
    assert sorted(one.item for one in ended) == list(range(8))
    # The one that is refused ends alone, and those that were sent with it are stored.
    assert [one.item for one in ended if one.error is not None] == [3]
    stored = [at for run in owners[0].runs for at in run]
    assert sorted(stored) == sorted(position(1, number) for number in numbers if number != 3)
    for run in owners[0].runs:
        assert len({at % 2 for at in run}) == 1, "results of two sources were in one run"
    for number in range(8):
        runs = [run for run in owners[0].runs if position(1, number) in run]
        assert len(runs) <= 2, "rows of a message for one partition were in two runs"

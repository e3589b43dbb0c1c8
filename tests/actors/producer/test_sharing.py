"""A large run goes to the owner as a handle, from which everybody after it reads; its bytes go where that fails."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import Located, LocateTopic, OpenProducer, ProducerOpened, Publish, Published
from sluice.actors.ports import SHARED_FROM, Ports
from sluice.actors.producer.batches import Outgoing
from sluice.actors.producer.producer import PartitionProducer, ProducerConfig
from sluice.actors.runtime.host import Actor
from sluice.storage.errors import Unavailable
from sluice.storage.format.batch import StoredBatch, make_batch
from sluice.storage.format.checked_payload import payload_crc
from sluice.storage.format.frame import make_run
from tests.sim.world import World


class Owner(Actor):
    """The owner of a partition. loses: it cannot read what was shared."""

    def __init__(self, ports: Ports, *, loses: bool) -> None:
        super().__init__(ports)
        self._loses = loses
        self.by_handle: list[bool] = []
        self.stored: list[bytes] = []

    async def on_locate_topic(self, _: LocateTopic) -> Located:
        """Answer that the topic is here."""
        return Located(addresses=[self.ports.me])

    async def on_open_producer(self, _: OpenProducer) -> ProducerOpened:
        """A session."""
        return ProducerOpened(session=7, last_sequence=-1, epoch=2)

    async def on_publish(self, asked: Publish) -> Published:
        """Stored, if it can be read. Raises Unavailable."""
        self.by_handle.append(asked.payload.data is None)
        payload = asked.payload.data if self._loses else await self.ports.net.fetch(asked.payload)
        if payload is None:
            raise Unavailable("the payload's handle is gone; send it again")
        assert payload_crc(payload) == asked.crc
        self.stored.append(bytes(payload))
        return Published(ledger=1, first_entry=0, count=asked.count)


def batch_of(size: int) -> StoredBatch:
    """Ten messages of about so many bytes together."""
    rows = pa.record_batch({"key": [f"k{n}" for n in range(10)], "payload": [b"x" * (size // 10)] * 10})
    return make_batch(rows, now=1, producer="p")


async def published(world: World, batch: StoredBatch, machine: str, *, loses: bool = False) -> Owner:
    """The owner that took a batch from a client on this machine."""
    owners: list[Owner] = []

    def owner(ports: Ports) -> Owner:
        owners.append(Owner(ports, loses=loses))
        return owners[0]

    address = await world.start("owner", owner, fixed=True)
    ports = world.client(machine)
    producer = PartitionProducer(ports, Directory(ports, address), ProducerConfig("t", 0, "p", "p-1"))
    await producer.open()
    errors: list[object] = []
    producer.send(Outgoing(batch, 0, np.arange(10), lambda rows, first, error: errors.append(error)))
    await world.within(60_000, producer.flush(), "L1: a run is not confirmed")
    assert errors == [None]
    return owners[0]


def machine_that(world: World, *, shares: bool) -> str:
    """A name of a machine that shares memory with the owner's, or does not."""
    names = (f"client{number}" for number in range(99))
    return next(name for name in names if bool(world.client(name).net.rows_from("owner/owner")) is not shares)


@pytest.mark.parametrize(
    ("size", "shares", "loses", "by_handle"),
    [
        (SHARED_FROM + 1, True, False, [True]),
        (SHARED_FROM + 1, True, True, [True, False]),
        (SHARED_FROM + 1, False, False, [False]),
        (SHARED_FROM // 2, True, False, [False]),
    ],
)
def test_a_large_run_is_shared_with_who_can_read_it(
    size: int, shares: bool, loses: bool, by_handle: list[bool]
) -> None:
    """Whichever way it goes, the owner stores the same bytes."""
    batch = batch_of(size)

    async def run(world: World) -> None:
        owner = await published(world, batch, machine_that(world, shares=shares), loses=loses)
        assert owner.by_handle == by_handle
        assert owner.stored == [bytes(make_run(batch).payload)]

    World(1).play(run)

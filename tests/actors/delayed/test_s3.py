"""The bucket tracker over a real S3 server that is killed with SIGKILL in the middle of seals and merges."""

import asyncio
import itertools
import random
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from sluice.actors.delayed.open_tracker import make_tracker
from sluice.actors.delayed.tracker import DelayedTracker
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.ports import Net, Ports
from sluice.cluster.base.real import Tasks
from sluice.cluster.host.store_ports import AsyncMeta, AsyncObjects
from sluice.storage.format.frame import Buffer
from sluice.storage.format.position import position
from sluice.storage.stores.metadata import MemoryMetadata
from sluice.storage.stores.s3 import S3Objects
from tests.kit.clocks import HandSetClock
from tests.s3server import S3Server, s3_credentials, s3_server  # noqa: F401  # fixtures

pytestmark = pytest.mark.s3

BUCKET = "delayed-index"
PREFIX = "delayed/orders/0/billing/"
LEDGERS, PER_LEDGER = 24, 200
KILL_AT = (3, 9, 14)
PATIENCE = 60
HOUR_MS = 3_600_000
_prefixes = itertools.count()


class Killing:
    """An object store whose server dies after some puts arrived, and comes back a moment later."""

    def __init__(self, objects: AsyncObjects, server: S3Server) -> None:
        self.objects = objects
        self.server = server
        self.puts = 0
        self.kills = 0
        self._one_kill = asyncio.Lock()

    async def put(self, name: str, data: Buffer) -> bool:
        self.puts += 1
        if self.puts in KILL_AT:
            self.kills += 1
            async with self._one_kill:  # a server that is still starting cannot be killed
                await asyncio.to_thread(self.server.kill)
                restart = asyncio.create_task(asyncio.to_thread(self.server.start))
                try:
                    return await self.objects.put(name, data)
                finally:
                    await restart
        return await self.objects.put(name, data)

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return await self.objects.get(name, start, length)

    async def names(self, prefix: str) -> list[str]:
        return await self.objects.names(prefix)

    async def delete(self, name: str) -> None:
        await self.objects.delete(name)


class Setup:
    """One subscription over the server, and what is published to it."""

    def __init__(self, server: S3Server) -> None:
        prefix = f"run{next(_prefixes)}"
        store = S3Objects(BUCKET, prefix, server.endpoint, connect_seconds=1, read_seconds=5, attempts=1)
        self.objects = Killing(AsyncObjects(store), server)
        self.clock, self.changed, self.tasks = HandSetClock(), asyncio.Event(), Tasks("test")
        self.ports = Ports(
            me="test",
            clock=self.clock,
            net=cast(Net, None),
            objects=self.objects,
            meta=AsyncMeta(MemoryMetadata()),
            rng=random.Random(1),
            spawn=self.tasks,
            log=lambda event, **fields: None,
        )
        rng = np.random.default_rng(3)
        self.due = {ledger: rng.integers(1, HOUR_MS, PER_LEDGER) for ledger in range(1, LEDGERS + 1)}

    async def owner(self, epoch: int) -> DelayedTracker:
        """A recovered owner that has read the whole log."""
        self.tasks = Tasks("test")
        tracker = await make_tracker(
            replace(self.ports, spawn=self.tasks),
            topic="orders",
            partition=0,
            subscription="billing",
            settings=SubscriptionSettings(
                delayed_delivery_min_index_count_per_bucket=PER_LEDGER,
                delayed_delivery_max_indexes_per_bucket_snapshot_segment=50,
                delayed_delivery_max_num_buckets=3,
            ),
            changed=self.changed.set,
            owner_epoch=epoch,
        )
        await tracker.recovered()
        for ledger, times in self.due.items():
            places = position(ledger, 0) + np.arange(PER_LEDGER, dtype=np.int64)
            assert tracker.add(places, (places & 0xFFFF).astype(np.uint32), times, self.clock.wall).all()
        return tracker

    async def quiet(self, tracker: DelayedTracker) -> None:
        """Until nothing is being written, waits to be written, or has to be merged."""
        while True:
            self.changed.clear()
            stats = tracker.stats()
            if not (stats["being_written"] or stats["in_memory_mode"] or stats["merges_waiting"]):
                return
            await asyncio.wait_for(self.changed.wait(), PATIENCE)

    async def drain(self, tracker: DelayedTracker) -> list[int]:
        """Take until nothing is left."""
        taken: list[int] = []
        while tracker.count():
            self.changed.clear()
            positions, _ = tracker.pop_due(10_000, self.clock.wall)
            taken += positions.tolist()
            if not positions.size and tracker.count():
                await asyncio.wait_for(self.changed.wait(), PATIENCE)
        return taken

    def expected(self) -> list[int]:
        """All positions in the order (deliver_at, position)."""
        places = np.concatenate([position(ledger, 0) + np.arange(PER_LEDGER) for ledger in self.due])
        times = np.concatenate(list(self.due.values()))
        return cast(list[int], places[np.lexsort((places, times))].tolist())


async def test_a_server_killed_in_the_middle_of_seals_and_merges(
    s3_server: S3Server,  # noqa: F811
    s3_credentials: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for constant in ("sealer.PARKED_MS", "maintenance.RETRY_MS", "loader.STALLED_MS"):
        monkeypatch.setattr(f"sluice.actors.delayed.{constant}", 100)
    s3_server.make_bucket(BUCKET)
    setup = Setup(s3_server)
    first = await setup.owner(1)
    await setup.quiet(first)
    assert setup.objects.kills == len(KILL_AT)
    assert first.stats()["pulsar_delayed_message_index_bucket_op_count"]["merge"]["succeed"] > 0
    await first.close()
    setup.tasks.cancel_all()

    second = await setup.owner(2)
    setup.clock.wall = HOUR_MS
    assert await setup.drain(second) == setup.expected()
    await second.delete()
    assert await setup.objects.names(PREFIX) == []
    setup.tasks.cancel_all()

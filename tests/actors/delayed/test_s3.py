"""The bucket tracker over a real S3 server that is killed with SIGKILL in the middle of seals and merges."""

import asyncio
import itertools
import random
from typing import cast

import numpy as np
import pytest

from actors.delayed.tracker import DelayedTracker, make_tracker
from actors.messages import SubscriptionSettings
from actors.ports import Net, Ports
from cluster.real import RealClock, Tasks
from cluster.stores import AsyncMeta, AsyncObjects
from storage.frame import Buffer
from storage.metadata import MemoryMetadata
from storage.position import position
from storage.s3 import S3Objects
from tests.s3server import S3Server, s3_credentials, s3_server  # noqa: F401  # fixtures

pytestmark = pytest.mark.s3

BUCKET = "delayed-index"
PREFIX = "delayed/orders/0/billing/"
LEDGERS, PER_LEDGER = 24, 200
KILL_AT = (3, 9, 14)
PATIENCE = 60
_prefixes = itertools.count()


class Clock(RealClock):
    """Real pauses, a wall clock set by hand."""

    def __init__(self) -> None:
        self.wall = 0

    def now(self) -> int:
        return self.wall


class Killing:
    """An object store whose server dies after some puts arrived, and comes back a moment later."""

    def __init__(self, objects: AsyncObjects, server: S3Server) -> None:
        self.objects = objects
        self.server = server
        self.puts = 0
        self.kills = 0

    async def put(self, name: str, data: Buffer) -> bool:
        self.puts += 1
        if self.puts in KILL_AT:
            self.kills += 1
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


async def drain(tracker: DelayedTracker, clock: Clock, changed: asyncio.Event, taken: list[np.ndarray]) -> None:
    """Take until nothing is left."""
    while tracker.count():
        changed.clear()
        positions, _ = tracker.take(10_000, clock.wall)
        if positions.size:
            taken.append(positions)
        elif tracker.count():
            await asyncio.wait_for(changed.wait(), PATIENCE)


async def test_a_server_killed_in_the_middle_of_seals_and_merges(
    s3_server: S3Server,  # noqa: F811
    s3_credentials: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for constant in ("sealer.PARKED_MS", "keeper.RETRY_MS", "loader.STALLED_MS"):
        monkeypatch.setattr(f"actors.delayed.{constant}", 100)
    s3_server.make_bucket(BUCKET)
    prefix = f"run{next(_prefixes)}"
    store = S3Objects(BUCKET, prefix, s3_server.endpoint, connect_seconds=1, read_seconds=5, attempts=1)
    objects, clock, changed, tasks = Killing(AsyncObjects(store), s3_server), Clock(), asyncio.Event(), Tasks("test")
    ports = Ports(
        me="test",
        clock=clock,
        net=cast(Net, None),
        objects=objects,
        meta=AsyncMeta(MemoryMetadata()),
        rng=random.Random(1),
        spawn=tasks,
        log=lambda event, **fields: None,
    )

    async def owner(epoch: int) -> DelayedTracker:
        tracker = await make_tracker(
            ports,
            topic="orders",
            partition=0,
            subscription="billing",
            settings=SubscriptionSettings(
                delayed_delivery_min_index_count_per_bucket=PER_LEDGER,
                delayed_delivery_max_indexes_per_bucket_snapshot_segment=50,
                delayed_delivery_max_num_buckets=3,
            ),
            changed=changed.set,
            owner_epoch=epoch,
        )
        await tracker.recovered()
        return tracker

    async def quiet(tracker: DelayedTracker) -> None:
        while True:
            changed.clear()
            stats = tracker.stats()["bucketDelayedIndexStats"]
            if not (stats["being_written"] or stats["in_memory_mode"] or stats["merges_waiting"]):
                return
            await asyncio.wait_for(changed.wait(), PATIENCE)

    rng = np.random.default_rng(3)
    due = {ledger: rng.integers(1, 3_600_000, PER_LEDGER) for ledger in range(1, LEDGERS + 1)}

    def read(tracker: DelayedTracker) -> None:
        for ledger, times in due.items():
            places = position(ledger, 0) + np.arange(PER_LEDGER, dtype=np.int64)
            assert tracker.add(places, (places & 0xFFFF).astype(np.uint32), times, clock.wall).all()

    first = await owner(1)
    read(first)
    await quiet(first)
    assert objects.kills == len(KILL_AT)
    counts = first.stats()["pulsar_delayed_message_index_bucket_op_count"]
    assert counts["merge"]["succeed"] > 0
    await first.close()
    tasks.cancel_all()

    second = await owner(2)
    read(second)
    clock.wall = 3_600_000
    taken: list[np.ndarray] = []
    await drain(second, clock, changed, taken)
    got = np.concatenate(taken)
    places = np.concatenate([position(ledger, 0) + np.arange(PER_LEDGER) for ledger in due])
    times = np.concatenate(list(due.values()))
    assert got.tolist() == places[np.lexsort((places, times))].tolist()
    second.trim(position(LEDGERS + 1, 0))
    async with asyncio.timeout(PATIENCE):
        while await objects.names(PREFIX):
            changed.clear()
            await asyncio.sleep(0.05)
    await second.close()
    tasks.cancel_all()

"""One bookie in the simulator: its disk, its metadata, and runs to store."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import random
from collections.abc import Coroutine
from typing import Any, cast

import pyarrow as pa
from msgspec.structs import replace

from sluice.actors import messages
from sluice.actors.bookie import Bookie, BookieSettings
from sluice.actors.ports import Net, Ports
from sluice.actors.ports.wire import Blob
from sluice.storage.format.batch import make_batch
from sluice.storage.format.frame import Frame, Header, Run, decode_frame, encode_head, make_run
from tests.sim.clock import SimClock, SimRng
from tests.sim.disk import DiskFaults, SimDisk
from tests.sim.loop import current_loop
from tests.sim.meta import MetaStore, SimMeta

SMALL = BookieSettings(
    segment_bytes=4096,
    group_bytes=64 * 1024,
    checkpoint_runs=8,
    checkpoint_bytes=1 << 20,
    min_free_bytes=0,
    reserve_bytes=1024,
)


HARSH = DiskFaults(keep_chance=0.8, zero_chance=0.5, holes=True)
"""Much of what was not synced is there after a loss of power, torn or with holes."""
GENTLE = DiskFaults(keep_chance=0.0)
"""All that was not synced goes."""
NEVER_MS = 1 << 40


class NoNet:
    """A network without peers; payloads come with their requests."""

    async def fetch(self, blob: Blob) -> memoryview | None:
        return blob.data


class World:
    """One bookie on a simulated disk, and its metadata. A test that uses it is `simulated`."""

    def __init__(
        self, disk: SimDisk | None = None, meta: MetaStore | None = None, seed: int = 1, faults: DiskFaults = GENTLE
    ) -> None:
        loop = current_loop()
        self.disk = disk or SimDisk(loop, seed, dataclasses.replace(faults))
        self.meta = meta or MetaStore(loop, seed)
        self.events: list[tuple[str, dict[str, object]]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.ports = Ports(
            me="here/b1",
            clock=SimClock(loop, seed, "here", {}),
            net=cast(Net, NoNet()),
            objects=None,  # type: ignore[arg-type]
            meta=SimMeta(self.meta, "here"),
            rng=SimRng(f"bookie/{seed}"),
            spawn=self.spawn,
            log=self.log,
            disk=self.disk,
        )

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.append(task)
        return task

    def log(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    def bookie(self, settings: BookieSettings = SMALL, bookie_id: str = "b1", cluster: str = "") -> Bookie:
        """A bookie on this disk that has not started. It keeps house only when it is told to."""
        return Bookie(
            self.ports, bookie_id=bookie_id, settings=replace(settings, housekeeping_ms=NEVER_MS), cluster=cluster
        )

    async def started(self, settings: BookieSettings = SMALL) -> Bookie:
        """A bookie that serves."""
        bookie = self.bookie(settings)
        await bookie.start()
        return bookie

    async def kill(self) -> None:
        """End the process: its tasks are gone, the disk keeps what it has."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()


async def settle(milliseconds: int = 100) -> None:
    """Let everything run that can."""
    await current_loop().pause(milliseconds)


@functools.cache
def make_small_run(seed: int, count: int = 1, payload_bytes: int = 10) -> Run:
    """A run whose payload follows from its seed."""
    rng = random.Random(seed)
    payloads = [rng.randbytes(payload_bytes) for _ in range(count)]
    rows = pa.record_batch({"key": pa.array([b"k"] * count), "payload": pa.array(payloads, pa.binary())})
    return make_run(make_batch(rows, now=1, producer="p"))


def add(
    ledger: int,
    run: int,
    *,
    epoch: int = 1,
    count: int = 1,
    first_entry: int | None = None,
    last_confirmed: int = -1,
    payload_bytes: int = 10,
    recovery: bool = False,
    seed: int | None = None,
) -> messages.AddRun:
    """The request that stores a run; its contents follow from ledger and run unless `seed` says otherwise."""
    made = make_small_run(ledger * 100_003 + run if seed is None else seed, count, payload_bytes)
    entry = run * count if first_entry is None else first_entry
    header = Header(ledger, run, entry, count, epoch, last_confirmed, "p", 0, made.delayed, made.shape, made.crc)
    head = encode_head(header, len(made.payload))
    return messages.AddRun(ledger=ledger, epoch=epoch, head=head, payload=Blob(made.payload), recovery=recovery)


async def read(bookie: Bookie, ledger: int, run: int, fence_epoch: int | None = None) -> Frame | None:
    """The stored frame, verified, or None for the explicit negative."""
    reply = await bookie.handle(messages.ReadRun(ledger=ledger, run=run, fence_epoch=fence_epoch))
    assert isinstance(reply, messages.RunRead)
    if reply.head is None:
        return None
    assert reply.payload is not None
    assert reply.payload.data is not None
    return decode_frame(reply.head + bytes(reply.payload.data))


def payload_of(request: messages.AddRun) -> bytes:
    """Return the payload that the request stores."""
    assert request.payload.data is not None
    return bytes(request.payload.data)

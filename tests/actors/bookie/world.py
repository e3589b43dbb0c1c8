"""A world for one bookie: a disk that forgets what was not synced, a metadata store, and runs to store."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from actors import messages
from actors.bookie import Bookie, BookieSettings
from actors.ports import DiskFailed, DiskFull, Ports, Unknown
from actors.wire import Blob, Request
from storage.batch import make_batch
from storage.errors import NotFound
from storage.frame import Buffer, Frame, Header, Run, decode_frame, encode_head, make_run
from tests.kit.clocks import EventClock
from tests.kit.meta import MemoryMeta

SMALL = BookieSettings(
    segment_bytes=4096,
    group_bytes=64 * 1024,
    checkpoint_runs=8,
    checkpoint_bytes=1 << 20,
    min_free_bytes=0,
    reserve_bytes=1024,
)


@dataclass
class MemoryFile:
    data: bytearray = field(default_factory=bytearray)
    durable: int = 0
    doubtful: int | None = None
    """From here on the bytes are in the page cache only, whatever a later sync says."""


class MemoryDisk:
    """A Disk in memory. Syncs wait while `gate` is clear. syncs: what was synced."""

    def __init__(self) -> None:
        self.files: dict[str, MemoryFile] = {}
        self.capacity = 1 << 40
        self.gate = asyncio.Event()
        self.gate.set()
        self.failing = False
        self.failed = False
        self.syncs: list[str] = []

    async def append(
        self, name: str, parts: Sequence[Buffer], *, sync: bool, witness: tuple[str, Buffer] | None = None
    ) -> int:
        self._check()
        data = b"".join(bytes(part) for part in parts)
        if self.used() + len(data) > self.capacity:
            raise DiskFull("full")
        file = self.files.setdefault(name, MemoryFile())
        at = len(file.data)
        file.data += data
        if sync:
            until = len(file.data)
            await self._sync(name)
            file.durable = max(file.durable, until)
        if witness is not None:
            with contextlib.suppress(DiskFull):
                await self.append(witness[0], [witness[1]], sync=False)
        return at

    async def read(self, name: str, offset: int, length: int) -> bytes:
        self._check()
        await asyncio.sleep(0)
        if name not in self.files:
            raise NotFound(name)
        return bytes(self.files[name].data[offset : offset + length])

    async def size(self, name: str) -> int:
        self._check()
        return len(self.files[name].data) if name in self.files else 0

    async def names(self) -> list[str]:
        self._check()
        return sorted(self.files)

    async def truncate(self, name: str, size: int) -> None:
        self._check()
        file = self.files[name]
        del file.data[size:]
        await self._sync(name)
        file.durable = len(file.data)

    async def rewrite(self, name: str, offset: int, data: Buffer) -> None:
        self._check()
        file = self.files[name]
        file.data[offset : offset + len(data)] = bytes(data)
        await self._sync(name)
        file.durable = len(file.data)
        if file.doubtful is not None and offset <= file.doubtful:
            file.doubtful = None

    async def replace(self, name: str, data: Buffer) -> None:
        self._check()
        if self.used() + len(data) > self.capacity:
            raise DiskFull("full")
        await self._sync(name)
        self.files[name] = MemoryFile(bytearray(data), len(data))

    async def delete(self, name: str) -> None:
        self._check()
        self.files.pop(name, None)

    async def free(self) -> int:
        return max(0, self.capacity - self.used())

    def used(self) -> int:
        return sum(len(file.data) for file in self.files.values())

    def crash(self, rng: random.Random | None = None) -> None:
        """Power is lost: unsynced bytes go, or (with rng) a part of them stays, perhaps with holes."""
        self.failed = self.failing = False
        self.gate.set()
        for name in sorted(self.files):
            file = self.files[name]
            if file.doubtful is not None:
                file.data = file.data[: file.doubtful]
                file.durable, file.doubtful = min(file.durable, len(file.data)), None
            loose = len(file.data) - file.durable
            keep = rng.randrange(loose + 1) if rng is not None and loose else 0
            del file.data[file.durable + keep :]
            if rng is not None and keep and rng.random() < 0.5:
                start = file.durable + rng.randrange(keep)
                stop = start + rng.randrange(len(file.data) - start) + 1
                file.data[start:stop] = bytes(stop - start)
            file.durable = len(file.data)

    def reopen(self) -> None:
        """The process ended, the machine did not: the page cache still has everything."""
        self.failed = self.failing = False
        self.gate.set()

    def copy(self) -> MemoryDisk:
        """The same bytes on another disk, all durable."""
        other = MemoryDisk()
        other.files = {name: MemoryFile(bytearray(f.data), len(f.data)) for name, f in self.files.items()}
        return other

    async def _sync(self, name: str) -> None:
        await self.gate.wait()
        await asyncio.sleep(0)
        if self.failing:
            self.failed = True
            for file in self.files.values():
                if file.durable < len(file.data) and file.doubtful is None:
                    file.doubtful = file.durable
        self._check()
        self.syncs.append(name)

    def _check(self) -> None:
        if self.failed:
            raise DiskFailed("failed")


class NoNet:
    """Nobody to call; `lost` blobs are gone."""

    async def call(self, to: str, request: Request[Any], timeout: int) -> Any:
        return Unknown("nobody is there")

    async def share(self, *parts: Buffer) -> Blob:
        return Blob(b"".join(parts))

    async def fetch(self, blob: Blob) -> memoryview | None:
        return blob.data

    def rows_from(self, to: str) -> int:
        return 0


class SeededRng:
    """Repeatable randomness."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def random(self) -> float:
        return self._rng.random()

    def randrange(self, stop: int) -> int:
        return self._rng.randrange(stop)


class World:
    """One bookie, its disk and its metadata."""

    def __init__(self, disk: MemoryDisk | None = None, meta: MemoryMeta | None = None, seed: int = 1) -> None:
        self.disk = disk or MemoryDisk()
        self.meta = meta or MemoryMeta()
        self.clock = EventClock()
        self.rng = SeededRng(seed)
        self.events: list[tuple[str, dict[str, object]]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.append(task)
        return task

    def log(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    def bookie(self, settings: BookieSettings = SMALL, bookie_id: str = "b1", cluster: str = "") -> Bookie:
        """A bookie on this disk that has not started."""
        ports = Ports(
            me="here/b1",
            clock=self.clock,
            net=NoNet(),
            objects=None,  # type: ignore[arg-type]
            meta=self.meta,
            rng=self.rng,
            spawn=self.spawn,
            log=self.log,
            disk=self.disk,
        )
        return Bookie(ports, bookie_id=bookie_id, settings=settings, cluster=cluster)

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
    """What the request stores."""
    assert request.payload.data is not None
    return bytes(request.payload.data)

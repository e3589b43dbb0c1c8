"""A simulated disk: what is written is seen at once, but only what was synced outlives a crash.

A file is one byte array and a mark: bytes below the mark are durable. A crash keeps them and, of the rest, a prefix
of any length: cut between two writes, or in the middle of one (torn), or of full length with zeros where the data
never arrived (file systems may extend a file before they write into it).

A failed sync leaves everything that was not durable in doubt, and every later call fails until the process ends. What
is in doubt can still be read, by the next process too, and no later sync of the file makes it durable, although that
sync succeeds: after an I/O error on write-back Linux takes the pages for clean. The next loss of power shows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.actors.ports import DiskFailed, DiskFull
from sluice.storage.errors import NotFound
from sluice.storage.format.frame import Buffer
from tests.sim.loop import SimLoop


@dataclass
class DiskFaults:
    """How a disk misbehaves. Chances are per operation, times in milliseconds."""

    sync_ms: tuple[int, int] = (0, 2)
    read_ms: tuple[int, int] = (0, 1)
    slow_chance: float = 0.0
    slow_ms: tuple[int, int] = (50, 1500)
    fail_sync_chance: float = 0.0
    keep_chance: float = 0.5
    """How likely unsynced bytes survive a crash at all."""
    zero_chance: float = 0.1
    """How likely a surviving unsynced tail is zeros."""
    holes: bool = False
    """Whether only a part of such a tail may be zeros, with bytes that arrived behind it."""
    capacity: int = 1 << 40


@dataclass
class SimFile:
    """The bytes of a file, and how many of them are durable."""

    data: bytearray = field(default_factory=bytearray)
    durable: int = 0
    edges: list[int] = field(default_factory=list)
    """Where writes ended since the last sync."""
    doubtful: list[tuple[int, int]] = field(default_factory=list)
    """Stretches that are in the page cache, count as written there, and perhaps never came to the disk."""

    def doubt(self) -> None:
        """A sync failed: nothing that was not durable becomes so by another one."""
        if len(self.data) > self.durable:
            self.doubtful.append((self.durable, len(self.data)))
            self.durable = len(self.data)
            self.edges.clear()


class SimDisk:
    """The disk of one node; it stays when the node's process ends. Implements actors.ports.Disk."""

    def __init__(self, loop: SimLoop, seed: object, faults: DiskFaults | None = None) -> None:
        self.faults = faults or DiskFaults()
        self.failed = False
        self.counters: dict[str, int] = {}
        self._loop = loop
        self._rng = random.Random(f"disk/{seed}")
        self.files: dict[str, SimFile] = {}
        self.gate = asyncio.Event()
        """While it is clear no sync goes on."""
        self.gate.set()

    # -- the port --

    async def append(
        self, name: str, parts: Sequence[Buffer], *, sync: bool, witness: tuple[str, Buffer] | None = None
    ) -> int:
        """Append; with sync, return when durable."""
        self._check()
        data = b"".join(bytes(part) for part in parts)
        if self.used() + len(data) > self.faults.capacity:
            self._count("full")
            raise DiskFull(f"no space for {len(data)} bytes")
        file = self.files.setdefault(name, SimFile())
        at = len(file.data)
        file.data += data
        file.edges.append(len(file.data))
        if sync:
            await self._sync(file)
        else:
            await self._pause(self.faults.read_ms)
            self._check()
        if witness is not None:
            with contextlib.suppress(DiskFull):
                await self.append(witness[0], [witness[1]], sync=False)
        return at

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """Read; sees unsynced bytes too."""
        await self._pause(self.faults.read_ms)
        self._check()
        file = self.files.get(name)
        if file is None:
            raise NotFound(f"no file {name}")
        return bytes(file.data[offset : offset + length])

    async def size(self, name: str) -> int:
        """Bytes in the file."""
        self._check()
        file = self.files.get(name)
        return 0 if file is None else len(file.data)

    async def names(self) -> list[str]:
        """All files."""
        self._check()
        return sorted(self.files)

    async def truncate(self, name: str, size: int) -> None:
        """Cut, durably."""
        self._check()
        file = self.files.get(name)
        if file is None:
            raise NotFound(f"no file {name}")
        del file.data[size:]
        file.durable = min(file.durable, size)
        file.doubtful = [(start, min(end, size)) for start, end in file.doubtful if start < size]
        await self._sync(file)

    async def rewrite(self, name: str, offset: int, data: Buffer) -> None:
        """Write bytes once more in their place: they are dirty again, and what was in doubt of them is not any more."""
        self._check()
        file = self.files.get(name)
        if file is None:
            raise NotFound(f"no file {name}")
        end = offset + len(data)
        file.data[offset:end] = bytes(data)
        await self._sync(file)
        parts = [
            part for start, stop in file.doubtful for part in ((start, min(stop, offset)), (max(start, end), stop))
        ]
        file.doubtful = [(start, stop) for start, stop in parts if start < stop]

    async def replace(self, name: str, data: Buffer) -> None:
        """Write a whole file: after a crash it is the old one or the new one."""
        self._check()
        fresh = SimFile(bytearray(data))
        if self.used() + len(fresh.data) > self.faults.capacity:
            raise DiskFull(f"no space for {len(fresh.data)} bytes")
        await self._sync(fresh)
        self.files[name] = fresh

    async def delete(self, name: str) -> None:
        """Remove."""
        self._check()
        self.files.pop(name, None)

    async def free(self) -> int:
        """Bytes left."""
        return max(0, self.faults.capacity - self.used())

    # -- what the world does to it --

    def used(self) -> int:
        """Bytes in all files."""
        return sum(len(file.data) for file in self.files.values())

    def crash(self, *, power: bool = True) -> None:
        """The node ended. With a loss of power every file keeps what is durable and perhaps some of the rest.

        Without, the operating system still has what was written, also what a failed sync left in doubt.
        """
        self.failed = False
        self.gate.set()
        if not power:
            self._count("kept")
            return
        for name in sorted(self.files):
            file = self.files[name]
            self._settle_doubt(file)
            loose = len(file.data) - file.durable
            if loose > 0:
                keep = self._survivors(file)
                if keep < loose:
                    self._count("lost tail")
                del file.data[file.durable + keep :]
                if keep and self._rng.random() < self.faults.zero_chance:
                    start = file.durable + self._rng.randrange(keep)
                    left = len(file.data) - start
                    zeros = 1 + self._rng.randrange(left) if self.faults.holes else left
                    file.data[start : start + zeros] = bytes(zeros)
                    self._count("zeroed tail")
            file.durable = len(file.data)
            file.edges.clear()

    def copy(self) -> SimDisk:
        """The same bytes on another disk, all durable."""
        other = SimDisk(self._loop, "copy", self.faults)
        other.files = {name: SimFile(bytearray(file.data), len(file.data)) for name, file in self.files.items()}
        return other

    def fail(self) -> None:
        """From now on every operation raises DiskFailed, until the next crash."""
        self.failed = True
        self._count("failed")
        for name in sorted(self.files):
            self.files[name].doubt()

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.files.clear()
        self.failed = False
        self._count("wiped")

    def flip(self, *, prefix: str = "", start: int = 0) -> tuple[str, int] | None:
        """Flip one bit somewhere at or behind `start` of a file; returns where, None if there is nothing to flip."""
        names = [name for name in sorted(self.files) if name.startswith(prefix) and self.files[name].durable > start]
        if not names:
            return None
        name = names[self._rng.randrange(len(names))]
        at = start + self._rng.randrange(self.files[name].durable - start)
        self.files[name].data[at] ^= 1 << self._rng.randrange(8)
        self._count("bit flip")
        return name, at

    def _settle_doubt(self, file: SimFile) -> None:
        """Power is lost: what was in doubt is there or not, each page by itself."""
        for start, end in file.doubtful:
            if end > start and self._rng.random() >= self.faults.keep_chance:
                self._count("lost doubtful")
                if end == len(file.data):
                    del file.data[start:]
                else:
                    file.data[start:end] = bytes(end - start)
        file.doubtful.clear()
        file.durable = min(file.durable, len(file.data))

    def _survivors(self, file: SimFile) -> int:
        loose = len(file.data) - file.durable
        if self._rng.random() >= self.faults.keep_chance:
            return 0
        if self._rng.random() < 0.5:
            self._count("torn write")
            return self._rng.randrange(loose)
        edges = [edge - file.durable for edge in file.edges if edge > file.durable]
        return edges[self._rng.randrange(len(edges))] if edges else loose

    async def _sync(self, file: SimFile) -> None:
        until = len(file.data)
        if not self.gate.is_set():
            await self.gate.wait()
        await self._pause(self.faults.sync_ms)
        if self.faults.slow_chance and self._rng.random() < self.faults.slow_chance:
            self._count("slow")
            await self._pause(self.faults.slow_ms)
        self._check()
        if self.faults.fail_sync_chance and self._rng.random() < self.faults.fail_sync_chance:
            self.fail()
            self._check()
        # A truncation may have cut the file while this sync was under way.
        file.durable = max(file.durable, min(until, len(file.data)))
        file.edges = [edge for edge in file.edges if edge > file.durable]

    async def _pause(self, span: tuple[int, int]) -> None:
        low, high = span
        await self._loop.pause(low + int(self._rng.random() * (high - low + 1)))

    def _check(self) -> None:
        if self.failed:
            raise DiskFailed("the simulated disk failed")

    def _count(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1

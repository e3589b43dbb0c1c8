"""The bookie's journal against the raw disk, its restart, and its memory.

    python -m benchmarks.journal [--small] [--folder DIR]

Prints one JSON document. Each ratio compares the bookie with write + fdatasync of the same bytes into one file, in the
same run on the same disk, in alternating rounds so that a noisy neighbour hits both:

* `one_by_one`: each frame is written and synced by itself, by one caller that waits: what a broker without group
  commit would do at best;
* `by_group`: frames are written and synced in groups as large as the ones the bookie formed: the same syncs.

`restart` stores 10,000,000 entries through the bookie and starts it again; `single_messages` starts a bookie whose
index holds 10,000,000 runs of one message, the worst case for its memory. Both start in a process of their own, and
`grown_bytes` is how much larger its resident set is with that bookie than with an empty one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psutil

from sluice.actors import messages
from sluice.actors.bookie import Bookie, BookieSettings
from sluice.actors.bookie.cookie import COOKIE, cookie_key
from sluice.actors.bookie.index_table import ROW, TableWriter
from sluice.actors.ports import Ports, Version
from sluice.actors.ports.wire import Blob
from sluice.cluster.base.arguments import ArgumentParser
from sluice.cluster.base.real import RealClock
from sluice.cluster.host.disk import FileDisk
from sluice.storage.format.frame import Header, encode_head, payload_crc

MIB = 1024 * 1024


class Meta:
    """Metadata of one process."""

    def __init__(self) -> None:
        self.records: dict[str, list[bytes]] = {}

    async def read(self, key: str) -> Version | None:
        """The newest version."""
        versions = self.records.get(key)
        return Version(len(versions), versions[-1]) if versions else None

    async def create(self, key: str, number: int, value: bytes) -> bool:
        """The next version."""
        versions = self.records.setdefault(key, [])
        if number != len(versions) + 1:
            return False
        versions.append(value)
        return True


class Node:
    """One bookie on a folder, without a cluster around it."""

    def __init__(self, folder: Path, meta: Meta, settings: BookieSettings | None = None) -> None:
        self.disk = FileDisk(folder)
        self.tasks: list[asyncio.Task[None]] = []
        rng: Any = Random(1)
        ports = Ports(
            me="bench",
            clock=RealClock(),
            net=None,  # type: ignore[arg-type]
            objects=None,  # type: ignore[arg-type]
            meta=meta,  # type: ignore[arg-type]
            rng=rng,
            spawn=self._spawn,
            log=lambda event, **fields: None,
            disk=self.disk,
        )
        self.bookie = Bookie(ports, bookie_id="bench", settings=settings or BookieSettings())

    async def stop(self) -> None:
        """End the bookie as a killed process would, but for the threads."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.disk.close()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.append(task)
        return task


def requests(ledger: int, runs: int, entries: int, payload: bytes, first: int = 0) -> Iterator[messages.AddRun]:
    """Adds of one payload; every run holds `entries` messages."""
    crc, blob = payload_crc(payload), Blob(payload)
    for run in range(first, first + runs):
        header = Header(ledger, run, run * entries, entries, 1, run * entries - 1, "bench", run, False, 0, crc)
        yield messages.AddRun(ledger=ledger, epoch=1, head=encode_head(header, len(payload)), payload=blob)


async def store(bookie: Bookie, work: Iterator[messages.AddRun], callers: int) -> None:
    """Send all requests, `callers` at a time."""

    async def call() -> None:
        for request in work:
            await bookie.handle(request)

    await asyncio.gather(*(call() for _ in range(callers)))


def raw(path: Path, payload: bytes, frames: int, group: int) -> float:
    """Seconds to write frames, with one fdatasync after each group."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    began = time.perf_counter()
    for at in range(0, frames, group):
        os.writev(fd, [payload] * min(group, frames - at))
        os.fdatasync(fd)
    taken = time.perf_counter() - began
    os.close(fd)
    path.unlink()
    return taken


async def throughput(folder: Path, frame_bytes: int, frames: int, callers: int, rounds: int) -> dict[str, Any]:
    """MB/s of the bookie and of the raw disk, and their ratios; the best of several rounds of each."""
    payload = Random(3).randbytes(frame_bytes)
    node = Node(folder / "bookie", Meta())
    await node.bookie.start()
    ours, single, grouped, groups = [], [], [], []
    for number in range(rounds):
        before = json.loads((await node.bookie.on_stats(messages.Stats())).json)["journal_groups"]
        prepared = list(requests(1, frames, 1000, payload, number * frames))
        began = time.perf_counter()
        await store(node.bookie, iter(prepared), callers)
        ours.append(time.perf_counter() - began)
        after = json.loads((await node.bookie.on_stats(messages.Stats())).json)["journal_groups"]
        groups.append((after - before) / frames)
        group = max(1, round(frames / (after - before)))
        single.append(raw(folder / "raw", payload, frames, 1))
        grouped.append(raw(folder / "raw", payload, frames, group))
    await node.stop()
    shutil.rmtree(folder / "bookie")
    megabytes = frames * frame_bytes / 1e6
    bookie, one, by_group = (min(times) for times in (ours, single, grouped))
    return {
        "frame_bytes": frame_bytes,
        "frames": frames,
        "callers": callers,
        "rounds": rounds,
        "frames_per_sync": round(1 / float(np.median(groups)), 1),
        "bookie_mb_per_s": round(megabytes / bookie, 1),
        "raw_one_by_one_mb_per_s": round(megabytes / one, 1),
        "raw_by_group_mb_per_s": round(megabytes / by_group, 1),
        "ratio_one_by_one": round(one / bookie, 2),
        "ratio_by_group": round(by_group / bookie, 2),
    }


async def restart(folder: Path, entries: int, per_run: int) -> dict[str, Any]:
    """Store entries through the bookie, kill it, and start it again in a process of its own."""
    payload = Random(3).randbytes(4 * per_run + 16)
    node = Node(folder / "bookie", Meta())
    await node.bookie.start()
    runs = entries // per_run
    began = time.perf_counter()
    await store(node.bookie, requests(1, runs, per_run, payload), 64)
    taken = time.perf_counter() - began
    await node.stop()
    journal = sum(file.stat().st_size for file in (folder / "bookie").glob("journal-*"))
    found = start_apart(folder / "bookie", runs)
    shutil.rmtree(folder / "bookie")
    stored = {"entries": runs * per_run, "entries_per_run": per_run, "journal_bytes": journal}
    return stored | {"runs_stored_per_s": round(runs / taken)} | found


async def single_messages(folder: Path, entries: int) -> dict[str, Any]:
    """The index at its worst, one run an entry. The rows are written straight into the index, not through adds."""
    # Housekeeping would take the table that is written beside it for one that a crash left behind.
    node = Node(folder / "bookie", Meta(), BookieSettings(housekeeping_ms=3_600_000))
    await node.bookie.start()
    state = node.bookie.store
    writer = TableWriter(state.disk, state.index.table_name())
    for first in range(0, entries, 1 << 20):
        rows = np.zeros(min(1 << 20, entries - first), ROW)
        rows["ledger"], rows["entries"], rows["segment"], rows["size"] = 1, 1, 1, 300
        rows["run"] = rows["first_entry"] = np.arange(first, first + len(rows))
        await writer.add(rows)
    state.index.tables = [await writer.finish()]
    state.ledgers.get(1).last_run = entries - 1
    await state.checkpoint()
    await node.stop()
    index = sum(file.stat().st_size for file in (folder / "bookie").glob("index-*"))
    found = start_apart(folder / "bookie", entries)
    shutil.rmtree(folder / "bookie")
    return {"entries": entries, "entries_per_run": 1, "index_bytes": index} | found


def start_apart(folder: Path, runs: int) -> dict[str, Any]:
    """Start a bookie on a folder in a fresh process; what that process measured."""
    command = [sys.executable, "-m", "benchmarks.journal", "--start", str(folder), str(runs)]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return result


async def measure_start(folder: Path, runs: int) -> dict[str, Any]:
    """Start time, and growth of the resident set over a process in which an empty bookie was started before."""
    with tempfile.TemporaryDirectory() as empty:
        node = Node(Path(empty), Meta())
        await node.bookie.start()
        await node.stop()
    gc.collect()
    before = psutil.Process().memory_info().rss
    meta = Meta()
    meta.records[cookie_key("bench")] = [(folder / COOKIE).read_bytes()]
    node = Node(folder, meta)
    began = time.perf_counter()
    await node.bookie.start()
    started = time.perf_counter() - began
    rng, missing = Random(5), 0
    for _ in range(200):
        missing += await node.bookie.store.index.find(1, rng.randrange(runs)) is None
    looked_up = (time.perf_counter() - began - started) / 200
    gc.collect()
    grown = psutil.Process().memory_info().rss - before
    await node.stop()
    return {
        "runs": runs,
        "start_s": round(started, 3),
        "replayed_records": node.bookie.store.replayed.records,
        "index_tables": len(node.bookie.store.index.tables),
        "look_up_ms": round(looked_up * 1000, 3),
        "look_ups_missing": missing,
        "grown_bytes": grown,
    }


async def measure(folder: Path, *, small: bool) -> dict[str, Any]:
    """All figures. small: tiny amounts that only show that everything runs."""
    scale = 50 if small else 1
    rounds = 1 if small else 5
    return {
        "small": small,
        "throughput": [
            await throughput(folder, MIB, 256 // scale, 16, rounds),
            await throughput(folder, 100_000, 1024 // scale, 64, rounds),
        ],
        "restart": per_entry(await restart(folder, 10_000_000 // (1000 if small else 1), 100)),
        "single_messages": per_entry(await single_messages(folder, 10_000_000 // (1000 if small else 1))),
    }


def per_entry(figures: dict[str, Any]) -> dict[str, Any]:
    """Add the memory of one entry."""
    return figures | {"memory_bytes_per_entry": round(figures["grown_bytes"] / figures["entries"], 3)}


def main() -> None:
    """Measure and print."""
    parser = ArgumentParser(description="Journal throughput, restart time and memory of a bookie.")
    parser.add_argument("--small", action="store_true", help="tiny amounts, done in a second or two")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--start", nargs=2, metavar=("FOLDER", "RUNS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.start:
        print(json.dumps(asyncio.run(measure_start(Path(arguments.start[0]), int(arguments.start[1])))))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(json.dumps(asyncio.run(measure(Path(folder), small=arguments.small)), indent=2))


if __name__ == "__main__":
    main()

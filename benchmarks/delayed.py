"""What a delayed message costs: memory and speed of the bucket index, beside the in-memory tracker, in one run.

    python benchmarks/delayed.py [--messages N] [--curve N,N,..] [--ledger N] [--folder PATH] [--small]

Each case is a process of its own. It adds N messages in runs of 10,000, due at random times within an hour, closes,
recovers in a new owner, and delivers everything second by second of virtual time, asking for 10,000 at once. Objects
and metadata are real files. Memory is what the process holds above the moment before the first message, by the system's
count, sampled every 50 runs. Speeds are messages a second of processor time of the whole process (sealing, encoding,
writing and reading included); the making of the messages is not counted. `contains` is the mean processor time
over batches of 10,000 random positions. The recovery case has 200 buckets of 50,000. Everything is one JSON object on
standard output.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil

from sluice.actors.delayed.manifest import manifest_key
from sluice.actors.delayed.memory import InMemoryTracker
from sluice.actors.delayed.tracker import DelayedTracker, make_tracker
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.ports import Net, Ports
from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.cluster.base.real import RealClock, Tasks
from sluice.cluster.host.stores import open_metadata, open_objects
from sluice.storage.delayed.manifest import decode_manifest
from sluice.storage.format.position import position

RUN = 10_000
SAMPLE = 50
HOUR_MS = 3_600_000
START_MS = 1_800_000_000_000
SEED = 5
WRITES_BEHIND = 2


class Clock(RealClock):
    """Real pauses; the wall clock is set by hand."""

    def __init__(self) -> None:
        self.wall = START_MS

    def now(self) -> int:
        """The hand-set time."""
        return self.wall


@dataclass
class Meter:
    """Memory above the start, and processor time of the parts that count."""

    start: int = field(default_factory=lambda: psutil.Process().memory_info().rss)
    highest: int = 0
    cpu: float = 0.0
    wall: float = 0.0

    def sample(self) -> None:
        """Look at the memory now."""
        self.highest = max(self.highest, psutil.Process().memory_info().rss - self.start)

    async def count(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run something and add its processor and wall time."""
        cpu, wall = time.process_time(), time.perf_counter()
        await work()
        self.cpu += time.process_time() - cpu
        self.wall += time.perf_counter() - wall

    def result(self, messages: int) -> dict[str, float]:
        """For the report."""
        return {
            "memory_mb": round(self.highest / 1e6, 1),
            "messages_per_cpu_second": round(messages / max(self.cpu, 1e-9)),
            "messages_per_second": round(messages / max(self.wall, 1e-9)),
            "cpu_seconds": round(self.cpu, 3),
        }


class Bench:
    """One subscription over real stores in a folder."""

    def __init__(self, kind: str, folder: Path, ledger: int) -> None:
        self.kind = kind
        self.ledger = ledger
        self.clock = Clock()
        self.changed = asyncio.Event()
        self.tasks = Tasks("bench")
        self.ports = Ports(
            me="bench",
            clock=self.clock,
            net=cast(Net, None),
            objects=open_objects(str(folder / "objects")),
            meta=open_metadata(str(folder / "meta")),
            rng=random.Random(1),
            spawn=self.tasks,
            log=lambda event, **fields: None,
        )

    async def owner(self, epoch: int) -> DelayedTracker:
        """A new owner, recovered."""
        if self.kind == "memory":
            return InMemoryTracker(lookahead=0)
        tracker = await make_tracker(
            self.ports,
            topic="bench",
            partition=0,
            subscription="bench",
            settings=SubscriptionSettings(),
            changed=self.changed.set,
            owner_epoch=epoch,
        )
        await tracker.recovered()
        return tracker

    async def named(self) -> int:
        """How many messages the buckets hold that the manifest names."""
        key = manifest_key("bench", 0, "bench")
        newest = await self.ports.meta.read(key)
        return 0 if newest is None else sum(record.count for record in decode_manifest(newest.value, key).buckets)

    async def written(self, tracker: DelayedTracker, most: int) -> None:
        """Until at most so many sealed buckets wait to be written."""
        while tracker.behind() > most:
            self.changed.clear()
            await self.changed.wait()

    async def add(self, tracker: DelayedTracker, messages: int) -> Meter:
        """Add messages as the dispatcher does, run by run."""
        rng, meter = np.random.default_rng(SEED), Meter()
        meter.sample()
        for number, first in enumerate(range(0, messages, RUN)):
            ledger, entry = divmod(first, self.ledger)
            positions = position(ledger + 1, entry) + np.arange(min(RUN, messages - first), dtype=np.int64)
            hashes = rng.integers(0, 1 << 31, positions.size, np.uint32)
            due = rng.integers(START_MS + 1, START_MS + HOUR_MS, positions.size)

            async def one(p: Any = positions, h: Any = hashes, d: Any = due) -> None:
                assert tracker.add(p, h, d, START_MS).all()
                await asyncio.sleep(0)
                await self.written(tracker, WRITES_BEHIND)

            await meter.count(one)
            if number % SAMPLE == 0:
                meter.sample()
        await meter.count(lambda: self.written(tracker, 0))
        meter.sample()
        assert tracker.count() == messages
        return meter

    async def deliver(self, tracker: DelayedTracker, base: Meter) -> tuple[Meter, int, int]:
        """Take everything, second by second. Returns also how many came and the sum of their positions."""
        meter, taken, total, last = Meter(start=base.start), 0, 0, -1
        while self.clock.wall < START_MS + HOUR_MS:
            self.clock.wall += 1000

            async def second() -> None:
                nonlocal taken, total
                while (due := tracker.next_due(self.clock.wall)) is None or due <= self.clock.wall:
                    positions, _ = tracker.take(RUN, self.clock.wall)
                    taken += positions.size
                    total += int(positions.sum())
                    if not positions.size:
                        if not tracker.count():
                            return
                        self.changed.clear()
                        due = tracker.next_due(self.clock.wall)
                        if due is None or due <= self.clock.wall:
                            await self.changed.wait()

            await meter.count(second)
            last += 1
            if last % SAMPLE == 0:
                meter.sample()
        meter.sample()
        return meter, taken, total

    def contains(self, tracker: DelayedTracker, messages: int) -> float:
        """Mean milliseconds of processor time for 10,000 random positions."""
        rng = np.random.default_rng(SEED)
        offsets = [np.sort(rng.integers(0, messages, RUN)) for _ in range(50)]
        batches = [((at // self.ledger + 1) << 32) + at % self.ledger for at in offsets]
        started = time.process_time()
        for batch in batches:
            assert tracker.contains(batch).all()
        return (time.process_time() - started) * 1000 / len(batches)


async def life(kind: str, messages: int, ledger: int, folder: Path) -> dict[str, Any]:
    """One whole case: add, recover, deliver."""
    bench = Bench(kind, folder, ledger)
    tracker = await bench.owner(1)
    added = await bench.add(tracker, messages)
    result: dict[str, Any] = {"tracker": kind, "messages": messages, "adding": added.result(messages)}
    result["contains_10000_ms"] = round(bench.contains(tracker, messages), 3)
    if kind == "bucket":
        result["buckets"] = tracker.stats()["buckets"]
        unsealed = messages - await bench.named()
        await tracker.close()
        del tracker
        recovered = Meter(start=added.start)
        started = time.perf_counter()
        tracker = await bench.owner(2)
        recovered.sample()
        assert tracker.count() == messages - unsealed
        result["recovery"] = {
            "seconds": round(time.perf_counter() - started, 3),
            "memory_mb": recovered.result(1)["memory_mb"],
        }
        messages -= unsealed
    delivering, taken, total = await bench.deliver(tracker, added)
    assert taken == messages, f"{taken} of {messages} messages came"
    whole = np.arange(messages, dtype=np.int64)
    assert total == int((((whole // ledger + 1) << 32) + whole % ledger).sum()), "some came twice and others not"
    result["delivering"] = delivering.result(messages)
    await tracker.close()
    return result


async def recover(buckets: int, folder: Path) -> dict[str, Any]:
    """Recovery alone: buckets of 50,000, one ledger each."""
    bench = Bench("bucket", folder, 50_000)
    tracker = await bench.owner(1)
    await bench.add(tracker, (buckets + 1) * 50_000)
    await tracker.close()
    seconds = []
    for epoch in range(2, 5):
        started = time.perf_counter()
        tracker = await bench.owner(epoch)
        seconds.append(round(time.perf_counter() - started, 3))
        assert tracker.count() == buckets * 50_000
        await tracker.close()
    return {"buckets": buckets, "messages": buckets * 50_000, "seconds": seconds}


def case(queue: Any, name: str, arguments: tuple[Any, ...], parent: str) -> None:
    """One case in its own process and folder."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        (folder / "meta").mkdir()
        work = {"life": life, "recover": recover}[name]
        queue.put(asyncio.run(cast(Any, work)(*arguments, folder)))
    finally:
        shutil.rmtree(folder)


def run(name: str, *arguments: Any, parent: str) -> dict[str, Any]:
    """Start a case and wait for its result."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=case, args=(queue, name, arguments, parent))
    process.start()
    while process.is_alive() and queue.empty():
        process.join(0.2)
    if queue.empty() and process.exitcode:
        raise SystemExit(f"the case {name}{arguments} failed")
    result = cast(dict[str, Any], queue.get())
    process.join()
    return result


def main() -> None:
    """Run all cases and print them."""
    parser = ArgumentParser(description="Memory and speed of the delayed index.")
    parser.add_argument("--messages", type=count, default=10_000_000, help="greatest number for the bucket tracker")
    parser.add_argument("--curve", default="1000000,3000000,10000000", help="numbers for both trackers")
    parser.add_argument("--ledger", type=count, default=5_000_000, help="entries of a ledger")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the files go while it runs")
    parser.add_argument("--small", action="store_true", help="seconds instead of minutes")
    arguments = parser.parse_args()
    curve = [int(number) for number in arguments.curve.split(",") if number]
    most, buckets = arguments.messages, 200
    if arguments.small:
        curve, most, buckets = [60_000], 300_000, 4
    ledger = min(arguments.ledger, max(most // 4, RUN) // RUN * RUN)
    parent = arguments.folder
    cases = [(kind, n) for n in curve for kind in ("memory", "bucket")]
    if most not in curve:
        cases.append(("bucket", most))
    report = {
        "curve": [run("life", kind, n, ledger, parent=parent) for kind, n in cases],
        "recovery": run("recover", buckets, parent=parent),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

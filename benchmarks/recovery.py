"""How long a new owner needs to take over a large ledger.

    .venv/bin/python benchmarks/recovery.py [--entries N] [--run MESSAGES] [--size BYTES] [--small]

Prints one JSON object. Everything is in one process with direct calls, so that the protocol is measured and not the
transport: three bookies with real disks, a topic with ensemble 3, write quorum 3, ack quorum 2. A first owner
publishes; a second one takes over while runs are under way. Times are of taking over: from `start()` to the first
confirmed publish of the new owner, with the shares of recovery itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa

from sluice.actors.bookie.bookie import Bookie
from sluice.actors.messages import BookieList, OpenProducer, ProducerOpened, Publish, ReadEnds, TopicSettings
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.ports.wire import Blob, Reply, Request
from sluice.actors.runtime.host import Actor
from sluice.actors.topic.topic import Topic
from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.cluster.base.real import RealClock, Tasks
from sluice.cluster.host.disk import FileDisk
from sluice.cluster.host.store_ports import AsyncMeta, AsyncObjects
from sluice.cluster.launch.topic_rooms import topic_resources
from sluice.storage.errors import SluiceError
from sluice.storage.format.batch import make_batch
from sluice.storage.format.frame import Buffer, Run, make_run
from sluice.storage.stores.metadata import MemoryMetadata
from sluice.storage.stores.objects import MemoryObjects
from tests.kit.asking import ask_in_task

R = TypeVar("R", bound=Reply)
SETTINGS = TopicSettings(ensemble=3, write_quorum=3, ack_quorum=2)
IN_FLIGHT = 32


class Direct:
    """A Net whose peers are objects of this process."""

    def __init__(self) -> None:
        self.actors: dict[Address, Actor] = {}

    async def call(self, to: Address, request: Request[R], timeout: int) -> R | Unknown:
        """Hand over; a peer that is not there is Unknown."""
        actor = self.actors.get(to)
        if actor is None:
            return Unknown("not here", gone=True)
        return cast("R | Unknown", await actor.handle(request))

    def ask(
        self, to: Address, request: Request[R], timeout: int, on_answer: Callable[[R | Unknown | SluiceError], None]
    ) -> None:
        """See call."""
        ask_in_task(self, to, request, timeout, on_answer)

    async def share(self, *parts: Buffer) -> Blob:
        return Blob(b"".join(parts))

    async def fetch(self, blob: Blob) -> memoryview | None:
        return blob.data

    def rows_from(self, to: str) -> int:
        return 0


class Bench:
    """One process full of actors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.net = Direct()
        self.meta = AsyncMeta(MemoryMetadata())
        self.objects = AsyncObjects(MemoryObjects())
        self.tasks: list[Tasks] = []
        self.names: list[str] = []

    def ports(self, name: str, disk: FileDisk | None = None) -> Ports:
        tasks = Tasks(name)
        self.tasks.append(tasks)
        return Ports(
            me=name, clock=RealClock(), net=self.net, objects=self.objects, meta=self.meta, rng=random.Random(1),
            spawn=tasks, log=lambda event, **fields: None, disk=disk,
        )  # fmt: skip

    async def add_bookies(self) -> None:
        for number in range(3):
            name = f"bookie{number}"
            bookie = Bookie(self.ports(name, FileDisk(self.folder / name)), bookie_id=name)
            await bookie.start()
            self.net.actors[name] = bookie
            self.names.append(name)

    async def bookies(self) -> BookieList:
        return BookieList(ids=self.names, addresses=self.names)

    async def owner(self, name: str) -> Topic:
        resources = topic_resources()
        topic = Topic(
            self.ports(name),
            topic="bench",
            partition=0,
            settings=SETTINGS,
            bookies=self.bookies,
            resources=resources,
        )
        await topic.start()
        return topic


def make_template(messages: int, size: int) -> Run:
    """A run of messages with keys and random payloads."""
    rng = np.random.default_rng(1)
    keys = pa.array([b"key-%06d" % key for key in rng.integers(0, 10_000, messages)])
    payload = pa.array([rng.bytes(size) for _ in range(messages)], pa.binary())
    return make_run(make_batch(pa.table({"key": keys, "payload": payload}), now=1, producer="bench"))


async def publish(topic: Topic, run: Run, runs: int) -> float:
    """Publish runs with several in flight; returns the seconds."""
    opened = cast(ProducerOpened, await topic.handle(OpenProducer(producer="bench", incarnation="1")))
    numbers = iter(range(runs))

    async def lane() -> None:
        for number in numbers:
            await topic.handle(
                Publish(
                    producer="bench", session=opened.session, first_sequence=number * run.count, count=run.count,
                    delayed=False, shape=run.shape, crc=run.crc, payload=Blob(run.payload),
                )
            )  # fmt: skip

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(IN_FLIGHT)))
    return time.perf_counter() - began


async def measure_recovery(entries: int, messages: int, size: int) -> dict[str, Any]:
    """Take a ledger over whose owner is gone."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        await bench.add_bookies()
        first = await bench.owner("owner1")
        run = make_template(messages, size)
        written = await publish(first, run, entries // messages)
        began = time.perf_counter()
        second = await bench.owner("owner2")
        taken = time.perf_counter() - began
        await second.handle(ReadEnds())
        recovered = time.perf_counter() - began
        opened = cast(ProducerOpened, await second.handle(OpenProducer(producer="bench", incarnation="2")))
        await second.handle(
            Publish(
                producer="bench", session=opened.session, first_sequence=opened.last_sequence + 1, count=run.count,
                delayed=False, shape=run.shape, crc=run.crc, payload=Blob(run.payload),
            )
        )  # fmt: skip
        serving = time.perf_counter() - began
        return {
            "entries": opened.last_sequence + 1,
            "run_messages": messages,
            "write_seconds": round(written, 3),
            "taken_seconds": round(taken, 4),
            "recovered_seconds": round(recovered, 4),
            "first_publish_seconds": round(serving, 4),
        }


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=count, default=1_000_000)
    parser.add_argument("--run", type=count, default=100, help="messages in a run")
    parser.add_argument("--size", type=count, default=100, help="bytes in a message")
    parser.add_argument("--small", action="store_true", help="a tenth of everything")
    given = parser.parse_args()
    scale = 10 if given.small else 1
    result = {"recovery": asyncio.run(measure_recovery(given.entries // scale, given.run, given.size))}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

"""The world of ordered redeliveries with keys that are parked or blocked, and an operator who decides of them.

Judged by the stronger promise of `nack_order=key`, which holds over the stay in the parking lot too: a message that
failed comes again before any later one of its key. Nothing is lost, nothing that was finished comes again, and nothing
is sent more often than it may fail. What was said to be discarded comes to nobody. When the trouble is over and nobody
decides, every message is delivered whose key is neither parked nor blocked, as long as the limits leave room; then the
rest is redriven. In some runs hashes are so short that keys share them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec

from sluice.actors.dispatcher.operator import parked_keys
from sluice.actors.lookup.directory import Directory
from sluice.actors.ports import Ports
from sluice.loadgen.base import history
from sluice.storage.format import batch
from sluice.storage.format.hashing import hash_column
from sluice.storage.format.position import parse
from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.broker import CONTROLLER, HEALED_MS, Course, Size
from tests.sim.worlds.operators import insist
from tests.sim.worlds.redeliveries import RedeliveriesCourse, RedeliveriesWorld, size_of

LOOKED_AT_MS = 6_000
"""A consumer may look so late at what it held when that was discarded."""
Message = tuple[bytes, int]


class ParkingWorld(RedeliveriesWorld):
    """See the module."""

    name = "parking"
    favourites: Sequence[str] = ("two_owners", "crash", "churn")

    def __call__(self, world: World, faults: list[Fault], options: dict[str, str]) -> dict[str, int]:
        """Play a run; in a third of them there are four hashes, and few messages are looked at together."""
        rng = random.Random(f"short/{world.seed}")
        bits = rng.choice((31, 31, 2))
        with (
            patch.object(batch, "hash_column", lambda keys: hash_column(keys) & ((1 << bits) - 1)),
            patch.object(parked_keys, "AT_ONCE", rng.choice((2, 4_096))),
        ):
            return super().__call__(world, faults, options)

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"parking/{world.seed}")
        course = ParkingCourse(world, faults, options, _size(rng, options))

        def begin() -> None:
            world.background(course.change(rng), "owners change")
            world.background(course.decide_often(rng), "an operator decides")

        course.begun = begin
        return course


def _size(rng: random.Random, options: dict[str, str]) -> Size:
    size = size_of(rng, options)
    settings = msgspec.structs.replace(
        size.traffic.settings,
        nack_order="key",
        delay_key_policy=rng.choice(("pass", "pass", "block_key")),
        max_redeliver_count=rng.choice((1, 1, 2)),
        dead_letter_policy=rng.choice(("park", "park", "park", "block")),
        park_max_keys=rng.choice((1, 3, 1_000)),
        park_max_bytes=rng.choice((20, 200, 1_000_000)),
    )
    traffic = replace(
        size.traffic,
        settings=settings,
        negative=rng.choice((0.05, 0.3)),
        negative_delays=(0, 50, 500),
        poison=rng.choice((3, 7, 20)),
        think_ms=rng.choice((2, 10)),
    )
    return replace(size, traffic=traffic)


class ParkingCourse(RedeliveriesCourse):
    """One run, with an operator; in the end everything is redriven."""

    def __init__(self, world: World, faults: list[Fault], options: dict[str, str], size: Size) -> None:
        super().__init__(world, faults, options, size)
        self._gone: dict[Message, int] = {}
        """Messages that were there when somebody said that they were discarded, with the moment."""
        self._excused: set[Message] = set()
        """Messages that may be discarded."""
        self._failed: set[tuple[bytes, int]] = set()
        """Keys and positions of failed messages that were discarded alone, maybe before their producer knew these."""

    async def decide_often(self, rng: random.Random) -> None:
        """Redrive and discard now and then until the trouble is over."""
        ports = self.world.client("operator")
        directory = Directory(ports, CONTROLLER)
        while self.nemesis.active:
            await self.world.loop.pause(rng.randrange(100, 2_000))
            partition = rng.randrange(self.size.traffic.partitions)
            listed = (await insist(ports, directory, self.size.traffic.settings, partition, "parked", {}))["keys"]
            if listed and self.nemesis.active:
                await self._decide(rng, ports, directory, partition, rng.choice(listed))

    async def _decide(
        self, rng: random.Random, ports: Ports, directory: Directory, partition: int, row: dict[str, Any]
    ) -> None:
        key, failed = row["key"], parse(row["failed"].rpartition(":")[0])
        verb = rng.choice(("redrive", "discard"))
        arguments: dict[str, Any] = rng.choice(({"everything": True}, {"key": key})) if verb == "redrive" else {}
        alone = rng.random() < 0.5
        if verb == "discard":
            arguments = {"key": key, "only_failed": alone}
            # Whatever is stored now, or will be until it is answered, may be discarded.
            before = [send for send in self.past.sends if send[2] == key.encode() and 0 <= send[5] >= failed]
        answer = await insist(ports, directory, self.size.traffic.settings, partition, verb, arguments)
        self._add(f"{verb}: keys", int(answer["keys"]))
        self._add(f"{verb}: messages", int(answer["messages"]))
        if verb == "discard":
            self._note_discarded(key.encode(), failed, before, alone, int(answer["keys"]))

    def _note_discarded(self, key: bytes, failed: int, before: list[list[Any]], alone: bool, keys: int) -> None:
        """Excuse messages that may have been discarded, and note those that surely were: they must not come."""
        moment = self.past.stamp()
        if alone:
            self._failed.add((key, failed))
        for send in self.past.sends:
            if send[2] == key and (not alone or send[5] == failed):
                self._excuse(send)
        for send in before:
            due = send[9] <= 0  # of delayed ones those that are not due stay
            if keys and due and (not alone or send[5] == failed):
                self._gone.setdefault((send[2], send[3]), moment)

    def _excuse(self, send: list[Any]) -> None:
        self._excused.add((send[2], send[3]))
        self.past.finish([(send[2], send[3])])

    async def _rest(self) -> None:
        """First others come to an end alone; then all is redriven until nothing is left."""
        for send in self.past.sends:
            if (send[2], send[5]) in self._failed:
                self._excuse(send)
        ports = self.world.client("end operator")
        directory = Directory(ports, CONTROLLER)
        partitions = range(self.size.traffic.partitions)
        settings = self.size.traffic.settings
        if settings.dead_letter_policy == "park" and settings.park_max_keys == 1_000 < settings.park_max_bytes:
            await self.world.within(
                HEALED_MS, self._others_are_done(ports, directory), lambda: f"L3: others do not go on; {self._told}"
            )
        while self.past.unfinished():
            for partition in partitions:
                answer = await insist(
                    ports, directory, self.size.traffic.settings, partition, "redrive", {"everything": True}
                )
                self._add("redriven in the end", int(answer["messages"]))
            await ports.clock.sleep(200)
        await super()._rest()

    async def _others_are_done(self, ports: Ports, directory: Directory) -> None:
        while True:
            held: set[bytes] = set()
            for partition in range(self.size.traffic.partitions):
                answer = await insist(
                    ports, directory, self.size.traffic.settings, partition, "parked", {"top": 10_000}
                )
                held |= {row["key"].encode() for row in answer["keys"]}
            left = [message for message in self.past.open_messages() if message[0] not in held]
            self._told = f"{len(left)} messages of keys that nobody holds are open, {sorted(left)[:5]}"
            if not left:
                self._add("keys held while others went on", len(held))
                return
            await ports.clock.sleep(100)

    def _judge(self) -> None:
        """See the module."""
        for send in self.past.sends:
            if (send[2], send[3]) in self._excused:
                send[6] = history.INFO
        most = self.size.traffic.settings.max_redeliver_count
        for row in self.past.receives:
            assert row[6] <= most, f"{row[3]} came to {row[0]} as redelivery {row[6]}, and {most} is the most"
            gone = self._gone.get((row[4], row[5]))
            late = gone is not None and row[9] > gone + LOOKED_AT_MS * 1000
            assert not late, f"{(row[4], row[5])} was discarded at {gone}, and came at {row[9]}"
        super(RedeliveriesCourse, self)._judge()

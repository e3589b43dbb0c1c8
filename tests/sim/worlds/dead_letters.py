"""The broker's world with consumers that give back much: what was given back too often goes to the dead letter topic.

Somebody reads the dead letters, as a user would. A message is done when a consumer acknowledged it or when it is among
them (L1, L3): nothing may be lost between the two topics, whatever dies meanwhile. What is there was sent by somebody
(S2), and its last consumer had it for the redelivery that was one too many.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from sluice.actors.consumer.config import ConsumerCallbacks, ConsumerConfig
from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import Event, SubscriptionSettings
from sluice.loadgen.base import history
from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.broker import CONTROLLER, SUBSCRIPTION, TOPIC, BrokerWorld, Course, Size
from tests.sim.worlds.clients import until_open

DEAD_LETTERS = f"{TOPIC}-{SUBSCRIPTION}-DLQ"


class DeadLettersWorld(BrokerWorld):
    """See the module."""

    name = "dead_letters"
    favourites: Sequence[str] = ("crash", "delay", "churn")

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"dead letters/{world.seed}")
        course = DeadLettersCourse(world, faults, options, _size(rng, options))
        course.begun = course.open_reader
        return course


def _size(rng: random.Random, options: dict[str, str]) -> Size:
    size = Size.draw(rng, options)
    settings = msgspec.structs.replace(size.traffic.settings, max_redeliver_count=rng.choice((1, 1, 2)))
    traffic = replace(size.traffic, settings=settings, negative=rng.choice((0.3, 0.6)), think_ms=rng.choice((2, 30)))
    return replace(size, traffic=traffic)


class DeadLettersCourse(Course):
    """One run, with a reader of the dead letters."""

    def open_reader(self) -> None:
        """Begin to read what is buried."""
        self.buried: set[tuple[bytes, int]] = set()
        self.world.background(self._read(), "dead letters are read")

    async def _read(self) -> None:
        ports = self.world.client("undertaker")
        reader = PartitionConsumer(
            ports,
            Directory(ports, CONTROLLER),
            ConsumerConfig(
                topic=DEAD_LETTERS,
                partition=0,
                subscription="look",
                name="undertaker",
                incarnation="undertaker-1",
                settings=SubscriptionSettings(initial_position="earliest"),
                queue_size=100,
            ),
            ConsumerCallbacks(on_received=lambda part: self._take(reader, part), on_event=self._told_by_reader),
        )
        await until_open(reader, ports)

    def _take(self, reader: PartitionConsumer, part: Received) -> None:
        numbers = map(int, part.rows.column("payload").to_pylist())
        messages = list(zip(part.rows.column("key").to_pylist(), numbers, strict=True))
        self.buried.update(messages)
        self.past.finish(messages)
        reader.taken(part)
        reader.acknowledge(part, np.arange(len(part)))

    def _told_by_reader(self, partition: int, event: Event) -> None:
        assert event.kind != "failed", "L5: the reader of the dead letters failed"

    def _judge(self) -> None:
        """Check that each dead letter was given back too often, and owe it to no consumer any more."""
        most = self.size.traffic.settings.max_redeliver_count
        last = {(row[4], row[5]) for row in self.past.receives if row[6] >= most}
        sent = {(send[2], send[3]): send for send in self.past.sends}
        for message in sorted(self.buried):
            assert message in last, f"S5: {message} is a dead letter without its {most} redeliveries"
            assert message in sent, f"S2: {message} is a dead letter that nobody sent"
            sent[message][6] = history.INFO
        self._add("dead letters", len(self.buried))
        super()._judge()

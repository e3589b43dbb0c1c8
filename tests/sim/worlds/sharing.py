"""The broker's world with small payloads that are shared as large ones are, by clients on the brokers' own machines.

Who shared a payload dies while others read it, or what was shared cannot be had: producers send its bytes instead, and
consumers ask the topic. Everything that is judged in the broker's world holds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.broker import BROKERS, BrokerWorld, Course, Size
from tests.sim.worlds.clients import SimConsumer, SimProducer

SHARED_FROM = (1, 200, 1_000)
HANDLES_ABOVE = (0, 0, 1_024)
"""Above these sizes the network has handles for what is shared; the rest travels as bytes."""


class SharingWorld(BrokerWorld):
    """See the module."""

    name = "sharing"
    favourites: Sequence[str] = ("blob_loss", "crash", "two_owners")

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"sharing/{world.seed}")
        world.shared_from = rng.choice(SHARED_FROM)
        world.network.faults.share_above = rng.choice(HANDLES_ABOVE)
        size = Size.draw(rng, options)
        traffic = replace(size.traffic, sends=rng.randint(10, 40))
        return SharingCourse(world, faults, options, replace(size, traffic=traffic))


class SharingCourse(Course):
    """One run."""

    def _produce(self, number: int) -> SimProducer:
        return SimProducer(self.world, self.past, self.size.traffic, number, self._machine(), self._mate(number))

    def join(self) -> SimConsumer:
        number = len(self.consumers)
        consumer = SimConsumer(self.world, self.past, self.size.traffic, number, machine=self._machine())
        self.consumers.append(consumer)
        return consumer

    def _machine(self) -> str | None:
        """Mostly one of a broker's."""
        at = self.world.rng.randrange(BROKERS + 1)
        return f"broker-{at}" if at < BROKERS else None

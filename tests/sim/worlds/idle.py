"""The broker's world when there is little to do: leases hang on heartbeats, and what nobody uses is closed.

A few messages come at long intervals, and consumers hold them for long, so their polls wait and heartbeats renew their
leases. That is broken in each way that concerns many sessions at once: a process with consumers, or one with all
dispatchers of a machine, is frozen; one direction between them is cut; what goes one way is late for longer than a
heartbeat takes; owners change meanwhile. At times all consumers leave, and owners are closed and wake again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from sluice.actors.messages import SubscriptionSettings, TopicSettings
from tests.sim.faults import Fault
from tests.sim.net import LinkFaults
from tests.sim.world import World
from tests.sim.worlds.broker import BROKERS, CONTROLLER, SUBSCRIPTION, TOPIC, BrokerWorld, Course, Size
from tests.sim.worlds.clients import Traffic

LEASE_MS = 3_000
BLOWS = 6


def _size(rng: random.Random, options: dict[str, str]) -> Size:
    settings = SubscriptionSettings(
        policy=options.get("policy", "draining_hashes"),
        replica_points=3,
        initial_position="earliest",
        lease_ms=LEASE_MS,
        delayed_tracker=rng.choice(("bucket", "memory")),
        delayed_delivery_min_index_count_per_bucket=2,
    )
    traffic = Traffic(
        topic=TOPIC,
        partitions=rng.choice((1, 2)),
        subscription=SUBSCRIPTION,
        settings=settings,
        controller=CONTROLLER,
        sends=6,
        delayed=rng.choice((0.0, 0.3)),
        delay_ms=2_000,
        negative=0.0,
        think_ms=rng.choice((400, 2_000)),
        pauses_ms=(0, 500, 3_000),
    )
    topic = TopicSettings(partitions=traffic.partitions, ensemble=1, write_quorum=1, ack_quorum=1)
    return Size(1, topic, traffic, producers=1, consumers=rng.randint(1, 3), trouble_ms=18_000, dense=False)


class Blows:
    """The blows that this world takes, each over before the next."""

    def __init__(self, course: Course, rng: random.Random) -> None:
        self._course, self._world, self._rng = course, course.world, rng

    async def strike(self) -> None:
        """Every blow is over when this returns."""
        blows = (self._freeze_consumers, self._freeze_brokers, self._cut_one_way, self._be_late, self._leave)
        for _ in range(BLOWS):
            await self._world.loop.pause(self._rng.randrange(200, 2_500))
            await self._rng.choice(blows)()

    async def _freeze_consumers(self) -> None:
        """Freeze one or two, with an owner that changes meanwhile, or not; some for longer than their lease."""
        names = self._world.alive("consumer-")
        await self._freeze(self._rng.sample(names, min(len(names), self._rng.randint(1, 2))))

    async def _freeze_brokers(self) -> None:
        """Together where a machine's are one process: between a heartbeat and its answer, or before a delivery."""
        await self._freeze([name for name in self._world.alive("dispatcher-") if "extra" not in name][:1])

    async def _freeze(self, names: list[str]) -> None:
        for name in names:
            self._world.pause(name)
        await self._replace()
        await self._world.loop.pause(self._rng.randrange(LEASE_MS // 4, 2 * LEASE_MS))
        for name in names:
            if self._world.is_up(name):
                self._world.resume(name)

    async def _replace(self) -> None:
        """Another owner takes over, at times."""
        if self._rng.random() < 0.6:
            await self._course.second_owner(self._rng, ("dispatcher",))

    def _pairs(self) -> list[tuple[str, str]]:
        """All links from consumers to brokers, or all from brokers to consumers."""
        consumers = [self._world.process(name).machine for name in self._world.alive("consumer-")]
        pairs = [(consumer, f"broker-{number}") for consumer in consumers for number in range(BROKERS)]
        return pairs if self._rng.random() < 0.5 else [(broker, consumer) for consumer, broker in pairs]

    async def _cut_one_way(self) -> None:
        pairs = self._pairs()
        for pair in pairs:
            self._world.network.cut(*pair)
        await self._replace()
        await self._world.loop.pause(self._rng.randrange(200, 2 * LEASE_MS))
        for pair in pairs:
            self._world.network.join(*pair)

    async def _be_late(self) -> None:
        """Heartbeats of all consumers, or the answers to them."""
        pairs = self._pairs()
        late = LinkFaults(delay_ms=(LEASE_MS // 4, self._rng.randrange(LEASE_MS // 2, 2 * LEASE_MS)))
        self._world.network.pairs.update(dict.fromkeys(pairs, late))
        await self._replace()
        await self._world.loop.pause(self._rng.randrange(LEASE_MS // 2, 2 * LEASE_MS))
        for pair in pairs:
            self._world.network.pairs.pop(pair, None)

    async def _leave(self) -> None:
        """All consumers; another one comes later."""
        for consumer in self._course.consumers:
            if not consumer.gone and self._world.is_up(consumer.name):
                consumer.leave()
        await self._world.loop.pause(self._rng.randrange(6_000))
        self._course.join()


class IdleWorld(BrokerWorld):
    """See the module."""

    name = "idle"
    kinds = ["loss", "delay", "repeat", "late", "meta_503", "meta_slow", "meta_late", "no_hint", "crash"]
    favourites: Sequence[str] = ()

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"idle world/{world.seed}")
        course = Course(world, faults, options, _size(rng, options))
        course.begun = lambda: world.background(Blows(course, rng).strike(), "blows")
        return course

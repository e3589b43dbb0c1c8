"""The broker's world with one trouble only, and that densely: the subscription changes its owner under slow consumers.

Consumers think long, so that they hold messages nearly always, and at times one is frozen, for less than its lease,
just before another dispatcher takes over. The new owner must not send a key that the frozen one still holds, although
it hears nothing from it (S9 across owners). In the general world this comes about too seldom to rely on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from sluice.actors.messages import SubscriptionSettings, TopicSettings
from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.broker import CONTROLLER, SUBSCRIPTION, TOPIC, BrokerWorld, Course, Size
from tests.sim.worlds.clients import Traffic

LEASE_MS = 3_000
OWNERS = 4


def _size(rng: random.Random, options: dict[str, str]) -> Size:
    settings = SubscriptionSettings(
        policy=options.get("policy", "draining_hashes"),
        replica_points=rng.choice((3, 100)),
        initial_position="earliest",
        lease_ms=LEASE_MS,
        delayed_tracker="memory",
    )
    traffic = Traffic(
        topic=TOPIC,
        partitions=1,
        subscription=SUBSCRIPTION,
        settings=settings,
        controller=CONTROLLER,
        sends=30,
        delayed=0.0,
        delay_ms=20,
        negative=0.0,
        think_ms=400,
    )
    topic = TopicSettings(partitions=1, ensemble=1, write_quorum=1, ack_quorum=1)
    return Size(1, topic, traffic, producers=1, consumers=3, trouble_ms=12_000, dense=False)


class OwnersWorld(BrokerWorld):
    """See the module."""

    name = "owners"
    kinds = ["loss", "delay", "repeat", "late", "meta_503", "meta_slow", "no_hint", "stores_403"]
    favourites: Sequence[str] = ()

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"owners/{world.seed}")
        course = Course(world, faults, options, _size(rng, options))

        async def change() -> None:
            for _ in range(OWNERS):
                await world.loop.pause(rng.randrange(200, 1_000))
                names = world.alive("consumer-")
                frozen = rng.sample(names, min(len(names), rng.randint(1, 2)))
                for name in frozen:
                    world.pause(name)
                await course.second_owner(rng, ("dispatcher",))
                await world.loop.pause(rng.randrange(LEASE_MS // 3, LEASE_MS - 300))
                for name in frozen:
                    world.resume(name)

        course.begun = lambda: world.background(change(), "owners change")
        return course

"""The world of redeliveries with `nack_order=key`: what is given back goes out again before later messages of its key.

Judged by the stronger promise: first and repeated deliveries of a key ascend until they are acknowledged. A consumer
writes down what it receives when it looks at it, since what is taken back before that was never seen.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.broker import Course
from tests.sim.worlds.redeliveries import RedeliveriesCourse, RedeliveriesWorld, size_of


class NackOrderWorld(RedeliveriesWorld):
    """See the module."""

    name = "nack_order"
    favourites: Sequence[str] = ("two_owners", "crash", "churn")

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"nack_order/{world.seed}")
        size = size_of(rng, options)
        settings = msgspec.structs.replace(
            size.traffic.settings, nack_order="key", delay_key_policy=rng.choice(("pass", "pass", "block_key"))
        )
        traffic = replace(size.traffic, settings=settings, negative=rng.choice((0.1, 0.3)))
        course = RedeliveriesCourse(world, faults, options, replace(size, traffic=traffic))
        course.begun = lambda: world.background(course.change(rng), "owners change")
        return course

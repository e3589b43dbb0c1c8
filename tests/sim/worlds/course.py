"""The base of worlds that play one course of events: the world, its troubles, chance of its own, and counters."""

from __future__ import annotations

import random
from typing import ClassVar

from tests.sim.faults import Fault, Nemesis
from tests.sim.world import World


class Course:
    """One run. counted: the names of its counters."""

    counted: ClassVar[tuple[str, ...]] = ()

    def __init__(self, world: World, faults: list[Fault]) -> None:
        self.world = world
        self.nemesis = Nemesis(world, faults)
        self.rng = random.Random(f"course/{world.seed}")
        self.counters = dict.fromkeys(self.counted, 0)

    async def run(self) -> None:
        """Everything that happens."""
        raise NotImplementedError


class CourseWorld:
    """Plays a course."""

    course: ClassVar[type[Course]]

    def __call__(self, world: World, faults: list[Fault], options: dict[str, str]) -> dict[str, int]:
        """Play a run."""
        course = self.course(world, faults)
        world.play(lambda _: course.run())
        return course.counters

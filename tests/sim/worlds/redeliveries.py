"""The broker's world with consumers that give back much, most of it with a delay, while owners change.

Each hand-back that a consumer was told of is judged at every later delivery. The message must not come before its delay
is over, and must have the raised redelivery count, also from a new owner of the subscription. No count is higher than
there were hand-backs. Clocks are true here, as the delay is a time of the owners' clocks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.broker import BrokerWorld, Course, Size


class RedeliveriesWorld(BrokerWorld):
    """See the module."""

    name = "redeliveries"
    kinds = [kind for kind in BrokerWorld.kinds if kind != "clock"]
    favourites: Sequence[str] = ("two_owners", "crash", "loss")

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"redeliveries/{world.seed}")
        course = RedeliveriesCourse(world, faults, options, size_of(rng, options))
        course.begun = lambda: world.background(course.change(rng), "owners change")
        return course


def size_of(rng: random.Random, options: dict[str, str]) -> Size:
    """How big such a world is, and what is given back in it."""
    size = Size.draw(rng, options)
    settings = msgspec.structs.replace(size.traffic.settings, lease_ms=rng.choice((3_000, 10_000)))
    traffic = replace(
        size.traffic,
        settings=settings,
        negative=rng.choice((0.3, 0.6)),
        negative_delays=(0, 200, 2_000, 15_000),
        think_ms=rng.choice((2, 30)),
    )
    return replace(size, traffic=traffic, consumers=rng.randint(1, 3), trouble_ms=rng.randint(4_000, 12_000))


class RedeliveriesCourse(Course):
    """One run; what was given back is judged too."""

    async def change(self, rng: random.Random) -> None:
        """Dispatchers are replaced, with and without their knowing."""
        while self.nemesis.active:
            await self.world.loop.pause(rng.randrange(300, 3_000))
            await self._replace(rng)

    async def _replace(self, rng: random.Random) -> None:
        running = self.world.alive("dispatcher-")
        if running and self.nemesis.active:
            if rng.random() < 0.5:
                self.world.crash(rng.choice(running))
            else:
                await self.second_owner(rng, ("dispatcher",))

    def _judge(self) -> None:
        """See the module."""
        backs: dict[tuple[int, int], list[list[int]]] = {}
        for partition, position, *back in self.past.hand_backs:
            backs.setdefault((partition, position), []).append(back)
        for name, _, partition, position, _, _, count, _, _, moment in self.past.receives:
            said = [back for back in backs.get((partition, position), []) if back[0] < moment]
            assert count <= len(said), f"{position} came to {name} as redelivery {count} after {len(said)} hand-backs"
            for begun, delay, seen, confirmed in said:
                if 0 <= confirmed < moment:
                    self._add("hand-backs judged", 1)
                    early = begun // 1000 + delay - moment // 1000
                    assert early <= 0, f"{position} came to {name} {early} ms before its delay of {delay} ms was over"
                    assert count > seen, f"{position} came to {name} as redelivery {count} after it was {seen} before"
        super()._judge()

"""The broker's world with delayed messages, where the clock of a machine leaps by a minute or an hour, and back.

Everything that is judged in the broker's world holds: leases, places and fencing do not depend on what time it is. A
delayed message may come early by the clock that is wrong, and only then: none does while all clocks are right, or by
more than the clock leapt. None stays away because a clock was wrong for a while.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.broker import BrokerWorld, Course, Size

LEAPS_MS = (60_000, -60_000, 3_600_000, -3_600_000)
ON_ITS_WAY_MS = 30_000
"""What was sent by a wrong clock may arrive so long after that is right again: its consumer may have been frozen."""
FOREVER = 1 << 62


class LeapsWorld(BrokerWorld):
    """See the module."""

    name = "leaps"
    kinds = ["clock_leap", "loss", "delay", "pause", "crash", "two_owners", "churn", "object_503", "meta_503"]
    favourites = ("clock_leap",)

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"leaps/{world.seed}")
        size = Size.draw(rng, options)
        traffic = replace(size.traffic, delayed=rng.choice((0.3, 0.8)), delay_ms=rng.choice((200, 2_000, 20_000)))
        size = replace(size, traffic=traffic, trouble_ms=rng.randint(3_000, 20_000), dense=False)
        return LeapsCourse(world, faults, options, size)


class LeapsCourse(Course):
    """One run. What a wrong clock excuses is looked at message by message."""

    def __init__(self, world: World, faults: list[Fault], options: dict[str, str], size: Size) -> None:
        super().__init__(world, faults, options, size)
        self._wrong: list[list[int]] = []
        """From when until when (µs, as in the history) a clock was wrong, and by how many milliseconds."""
        self.nemesis.special["clock_leap"] = self._leap
        if any(fault.kind == "clock_leap" for fault in faults):
            self.excused = {"early"}

    async def _leap(self, fault: Fault, rng: random.Random) -> None:
        """A machine's clock leaps, and is right again after a while."""
        world = self.world
        # What a producer with a wrong clock asks for is its own affair.
        machines = [each for each in world.machines() if not each.startswith("producer")]
        if rng.random() < 0.7:  # those that say what is due
            machines = [each for each in machines if each.startswith("broker")] or machines
        machine, leap = machines[rng.randrange(len(machines))], rng.choice(LEAPS_MS)
        wrong = [self.past.base(), FOREVER, leap]
        self._wrong.append(wrong)  # the run may be over before the clock is right again
        world.record("nemesis", "clock leaps", machine=machine, by=leap)
        world.skews[machine] = leap
        await world.loop.pause(int(rng.random() * fault["length"]))
        world.skews[machine] = 0
        wrong[1] = self.past.base()

    def _judge(self) -> None:
        super()._judge()
        sends, receives, *_ = self.past.tables()
        due = {(row["key"], row["key_seq"]): row["deliver_at"] for row in sends.to_pylist()}
        for row in receives.to_pylist():
            at, when = row["received_at"], due.get((row["key"], row["key_seq"]), 0)
            early = when - at // 1000
            if when and early > 0:
                self._add("early by a wrong clock", 1)
                leaps = [by for begun, ended, by in self._wrong if begun <= at <= ended + ON_ITS_WAY_MS * 1000]
                assert leaps, f"{row['key']!r} {row['key_seq']} came {early} ms early, and all clocks were right"
                most = max(0, *leaps) - min(0, *leaps)
                assert early <= most, (
                    f"{row['key']!r} {row['key_seq']} came {early} ms early, by clocks {most} ms apart"
                )

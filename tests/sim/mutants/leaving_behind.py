"""Mutants of what stays behind when something is deleted or ends, and meets the next one of its name."""

from __future__ import annotations

from tests.sim.mutants import Mutant

BROKER = "broker"
LIVING_ON = "tests/actors/producer/test_living_on.py"

LEAVING_BEHIND: list[Mutant] = [
    Mutant(
        name="a producer that its partition has forgotten waits for what nobody sends again",
        module="actors.topic.topic",
        old="        if request.follows is not None:\n",
        new="        if self._log.record.ever_given_up and request.follows is not None:\n",
        world=BROKER,
        test=f"{LIVING_ON}::test_after_it_was_silent_for_long",
    ),
]

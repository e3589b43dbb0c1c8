"""Mutants of what comes twice, late, or out of order: requests sent again, and names that are used again."""

from __future__ import annotations

from tests.sim.mutants import Mutant

BROKER = "broker"
DELETING = "tests/actors/dispatcher/test_deletion.py"

REPEATING: list[Mutant] = [
    Mutant(
        name="a subscription that is made again counts its statements from the beginning",
        module="actors.dispatcher.takeover",
        old="record.begin_after(max(indexed or 0, epoch_of(ends.heard)))",
        new="record.begin_after(indexed or 0)",
        world=BROKER,
        test=f"{DELETING}::test_one_that_is_made_again_is_heard_by_its_topic",
    ),
    Mutant(
        name="a late statement brings a deleted subscription back",
        module="actors.topic.upkeep",
        old="        if request.number and request.number <= self._numbers.get(name, 0):\n",
        new="        if False:\n",
        world=BROKER,
        test=f"{DELETING}::test_one_that_is_made_again_is_heard_by_its_topic",
    ),
]

"""Mutants of the checks of what strangers say: numbers, names, credentials, schemas. Tests find them, not seeds."""

from __future__ import annotations

from tests.sim.mutants import Mutant

GATEWAY = "gateway"

ACCESS = "tests/actors/pulsar/test_access_modes.py"
ADMISSION = "tests/actors/topic/test_admission.py"
ENDS = "tests/actors/test_repeated_ends.py"

CHECKING_INPUT: list[Mutant] = [
    Mutant(
        name="an epoch that was never given is what counting goes on from",
        module="actors.topic.access",
        old="request.topic_epoch > self.epoch:",
        new="False:",
        world=GATEWAY,
        test=ACCESS,
    ),
    Mutant(
        name="a repetition is told an epoch that is still being written",
        module="actors.topic.admission",
        old="        if self._log.record.exclusivity != self._access.durable:",
        new="        if ended:",
        world=GATEWAY,
        test=ADMISSION,
    ),
    Mutant(
        name="ends with other numbers are other reasons",
        module="actors.repeated_ends",
        old='        kind = _NUMBER.sub("#", reason)\n',
        new="        kind = reason\n",
        world=GATEWAY,
        test=ENDS,
    ),
]

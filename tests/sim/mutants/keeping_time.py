"""Mutants of times at the edge of what they can be, and of clocks that differ."""

from __future__ import annotations

from tests.sim.mutants import Mutant

BROKER = "broker"
PRODUCERS = "tests/actors/topic/test_producers.py"

KEEPING_TIME: list[Mutant] = [
    Mutant(
        name="a producer that was forgotten is not believed",
        module="actors.topic.producers",
        old="(given_up or producer.pushed < 0)",
        new="given_up",
        world=BROKER,
        test="tests/actors/producer/test_silence.py::test_a_silent_producer_goes_on_where_it_was_forgotten",
    ),
    Mutant(
        name="a producer that is known is believed that nothing is missing",
        module="actors.topic.producers",
        old="(given_up or producer.pushed < 0)",
        new="True",
        world=BROKER,
        test=f"{PRODUCERS}::test_a_forgotten_producer_is_believed_what_it_was_answered",
    ),
    Mutant(
        name="an owner whose clock is ahead forgets who was heard just now",
        module="actors.wall_clock",
        old="min(max(recorded, now - forget_ms + RETURN_MS), now)",
        new="min(recorded, now)",
        world=BROKER,
        test=f"{PRODUCERS}::test_an_owner_with_another_clock_forgets_as_late",
    ),
    Mutant(
        name="an owner whose clock is behind remembers a producer for ever",
        module="actors.wall_clock",
        old="min(max(recorded, now - forget_ms + RETURN_MS), now)",
        new="max(recorded, now - forget_ms + RETURN_MS)",
        world=BROKER,
        test=f"{PRODUCERS}::test_an_owner_with_another_clock_forgets_as_late",
    ),
]

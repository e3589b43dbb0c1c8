"""Mutants of times at the edge of what they can be, and of clocks that differ."""

from __future__ import annotations

from tests.sim.mutants import Mutant

BROKER = "broker"
BATCHES = "tests/storage/test_batch.py"
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
    Mutant(
        name="a due time is rounded down",
        module="storage.batch",
        old='-(-given // finer) if name == "deliver_at" else given // finer',
        new="given // finer",
        world=BROKER,
        test=f"{BATCHES}::test_timestamps_of_shorter_units_become_milliseconds",
    ),
    Mutant(
        name="the time of an event is in whatever unit it came",
        module="storage.batch",
        old='if field.name == "event_time" and pa.types.is_timestamp(column.type):',
        new="if False:",
        world=BROKER,
        test=f"{BATCHES}::test_timestamps_of_shorter_units_become_milliseconds",
    ),
    Mutant(
        name="a wait is rounded down",
        module="cluster.delayed",
        old="now - (-wait // timedelta(milliseconds=1))",
        new="now + int(wait.total_seconds() * 1000)",
        world=BROKER,
        test="tests/cluster/test_producer.py::test_a_wait_ends_no_earlier_than_was_said",
    ),
]

"""Mutants of times and numbers at the edge of what they can be, and of clocks that differ."""

from __future__ import annotations

from tests.sim.mutants import Mutant

BROKER = "broker"
BATCHES, ADMIN = "tests/storage/test_batch.py", "tests/cluster/pulsar/admin"
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
    Mutant(
        name="a rate is reckoned by the wall clock",
        module="cluster.pulsar.admin.statistics",
        old="now = self._clock.monotonic()",
        new="now = self._clock.now()",
        world=BROKER,
        test=f"{ADMIN}/test_statistics.py::test_each_of_equal_names_has_a_rate_of_its_own",
    ),
    Mutant(
        name="every time of an event is taken for a date",
        module="cluster.pulsar.admin.messages",
        old="if at <= LAST_TIME else str(at)",
        new="if at else str(at)",
        world=BROKER,
        test=f"{ADMIN}/test_messages.py::test_any_number_may_be_the_time_of_an_event",
    ),
    Mutant(
        name="how long a key holds the others back is told by the wall clock",
        module="actors.dispatcher.hot_keys",
        old="        now = self._ports.clock.monotonic()\n        if found.key != self._key:\n",
        new="        now = self._ports.clock.now()\n        if found.key != self._key:\n",
        world=BROKER,
        test="tests/actors/dispatcher/test_hot_keys.py::test_a_clock_that_leaps_blames_nobody_sooner_or_later",
    ),
    Mutant(
        name="a part of a second is none",
        module="cluster.config",
        old="-(-parse_duration(value) // 1000)",
        new="parse_duration(value) // 1000",
        world=BROKER,
        test="tests/cluster/test_config.py::test_a_part_of_a_second_is_not_none",
    ),
    Mutant(
        name="how old an open ledger is is told by the wall clock",
        module="actors.topic.log",
        old="self.open_bytes, self._opened = 0, self._ports.clock.monotonic()",
        new="self.open_bytes, self._opened = 0, self._ports.clock.now()",
        world=BROKER,
        test="tests/actors/topic/test_topic.py::test_a_ledger_is_as_old_as_the_time_that_has_passed",
        also=(
            "now, settings = self._ports.clock.monotonic(), self._settings",
            "now, settings = self._ports.clock.now(), self._settings",
        ),
    ),
    Mutant(
        name="a ledger that was closed in the future keeps everything behind it",
        module="actors.ledger.record",
        old="return now - next(times, ledger.closed_at)",
        new="return now - ledger.closed_at",
        world=BROKER,
        test="tests/actors/topic/test_trimming.py::test_a_clock_that_was_ahead_keeps_nothing_for_ever",
    ),
    Mutant(
        name="any sequence is stored",
        module="actors.topic.topic",
        old="if not 0 <= request.first_sequence <= SEQUENCES - request.count:",
        new="if request.first_sequence < 0:",
        world=BROKER,
        test="tests/actors/topic/test_publish.py::test_sequences_that_no_column_holds_are_refused",
    ),
    Mutant(
        name="a batch of no messages is sent",
        module="cluster.producer",
        old="if self._open.container.count:",
        new="if True:",
        world=BROKER,
        test="tests/cluster/test_producer.py::test_no_batch_is_sent_of_a_message_that_was_refused",
    ),
    Mutant(
        name="producers are kept out by an age of no seconds",
        module="actors.pulsar.conversation.backlogs",
        old="age = age if age is not None and age.limit else None",
        new="age = age if age is not None else None",
        world=BROKER,
        test="tests/actors/pulsar/test_ages.py::test_an_age_of_no_seconds_is_no_limit",
    ),
    Mutant(
        name="a delay that cannot be kept is said all the same",
        module="actors.consumer.partition",
        old="if not isinstance(delay, int) or delay > LAST_TIME:",
        new="if False:",
        world=BROKER,
        test="tests/cluster/test_nack_order.py::test_a_delay_that_cannot_be_kept_gives_nothing_back",
    ),
]

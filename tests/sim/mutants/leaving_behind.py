"""Mutants of what stays behind when something is deleted or ends, and meets the next one of its name."""

from __future__ import annotations

from tests.sim.mutants import Mutant

BROKER = "broker"
LIVING_ON = "tests/actors/producer/test_living_on.py"
IDLE, SUPERVISOR = "tests/actors/test_idle_owners.py", "tests/actors/test_supervisor.py"

LEAVING_BEHIND: list[Mutant] = [
    Mutant(
        name="a producer that its partition has forgotten waits for what nobody sends again",
        module="actors.topic.topic",
        old="        if request.follows is not None:\n",
        new="        if self._log.record.ever_given_up and request.follows is not None:\n",
        world=BROKER,
        test=f"{LIVING_ON}::test_after_it_was_silent_for_long",
    ),
    Mutant(
        name="what was deleted is found dead by a ping from before, and started",
        module="actors.supervisor",
        old="        return entry.address == address and self._running.has(entry)\n",
        new="        return entry.address == address\n",
        world=BROKER,
        test=f"{SUPERVISOR}::test_what_was_deleted_during_its_ping_is_not_started",
    ),
    Mutant(
        name="a topic that is made again is woken with the settings of the one before",
        module="actors.idle_owners",
        old='wanted = {**settings, "topic_settings": plain_settings(made)} if is_topic',
        new='wanted = {"topic_settings": plain_settings(made), **settings} if is_topic',
        world=BROKER,
        test=f"{IDLE}::test_a_topic_that_is_made_again_is_woken_as_it_is_now",
    ),
    Mutant(
        name="a partition is woken that its topic does not have any more",
        module="actors.idle_owners",
        old="        if partition < made.partitions and not self._changes(topic):\n",
        new="        if not self._changes(topic):\n",
        world=BROKER,
        test=f"{IDLE}::test_a_topic_that_is_made_again_is_woken_as_it_is_now",
    ),
]

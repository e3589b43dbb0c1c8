"""Mutants of what is closed because nobody uses it."""

from __future__ import annotations

from tests.sim.mutants import Mutant

BROKER = "broker"
CLOSED = "tests/actors/test_idle_owners.py"

IDLING: list[Mutant] = [
    Mutant(
        name="a closed topic forgets a delayed message",
        module="actors.idle_owners",
        old="            if reply.wake_at:\n",
        new="            if False:\n",
        world=BROKER,
        test=f"{CLOSED}::test_a_due_message_wakes_its_subscription",
    ),
    Mutant(
        name="a new controller forgets what is due in closed topics",
        module="actors.idle_owners",
        old="        if due and self._supervisor.find(",
        new="        if False and self._supervisor.find(",
        world=BROKER,
        test=f"{CLOSED}::test_a_new_controller_learns_from_the_manifests_what_is_due",
    ),
    Mutant(
        name="a deleted subscription is woken and made anew",
        module="actors.idle_owners",
        old="        if there and not self._changes(topic):\n",
        new="        if True:\n",
        world=BROKER,
        test=f"{CLOSED}::test_a_deleted_subscription_is_not_woken",
    ),
    Mutant(
        name="a topic that is used is closed because it was idle once",
        module="actors.topic.topic",
        old="        return self.stopped is not None or self.idle_ms() < idle_ms\n",
        new="        return self.stopped is not None or self.used\n",
        world=BROKER,
        test=f"{CLOSED}::test_an_owner_used_meanwhile_is_not_closed",
    ),
]

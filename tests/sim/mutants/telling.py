"""Mutants of what is told of a subscription: its statistics, and why something waits."""

from __future__ import annotations

from tests.sim.mutants import Mutant

_DRAINS = "tests/actors/key_shared/test_drains.py"
_MERGED = "tests/cluster/pulsar/admin/test_statistics.py"

TELLING: list[Mutant] = [
    Mutant(
        name="a seek forgets what drained before it",
        module="actors.key_shared.core",
        old="        new.drains.continue_from(self.drains)\n",
        new="",
        world="seeks",
        test=f"{_DRAINS}::test_a_reset_forgets_nothing_of_what_was",
    ),
    Mutant(
        name="a seek forgets which promises were broken before it",
        module="actors.key_shared.core",
        old="        new.sentinel.continue_from(self.sentinel)\n",
        new="",
        world="seeks",
        test=f"{_DRAINS}::test_a_reset_forgets_nothing_of_what_was",
    ),
    Mutant(
        name="a seek forgets how many messages a gate held back",
        module="actors.key_shared.assignments",
        old="self.dispatched, self.held_back = before.dispatched, before.held_back",
        new="self.dispatched = before.dispatched",
        world="seeks",
        test=f"{_DRAINS}::test_a_reset_forgets_nothing_of_what_was",
    ),
    Mutant(
        name="what is acknowledged while an expiry becomes durable has expired",
        module="actors.dispatcher.seek",
        old="        self._wakeups.all()\n        return skipped\n",
        new="        self._wakeups.all()\n        return before - self._backlog.count(end)\n",
        world="skips",
        test="tests/actors/dispatcher/test_seek.py::test_what_is_done_meanwhile_did_not_expire",
    ),
    Mutant(
        name="metrics do not hear of the end of a grace",
        module="actors.dispatcher.dispatcher",
        old="self._parts.parked.alarm(), moved, blamed",
        new="self._parts.parked.alarm(), blamed",
        world="grace",
        test="tests/actors/dispatcher/test_statistics.py::test_the_end_of_a_grace_is_news_for_who_shows_metrics",
    ),
    Mutant(
        name="metrics blame a key for ever",
        module="actors.dispatcher.dispatcher",
        old="self._parts.parked.alarm(), moved, blamed",
        new="self._parts.parked.alarm(), moved",
        world="broker",
        test="tests/actors/dispatcher/test_hot_keys.py::test_a_key_that_holds_a_partition_back_is_named",
    ),
    Mutant(
        name="what is due and has no consumer with permits waits for time",
        module="actors.dispatcher.inspection",
        old="if 0 < due <= self._ports.clock.now():",
        new="if 0 < due < 0:",
        world="delays",
        test="tests/actors/dispatcher/test_inspection.py::test_a_due_message_waits_for_permits_and_not_for_time",
    ),
    Mutant(
        name="a key with delayed messages alone has none",
        module="actors.dispatcher.inspection",
        old="(delayed := self._tracker.count()):",
        new="(delayed := 0):",
        world="delays",
        test="tests/actors/dispatcher/test_inspection.py::test_a_key_with_delayed_messages_alone_is_explained",
    ),
    Mutant(
        name="who may hold no more is out of permits",
        module="actors.key_shared.explain",
        old="for member in core.members if core.members.blocked[member.slot]]",
        new="for member in core.members if False]",
        world="broker",
        test="tests/actors/key_shared/test_explain.py::test_who_may_hold_no_more_is_not_out_of_permits",
    ),
    Mutant(
        name="shares and settings of partitions add up",
        module="cluster.pulsar.admin.statistics",
        old="if last or name in _NO_SUMS else",
        new="if last else",
        world="gateway",
        test=f"{_MERGED}::test_shares_and_settings_do_not_add_up",
    ),
    Mutant(
        name="only the first partition has alarms",
        module="cluster.pulsar.admin.statistics",
        old="made[name] = next((row[name] for row in rows if row.get(name)), value)",
        new="made[name] = value",
        world="gateway",
        test=f"{_MERGED}::test_what_is_wrong_with_one_partition_is_told_of_all",
    ),
    Mutant(
        name="a deleted subscription stays on partitions that a topic was to get",
        module="actors.topic_catalog",
        old="if partition >= settings.partitions]",
        new="if partition < 0]",
        world="placement",
        test="tests/actors/test_growing.py::test_a_subscription_goes_from_where_a_growth_ended_halfway",
    ),
    Mutant(
        name="ledgers that no read has come through count for nothing",
        module="actors.dispatcher.statistics",
        old=" or reader.position <= reader.end:",
        new=":",
        world="broker",
        test="tests/actors/dispatcher/test_statistics.py::test_ledgers_that_no_read_has_told_of_count_as_well",
    ),
    Mutant(
        name="a message waits for those before it while the topic does not answer",
        module="actors.dispatcher.inspection",
        old="reads if self._reader.reading else ",
        new="",
        world="broker",
        test="tests/actors/dispatcher/test_statistics.py::test_ledgers_that_no_read_has_told_of_count_as_well",
    ),
]

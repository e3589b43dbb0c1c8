"""Mutants of delayed delivery, most of which only a test of a store that is away or refuses can find."""

from __future__ import annotations

from tests.sim.mutants import Mutant

BROKER = "broker"
_AWAY = "tests/actors/delayed/test_stores_away.py::"

DELAYING: list[Mutant] = [
    Mutant(
        name="messages without a delay do not end the pause of fixed delays",
        module="actors.dispatcher.reader",
        old="            self._tracker.undelayed()\n",
        new="            pass\n",
        world=BROKER,
        test="tests/actors/delayed/test_delivery.py::test_bd_6_undelayed_messages_end_the_pause_of_fixed_delays",
    ),
    Mutant(
        name="the timer stays at a due time that is over",
        module="actors.dispatcher.due",
        old="                    due = tracker.next_due()\n",
        new="                    pass\n",
        world=BROKER,
        test="tests/actors/delayed/test_timer.py::test_the_timer_follows_a_look_that_finds_only_skipped",
    ),
    Mutant(
        name="an owner that was overtaken takes the newer one's view of the shared index",
        module="actors.delayed.shared",
        old="        if before is None or before.epoch <= epoch:\n",
        new="        if True:\n",
        world=BROKER,
        seed=1039,
    ),
    Mutant(
        name="unreadable objects are tried first",
        module="actors.delayed.loader",
        old="if not bucket.stalled and _needs_load(bucket, until)]",
        new="if _needs_load(bucket, until)]",
        world=BROKER,
        test=f"{_AWAY}test_unreadable_objects_take_no_place_from_readable_ones",
    ),
    Mutant(
        name="a fall-back to memory lasts",
        module="actors.delayed.maintenance",
        old='        self._bucket_set.ports.spawn(self._start_later(), "delayed index opens")\n',
        new="",
        world=BROKER,
        test=f"{_AWAY}test_bd_33_a_fall_back_to_memory_returns_to_buckets",
    ),
    Mutant(
        name="deleting does not look for what was never opened",
        module="actors.delayed.buckets",
        old="            await self._maintenance.start()\n            await self._maintenance.forget_names()\n",
        new="            await self._maintenance.forget_names()\n",
        world=BROKER,
        test=f"{_AWAY}test_deleting_after_a_fall_back_leaves_nothing",
    ),
    Mutant(
        name="a subscription that has no buckets any more deletes none",
        module="actors.delayed.memory",
        old="        if self.leftovers is not None:\n",
        new="        if False:\n",
        world=BROKER,
        test=f"{_AWAY}test_deleting_a_subscription_deletes_its_earlier_buckets",
    ),
    Mutant(
        name="nobody tells the readers what a damaged manifest named",
        module="actors.delayed.shared",
        old="reread=tracker.rebuilt)",
        new="reread=False)",
        world=BROKER,
        test="tests/actors/delayed/test_shared.py::test_what_a_damaged_manifest_named_is_read_from_the_log",
    ),
    Mutant(
        name="buckets that wait for a failing store are not counted",
        module="actors.delayed.sealer",
        old="for bucket in self._bucket_set.buckets if bucket.state is not State.LIVE)",
        new="for bucket in self._bucket_set.buckets if bucket.state is State.BUILDING)",
        world=BROKER,
        test=f"{_AWAY}test_what_waits_for_a_failing_store_is_bounded_and_tells_so",
    ),
    Mutant(
        name="a bucket that nobody could read stays named",
        module="actors.delayed.bucket_set",
        old="if record.end <= mark_delete and key not in self.drops]",
        new="if record.damaged and record.end <= mark_delete and key not in self.drops]",
        world=BROKER,
        test=f"{_AWAY}test_a_bucket_out_of_reach_is_collected_after_its_range",
    ),
    Mutant(
        name="a clear that was refused is forgotten",
        module="actors.delayed.buckets",
        old="        self._bucket_set.drops.update(dict.fromkeys(self._bucket_set.named))\n",
        new="",
        world=BROKER,
        test=f"{_AWAY}test_a_clear_that_the_store_refuses_is_made_good_later",
    ),
    Mutant(
        name="objects are collected once only",
        module="actors.delayed.maintenance",
        old="            self._collect_at = self._bucket_set.ports.clock.monotonic() + self._collect_pause\n",
        new="",
        world=BROKER,
        test=f"{_AWAY}test_a_late_put_of_a_dead_owner_is_found_while_it_is_quiet",
    ),
    Mutant(
        name="what is read during the recovery is stored twice",
        module="actors.delayed.recovery",
        old="        if len(doubled):\n",
        new="        if False:\n",
        world=BROKER,
        test=f"{_AWAY}test_a_slow_recovery_stores_nothing_twice",
    ),
    Mutant(
        name="what expired stays in the mutable bucket",
        module="storage.delayed.core",
        old="        if count and 2 * self.stale > self.loaded():\n",
        new="        if False:\n",
        world=BROKER,
        test=f"{_AWAY}test_what_expired_leaves_the_mutable_bucket",
    ),
    Mutant(
        name="an object of an earlier life of the name is taken for ours",
        module="actors.delayed.objects",
        old="                await self.verify(key, sealed)\n            except",
        new="                pass\n            except",
        world=BROKER,
        test=f"{_AWAY}test_an_object_of_an_earlier_life_is_never_taken_for_ours",
    ),
]

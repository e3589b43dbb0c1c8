"""The scenarios of the bucket tracker: message i is entry i of ledger i, due at time i * 10 (BT-, AD-)."""

import numpy as np
import pytest

from sluice.actors.runtime.store_attempts import BACK_OFF_MS
from sluice.storage.format.position import position
from tests.actors.delayed.broker import PREFIX
from tests.actors.delayed.scenario import Scenario, buckets, message, numbers
from tests.actors.delayed.world import Fault
from tests.sim.loop import simulated

ATTEMPTS = len(BACK_OFF_MS) + 1
LONG = 40_000


@simulated
async def test_bt_1_contains() -> None:
    scenario = Scenario()
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 2)
    assert broker.tracker.contains(np.array([message(1), message(2), message(3)])).tolist() == [True, True, False]
    await scenario.world.advance(20)
    assert numbers(broker.take(1)) == [1]
    await scenario.publish(broker, 3, 6)
    assert broker.tracker.contains(np.array([message(i) for i in range(3, 7)])).all()
    await scenario.finish(broker)


@simulated
async def test_ad_1_messages_come_when_they_are_due_and_in_order() -> None:
    scenario = Scenario(min_count=1000)
    broker = await scenario.begin()
    due = np.array([20, 10, 30, 50, 40], np.int64)
    places = np.array([message(i) for i in (2, 1, 3, 5, 4)], np.int64)
    scenario.log.due = dict(zip(places.tolist(), due.tolist(), strict=True))
    assert broker.tracker.add(places, (places & 0xFFFF).astype(np.uint32), due, 0).all()
    assert broker.take() == []
    assert (broker.tracker.count(), broker.tracker.next_due(scenario.world.now)) == (5, 10)
    await scenario.world.advance(15)
    assert numbers(broker.take()) == [1]
    assert (broker.tracker.count(), broker.tracker.next_due(scenario.world.now)) == (4, 20)
    late = np.array([message(9)], np.int64)
    assert not broker.tracker.add(late, np.array([9], np.uint32), np.array([15]), 15).any()
    await scenario.world.advance(45)
    assert numbers(broker.take()) == [2, 3, 4, 5]
    assert (broker.tracker.count(), broker.tracker.next_due(scenario.world.now)) == (0, None)
    await scenario.finish(broker)


@simulated
async def test_ad_3_with_a_tick_a_message_may_be_early_by_it() -> None:
    scenario = Scenario(tick=100)
    broker = await scenario.begin()
    places = np.array([message(i) for i in range(1, 6)], np.int64)
    waits = broker.tracker.add(places, places.astype(np.uint32), np.array([10, 99, 100, 101, 200]), 0)
    assert waits.tolist() == [False, False, False, True, True]
    await scenario.finish(broker)


@simulated
async def test_ad_4_strict_is_never_early() -> None:
    scenario = Scenario()
    broker = await scenario.begin()
    places = np.array([message(i) for i in range(1, 4)], np.int64)
    waits = broker.tracker.add(places, places.astype(np.uint32), np.array([9, 10, 11]), 10)
    assert waits.tolist() == [False, False, True]
    await scenario.finish(broker)


@simulated
async def test_bt_4_no_segment_is_loaded_early() -> None:
    scenario = Scenario(cap=2)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 6)
    await scenario.world.advance(1)
    await scenario.finish(broker)
    scenario.world.now = 1
    again = await scenario.begin(mark_delete=position(3, 0))
    scenario.world.gets.clear()
    assert again.take() == []
    await scenario.world.advance(5)
    assert scenario.world.gets == []
    await scenario.finish(again)


@simulated
async def test_bt_5_a_segment_is_loaded_once() -> None:
    scenario = Scenario(cap=2, scale=100)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 6)
    await scenario.finish(broker)
    again = await scenario.begin(mark_delete=message(2))
    scenario.world.gets.clear()
    await again.run_until(400)
    assert numbers(again.delivered) == [3, 4]
    starts = [start for name, start, _ in scenario.world.gets if name.startswith(PREFIX)]
    assert len(starts) == len(set(starts)) > 0
    await scenario.finish(again)


@pytest.mark.parametrize("run", range(10))
@simulated
async def test_bt_7_recovery(run: int) -> None:
    scenario = Scenario(look_ahead_ms=run * 37)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 100)
    await scenario.world.advance(10)
    assert numbers(broker.take()) == [1]
    await scenario.publish(broker, 101, 101)
    await scenario.finish(broker)
    scenario.world.now = 300
    again = await scenario.begin()
    assert not again.tracker.contains(np.array([message(101)])).any()
    # The last full bucket was sealed at a ledger border; what came after it is found in the log.
    again.read()
    assert again.tracker.count() == 71
    assert numbers(sorted(again.delivered)) == list(range(1, 31))
    again.delivered.clear()
    await again.run_until(1010)
    assert numbers(again.delivered) == list(range(31, 102))
    await scenario.finish(again)


@simulated
async def test_bt_9_merge() -> None:
    scenario = Scenario(max_buckets=10)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 110)
    assert buckets(broker) <= 10
    assert broker.tracker.count() == 110
    assert broker.tracker.stats()["pulsar_delayed_message_index_bucket_op_count"]["merge"]["succeed"] > 0
    await scenario.publish(broker, 111, 111)
    assert broker.leftover() == []
    await scenario.finish(broker)
    again = await scenario.begin()
    named = again.tracker._bucket_set.named.values()
    assert again.tracker.count() == sum(record.count for record in named)
    again.read()
    assert again.tracker.count() == 111
    await again.run_until(1110)
    assert numbers(again.delivered) == list(range(1, 112))
    await scenario.finish(again)


@pytest.mark.parametrize("limit", [1, 2, 3])
@simulated
async def test_any_limit_of_buckets_works(limit: int) -> None:
    scenario = Scenario(max_buckets=limit)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 60)
    assert buckets(broker) <= limit
    await broker.run_until(600)
    assert numbers(broker.delivered) == list(range(1, 61))
    await scenario.finish(broker)


@simulated
async def test_bt_11_create_fails_for_good() -> None:
    def script(n: int, what: str, name: str) -> Fault:
        return "lost_before" if what == "put" else "ok"

    scenario = Scenario()
    broker = await scenario.begin(script)
    await scenario.publish(broker, 1, 6)
    await scenario.world.advance(sum(BACK_OFF_MS))
    scenario.world.now = 0
    stats = broker.tracker.stats()
    assert stats["in_memory_mode"] == 1
    assert stats["pulsar_delayed_message_index_bucket_op_count"]["create"] == {"succeed": 0, "failed": 1, "all": 1}
    assert [what for what, _ in broker.life.calls].count("put") == ATTEMPTS
    assert scenario.world.objects == {}
    assert broker.tracker.count() == 6
    scenario.world.now = 50
    assert numbers(broker.take(5)) == [1, 2, 3, 4, 5]
    await scenario.finish(broker)


@simulated
async def test_a_parked_bucket_is_written_when_the_store_is_back() -> None:
    away = [True]

    def script(n: int, what: str, name: str) -> Fault:
        return "lost_after" if what == "put" and away[0] else "ok"

    scenario = Scenario(scale=1_000_000)
    broker = await scenario.begin(script)
    await scenario.publish(broker, 1, 6)
    scenario.world.objects.clear()
    await scenario.world.advance(sum(BACK_OFF_MS))
    away[0] = False
    await scenario.world.advance(LONG)
    assert broker.tracker.stats()["in_memory_mode"] == 0
    assert len(scenario.world.objects) == 1
    assert broker.leftover() == []
    await scenario.finish(broker)


@simulated
async def test_bt_13_the_number_of_entries_cuts_segments() -> None:
    scenario = Scenario(min_count=20, cap=5, step_s=3600)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 101)
    assert [record.segments for record in broker.tracker._bucket_set.named.values()] == [4, 4, 4, 4, 4]
    await scenario.finish(broker)


@simulated
async def test_bt_14_clear() -> None:
    scenario = Scenario(min_count=50)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 101)
    assert buckets(broker) == 2
    await broker.tracker.clear()
    await scenario.world.settle()
    assert (broker.tracker.count(), broker.tracker.loaded(), buckets(broker)) == (0, 0, 0)
    assert scenario.world.objects == {}
    assert broker.tracker.next_due(scenario.world.now) is None
    await scenario.finish(broker)
    again = await scenario.begin()
    assert again.tracker.count() == 0
    await scenario.finish(again)


@simulated
async def test_clear_while_a_bucket_is_being_written_leaves_nothing() -> None:
    scenario = Scenario()
    broker = await scenario.begin()
    for i in range(1, 7):
        scenario.log.due[message(i)] = i * 1000
    broker.read()
    assert broker.tracker._bucket_set.unwritten() == 1
    await broker.tracker.clear()
    await scenario.world.advance(LONG)
    assert scenario.world.objects == {}
    assert broker.tracker._bucket_set.named == {}
    await scenario.finish(broker)


@simulated
async def test_bt_16_trim() -> None:
    scenario = Scenario(max_buckets=5)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 36)
    broker.tracker.trim(message(30))
    await scenario.world.settle()
    assert buckets(broker) <= 5
    assert all(bucket.end >= position(31, 0) for bucket in broker.tracker._bucket_set.buckets)
    assert broker.leftover() == []
    before = broker.tracker.count()
    await broker.run_until(360)
    assert numbers(broker.delivered) == list(range(31, 37))
    assert broker.tracker.count() == before - 6 == 0
    await scenario.finish(broker)


@simulated
async def test_bd_24_trim_needs_no_limit_and_no_message() -> None:
    scenario = Scenario(max_buckets=-1, scale=100_000)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 31)
    assert (buckets(broker), len(scenario.world.objects)) == (6, 6)
    broker.tracker.trim(message(20))
    await scenario.world.settle()
    assert (buckets(broker), len(scenario.world.objects), broker.tracker.count()) == (2, 2, 11)
    await scenario.finish(broker)


@simulated
async def test_bt_21_deletes_that_fail_are_repeated() -> None:
    failures = [4 * ATTEMPTS]

    def script(n: int, what: str, name: str) -> Fault:
        if what == "delete" and failures[0]:
            failures[0] -= 1
            return "lost_before"
        return "ok"

    scenario = Scenario(max_buckets=-1, scale=100_000)
    broker = await scenario.begin(script)
    await scenario.publish(broker, 1, 31)
    broker.tracker.trim(message(30))
    await scenario.world.advance(sum(BACK_OFF_MS))
    assert len(scenario.world.objects) == 6
    await scenario.world.advance(LONG)
    assert failures == [0]
    assert scenario.world.objects == {}
    assert broker.tracker.stats()["pulsar_delayed_message_index_bucket_op_count"]["delete"]["failed"] == 4
    await scenario.finish(broker)


@simulated
async def test_bt_23_nothing_to_trim() -> None:
    scenario = Scenario(max_buckets=5)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 31)
    assert 1 <= buckets(broker) <= 5
    assert broker.tracker.count() == 31
    await scenario.finish(broker)


@simulated
async def test_bt_24_within_the_limit_nothing_is_merged() -> None:
    scenario = Scenario(max_buckets=50)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 30)
    assert broker.tracker.count() == 30
    await scenario.publish(broker, 31, 31)
    assert broker.tracker.count() == 31
    assert buckets(broker) == 6
    assert broker.tracker.stats()["pulsar_delayed_message_index_bucket_op_count"]["merge"]["all"] == 0
    await scenario.finish(broker)


@simulated
async def test_bt_26_a_restart_does_not_make_more_buckets() -> None:
    scenario = Scenario(min_count=3)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 12)
    before = buckets(broker)
    await scenario.finish(broker)
    again = await scenario.begin()
    again.read()
    await scenario.world.settle()
    assert buckets(again) <= before
    assert again.tracker.count() == 12
    await scenario.finish(again)

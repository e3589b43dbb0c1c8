"""Cases beside the published scenarios of the bucket tracker: stores that are away, equal times, deletes."""

import numpy as np
import pytest

from sluice.actors.runtime.store_attempts import BACK_OFF_MS
from sluice.storage.format.position import position
from tests.actors.delayed.broker import Broker
from tests.actors.delayed.scenario import Scenario, message, numbers
from tests.actors.delayed.world import Fault
from tests.sim.loop import simulated

LONG = 40_000


@simulated
async def test_bd_11_what_fell_due_is_given_at_once_and_only_once() -> None:
    scenario = Scenario()
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 6)
    await scenario.world.advance(25)
    places = np.array([message(1), message(2), message(3)], np.int64)
    waits = broker.tracker.add(places, places.astype(np.uint32), np.array([10, 20, 30]), 25)
    assert waits.tolist() == [False, False, True]
    assert broker.take() == []
    assert broker.tracker.count() == 4
    await scenario.finish(broker)


@simulated
async def test_a_bucket_that_grows_too_large_is_cut_inside_a_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.actors.delayed.sealer.SPILL_ENTRIES", 20)
    scenario = Scenario(min_count=5)
    broker = await scenario.begin()
    scenario.log.publish(1, [1000 + i for i in range(50)])
    broker.read()
    await scenario.world.settle()
    assert [record.count for record in broker.tracker._bucket_set.named.values()] == [20, 20]
    await broker.run_until(1100)
    assert len(broker.delivered) == 50
    await scenario.finish(broker)


@simulated
async def test_one_call_over_many_ledgers_seals_at_their_borders() -> None:
    scenario = Scenario(min_count=5)
    broker = await scenario.begin()
    places = np.concatenate([position(ledger, 0) + np.arange(3) for ledger in range(1, 10)])
    due = np.arange(places.size, dtype=np.int64) + 1000
    assert broker.tracker.add(places, (places & 0xFFFF).astype(np.uint32), due, 0).all()
    await scenario.world.settle()
    records = broker.tracker._bucket_set.named.values()
    assert sorted((record.start >> 32, record.end >> 32, record.count) for record in records) == [
        (1, 2, 6),
        (3, 4, 6),
        (5, 6, 6),
        (7, 8, 6),
    ]
    await scenario.finish(broker)


@simulated
async def test_everything_due_at_once_streams_through() -> None:
    scenario = Scenario(cap=2, min_count=10)
    broker = await scenario.begin()
    for ledger in range(1, 8):
        scenario.log.publish(ledger, [1000] * 10)
    broker.read()
    await broker.run_until(999)
    assert broker.delivered == []
    await broker.run_until(1000)
    assert broker.delivered == sorted(scenario.log.due)
    await scenario.finish(broker)


@simulated
async def test_a_store_that_is_away_stops_nothing_that_is_in_memory() -> None:
    away = [False]

    def script(n: int, what: str, name: str) -> Fault:
        return "lost_before" if away[0] and what in ("get", "put", "create") else "ok"

    scenario = Scenario(cap=1)
    broker = await scenario.begin(script)
    await scenario.publish(broker, 1, 6)
    away[0] = True
    await broker.run_until(200)
    assert broker.delivered[:1] == [message(6)], "ledger 6 is in the mutable bucket"
    away[0] = False
    await broker.run_until(200 + LONG)
    assert numbers(sorted(broker.delivered)) == list(range(1, 7))
    await scenario.finish(broker)


@simulated
async def test_order_is_exact_again_after_a_store_was_away() -> None:
    away = [False]

    def script(n: int, what: str, name: str) -> Fault:
        return "lost_before" if away[0] and what == "get" else "ok"

    scenario = Scenario(cap=1, scale=10_000)
    broker = await scenario.begin(script)
    await scenario.publish(broker, 1, 20)
    away[0] = True
    await broker.run_until(10_100)
    away[0] = False
    await broker.run_until(19_000)
    assert numbers(broker.delivered) == [1]
    assert broker.tracker.stats()["stalled"] == 0
    # Everything falls due before anybody looks: whatever is loaded first must not overtake.
    scenario.world.now = 200_000
    await broker.pump()
    assert numbers(broker.delivered) == list(range(1, 21))
    await scenario.finish(broker)


@simulated
async def test_a_write_whose_answer_was_lost_is_no_failure() -> None:
    lost: list[str] = []

    def script(n: int, what: str, name: str) -> Fault:
        if what in ("put", "create") and what not in lost and broker_up:
            lost.append(what)
            return "lost_after"
        return "ok"

    broker_up: list[bool] = []
    scenario = Scenario(scale=100_000)
    broker = await scenario.begin(script)
    broker_up.append(True)
    await scenario.publish(broker, 1, 6)
    await scenario.world.advance(sum(BACK_OFF_MS))
    assert lost == ["create", "put"]
    operations = broker.tracker.stats()["pulsar_delayed_message_index_bucket_op_count"]
    assert operations["create"] == {"succeed": 1, "failed": 0, "all": 1}
    assert len(scenario.world.objects) == 1
    await scenario.finish(broker)


@pytest.mark.parametrize("look_ahead_ms", [15, 25, 30])
@simulated
async def test_a_merge_goes_on_from_what_its_sources_had_loaded(look_ahead_ms: int) -> None:
    scenario = Scenario(cap=1, max_buckets=2, min_count=6, look_ahead_ms=look_ahead_ms)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 12)
    await scenario.world.advance(15)
    assert broker.tracker.loaded() > 0
    await scenario.publish(broker, 13, 60)
    assert broker.tracker.stats()["pulsar_delayed_message_index_bucket_op_count"]["merge"]["succeed"] > 0
    await broker.run_until(600)
    assert numbers(broker.delivered) == list(range(1, 61))
    await scenario.finish(broker)


@simulated
async def test_late_header_does_not_repeat_delivered_messages() -> None:
    scenario = Scenario(cap=10, scale=100)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 6)
    await scenario.finish(broker)
    scenario.world.now = 300

    def script(n: int, what: str, name: str) -> Fault:
        return "lost_before" if what == "get" and scenario.world.now < 310 else "ok"

    again = Broker(scenario.world, scenario.log, scenario.settings, 2, script)
    await again.tracker.start()
    again.read()
    assert numbers(again.delivered) == [1, 2, 3]
    assert again.tracker.stats()["recovery"]["running"]
    await scenario.world.advance(BACK_OFF_MS[0])
    assert again.tracker.stats()["recovery"]["restored"] == 1
    await again.run_until(700)
    assert sorted(numbers(again.delivered)) == [1, 2, 3, 4, 5, 6]
    await scenario.finish(again)


@simulated
async def test_equal_times_do_not_block_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of one time follow one another, each loaded when the one before it is nearly gone."""
    monkeypatch.setattr("sluice.actors.delayed.loader.LOW_WATER", 1)
    monkeypatch.setattr("sluice.actors.delayed.loader.LOAD_ENTRIES", 2)
    scenario = Scenario(cap=2, min_count=10, look_ahead_ms=5)
    broker = await scenario.begin()
    places = np.array([position(1, entry) for entry in range(12)], np.int64)
    scenario.log.due = dict(zip(places.tolist(), [1000] * 12, strict=True))
    scenario.log.due[position(2, 0)] = 1000
    broker.read()
    await scenario.world.settle()
    await broker.run_until(1000)
    assert broker.delivered == sorted(scenario.log.due)
    await scenario.finish(broker)


@simulated
async def test_next_untracked_skips_what_waits() -> None:
    scenario = Scenario()
    broker = await scenario.begin()
    scenario.log.publish(1, [0, *[1000] * 8, 0])
    broker.read()
    start = position(1, 0)
    assert broker.tracker.next_untracked(start, start + 10) == start
    assert broker.tracker.next_untracked(start + 1, start + 10) == start + 9
    assert broker.delivered == [start, start + 9]
    await scenario.finish(broker)


@simulated
async def test_browse_from_headers_alone() -> None:
    scenario = Scenario(cap=2)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 16)
    scenario.world.gets.clear()
    slots = broker.tracker.histogram(4)
    assert sum(count for _, _, count in slots) == 16
    assert slots[0][0] <= 20
    assert slots[-1][1] >= 160
    assert broker.tracker.next_messages(3) == []
    assert scenario.world.gets == []
    await scenario.world.advance(10)
    await broker.pump()
    assert broker.tracker.next_messages(3)[:1] == [(20, message(2))]
    await scenario.finish(broker)


@simulated
async def test_delete_waits_for_writes_that_are_under_way() -> None:
    scenario = Scenario()
    broker = await scenario.begin()
    for i in range(1, 13):
        scenario.log.due[message(i)] = i * 1000
    broker.read()
    assert broker.tracker._bucket_set.unwritten() == 2
    await broker.tracker.delete()
    await scenario.world.advance(LONG)
    assert scenario.world.objects == {}
    assert scenario.world.records == {}
    await broker.end()


@simulated
async def test_delete_removes_every_trace() -> None:
    scenario = Scenario(max_buckets=2)
    broker = await scenario.begin()
    await scenario.publish(broker, 1, 40)
    await broker.tracker.delete()
    assert scenario.world.objects == {}
    assert scenario.world.records == {}
    await broker.end()

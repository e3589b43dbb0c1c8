"""Delayed messages from producer to consumer, with every tracker (DL-1 to DL-12, BL-6; names as in the scenarios).

Each DL- test is a scenario over the tracker in memory; BL-6 is all of them again over buckets, a subscription's own and
shared ones, which are made so small that a few messages fill some.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sluice.actors.dispatcher.delivery.due import DUE_GROUP_MS
from sluice.actors.messages import Explain
from sluice.storage.errors import Corrupt, Invalid, Unavailable
from tests.actors.delayed.desk import LATE_MS, STRAY_MS, Arrival, Desk, serve

SMALL = {
    "delayed_delivery_min_index_count_per_bucket": 20,
    "delayed_delivery_max_indexes_per_bucket_snapshot_segment": 5,
    "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds": 1,
    "delayed_delivery_max_num_buckets": 5,
}
TOPIC = {"roll_entries": 20}


@pytest.fixture
def tracker() -> str:
    """Return the tracker of the DL- tests; BL-6 has others."""
    return "memory"


def in_time(arrivals: list[Arrival]) -> bool:
    """Whether each came soon after its time; that none came before it the desk has seen to."""
    return all(arrival.at <= arrival.due + LATE_MS for arrival in arrivals)


def parted(desk: Desk, subscription: str = "billing") -> tuple[list[Arrival], list[Arrival]]:
    """Return the messages that came with a delay, and those without."""
    came = desk.came(subscription)
    return [a for a in came if a.due], [a for a in came if not a.due]


@pytest.mark.parametrize("single", ["failover", "exclusive"])
def test_dl_1_shared_waits_and_a_single_consumer_does_not(single: str, tracker: str) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.subscribe("alone", type=single)
        await desk.consume("one")
        await desk.consume("other", "alone")
        start = desk.world.loop.now
        await desk.publish(*"0123456789", delay=5_000)
        await desk.quiet(2_000)
        assert len(desk.came("alone")) == 10
        assert desk.came() == []
        assert await desk.count("msgDelayed") == 10
        assert await desk.count("msgDelayed", "alone") == 0
        await desk.settled()
        assert len(desk.came()) == 10
        assert in_time(desk.came())
        assert min(arrival.at for arrival in desk.came()) >= start + 5_000
        assert len(desk.came("alone")) == 10

    serve(scenario, tracker=tracker, topic=TOPIC, **SMALL)


def test_dl_2_messages_without_a_delay_overtake_those_with_one(tracker: str) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.consume("one")
        for number in range(20):
            await desk.publish(str(number), delay=5_000 if number % 2 else 0)
        await desk.quiet(2_000)
        assert [int(arrival.message.key) for arrival in desk.came()] == list(range(0, 20, 2))
        await desk.settled()
        assert [int(arrival.message.key) for arrival in desk.came()[10:]] == list(range(1, 20, 2))
        assert in_time(desk.came()[10:])

    serve(scenario, tracker=tracker, topic=TOPIC, **SMALL)


def test_dl_3_every_other_row_of_a_batch(tracker: str) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.consume("one")
        keys = [str(number) for number in range(100)]
        for start in range(0, 100, 25):
            await desk.publish(*keys[start : start + 25], delay=[2_000 * (row % 2) for row in range(start, start + 25)])
        await desk.quiet(1_000)
        assert sorted(int(key) for key, _ in desk.names()) == list(range(0, 100, 2))
        assert await desk.count("msgDelayed") == 50
        await desk.settled()
        late, _ = parted(desk)
        assert sorted(int(arrival.message.key) for arrival in late) == list(range(1, 100, 2))
        assert in_time(late)

    serve(scenario, tracker=tracker, topic=TOPIC, **SMALL)


@pytest.mark.parametrize("times", ["decreasing", "random"])
def test_dl_4_a_thousand_come_in_the_order_of_their_times(times: str, tracker: str) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.consume("one")
        delays = [3_000 + 10 * number for number in range(1000)][::-1]
        if times == "random":
            random.Random(4).shuffle(delays)
        for start in range(0, 1000, 50):
            await desk.publish(*map(str, range(50)), delay=delays[start : start + 50])
        await desk.quiet(500)
        assert await desk.count("msgDelayed") == 1000
        await desk.settled()
        arrivals = desk.came()
        assert len(arrivals) == len({arrival.message.position for arrival in arrivals}) == 1000
        assert in_time(arrivals)
        latest = 0
        for arrival in arrivals:
            assert arrival.due > latest - 2 * DUE_GROUP_MS
            latest = max(latest, arrival.due)

    serve(scenario, tracker=tracker, topic=TOPIC, **SMALL)


def test_dl_5_reads_and_releases_at_the_same_time_lose_nothing(tracker: str) -> None:
    """Small queues, a crowd of consumers and a trickle of messages: whatever may start a read happens all the time."""

    async def scenario(desk: Desk) -> None:
        rng = random.Random(5)
        for number, queue in enumerate((1, 3, 10)):
            await desk.consume(f"consumer-{number}", queue=queue)
        for turn in range(40):
            delays = [rng.choice((0, 0, 1, 30, 300, 2_000)) for _ in range(rng.choice((1, 5, 20)))]
            await desk.publish(*(f"{turn}-{row}" for row in range(len(delays))), delay=delays)
            await desk.quiet(rng.choice((0, 1, 10, 60)))
            if turn == 20:
                await desk.consume("late", queue=2)
        published = sum(desk._numbers.values())
        await desk.settled()
        assert len(desk.came()) == len(set(desk.names())) == published > 200
        assert await desk.count("msgBacklog") == await desk.count("msgDelayed") == 0
        late, at_once = parted(desk)
        assert min(len(late), len(at_once)) > 50

    serve(scenario, tracker=tracker, topic=TOPIC, **SMALL)


def test_dl_6_delays_are_switched_and_drowned_by_a_large_tick(tracker: str) -> None:
    async def scenario(desk: Desk) -> None:
        steps: list[tuple[dict[str, Any], bool]] = [
            ({}, False),
            ({"delayed_delivery_enabled": True}, True),
            ({"delayed_delivery_tick_time_millis": 3_600_000}, False),
        ]
        for number, (changed, waits) in enumerate(steps):
            if changed:
                await desk.configure(**changed)
            consumer = await desk.consume(f"consumer-{number}")
            await desk.publish("0", "1", "2", delay=4_000)
            await desk.quiet(1_000)
            assert len(consumer.got) == (0 if waits else 3), changed
            await desk.settled(4_000)
            assert len(consumer.got) == 3
            await consumer.close()

    serve(scenario, tracker=tracker, topic=TOPIC, **{**SMALL, "delayed_delivery_enabled": False})


def test_dl_7_clearing_the_backlog_clears_what_waits(tracker: str) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.subscribe("other")
        await desk.consume("one")
        await desk.consume("two", "other")
        for start in range(0, 100, 20):
            await desk.publish(*map(str, range(start, start + 20)), delay=60_000)
        await desk.quiet(STRAY_MS)
        assert await desk.count("msgDelayed") == await desk.count("msgBacklog") == 100
        await desk.admin("clear_backlog")
        assert await desk.count("msgDelayed") == await desk.count("msgBacklog") == 0
        assert await desk.count("msgDelayed", "other") == 100
        await desk.publish("new", delay=1_000)
        await desk.quiet(70_000)
        assert desk.names() == [("new", 0)]
        assert len(desk.came("other")) == 101
        assert desk.objects() == {}

    serve(scenario, tracker=tracker, topic=TOPIC, **SMALL)


def test_dl_8_a_consumer_that_is_made_anew_gets_it_once(tracker: str) -> None:
    async def scenario(desk: Desk) -> None:
        for number in range(4):
            consumer = await desk.consume(f"consumer-{number}")
            if not number:
                await desk.publish("waits", delay=10_000)
            await desk.quiet(1_000)
            assert await desk.count("msgDelayed") == 1
            await consumer.close()
        assert desk.came() == []
        last = await desk.consume("last")
        await desk.settled(10_000)
        assert [arrival.client for arrival in desk.came()] == [last]
        assert in_time(desk.came())
        assert await desk.count("msgDelayed") == await desk.count("msgBacklog") == 0

    serve(scenario, tracker=tracker, topic=TOPIC, **SMALL)


@pytest.mark.parametrize("restart", [False, True])
def test_dl_9_everybody_goes_and_comes_back(restart: bool, tracker: str) -> None:
    async def scenario(desk: Desk) -> None:
        first = [await desk.consume(f"first-{number}") for number in range(2)]
        rng = random.Random(9)
        delays = [rng.randrange(1, 4_000) for _ in range(100)]
        for start in range(0, 100, 20):
            await desk.publish(*map(str, range(start, start + 20)), delay=delays[start : start + 20])
        await desk.quiet(2_000)
        for consumer in first:
            await consumer.close()
        before = len(desk.came())
        assert 20 < before < 80
        if restart:
            await desk.restart("topic", "dispatcher")
        await desk.quiet(5_000)
        assert len(desk.came()) == before
        for number in range(2):
            await desk.consume(f"second-{number}")
        await desk.settled()
        assert len(desk.came()) == len(set(desk.names())) == 100
        assert await desk.count("msgBacklog") == 0

    serve(scenario, tracker=tracker, topic=TOPIC, **SMALL)


def test_dl_10_key_shared_with_and_without_delays(tracker: str) -> None:
    async def scenario(desk: Desk) -> None:
        for number in range(3):
            await desk.consume(f"consumer-{number}")
        keys = [str(number) for number in range(30)]
        for turn in range(6):
            await desk.publish(*keys, delay=[2_000 * ((turn + row) % 2) for row in range(30)])
        await desk.quiet(1_000)
        late, at_once = parted(desk)
        assert (late, len(at_once)) == ([], 90)
        await desk.settled()
        late, at_once = parted(desk)
        assert len(set(desk.names())) == len(desk.came()) == 180
        assert in_time(late)
        holders = {(arrival.message.key, arrival.client.name) for arrival in desk.came()}
        assert len(holders) == 30, "each key went to one consumer"
        assert len({name for _, name in holders}) == 3
        for part in (late, at_once):
            for key in keys:
                numbers = [arrival.message.number for arrival in part if arrival.message.key == key]
                assert numbers == sorted(numbers)

    serve(scenario, tracker=tracker, topic=TOPIC, type="key_shared", **SMALL)


def test_dl_12_a_delay_beyond_the_longest_is_refused_at_publish(tracker: str) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.consume("one")
        refused = await desk.offer("far", "near", delay=[10_500, 2_000])
        assert [type(error) for error in refused] == [Invalid]
        assert str(refused[0]) == "a message is delayed by more than the topic's 10000 ms"
        await desk.publish("near", delay=2_000)
        await desk.settled()
        assert desk.names() == [("near", 1)], "the whole batch was refused, and the producer goes on"
        assert in_time(desk.came())

    serve(scenario, tracker=tracker, topic={**TOPIC, "max_delay_ms": 10_000}, **SMALL)


DELAYED_DELIVERY: list[Callable[..., None]] = [
    partial(test_dl_1_shared_waits_and_a_single_consumer_does_not, single="failover"),
    partial(test_dl_2_messages_without_a_delay_overtake_those_with_one),
    partial(test_dl_3_every_other_row_of_a_batch),
    partial(test_dl_4_a_thousand_come_in_the_order_of_their_times, times="decreasing"),
    partial(test_dl_4_a_thousand_come_in_the_order_of_their_times, times="random"),
    partial(test_dl_5_reads_and_releases_at_the_same_time_lose_nothing),
    partial(test_dl_6_delays_are_switched_and_drowned_by_a_large_tick),
    partial(test_dl_7_clearing_the_backlog_clears_what_waits),
    partial(test_dl_8_a_consumer_that_is_made_anew_gets_it_once),
    partial(test_dl_9_everybody_goes_and_comes_back, restart=False),
    partial(test_dl_9_everybody_goes_and_comes_back, restart=True),
    partial(test_dl_10_key_shared_with_and_without_delays),
    partial(test_dl_12_a_delay_beyond_the_longest_is_refused_at_publish),
]


@pytest.mark.parametrize("tracker", ["bucket", "shared"])
@pytest.mark.parametrize("test", DELAYED_DELIVERY, ids=lambda test: test.func.__name__.removeprefix("test_"))
def test_bl_6_all_of_delayed_delivery_over_buckets(test: Callable[..., None], tracker: str) -> None:
    test(tracker=tracker)


def test_bd_6_undelayed_messages_end_the_pause_of_fixed_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.actors.delayed.memory.FIXED_DELAY_LOOKAHEAD", 10)

    async def scenario(desk: Desk) -> None:
        await desk.consume("one")
        for number in range(30):
            await desk.publish(str(number), delay=0 if number == 5 else 30_000)
        await desk.publish("plain")
        await desk.quiet(1_000)
        assert [arrival.message.key for arrival in desk.came()] == ["5", "plain"]
        await desk.settled(40_000)
        assert len(desk.came()) == 31

    serve(scenario, tracker="memory", topic=TOPIC, **SMALL)


def test_explain_says_that_the_delayed_index_waits_for_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.actors.delayed.buckets.WAITING_MOST", 20)

    async def scenario(desk: Desk) -> None:
        await desk.consume("one")
        desk.world.objects.trouble.refused["put"] = Unavailable
        for number in range(60):
            await desk.publish(str(number), delay=60_000)
        await desk.publish("plain")
        await desk.quiet(10_000)
        assert desk.came() == []
        told = json.loads((await desk.ask(Explain(key=b"plain"), 0, "billing")).json)
        assert told["verdict"] == "delayed_index_behind"
        assert "the store refuses put" in told["reasons"][0]["text"]
        desk.world.objects.trouble.refused.clear()
        await desk.quiet(35_000)
        assert [arrival.message.key for arrival in desk.came()] == ["plain"]

    serve(scenario, tracker="bucket", topic=TOPIC, **SMALL)


@pytest.mark.parametrize("kind", ["bucket", "shared"])
def test_a_manifest_that_its_store_finds_damaged_stops_nothing(kind: str) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.consume("one")
        for number in range(60):
            await desk.publish(str(number), delay=120_000)
        await desk.quiet(2_000)
        assert await desk.manifests()
        desk.world.meta.trouble.refused["read delayed/"] = Corrupt
        await desk.restart("topic", "dispatcher")
        await desk.publish("plain")
        await desk.quiet(10_000)
        assert [arrival.message.key for arrival in desk.came()] == ["plain"]
        await desk.settled(120_000)
        assert len(desk.came()) == len(set(desk.names())) == 61

    serve(scenario, tracker=kind, topic=TOPIC, **SMALL)

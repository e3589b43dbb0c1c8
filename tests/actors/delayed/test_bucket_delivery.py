"""Buckets of delayed messages in a whole broker: who goes, what stays, what is removed, what is counted (BL-1 to BL-4).

At most 10 buckets of at least 50 messages, segments of 10 messages or 1 second, 50 messages a ledger.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from sluice.actors.consumer.partition import ATTACH_TIMEOUT
from sluice.actors.messages import RemoveSubscription, RemoveTopic, Stats
from sluice.storage.errors import NotFound
from tests.actors.delayed.desk import STRAY_MS, Desk, serve
from tests.scenarios.key_shared.broker import SUBSCRIPTION, TOPIC

RULE: dict[str, Any] = {
    "delayed_delivery_max_num_buckets": 10,
    "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds": 1,
    "delayed_delivery_max_indexes_per_bucket_snapshot_segment": 10,
    "delayed_delivery_min_index_count_per_bucket": 50,
}
LEDGERS = {"roll_entries": 50}
FAR_MS = 120_000
METRIC = "pulsar_delayed_message_index_"

both = pytest.mark.parametrize("tracker", ["bucket", "shared"])


async def publish(desk: Desk, count: int) -> None:
    """Delayed messages in runs of 50, so that each ledger has one run."""
    rng = random.Random(count)
    for start in range(0, count, 50):
        keys = [str(number) for number in range(start, min(start + 50, count))]
        await desk.publish(*keys, delay=[FAR_MS + rng.randrange(20_000) for _ in keys])


@both
def test_bl_1_buckets_stay_while_nobody_is_connected(tracker: str) -> None:
    async def scenario(desk: Desk) -> None:
        consumers = [await desk.consume(f"first-{number}") for number in range(2)]
        await publish(desk, 1000)
        await desk.quiet(STRAY_MS)
        before = desk.objects()
        assert 1 < len(before) <= 10
        assert await desk.count("msgDelayed") == 1000
        for consumer in consumers:
            await consumer.close()
        await desk.quiet(30_000)
        assert await desk.count("msgDelayed") == 1000
        assert desk.objects() == before
        await desk.consume("second")
        await desk.quiet(STRAY_MS)
        assert await desk.count("msgDelayed") == 1000
        assert desk.objects() == before
        await desk.quiet(FAR_MS)
        assert len(desk.came()) == len(set(desk.names())) == 1000
        assert await desk.count("msgBacklog") == 0
        assert desk.objects() == {}

    serve(scenario, tracker=tracker, topic=LEDGERS, **RULE)


@both
def test_messages_of_lost_buckets_arrive_at_their_time(tracker: str) -> None:
    """The log is read again at once, although the reader waits at its end for minutes."""

    async def scenario(desk: Desk) -> None:
        await desk.consume("one")
        await publish(desk, 300)
        await desk.restart("dispatcher")
        await desk.quiet(STRAY_MS)
        assert len(desk.objects()) > 4
        for name in desk.objects():
            del desk.world.objects.objects[name]
        await desk.until(lambda: len(desk.came()) == 300, FAR_MS + 20_000)
        assert max(arrival.at - arrival.due for arrival in desk.came()) < 2_000

    serve(scenario, tracker=tracker, topic=LEDGERS, **RULE)


@both
@pytest.mark.parametrize("restart", [False, True])
def test_bl_2_who_unsubscribes_leaves_no_object(tracker: str, restart: bool) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.subscribe("other")
        consumers = [await desk.consume("one"), await desk.consume("two", "other")]
        await publish(desk, 300)
        await desk.quiet(STRAY_MS)
        assert len(desk.objects()) > 4
        for consumer in consumers:
            await consumer.close()
        if restart:
            await desk.restart("topic", "dispatcher")
        before = desk.objects()
        await desk.manage(RemoveSubscription(topic=TOPIC, subscription=SUBSCRIPTION))
        await desk.quiet(STRAY_MS)
        mine = [name for name in before if f"/{SUBSCRIPTION}/" in name]
        assert bool(mine) == (tracker == "bucket")
        assert desk.objects() == {name: size for name, size in before.items() if name not in mine}
        await desk.consume("three", "other")
        await desk.quiet(STRAY_MS)
        assert await desk.count("msgDelayed", "other") == 300
        await desk.clients["three"].close()
        await desk.manage(RemoveSubscription(topic=TOPIC, subscription="other"))
        await desk.quiet(STRAY_MS)
        assert desk.objects() == {}
        if tracker == "bucket":
            assert await desk.manifests() == []
        desk.subscriptions.clear()

    serve(scenario, tracker=tracker, topic=LEDGERS, **RULE)


def test_connected_consumers_start_over_after_a_deletion() -> None:
    """A disconnected consumer comes back at once, and must not use the subscription that is being deleted."""

    async def scenario(desk: Desk) -> None:
        consumers = [await desk.consume(f"consumer-{number}") for number in range(3)]
        await publish(desk, 300)
        await desk.quiet(STRAY_MS)
        assert len(desk.objects()) > 2
        # Deleting takes its time, so everybody is back before it is done.
        desk.world.objects.trouble.faults.delay_ms = (100, 200)
        await desk.manage(RemoveSubscription(topic=TOPIC, subscription=SUBSCRIPTION, force=True))
        await desk.quiet(STRAY_MS + ATTACH_TIMEOUT)
        assert desk.objects() == {}
        assert [kind for kind, _, _ in desk.world.placed()].count("dispatcher") == 2
        assert await desk.count("msgBacklog") == 0
        await desk.publish("new", delay=1_000)
        await desk.settled()
        assert desk.names() == [("new", 0)]
        assert await desk.count("epoch") == 2 + 2, "on each partition by one owner, who counts on from the one deleted"
        assert [client.parts[0].failed for client in consumers] == [None] * 3

    serve(scenario, partitions=2, topic=LEDGERS, initial_position="latest", **RULE)


def check_counts(stats: dict[str, Any], stored: int, **operations: int) -> None:
    """Check the metrics of one index against one another and against the store."""
    counts, latencies = stats[METRIC + "bucket_op_count"], stats[METRIC + "bucket_op_latency_ms"]
    for kind, states in counts.items():
        assert states["all"] == states["succeed"] + states["failed"]
        assert states["failed"] == 0
        assert latencies[kind]["count"] == sum(latencies[kind]["quantile"].values()) == states["all"]
    assert {kind: counts[kind]["succeed"] for kind in operations} == operations
    assert stats[METRIC + "bucket_snapshot_size_bytes"] == stored
    assert stats[METRIC + "bucket_total"] == stats["buckets"] + 1
    assert (stats[METRIC + "size_bytes"] > 0) == (stats["pulsar_subscription_delayed"] > 0), (
        "what is empty takes nothing"
    )


@both
def test_bl_3_metrics_of_two_subscriptions(tracker: str) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.subscribe("other")
        for name, subscription in (("one", SUBSCRIPTION), ("two", "other")):
            await desk.consume(name, subscription)
        await publish(desk, 101)
        await desk.quiet(STRAY_MS)
        totals = []
        for subscription in desk.subscriptions:
            own = (await desk.stats(0, subscription))["bucketDelayedIndexStats"]
            assert own["pulsar_subscription_delayed"] == 101
            if tracker == "shared":
                assert (own[METRIC + "loaded"], METRIC + "bucket_total" in own) == (0, False)
                continue
            stored = sum(size for name, size in desk.objects().items() if f"/{subscription}/" in name)
            check_counts(own, stored, create=2, load=0, merge=0, delete=0)
            assert own[METRIC + "loaded"] == 1, "what is sealed and far away is not in memory"
            totals.append(own[METRIC + "bucket_total"])
        reply = await desk.ports.net.call(await desk.directory.topic(TOPIC, 0), Stats(), 5_000)
        whole = json.loads(reply.json)["bucketDelayedIndexStats"]  # type: ignore[union-attr]
        if tracker == "shared":
            check_counts(whole, sum(desk.objects().values()), create=2, load=0, merge=0, delete=0)
            assert whole[METRIC + "loaded"] == 1
            totals.append(whole[METRIC + "bucket_total"])
        assert totals == ([3] if tracker == "shared" else [3, 3])
        assert (whole is None) == (tracker == "bucket"), "an index that is nobody's is not counted"
        await desk.quiet(FAR_MS + 20_000)
        assert len(desk.came()) == len(desk.came("other")) == 101
        assert desk.objects() == {}
        for subscription in desk.subscriptions:
            own = (await desk.stats(0, subscription))["bucketDelayedIndexStats"]
            if tracker == "bucket":
                loads = own[METRIC + "bucket_op_count"]["load"]["succeed"]
                assert loads > 2
                check_counts(own, 0, create=2, load=loads, merge=0, delete=2)
                assert (own[METRIC + "bucket_total"], own[METRIC + "loaded"]) == (1, 0)
            assert own["pulsar_subscription_delayed"] == 0

    serve(scenario, tracker=tracker, topic=LEDGERS, **RULE)


@both
@pytest.mark.parametrize("pause", [0, STRAY_MS])
def test_bl_4_who_deletes_the_topic_leaves_no_object(tracker: str, pause: int) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.subscribe("other")
        await desk.consume("one")
        await desk.consume("two", "other")
        await publish(desk, 300)
        await desk.quiet(pause)
        assert desk.objects() or not pause
        await desk.manage(RemoveTopic(topic=TOPIC, force=True))
        desk.subscriptions.clear()
        await desk.quiet(STRAY_MS)
        assert desk.objects() == {}
        assert await desk.manifests() == []
        assert [kind for kind, _, _ in desk.world.placed()] == ["bookie"], "the consumers did not make it anew"
        parts = [client.parts[0] for client in desk.clients.values()]
        await desk.until(lambda: all(isinstance(part.failed, NotFound) for part in parts), 2 * ATTACH_TIMEOUT)
        assert [client.events[-1].kind for client in desk.clients.values()] == ["failed", "failed"]

    serve(scenario, tracker=tracker, topic=LEDGERS, **RULE)

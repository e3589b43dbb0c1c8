"""Statistics of a topic with partitions, added up from those of each partition."""

from __future__ import annotations

from typing import Any

from sluice.actors.messages import TopicSettings
from sluice.cluster.admin.statistics import Partition, PulsarStats, internal, merged
from sluice.cluster.gateway.addresses import Addresses
from sluice.storage.format.position import MAX_ENTRY, position, show
from tests.kit.clocks import HandMovedClock

SETTINGS = TopicSettings(partitions=3)


def told(number: int, **of_subscription: Any) -> Partition:
    """A partition with 10 messages and one subscription, as their owners tell them."""
    row = {"partition": number, "msgInCounter": 10, "bytesInCounter": 30, "numberOfEntries": 10, "storageSize": 30}
    quiet = {"type": "key_shared", "msgBacklog": 4, "hottestKeyShare": 0.25, "graceMillis": 60_000, "heldBackBy": ""}
    never = {"blockedSubscriptionOnUnackedMsgs": False, "parkingAlarm": "", "heldBackByKey": 0}
    return Partition(f"t-{number}", row, {"s": {**quiet, **never, **of_subscription}})


def test_shares_and_settings_do_not_add_up() -> None:
    shapes = PulsarStats(Addresses("pulsar://h:1", "http://h:2"), HandMovedClock())
    partitions = [told(0), told(1, hottestKeyShare=0.5), told(2)]
    whole = merged({each.name: shapes.topic(each, SETTINGS) for each in partitions}, shown=False)
    assert (whole["msgInCounter"], whole["averageMsgSize"], whole["subscriptions"]["s"]["msgBacklog"]) == (30, 3.0, 12)
    assert (whole["subscriptions"]["s"]["hottestKeyShare"], whole["subscriptions"]["s"]["graceMillis"]) == (0.5, 60_000)
    unlimited = ("backlogQuotaLimitSize", "backlogQuotaLimitTime", "oldestBacklogMessageAgeSeconds")
    assert [whole[name] for name in unlimited] == [-1, -1, -1]


def test_trouble_on_one_partition_is_told_of_the_topic() -> None:
    shapes = PulsarStats(Addresses("pulsar://h:1", "http://h:2"), HandMovedClock())
    wrong = {
        "blockedSubscriptionOnUnackedMsgs": True,
        "heldBackBy": "'hot'",
        "heldBackByKey": 1,
        "parkingAlarm": "full",
    }
    partitions = [told(0), told(1, **wrong), told(2)]
    whole = merged({each.name: shapes.topic(each, SETTINGS) for each in partitions}, shown=False)
    assert {name: whole["subscriptions"]["s"][name] for name in wrong} == wrong


def test_each_of_equal_names_has_a_rate_of_its_own() -> None:
    """One of them has had many messages, and gets none any more."""
    clock = HandMovedClock()
    shapes = PulsarStats(Addresses("pulsar://h:1", "http://h:2"), clock)

    def rates(now: int, busy: int) -> list[float]:
        clock.passed = now
        counts = {1: 5_000, 2: busy}
        rows = [{"consumerName": "c", "session": number, "msgOutCounter": sent} for number, sent in counts.items()]
        row = shapes.topic(told(0, consumers=rows), SETTINGS)
        return [each["msgRateOut"] for each in row["subscriptions"]["s"]["consumers"]]

    assert [rates(10_000, 20), rates(12_000, 60)] == [[0, 0], [0, 20]]


def test_nested_statistics_cover_all_partitions() -> None:
    """The delayed index, the order sentinel and the drains were those of the first partition alone."""
    shapes = PulsarStats(Addresses("pulsar://h:1", "http://h:2"), HandMovedClock())

    def inner(violations: int, buckets: int, **drains: int) -> dict[str, Any]:
        operations = {"create": {"succeed": buckets, "failed": 0}}
        return {
            "sentinel": {"checkedOrder": 5, "violationsOrder": violations, "stories": [violations] * violations},
            "bucketDelayedIndexStats": {"buckets": buckets, "op_count": operations, "alarm": "", "fallback": None},
            "drainingHashesByConsumer": {
                name: {"hashes": 2, "millisMedian": median} for name, median in drains.items()
            },
            "subscriptionProperties": {"team": "billing"},
        }

    partitions = [told(0, **inner(0, 1)), told(1, **inner(1, 2, a=7)), told(2, **inner(2, 4, a=9, b=3))]
    whole = merged({each.name: shapes.topic(each, SETTINGS) for each in partitions}, shown=False)
    found = whole["subscriptions"]["s"]
    assert found["sentinel"] == {"checkedOrder": 15, "violationsOrder": 3, "stories": [1, 2, 2]}
    index = found["bucketDelayedIndexStats"]
    assert (index["buckets"], index["op_count"]["create"]["succeed"], index["fallback"]) == (7, 7, None)
    assert found["drainingHashesByConsumer"] == {
        "a": {"hashes": 4, "millisMedian": 9},
        "b": {"hashes": 2, "millisMedian": 3},
    }
    assert found["subscriptionProperties"] == {"team": "billing"}


def test_a_cursor_before_a_ledger_is_at_no_message() -> None:
    """The cursor stands before the first message of the ledger."""
    told = (show(position(4, MAX_ENTRY)), "4:17", "earliest", None)
    for told_as, shown in zip(told, ("5:-1", "4:17", "-1:-1", "-1:-1"), strict=True):
        row = internal({"ledgers": []}, {"s": {"markDeletePosition": told_as}})
        assert row["cursors"]["s"]["markDeletePosition"] == shown

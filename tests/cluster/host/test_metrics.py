"""Which statistic becomes which series."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from sluice.actors.delayed.stats import CREATE, Operations
from sluice.actors.key_shared.state.assignments import WaitTimes
from sluice.actors.key_shared.state.policies import REASONS
from sluice.cluster.host.metrics import Exporter, distributions, series
from sluice.cluster.host.metrics_text import MetricsText

LATENCY = "pulsar_delayed_message_index_bucket_op_latency_ms"


def index_stats(*milliseconds: int) -> dict[str, Any]:
    operations = Operations()
    for took in milliseconds:
        operations.record(CREATE, True, took)
    return {
        "pulsar_delayed_message_index_bucket_total": 3,
        "pulsar_delayed_message_index_bucket_snapshot_size_bytes": 700,
        "pulsar_delayed_message_index_bucket_op_count": operations.op_counts(),
        LATENCY: operations.op_latency(),
    }


def text_of(stats: dict[str, Any]) -> str:
    text = MetricsText()
    text.add("dispatcher", stats)
    return text.text()


def test_a_shared_index_is_exported_with_its_topic() -> None:
    stats = {"topic": "orders", "partition": 0, "bucketDelayedIndexStats": index_stats(20)}
    names = {metric.name: value for metric, _, value in series("topic", stats)}
    assert names["pulsar_delayed_message_index_bucket_total"] == 3
    assert names["pulsar_delayed_message_index_bucket_snapshot_size_bytes"] == 700
    assert "pulsar_delayed_message_index_bucket_op_count" in names
    assert [one.metric.name for one in distributions(stats)] == [LATENCY] * 4


def test_a_topic_without_a_shared_index_exports_none() -> None:
    stats = {"topic": "orders", "partition": 0, "msgInCounter": 5, "bucketDelayedIndexStats": None}
    assert [metric.name for metric, _, _ in series("topic", stats)] == ["pulsar_in_messages_total"]
    behind = {metric.name: value for metric, _, value in series("topic", stats | {"backlogBytes": 700})}
    assert behind["pulsar_storage_backlog_size"] == 700, "its subscription may be closed, and tells nothing"
    assert distributions(stats) == []


@pytest.mark.parametrize(
    ("kind", "free", "alarms"),
    [("shared", False, False), ("key_shared", True, False), ("key_shared", False, True), ("failover", False, True)],
)
def test_only_a_subscription_that_promises_order_breaks_it(kind: str, free: bool, alarms: bool) -> None:
    stats = {
        "type": kind,
        "allowOutOfOrderDelivery": free,
        "orderViolationsTotal": 245,
        "orderCheckedTotal": 500,
        "msgBacklog": 1,
    }
    names = {metric.name for metric, _, _ in series("dispatcher", stats)}
    assert ("sluice_order_violations_total" in names, "sluice_order_checked_total" in names) == (alarms, alarms)
    assert "pulsar_subscription_back_log" in names


def test_latencies_are_a_histogram_with_sum_and_steps() -> None:
    stats = {"bucketDelayedIndexStats": index_stats(20, 60, 70, 70_000)}
    (seen,) = [one for one in distributions(stats) if one.labels["type"] == "create"]
    assert list(seen.bounds) == [50, 100, 500, 1000, 5000, 30_000, 60_000]
    assert list(seen.counts) == [1, 2, 0, 0, 0, 0, 0, 1]
    assert seen.sum == 20 + 60 + 70 + 70_000


class SetGauges:
    """Stands for Ray's gauges. values: what was set, by name and topic, since this was cleared."""

    values: ClassVar[dict[tuple[str, str], float]] = {}

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.values[self.name, tags["topic"]] = value


def test_waits_by_reason_are_steps_sums_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[tuple[str, str, str], float] = {}

    class Gauge(SetGauges):
        def set(self, value: float, tags: dict[str, str]) -> None:
            shown[self.name, tags.get("reason", ""), tags.get("le", "")] = value

    monkeypatch.setattr("ray.util.metrics.Gauge", Gauge)
    waits = WaitTimes()
    waits.end(np.full(3, REASONS.index("draining"), np.uint8), np.array([4, 700, 90_000]))
    stats = {"topic": "t", "subscription": "s", "waits": waits.stats()}
    Exporter("c").show("h/d", "dispatcher", json.dumps(stats))
    name = "sluice_subscription_wait_ms"
    steps = {
        le: value for (series, reason, le), value in shown.items() if (series, reason) == (f"{name}_bucket", "draining")
    }
    assert (steps["1"], steps["5"], steps["1000"], steps["60000"], steps["+Inf"]) == (0, 1, 2, 2, 3)
    assert (shown[f"{name}_sum", "draining", ""], shown[f"{name}_count", "draining", ""]) == (90_704, 3)
    text = text_of(stats | {"partition": 0})
    assert f"# TYPE {name} histogram" in text
    assert f'{name}_bucket{{topic="t",partition="0",subscription="s",reason="draining",le="1000"}} 2' in text


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[tuple[str, str], float]]:
    monkeypatch.setattr("ray.util.metrics.Gauge", SetGauges)
    SetGauges.values.clear()
    yield SetGauges.values
    SetGauges.values.clear()


def stats_of(topic: str, published: int) -> str:
    return json.dumps({"topic": topic, "partition": 0, "msgInCounter": published, "bytesInCounter": 0})


MESSAGES, BYTES = "pulsar_in_messages_total", "pulsar_in_bytes_total"


def test_an_unchanged_gauge_is_set_again(gauges: dict[tuple[str, str], float]) -> None:
    """Ray forgets a gauge that is not set again: a backlog that did not move had vanished from the metrics."""
    exporter = Exporter("c")
    exporter.show("h/a", "topic", stats_of("a", 5))
    exporter.show("h/a", "topic", stats_of("a", 6))
    exporter.show("h/b", "topic", stats_of("b", 7))
    gauges.clear()
    exporter.show_again("h/a")
    assert gauges == {(MESSAGES, "a"): 6, (BYTES, "a"): 0}
    exporter.keep({"h/b"})
    gauges.clear()
    for address in ("h/a", "h/b"):
        exporter.show_again(address)
    assert gauges == {(MESSAGES, "b"): 7, (BYTES, "b"): 0}


def test_gauges_of_0_are_given_up_if_there_are_very_many(
    gauges: dict[tuple[str, str], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.cluster.host.metrics.MOST_ZEROS", 2)
    exporter = Exporter("c")
    for topic in ("a", "b", "c", "b"):
        exporter.show(f"h/{topic}", "topic", stats_of(topic, 1))
    assert (BYTES, "c") in gauges
    gauges.clear()
    for topic in ("a", "b", "c"):
        exporter.show_again(f"h/{topic}")
    assert {topic for name, topic in gauges if name == BYTES} == {"a", "b"}
    assert {topic for name, topic in gauges if name == MESSAGES} == {"a", "b", "c"}
    gauges.clear()
    exporter.keep({"h/c"})
    exporter.show("h/c", "topic", stats_of("c", 1))
    exporter.show_again("h/c")
    assert (BYTES, "c") in gauges


def test_the_text_of_a_large_number_has_all_its_digits() -> None:
    """Six of them hid the rise of every counter beyond a million."""
    stats = {
        "topic": "orders",
        "partition": 3,
        "subscription": "billing",
        "msgBacklog": 12_345_678,
        "hottestKeyShare": 0.25,
        "bucketDelayedIndexStats": index_stats(1_234_567, 7_654_321),
    }
    text = text_of(stats)
    labels = '{topic="orders",partition="3",subscription="billing"'
    assert f"pulsar_subscription_back_log{labels}}} 12345678\n" in text
    assert f"sluice_subscription_hottest_key_share{labels}}} 0.25\n" in text
    assert f'{LATENCY}_sum{labels},type="create"}} 8888888\n' in text
    assert f'{LATENCY}_bucket{labels},type="create",le="50"}} 0\n' in text
    assert text.count(f"# TYPE {LATENCY} histogram\n") == 1
    assert "# HELP pulsar_subscription_back_log Messages that are not acknowledged\n" in text
    sent = text_of({"subscription": "billing", "msgOutCounter": 1})
    assert "# HELP pulsar_out_messages_total Messages sent to consumers, since the owner started\n" in sent

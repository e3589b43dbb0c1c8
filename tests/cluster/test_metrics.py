"""Which statistic becomes which series."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.delayed.stats import CREATE, Operations
from cluster.metrics import Exporter, distributions, series

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
    assert distributions(stats) == []


def test_latencies_are_a_histogram_with_sum_and_steps() -> None:
    stats = {"bucketDelayedIndexStats": index_stats(20, 60, 70, 70_000)}
    (seen,) = [one for one in distributions(stats) if one.labels["type"] == "create"]
    assert list(seen.bounds) == [50, 100, 500, 1000, 5000, 30_000, 60_000]
    assert list(seen.counts) == [1, 2, 0, 0, 0, 0, 0, 1]
    assert seen.sum == 20 + 60 + 70 + 70_000


def test_what_was_observed_is_not_observed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    observed: list[float] = []

    class Histogram:
        def __init__(self, name: str, **_: object) -> None:
            assert name.startswith("pulsar_")

        def observe(self, value: float, tags: dict[str, str]) -> None:
            observed.append(value)

    class Gauge(Histogram):
        def set(self, value: float, tags: dict[str, str]) -> None:
            assert value >= 0

    monkeypatch.setattr("ray.util.metrics.Histogram", Histogram)
    monkeypatch.setattr("ray.util.metrics.Gauge", Gauge)
    exporter = Exporter("c")
    for took in ((20,), (20,), (20, 60), (80,)):
        exporter.show("topic", json.dumps({"topic": "t", "bucketDelayedIndexStats": index_stats(*took)}))
    assert observed == [50, 100, 100]

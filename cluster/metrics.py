"""Metrics: which statistic becomes which Prometheus series, and the gauges that a host keeps up to date.

They go through ray.util.metrics, so Ray's own agent exports them (with the prefix `ray_`, as for all). Names are
Pulsar's where Pulsar has one. No key, hash or message id is ever a label: magnitude is a metric, identity is a question
(`./sluice subscriptions explain`, `blocked-keys`). Totals are gauges of a count since the owner started, because an
owner that is replaced starts anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LABELS = ("cluster", "topic", "partition", "subscription")
EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Metric:
    """One series: its name, the statistic it shows (a path of keys), and what it means."""

    name: str
    statistic: tuple[str, ...]
    description: str


SUBSCRIPTION = (
    Metric("pulsar_subscription_back_log", ("msgBacklog",), "Messages that are not acknowledged"),
    Metric("pulsar_subscription_back_log_no_delayed", ("msgBacklogNoDelayed",), "The same without delayed ones"),
    Metric("pulsar_subscription_delayed", ("msgDelayed",), "Messages that are not due"),
    Metric("pulsar_subscription_in_replay", ("msgInReplay",), "Messages that wait to be sent again"),
    Metric("pulsar_subscription_unacked_messages", ("unackedMessages",), "Messages that consumers hold"),
    Metric(
        "pulsar_subscription_blocked_on_unacked_messages",
        ("blockedSubscriptionOnUnackedMsgs",),
        "1 when the subscription's limit of unacknowledged messages is reached",
    ),
    Metric("pulsar_subscription_draining_hashes_count", ("drainingHashesCount",), "Hashes that are draining"),
    Metric(
        "pulsar_subscription_draining_hashes_pending_messages",
        ("drainingHashesUnackedMessages",),
        "Messages that their former owners still hold",
    ),
    Metric(
        "pulsar_subscription_draining_hashes_cleared_total",
        ("drainingHashesClearedTotal",),
        "Hashes that finished draining",
    ),
    Metric("pulsar_out_messages_total", ("msgOutCounter",), "Messages sent to consumers"),
    Metric("pulsar_subscription_consumers_count", ("consumersCount",), "Attached consumers"),
    Metric(
        "pulsar_delayed_message_index_bucket_total",
        ("bucketDelayedIndexStats", "pulsar_delayed_message_index_bucket_total"),
        "Buckets, the one being filled included",
    ),
    Metric(
        "pulsar_delayed_message_index_loaded",
        ("bucketDelayedIndexStats", "pulsar_delayed_message_index_loaded"),
        "Index entries in memory",
    ),
    Metric(
        "pulsar_delayed_message_index_bucket_snapshot_size_bytes",
        ("bucketDelayedIndexStats", "pulsar_delayed_message_index_bucket_snapshot_size_bytes"),
        "Bytes of the buckets' objects",
    ),
    Metric(
        "pulsar_delayed_message_index_size_bytes",
        ("bucketDelayedIndexStats", "pulsar_delayed_message_index_size_bytes"),
        "Memory of the delayed index",
    ),
    Metric("sluice_order_checked_total", ("orderCheckedTotal",), "Messages that the order sentinel looked at"),
    Metric("sluice_order_violations_total", ("orderViolationsTotal",), "Broken promises that it found"),
    Metric("sluice_hashes_moved_total", ("hashesMovedTotal",), "Hashes that changed their consumer"),
    Metric("sluice_dispatch_stalled_total", ("watchdogStalls",), "Times when something deliverable was not sent"),
)
"""Of every subscription on every partition."""

TOPIC = (
    Metric("pulsar_in_messages_total", ("msgInCounter",), "Messages published"),
    Metric("pulsar_in_bytes_total", ("bytesInCounter",), "Bytes published"),
    Metric("pulsar_storage_size", ("storageSize",), "Bytes that the partition's ledgers hold"),
    Metric("sluice_under_replicated_ledgers", ("underReplicated",), "Ledgers with fewer copies than they should have"),
)
"""Of every partition."""

OPERATIONS = Metric(
    "pulsar_delayed_message_index_bucket_op_count",
    ("bucketDelayedIndexStats", "pulsar_delayed_message_index_bucket_op_count"),
    "Operations on buckets by type and state",
)
LATENCIES = Metric(
    "pulsar_delayed_message_index_bucket_op_latency_ms",
    ("bucketDelayedIndexStats", "pulsar_delayed_message_index_bucket_op_latency_ms"),
    "Operations on buckets that took at most so many milliseconds",
)


def series(kind: str, stats: Mapping[str, Any]) -> list[tuple[Metric, dict[str, str], float]]:
    """(metric, extra labels, value) of one actor's statistics; statistics that are absent are left out."""
    rows: list[tuple[Metric, dict[str, str], float]] = []
    for metric in {"dispatcher": SUBSCRIPTION, "topic": TOPIC}.get(kind, ()):
        value = _find(stats, metric.statistic)
        if isinstance(value, int | float):
            rows.append((metric, {}, float(value)))
    if kind == "dispatcher":
        for operation, states in (_find(stats, OPERATIONS.statistic) or {}).items():
            rows += [(OPERATIONS, {"type": operation, "state": state}, float(n)) for state, n in states.items()]
        for operation, seen in (_find(stats, LATENCIES.statistic) or {}).items():
            for quantile, n in seen.get("quantile", {}).items():
                rows.append((LATENCIES, {"type": operation, "quantile": quantile}, float(n)))
    return rows


def _find(stats: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = stats
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


class Exporter:
    """Keeps one host's gauges up to date."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._gauges: dict[str, Any] = {}

    def show(self, kind: str, text: str) -> None:
        """Set the gauges of one actor from its statistics (JSON)."""
        stats = json.loads(text)
        labels = {
            "cluster": self._cluster,
            "topic": str(stats.get("topic", "")),
            "partition": str(stats.get("partition", "")),
            "subscription": str(stats.get("subscription", "")) if kind == "dispatcher" else "",
        }
        for metric, extra, value in series(kind, stats):
            self._gauge(metric, tuple(sorted(extra))).set(value, tags={**labels, **extra})

    def _gauge(self, metric: Metric, extra: tuple[str, ...]) -> Any:
        if metric.name not in self._gauges:
            from ray.util.metrics import Gauge

            self._gauges[metric.name] = Gauge(metric.name, description=metric.description, tag_keys=(*LABELS, *extra))
        return self._gauges[metric.name]

"""Metrics: the Prometheus series of each statistic, and the gauges that a host keeps up to date.

They go through ray.util.metrics, so Ray's own agent exports them (with the prefix `ray_`, as for all). Names are
Pulsar's where Pulsar has one. No key, hash or message id is ever a label: magnitude is a metric, identity is a question
(`./sluice subscriptions explain`, `blocked-keys`). Totals are gauges of a count since the owner started, because a new
owner counts from 0. A topic or subscription that is closed (nobody uses it) has none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.actors.ports import Address

LABELS = ("cluster", "topic", "partition", "subscription")
EVERY_S = 5.0
MOST_ZEROS = 10_000
"""With so many gauges of the value 0 in a process, further ones are given up where nothing happens."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One series: its name, the statistic it shows (a path of keys), and what it means."""

    name: str
    statistic: tuple[str, ...]
    description: str

    @property
    def help(self) -> str:
        """The description for a person who sees nothing but this series."""
        counts = self.name.endswith(("_total", "_expired", "_op_count")) and self is not BUCKETS
        return f"{self.description}, since the owner started" if counts else self.description


BUCKETS = Metric(
    "pulsar_delayed_message_index_bucket_total",
    ("bucketDelayedIndexStats", "pulsar_delayed_message_index_bucket_total"),
    "Buckets, the one being filled included",
)
SNAPSHOTS = Metric(
    "pulsar_delayed_message_index_bucket_snapshot_size_bytes",
    ("bucketDelayedIndexStats", "pulsar_delayed_message_index_bucket_snapshot_size_bytes"),
    "Bytes of the buckets' objects",
)

SUBSCRIPTION = (
    Metric("pulsar_subscription_back_log", ("msgBacklog",), "Messages that are not acknowledged"),
    Metric(
        "pulsar_subscription_back_log_no_delayed",
        ("msgBacklogNoDelayed",),
        "The same without those that were read and are not due",
    ),
    Metric("pulsar_subscription_delayed", ("msgDelayed",), "Messages that were read and are not due"),
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
    Metric(
        "sluice_subscription_hottest_key_share",
        ("hottestKeyShare",),
        "Part of the messages read lately that the heaviest key has, 0 to 1",
    ),
    Metric(
        "sluice_subscription_held_back_by_key",
        ("heldBackByKey",),
        "1 while one key holds the partition back; the alarm names it",
    ),
    Metric("pulsar_out_messages_total", ("msgOutCounter",), "Messages sent to consumers"),
    Metric("sluice_subscription_given_back_total", ("msgRedeliverCounter",), "Messages that consumers gave back"),
    Metric("pulsar_subscription_total_msg_expired", ("totalMsgExpired",), "Messages that expired"),
    Metric("pulsar_subscription_consumers_count", ("consumersCount",), "Attached consumers"),
    BUCKETS,
    Metric(
        "pulsar_delayed_message_index_loaded",
        ("bucketDelayedIndexStats", "pulsar_delayed_message_index_loaded"),
        "Index entries in memory",
    ),
    SNAPSHOTS,
    Metric(
        "pulsar_delayed_message_index_size_bytes",
        ("bucketDelayedIndexStats", "pulsar_delayed_message_index_size_bytes"),
        "Memory of the delayed index",
    ),
    Metric(
        "sluice_delayed_waiting_for_store",
        ("bucketDelayedIndexStats", "waiting_for_store"),
        "Delayed messages that only memory holds until the store takes them",
    ),
    Metric("sluice_order_checked_total", ("orderCheckedTotal",), "Messages that the order sentinel looked at"),
    Metric("sluice_order_violations_total", ("orderViolationsTotal",), "Broken promises that it found"),
    Metric("sluice_subscription_revoked_messages", ("msgRevoked",), "Messages that consumers were asked to give back"),
    Metric("sluice_subscription_revoked_total", ("msgRevokedTotal",), "The same, counted"),
    Metric("sluice_subscription_parked_keys", ("parkedKeys",), "Keys that are parked until an operator decides"),
    Metric("sluice_subscription_blocked_keys", ("blockedKeys",), "Keys that wait for a decision and are not parked"),
    Metric("sluice_subscription_parked_messages", ("msgParked",), "Messages of parked keys"),
    Metric("sluice_subscription_parked_bytes", ("parkedBytes",), "Their bytes"),
    Metric(
        "sluice_subscription_parking_limit_reached",
        ("parkingLimitReached",),
        "1 when messages are blocked because the limit of parked keys or bytes is reached",
    ),
    Metric("sluice_subscription_keys_parked_total", ("keysParkedTotal",), "Keys that were parked or blocked"),
    Metric("sluice_subscription_redriven_total", ("msgRedrivenTotal",), "Messages that were redriven"),
    Metric("sluice_hashes_moved_total", ("hashesMovedTotal",), "Hashes that changed their consumer"),
    Metric("sluice_kept_hashes", ("keptHashes",), "Hashes that are kept for consumers that left"),
    Metric("sluice_places_returned_total", ("placesReturnedTotal",), "Consumers that came back in time"),
    Metric("sluice_hand_overs_total", ("handOversTotal",), "Consumers whose hashes another one took over as they are"),
    Metric("sluice_damped_consumers_total", ("dampedConsumersTotal",), "Times when a consumer that flaps had to wait"),
    Metric("sluice_read_again_total", ("msgReadAgainTotal",), "Messages that no table knew and that were read again"),
    Metric("sluice_dispatch_stalled_total", ("watchdogStalls",), "Times when something deliverable was not sent"),
)
"""Of every subscription on every partition."""
PROMISES = ("sluice_order_checked_total", "sluice_order_violations_total")
"""A subscription without order (Shared, or `allow_out_of_order_delivery`) has none of these."""

TOPIC = (
    Metric("pulsar_in_messages_total", ("msgInCounter",), "Messages published"),
    Metric("pulsar_in_bytes_total", ("bytesInCounter",), "Bytes published"),
    Metric("pulsar_storage_size", ("storageSize",), "Bytes that the partition's ledgers hold"),
    Metric(
        "pulsar_storage_backlog_size",
        ("backlogBytes",),
        "About how many bytes lie behind the slowest subscription, also one that is closed because nobody uses it",
    ),
    Metric("sluice_under_replicated_ledgers", ("underReplicated",), "Ledgers with fewer copies than they should have"),
    BUCKETS,
    SNAPSHOTS,
)
"""Of every partition. The last two are there where the partition's subscriptions share one delayed index."""

OPERATIONS = Metric(
    "pulsar_delayed_message_index_bucket_op_count",
    ("bucketDelayedIndexStats", "pulsar_delayed_message_index_bucket_op_count"),
    "Operations on buckets by type and state",
)
LATENCIES = Metric(
    "pulsar_delayed_message_index_bucket_op_latency_ms",
    ("bucketDelayedIndexStats", "pulsar_delayed_message_index_bucket_op_latency_ms"),
    "Milliseconds that operations on buckets took, by type",
)
WAITS = Metric(
    "sluice_subscription_wait_ms",
    ("waits",),
    "Milliseconds that messages waited from their confirmation to their first delivery, split by reason",
)
_HISTOGRAMS = ((LATENCIES, "type"), (WAITS, "reason"))
"""Histograms in statistics, and the label that each has of its own."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram since the owner started: how many values fell into each step, and their sum.

    bounds: upper ends of the steps, ascending. counts: one more than bounds, the last is for what is above all.
    """

    metric: Metric
    labels: dict[str, str]
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    def cumulative(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield suffix, label of the step, and value as Prometheus has them: a step counts those below it as well."""
        below = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            below += count
            yield "_bucket", {"le": "+Inf" if bound == math.inf else f"{bound:g}"}, float(below)
        yield "_sum", {}, self.sum
        yield "_count", {}, float(below)


def series(kind: str, stats: Mapping[str, Any]) -> list[tuple[Metric, dict[str, str], float]]:
    """(metric, extra labels, value) of one actor's statistics; statistics that are absent are left out."""
    rows: list[tuple[Metric, dict[str, str], float]] = []
    unordered = stats.get("type") == "shared" or stats.get("allowOutOfOrderDelivery")
    for metric in {"dispatcher": SUBSCRIPTION, "topic": TOPIC}.get(kind, ()):
        if unordered and metric.name in PROMISES:
            continue
        value = _find(stats, metric.statistic)
        if isinstance(value, int | float):
            rows.append((metric, {}, float(value)))
    for operation, states in (_find(stats, OPERATIONS.statistic) or {}).items():
        rows += [(OPERATIONS, {"type": operation, "state": state}, float(n)) for state, n in states.items()]
    return rows


def distributions(stats: Mapping[str, Any]) -> list[Distribution]:
    """The histograms in one actor's statistics."""
    found = []
    for metric, label in _HISTOGRAMS:
        for kind, seen in (_find(stats, metric.statistic) or {}).items():
            steps = seen.get("quantile", {})
            bounds = tuple(float(step) for step in steps if step != "overflow")
            counts = tuple(int(n) for n in steps.values())
            found.append(Distribution(metric, {label: kind}, bounds, counts, float(seen.get("sum", 0))))
    return found


def _find(stats: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = stats
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


Row = tuple[Any, float, dict[str, str]]
"""A gauge, its value, and the labels."""


class Exporter:
    """Keeps one host's gauges up to date.

    Ray forgets a gauge that was not set for two of its report intervals, which are 20 s together. So what has not
    changed is set again meanwhile, without its actor being asked; with very many gauges only those that are not 0.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._gauges: dict[str, Any] = {}
        self._shown: dict[Address, list[Row]] = {}
        self._zeros = 0
        """How many rows in it have the value 0."""

    def show(self, address: Address, kind: str, text: str) -> None:
        """Set the gauges of one actor from its statistics (JSON)."""
        stats = json.loads(text)
        labels = {
            "cluster": self._cluster,
            "topic": str(stats.get("topic", "")),
            "partition": str(stats.get("partition", "")),
            "subscription": str(stats.get("subscription", "")) if kind == "dispatcher" else "",
        }
        rows: list[Row] = [
            (self._gauge(metric, tuple(sorted(extra))), value, {**labels, **extra} if extra else labels)
            for metric, extra, value in [*series(kind, stats), *_steps(stats)]
        ]
        _set(rows)
        self._drop(address)
        self._shown[address] = rows if self._zeros < MOST_ZEROS else [row for row in rows if row[1]]
        self._zeros += _zeros(self._shown[address])

    def show_again(self, address: Address) -> None:
        """The statistics of an actor are what they were."""
        _set(self._shown.get(address, []))

    def keep(self, addresses: Container[Address]) -> None:
        """Forget all other actors, which have ended."""
        for address in [address for address in self._shown if address not in addresses]:
            self._drop(address)

    def _drop(self, address: Address) -> None:
        self._zeros -= _zeros(self._shown.pop(address, []))

    def _gauge(self, metric: Metric, extra: tuple[str, ...]) -> Any:
        if metric.name not in self._gauges:
            from ray.util.metrics import Gauge

            self._gauges[metric.name] = Gauge(metric.name, description=metric.help, tag_keys=(*LABELS, *extra))
        return self._gauges[metric.name]


def _steps(stats: Mapping[str, Any]) -> Iterator[tuple[Metric, dict[str, str], float]]:
    """Yield the histograms of one actor as gauges with Prometheus' names; Ray's own take one value after the other."""
    for seen in distributions(stats):
        for suffix, extra, value in seen.cumulative():
            yield Metric(seen.metric.name + suffix, (), seen.metric.description), {**seen.labels, **extra}, value


def _set(rows: list[Row]) -> None:
    for gauge, value, tags in rows:
        gauge.set(value, tags=tags)


def _zeros(rows: list[Row]) -> int:
    return sum(not value for _, value, _ in rows)

"""Settings of topics and subscriptions, as metadata keeps them and users give them; Pulsar's names in snake_case."""

from __future__ import annotations

import msgspec

from storage.errors import Invalid


class TopicSettings(msgspec.Struct, kw_only=True):
    """Per-topic settings, kept in its metadata record."""

    partitions: int = 1
    ensemble: int = 2
    write_quorum: int = 2
    ack_quorum: int = 2
    roll_entries: int = 5_000_000
    roll_bytes: int = 1024 * 1024 * 1024
    roll_ms: int = 4 * 3600 * 1000
    retention_ms: int = 0
    retention_bytes: int = 0
    ttl_ms: int = 0
    max_delay_ms: int = 0


class SubscriptionSettings(msgspec.Struct, kw_only=True):
    """Per-subscription settings, kept in its metadata record. Names after Pulsar's, in snake_case."""

    type: str = "key_shared"
    policy: str = "draining_hashes"
    remember_unacked_keys: bool = False
    allow_out_of_order_delivery: bool = False
    selector: str = "consistent_hashing"
    replica_points: int = 100
    initial_position: str = "latest"
    max_unacked_messages_per_consumer: int = 50_000
    max_unacked_messages_per_subscription: int = 200_000
    look_ahead_per_consumer: int = 4_000
    look_ahead_per_subscription: int = 40_000
    unblocking_interval_ms: int = 0
    lease_ms: int = 10_000
    delay_key_policy: str = "pass"
    max_redeliver_count: int = 0
    dead_letter_topic: str = ""
    delayed_delivery_enabled: bool = True
    delayed_delivery_shared_index_enabled: bool = False
    delayed_tracker: str = "bucket"
    delayed_delivery_tick_time_millis: int = 0
    delayed_delivery_min_index_count_per_bucket: int = 50_000
    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds: int = 300
    delayed_delivery_max_indexes_per_bucket_snapshot_segment: int = 5_000
    delayed_delivery_max_num_buckets: int = -1


CHOICES = {
    "type": ("key_shared", "shared", "exclusive", "failover"),
    "policy": ("draining_hashes", "last_sent_position", "read_position"),
    "selector": ("consistent_hashing", "auto_split", "sticky"),
    "initial_position": ("latest", "earliest"),
    "delay_key_policy": ("pass", "block_key", "reject"),
    "delayed_tracker": ("bucket", "memory"),
}
"""The settings of a subscription that are one of a few words."""

SHORTEST_LEASE_MS = 2_000
"""A lease must outlast a long poll with some room, or consumers that live would be taken for dead."""


def check_subscription(settings: SubscriptionSettings) -> None:
    """Refuse what could never work. Raises Invalid naming the setting and what it may be."""
    for name, choices in CHOICES.items():
        if getattr(settings, name) not in choices:
            raise Invalid(f"{name} = {getattr(settings, name)!r}: choose one of {', '.join(choices)}")
    if settings.lease_ms < SHORTEST_LEASE_MS:
        raise Invalid(f"lease_ms = {settings.lease_ms}: it is at least {SHORTEST_LEASE_MS}")
    if settings.replica_points < 1:
        raise Invalid(f"replica_points = {settings.replica_points}: a consumer has at least 1 point")


def dead_letter_topic(topic: str, subscription: str, settings: SubscriptionSettings) -> str:
    """Where messages go that were given back more than max_redeliver_count times; named as in Pulsar."""
    return settings.dead_letter_topic or f"{topic}-{subscription}-DLQ"

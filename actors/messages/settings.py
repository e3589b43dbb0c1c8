"""Settings of topics and subscriptions, as metadata keeps them and users give them; Pulsar's names in snake_case."""

from __future__ import annotations

import msgspec


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
    unblocking_interval_ms: int = 10
    lease_ms: int = 10_000
    delay_key_policy: str = "pass"
    max_redeliver_count: int = 0
    dead_letter_topic: str = ""
    delayed_delivery_enabled: bool = True
    delayed_tracker: str = "bucket"
    delayed_delivery_tick_time_millis: int = 0
    delayed_delivery_min_index_count_per_bucket: int = 50_000
    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds: int = 300
    delayed_delivery_max_indexes_per_bucket_snapshot_segment: int = 5_000
    delayed_delivery_max_num_buckets: int = -1

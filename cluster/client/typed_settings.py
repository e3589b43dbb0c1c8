"""The settings of topics, producers and consumers as type checkers see them.

At run time `actors.messages.settings` and the calls themselves check names and values. A test compares both: names,
types, and the words of each choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

from sluice.actors.messages import AccessMode
from sluice.cluster.client.message import MessageId

RangesCallback = Callable[[int, str, list[tuple[int, int]]], None]
"""Called with (partition, kind, ranges); kind is assigned, revoked, drained or lost."""


class TopicOptions(TypedDict, total=False):
    """Settings of `create_topic`; see actors.messages.TopicSettings."""

    ensemble: int
    write_quorum: int
    ack_quorum: int
    roll_entries: int
    roll_bytes: int
    roll_ms: int
    retention_ms: int
    retention_bytes: int
    ttl_ms: int
    offload_threshold_bytes: int
    offload_threshold_seconds: int
    offload_deletion_lag_ms: int
    history_retention_ms: int
    history_retention_bytes: int
    compaction_threshold_bytes: int
    max_delay_ms: int
    deduplication_enabled: bool
    partitioned: bool


class ProducerSettings(TypedDict, total=False):
    """Settings of `create_producer`."""

    initial_sequence_id: int | None
    send_timeout_millis: int
    compression: Literal["lz4", "zstd"] | None
    batching_max_messages: int
    batching_max_allowed_size_in_bytes: int
    batching_max_publish_delay_ms: int
    hashing_scheme: Literal["murmur3_32_hash", "java_string_hash"]
    access_mode: AccessMode
    chunking_enabled: bool


class SubscriptionOptions(TypedDict, total=False):
    """Settings that a subscription keeps; see actors.messages.SubscriptionSettings."""

    type: Literal["key_shared", "shared", "exclusive", "failover"]
    durable: bool
    policy: Literal["draining_hashes", "last_sent_position", "read_position"]
    remember_unacked_keys: bool
    allow_out_of_order_delivery: bool
    selector: Literal["consistent_hashing", "auto_split", "sticky"]
    replica_points: int
    initial_position: Literal["latest", "earliest"]
    max_unacked_messages_per_consumer: int
    max_unacked_messages_per_subscription: int
    look_ahead_per_consumer: int
    look_ahead_per_subscription: int
    unblocking_interval_ms: int
    lease_ms: int
    delay_key_policy: Literal["pass", "block_key", "reject"]
    nack_order: Literal["none", "key"]
    grace_ms: int
    max_redeliver_count: int
    dead_letter_policy: Literal["skip", "block", "park"]
    park_max_keys: int
    park_max_bytes: int
    dead_letter_topic: str
    delayed_delivery_enabled: bool
    delayed_delivery_shared_index_enabled: bool
    delayed_tracker: Literal["bucket", "memory"]
    delayed_delivery_tick_time_millis: int
    delayed_delivery_min_index_count_per_bucket: int
    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds: int
    delayed_delivery_max_indexes_per_bucket_snapshot_segment: int
    delayed_delivery_max_num_buckets: int


class OwnConsumerSettings(TypedDict, total=False):
    """Settings of `subscribe` that are the consumer's own."""

    consumer_name: str | None
    receiver_queue_size: int
    key_shared_ranges: list[tuple[int, int]] | None
    priority_level: int
    read_compacted: bool
    pattern_auto_discovery_period: float
    negative_ack_redelivery_delay_ms: int
    on_ranges: RangesCallback | None
    max_pending_chunked_message: int
    expire_time_of_incomplete_chunked_message_ms: int
    timeout_ms: int | None


class ConsumerSettings(OwnConsumerSettings, SubscriptionOptions, total=False):
    """Settings of `subscribe`: the consumer's own, and those of its subscription."""


class DelayedChoice(TypedDict, total=False):
    """The delayed messages that `cancel_delayed` and `reschedule_delayed` mean. due_from, due_to: ms since 1970."""

    message_id: MessageId | str | Sequence[MessageId | str]
    delay_id: str | Sequence[str]
    key: str | bytes | None
    due_from: int
    due_to: int
    before: MessageId | str
    everything: bool
    dry_run: bool

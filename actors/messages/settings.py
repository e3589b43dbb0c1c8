"""Settings of topics and subscriptions, as metadata keeps them and users give them; Pulsar's names in snake_case.

Only this module says which values each setting may have, and the actor that stores it checks them. So the limits hold
for the command line, the Python client, HTTP, and every other caller.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from sluice.storage.errors import Invalid


class TopicSettings(msgspec.Struct, kw_only=True, frozen=True):
    """Per-topic settings, kept in its metadata record."""

    partitions: int = 1
    """Parts of the topic, each with a log and an owner of its own."""
    ensemble: int = 2
    """Bookies that share the runs of one ledger."""
    write_quorum: int = 2
    """Bookies that are sent each run."""
    ack_quorum: int = 2
    """Bookies that must have a run on disk before its publish is confirmed."""
    roll_entries: int = 5_000_000
    """A ledger with so many messages is closed, and a new one begins."""
    roll_bytes: int = 1024 * 1024 * 1024
    """The same for its bytes."""
    roll_ms: int = 4 * 3600 * 1000
    """The same for its age."""
    retention_ms: int = 0
    """Acknowledged messages are kept so long; 0: not set, -1: without end."""
    retention_bytes: int = 0
    """So many bytes of acknowledged messages are kept; 0: not set, -1: without end."""
    ttl_ms: int = 0
    """Messages older than this count as acknowledged in every subscription; 0: never."""
    offload_threshold_bytes: int = -1
    """Closed ledgers of a partition beyond so many bytes leave the bookies for the object store; -1: none does."""
    offload_threshold_seconds: int = -1
    """So do ledgers that were closed so long ago; -1: none does."""
    offload_deletion_lag_ms: int = 4 * 3600 * 1000
    """The bookies keep what is in the object store for so long."""
    history_retention_ms: int = 0
    """Messages in the object store are kept at least so long, even if retention would let them go; 0: not set, -1:
    without end."""
    history_retention_bytes: int = 0
    """The same for their bytes."""
    compaction_threshold_bytes: int = 0
    """A partition is compacted when so many bytes have come since the last time; 0: never by itself."""
    max_delay_ms: int = 0
    """A message with a longer delay is refused; 0: any delay is taken."""
    deduplication_enabled: bool = False
    """Of Pulsar's clients: a message that a producer of the same name sent before is stored once, by its sequence id.
    Sluice's own producers never need it."""
    partitioned: bool = False
    """To clients of Pulsar a topic of one partition is one without partitions, which gets no more of them, unless this
    is set. Of several partitions it means nothing."""

    @property
    def has_partitions(self) -> bool:
        """Whether clients of Pulsar know it as a partitioned topic."""
        return self.partitioned or self.partitions > 1


class SubscriptionSettings(msgspec.Struct, kw_only=True, frozen=True):
    """Per-subscription settings, kept in its metadata record. Names after Pulsar's, in snake_case."""

    type: str = "key_shared"
    """Which consumers get messages, and how they share them, as in Pulsar."""
    durable: bool = True
    """False: the subscription goes when no consumer has been attached for a lease, as Pulsar's non-durable ones go."""
    policy: str = "draining_hashes"
    """When a hash that moves to another consumer may go on."""
    remember_unacked_keys: bool = False
    """PIP-319, for the policies other than draining_hashes."""
    allow_out_of_order_delivery: bool = False
    """Consumers share the messages of a key, without order."""
    selector: str = "consistent_hashing"
    """How the hashes are divided among consumers."""
    replica_points: int = 100
    """Points of each consumer on the ring of consistent_hashing."""
    initial_position: str = "latest"
    """Where a new subscription begins: behind the last message, or at the first."""
    max_unacked_messages_per_consumer: int = 50_000
    """A consumer that holds so many messages gets no more; 0: no limit."""
    max_unacked_messages_per_subscription: int = 200_000
    """The same for all consumers of a partition together; 0: no limit."""
    look_ahead_per_consumer: int = 4_000
    """So many messages for each consumer may wait in the window while later ones are read."""
    look_ahead_per_subscription: int = 40_000
    """The same for the whole subscription on a partition."""
    unblocking_interval_ms: int = 0
    """Acknowledgements of so long a time may free waiting messages together; 0: at once."""
    lease_ms: int = 10_000
    """A consumer that is silent for so long loses what it holds."""
    delay_key_policy: str = "pass"
    """The effect of a delayed message on later ones of its key: they pass it, they wait, or a delay is refused."""
    nack_order: str = "none"
    """none: what is given back may be overtaken, as in Pulsar. key: it goes out before any later message of its key."""
    grace_ms: int = 0
    """So long the hashes of a consumer that left are kept for one of its name; 0: they move at once, as in Pulsar."""
    max_redeliver_count: int = 0
    """A message that was redelivered more often has failed; 0: no message fails."""
    dead_letter_policy: str = "skip"
    """What becomes of a key of which a message was redelivered too often. skip: the message goes to the dead letter
    topic, and its key goes on, as in Pulsar. block: the key waits until an operator decides. park: it does not count as
    waiting either, within the limits."""
    park_max_keys: int = 1_000
    """The most keys that are parked on one partition; further ones block."""
    park_max_bytes: int = 256 * 1024 * 1024
    """The same for the bytes of their messages."""
    dead_letter_topic: str = ""
    """The topic for failed messages; empty: TOPIC-SUBSCRIPTION-DLQ, as in Pulsar."""
    delayed_delivery_enabled: bool = True
    """Without it a delayed message goes out at once."""
    delayed_delivery_shared_index_enabled: bool = False
    """Subscriptions of a partition share one delayed index."""
    delayed_tracker: str = "bucket"
    """The delayed index: buckets in the object store, or memory alone."""
    delayed_delivery_tick_time_millis: int = 0
    """A message may come so much early, as in Pulsar; 0: never."""
    delayed_delivery_min_index_count_per_bucket: int = 50_000
    """A bucket is sealed when it has so many messages."""
    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds: int = 300
    """The longest span of due times in one segment of a bucket."""
    delayed_delivery_max_indexes_per_bucket_snapshot_segment: int = 5_000
    """The most messages in one segment of a bucket."""
    delayed_delivery_max_num_buckets: int = -1
    """With more buckets some are merged; -1: no limit."""


OF_MAKING = ("initial_position",)
"""Settings of a subscription that count only when it is made."""

CHOICES = {
    "type": ("key_shared", "shared", "exclusive", "failover"),
    "policy": ("draining_hashes", "last_sent_position", "read_position"),
    "selector": ("consistent_hashing", "auto_split", "sticky"),
    "initial_position": ("latest", "earliest"),
    "delay_key_policy": ("pass", "block_key", "reject"),
    "nack_order": ("none", "key"),
    "dead_letter_policy": ("skip", "block", "park"),
    "delayed_tracker": ("bucket", "memory"),
}
"""The settings of a subscription that are one of a few words."""

MAX_PARTITIONS = 1024
"""Most partitions of one topic."""
SHORTEST_LEASE_MS = 2_000
"""A lease must outlast a long poll with some room, or consumers that live would be taken for dead."""
YEARS = 100 * 366 * 24 * 3600 * 1000
"""A hundred years: longer than anything, and far from where sums of times overflow."""
MOST_PROPERTY_BYTES = 16_384
"""The most bytes of a subscription's properties: its record is written again with every group of acknowledgements."""
_BYTES = 1 << 50
_MANY = 1 << 31

LIMITS: dict[str, tuple[int, int]] = {
    "partitions": (1, MAX_PARTITIONS),
    "ensemble": (1, 64),
    "write_quorum": (1, 64),
    "ack_quorum": (1, 64),
    "roll_entries": (1, _MANY),
    "roll_bytes": (1, _BYTES),
    "roll_ms": (1, YEARS),
    "retention_ms": (-1, YEARS),
    "retention_bytes": (-1, _BYTES),
    "ttl_ms": (0, YEARS),
    "offload_threshold_bytes": (-1, _BYTES),
    "offload_threshold_seconds": (-1, YEARS // 1000),
    "offload_deletion_lag_ms": (0, YEARS),
    "history_retention_ms": (-1, YEARS),
    "history_retention_bytes": (-1, _BYTES),
    "compaction_threshold_bytes": (0, _BYTES),
    "max_delay_ms": (0, YEARS),
    "replica_points": (1, 1_000),
    "max_unacked_messages_per_consumer": (0, _MANY),
    "max_unacked_messages_per_subscription": (0, _MANY),
    "look_ahead_per_consumer": (0, _MANY),
    "look_ahead_per_subscription": (0, _MANY),
    "unblocking_interval_ms": (0, 60_000),
    "lease_ms": (SHORTEST_LEASE_MS, 24 * 3600 * 1000),
    "grace_ms": (0, 24 * 3600 * 1000),
    "max_redeliver_count": (0, 254),
    "park_max_keys": (1, 10_000),
    "park_max_bytes": (1, _BYTES),
    "delayed_delivery_tick_time_millis": (0, 24 * 3600 * 1000),
    "delayed_delivery_min_index_count_per_bucket": (1, 10_000_000),
    "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds": (1, YEARS // 1000),
    "delayed_delivery_max_indexes_per_bucket_snapshot_segment": (1, 10_000_000),
    "delayed_delivery_max_num_buckets": (-1, 1_000_000),
}
"""Smallest and largest value of every number among the settings. Redeliveries are counted in one byte."""

S = TypeVar("S", TopicSettings, SubscriptionSettings)


def check_topic(settings: TopicSettings) -> None:
    """Refuse what could never work, or costs too much. Raises Invalid naming the setting and what it may be."""
    check_limits(settings, LIMITS)
    if not settings.ack_quorum <= settings.write_quorum <= settings.ensemble:
        raise Invalid(
            f"ensemble = {settings.ensemble}, write_quorum = {settings.write_quorum}, ack_quorum = "
            f"{settings.ack_quorum}: the quorums must satisfy 1 <= ack_quorum <= write_quorum <= ensemble"
        )


def check_subscription(settings: SubscriptionSettings) -> None:
    """Refuse what could never work, or costs too much. Raises Invalid naming the setting and what it may be."""
    check_values(settings)
    if settings.nack_order == "key" and not keeps_keys(settings):
        raise Invalid(
            "nack_order = 'key' needs a subscription that keeps its keys in order: type key_shared (without "
            "allow_out_of_order_delivery, with policy draining_hashes), exclusive or failover"
        )
    if settings.grace_ms > 0 and not keeps_places(settings):
        raise Invalid(
            f"grace_ms = {settings.grace_ms} needs a subscription whose consumers own hashes in order: type key_shared "
            "without allow_out_of_order_delivery"
        )
    if settings.dead_letter_policy != "skip":
        _check_parking(settings)


def check_properties(properties: Mapping[str, str]) -> None:
    """Raises Invalid for more properties of a subscription than its record should carry."""
    size = sum(len(name.encode()) + len(value.encode()) for name, value in properties.items())
    if size > MOST_PROPERTY_BYTES:
        raise Invalid(f"the properties of a subscription have {size} bytes, {MOST_PROPERTY_BYTES} are the most")


def check_values(settings: SubscriptionSettings) -> None:
    """Refuse a value that its setting can never have. Raises Invalid naming the setting and what it may be."""
    check_choices(settings)
    check_limits(settings, LIMITS)


def check_choices(settings: SubscriptionSettings) -> None:
    """Raises Invalid for a word that is none of the choices."""
    for name, choices in CHOICES.items():
        if getattr(settings, name) not in choices:
            raise Invalid(f"{name} = {getattr(settings, name)!r}: choose one of {', '.join(choices)}")


def _check_parking(settings: SubscriptionSettings) -> None:
    chosen = f"dead_letter_policy = {settings.dead_letter_policy!r}"
    if settings.nack_order != "key":
        raise Invalid(f"{chosen} keeps the order of a key, which needs nack_order = 'key'")
    if settings.max_redeliver_count == 0:
        raise Invalid(
            f"{chosen} needs max_redeliver_count of at least 1: a message has failed after that many redeliveries"
        )
    if settings.dead_letter_topic:
        raise Invalid(f"{chosen} sends nothing to a dead letter topic; leave dead_letter_topic out")


def keeps_places(settings: SubscriptionSettings) -> bool:
    """Whether each consumer owns hashes that can be kept for it."""
    return settings.type == "key_shared" and not settings.allow_out_of_order_delivery


def keeps_keys(settings: SubscriptionSettings) -> bool:
    """Whether a key is at one consumer at a time, by promise."""
    if settings.type == "key_shared":
        return settings.policy == "draining_hashes" and not settings.allow_out_of_order_delivery
    return settings.type in ("exclusive", "failover")


def check_limits(settings: msgspec.Struct, limits: Mapping[str, tuple[int, int]]) -> None:
    """Raises Invalid if a number in these settings is below the smallest, or above the largest, of its name."""
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if name in limits and not limits[name][0] <= value <= limits[name][1]:
            low, high = limits[name]
            raise Invalid(f"{name} = {value}: it is {low} to {high}")


_fields = functools.cache(msgspec.structs.fields)
"""The fields of a class of settings, cached: reading its annotations takes longer than the rest."""


def repaired(plain: object, kind: type[S]) -> tuple[S, list[str]]:
    """Settings as they were stored, and what of them had to be changed to be usable, a line each.

    Settings that a release accepted stay when a later one is stricter, and what holds them must still be started,
    changed and deleted. A number outside of its limits becomes the nearest one, anything else its default.
    """
    notes: list[str] = []
    values: dict[str, Any] = {}
    known = plain if isinstance(plain, dict) else {}
    for field in _fields(kind):
        if field.name not in known:
            continue
        value = known[field.name]
        used: Any = field.default
        if type(value) is type(field.default):
            low, high = LIMITS.get(field.name, (value, value))
            used = min(max(value, low), high) if field.name in LIMITS else value
            if value not in CHOICES.get(field.name, (value,)):
                used = field.default
        if used != value or type(used) is not type(value):
            notes.append(f"{field.name} = {str(value)[:40]} is used as {used}")
        values[field.name] = used
    return kind(**values), notes


def stored_settings(value: bytes, kind: type[S]) -> tuple[S, list[str]]:
    """`repaired`, from JSON as metadata keeps it. Bytes that are no JSON count as empty settings."""
    settings, notes = _read(value, kind)
    return settings, list(notes)


@functools.lru_cache(256)
def _read(value: bytes, kind: type[S]) -> tuple[S, list[str]]:
    try:
        settings, notes = repaired(json.loads(value), kind)
        return shared_settings(settings), notes
    except ValueError as error:
        return kind(), [f"the stored settings cannot be read, the defaults are used: {error}"]


def shared_settings(settings: S) -> S:
    """The same settings, as the one object that others have: those of most topics and subscriptions are alike, and each
    is known to several actors.
    """
    known: S = _shared(settings)
    return known


@functools.lru_cache(256)
def _shared(settings: TopicSettings | SubscriptionSettings) -> Any:
    return settings


@functools.lru_cache(256)
def plain_settings(settings: TopicSettings | SubscriptionSettings) -> dict[str, Any]:
    """As plain values, for `Places.start`; not to be changed, because those that are alike share them."""
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    return plain


ORIGIN = ("REAL_TOPIC", "ORIGIN_MESSAGE_ID")
"""Properties that say where a dead letter comes from; Pulsar's names."""


def dead_letter_topic(topic: str, subscription: str, settings: SubscriptionSettings) -> str:
    """Return the topic for messages that were given back more than max_redeliver_count times; named as in Pulsar."""
    return settings.dead_letter_topic or f"{topic}-{subscription}-DLQ"

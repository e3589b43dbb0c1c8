"""The settings of one producer, and those of one consumer that its subscription does not keep."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Protocol

from sluice.actors.consumer.chunks import CHUNKS_MS
from sluice.actors.messages import ACCESS_MODES, AccessMode
from sluice.actors.messages.limits import SEQUENCES
from sluice.actors.ownership.names import check_name
from sluice.actors.producer.batches import HASHING_SCHEMES, MURMUR3
from sluice.cluster.client.settings_input import check_callback, check_timeout, check_whole
from sluice.cluster.client.typed_settings import RangesCallback
from sluice.storage.errors import Invalid
from sluice.storage.format.batch import LAST_TIME, check_compression

MOST_PRIORITY = MOST_QUEUED = MOST_BATCHING = (1 << 31) - 1
LEAST_DISCOVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Batching:
    """The limits at which gathered messages go out. Raises Invalid."""

    max_messages: int = 1000
    max_bytes: int = 128 * 1024
    max_delay_ms: int = 10

    def __post_init__(self) -> None:
        check_whole("batching_max_messages", self.max_messages, 1, MOST_BATCHING)
        check_whole("batching_max_allowed_size_in_bytes", self.max_bytes, 1, MOST_BATCHING)
        check_whole("batching_max_publish_delay_ms", self.max_delay_ms, 0, MOST_BATCHING)


class Encoder(Protocol):
    """Makes payloads of a user's values."""

    def encode(self, value: object) -> bytes:
        """Return the payload of a value. Raises Invalid for another type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The checked settings of `create_producer`. send_timeout_s: None is without end."""

    topic: str
    name: str
    initial_sequence_id: int | None = None
    send_timeout_s: float | None = 30.0
    compression: str | None = None
    batching: Batching = Batching()
    hashing_scheme: str = MURMUR3
    access: AccessMode = "shared"
    values: Encoder | None = None
    """Makes payloads of a producer with a schema."""
    pulsar: bytes | None = None
    """The column `pulsar` of its messages: the version of the schema."""
    chunking: bool = False
    """Payloads that are too large for one message go out in chunks."""


def producer_options(
    topic: str,
    name: str,
    *,
    initial_sequence_id: int | None = None,
    send_timeout_millis: int = 30_000,
    compression: str | None = None,
    batching_max_messages: int = 1000,
    batching_max_allowed_size_in_bytes: int = 128 * 1024,
    batching_max_publish_delay_ms: int = 10,
    hashing_scheme: str = MURMUR3,
    access_mode: AccessMode = "shared",
    chunking_enabled: bool = False,
) -> ProducerOptions:
    """Check the settings of `create_producer`. Raises Invalid."""
    if hashing_scheme not in HASHING_SCHEMES:
        raise Invalid(f"hashing_scheme is {' or '.join(HASHING_SCHEMES)}, not {hashing_scheme!r}")
    if access_mode not in ACCESS_MODES:
        raise Invalid(f"access_mode is {', '.join(ACCESS_MODES[:-1])} or {ACCESS_MODES[-1]}, not {access_mode!r}")
    if initial_sequence_id is not None:
        check_whole("initial_sequence_id", initial_sequence_id, 0, SEQUENCES - 1)
    check_whole("send_timeout_millis", send_timeout_millis, 0, MOST_BATCHING)
    check_compression(compression)
    if not isinstance(chunking_enabled, bool):
        raise Invalid(f"chunking_enabled is True or False, not {chunking_enabled!r}")
    return ProducerOptions(
        topic=topic,
        name=check_name("producer", name),
        initial_sequence_id=initial_sequence_id,
        send_timeout_s=send_timeout_millis / 1000 or None,
        compression=compression,
        batching=Batching(batching_max_messages, batching_max_allowed_size_in_bytes, batching_max_publish_delay_ms),
        hashing_scheme=hashing_scheme,
        access=access_mode,
        chunking=chunking_enabled,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """A consumer's own settings of `subscribe`, under their names there. Raises Invalid.

    topic: one name, several with commas, or the pattern (by_pattern). shared: the subscription's type as it was asked
    for. name: that of the user, under which the consumer may come back, else a new one.
    """

    topic: str
    subscription: str
    by_pattern: bool = False
    shared: bool = False
    consumer_name: str | None = None
    receiver_queue_size: int = 1000
    key_shared_ranges: list[tuple[int, int]] | None = None
    priority_level: int = 0
    read_compacted: bool = False
    pattern_auto_discovery_period: float = 60
    negative_ack_redelivery_delay_ms: int = 60_000
    on_ranges: RangesCallback | None = None
    max_pending_chunked_message: int = 10
    expire_time_of_incomplete_chunked_message_ms: int = 60_000
    timeout_ms: int | None = None
    name: str = field(init=False)

    def __post_init__(self) -> None:
        for setting, least, most in (
            ("receiver_queue_size", 1, MOST_QUEUED),
            ("priority_level", 0, MOST_PRIORITY),
            ("negative_ack_redelivery_delay_ms", 0, LAST_TIME),
            ("max_pending_chunked_message", 1, MOST_QUEUED),
            ("expire_time_of_incomplete_chunked_message_ms", CHUNKS_MS, MOST_QUEUED),
        ):
            check_whole(setting, getattr(self, setting), least, most)
        check_timeout("timeout_ms", self.timeout_ms)
        check_callback("on_ranges", self.on_ranges, 3)
        period = self.pattern_auto_discovery_period
        check_timeout("pattern_auto_discovery_period", period)
        if period is None or period < LEAST_DISCOVERY_S:
            raise Invalid(f"pattern_auto_discovery_period is {LEAST_DISCOVERY_S} s at least")
        if not isinstance(self.consumer_name, str | None):
            raise Invalid(f"consumer_name is text, not {self.consumer_name!r}")
        object.__setattr__(self, "name", self.consumer_name or f"consumer-{secrets.token_hex(4)}")

"""The settings of one consumer, which its subscription does not keep."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sluice.cluster.client.settings_input import check_callback, check_timeout, check_whole
from sluice.cluster.client.typed_settings import RangesCallback
from sluice.storage.errors import Invalid
from sluice.storage.format.batch import LAST_TIME

MOST_PRIORITY = MOST_QUEUED = (1 << 31) - 1
LEAST_DISCOVERY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """The checked settings of `subscribe`.

    topic: one name, several with commas, or the pattern (by_pattern), which is looked for every `discovery_ms`.
    named: the user chose the name, and the consumer may come back under it. queue_size: over all partitions.
    """

    topic: str
    subscription: str
    name: str
    named: bool = True
    queue_size: int
    ranges: Sequence[tuple[int, int]] = ()
    priority: int = 0
    read_compacted: bool = False
    by_pattern: bool = False
    discovery_ms: int = 60_000
    negative_ack_redelivery_delay_ms: int = 60_000
    on_ranges: RangesCallback | None = None


def consumer_options(
    topic: str,
    subscription: str,
    by_pattern: bool = False,
    *,
    consumer_name: str | None = None,
    receiver_queue_size: int = 1000,
    key_shared_ranges: list[tuple[int, int]] | None = None,
    priority_level: int = 0,
    read_compacted: bool = False,
    pattern_auto_discovery_period: float = 60,
    negative_ack_redelivery_delay_ms: int = 60_000,
    on_ranges: RangesCallback | None = None,
    timeout_ms: int | None = None,
) -> ConsumerOptions:
    """Check a consumer's own settings of `subscribe`. Raises Invalid."""
    check_whole("receiver_queue_size", receiver_queue_size, 1, MOST_QUEUED)
    check_whole("priority_level", priority_level, 0, MOST_PRIORITY)
    check_whole("negative_ack_redelivery_delay_ms", negative_ack_redelivery_delay_ms, 0, LAST_TIME)
    check_timeout("timeout_ms", timeout_ms)
    check_callback("on_ranges", on_ranges)
    check_timeout("pattern_auto_discovery_period", pattern_auto_discovery_period)
    if pattern_auto_discovery_period is None or pattern_auto_discovery_period < LEAST_DISCOVERY_S:
        raise Invalid(f"pattern_auto_discovery_period is {LEAST_DISCOVERY_S} s at least")
    if not isinstance(consumer_name, str | None):
        raise Invalid(f"consumer_name is text, not {consumer_name!r}")
    return ConsumerOptions(
        topic=topic,
        subscription=subscription,
        name=consumer_name or f"consumer-{secrets.token_hex(4)}",
        named=bool(consumer_name),
        queue_size=receiver_queue_size,
        ranges=key_shared_ranges or (),
        priority=priority_level,
        read_compacted=read_compacted,
        by_pattern=by_pattern,
        discovery_ms=int(pattern_auto_discovery_period * 1000),
        negative_ack_redelivery_delay_ms=negative_ack_redelivery_delay_ms,
        on_ranges=on_ranges,
    )

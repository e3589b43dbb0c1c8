"""Translates a client's SUBSCRIBE into Sluice's own terms: one more field of that command is read here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from sluice.actors.messages import SubscriptionSettings
from sluice.actors.messages.settings import check_properties, shared_settings
from sluice.actors.ownership.names import check_name, quoted
from sluice.actors.pulsar.codec.protocol import ServerError
from sluice.actors.pulsar.conversation.consuming.hash_ranges import check_ranges
from sluice.actors.pulsar.conversation.gateway.clients import metadata_of
from sluice.actors.pulsar.refusals import CommandRefused

TYPES = ("exclusive", "shared", "failover", "key_shared")
"""The types of subscriptions, by their numbers on the wire."""
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
STICKY = 1
"""The mode of Key_Shared in which consumers bring ranges of their own."""
ONE_HAS_ALL = ("exclusive", "failover")
"""Types of subscriptions where all messages of a batch are at one consumer."""
SAID = ("type", "durable")
SAID_OF_KEYS = (*SAID, "allow_out_of_order_delivery", "sticky")
"""The settings that a client means when it subscribes, those of Key_Shared if it is of that type: see Configure."""


@dataclass(frozen=True, slots=True)
class WantedConsumer:
    """A client's wishes for a subscription. start: a reader's first position, None for a consumer of a subscription.

    ranges: of hashes; a reader wants the messages of these alone. named: the client chose the name. compacted: it wants
    of each key the last message alone. role: the client's. properties: to be kept with the subscription. said: names of
    the settings that such a client can say; the others are whatever an operator has chosen.
    """

    subscription: str
    name: str
    settings: SubscriptionSettings
    ranges: list[tuple[int, int]]
    start: int | None
    priority: int = 0
    named: bool = True
    compacted: bool = False
    role: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    said: tuple[str, ...] = SAID


def check_subscribe(asked: Any) -> None:
    """Raise CommandRefused for what no broker offers, Invalid for a name that cannot be."""
    if asked.read_compacted and asked.type not in (EXCLUSIVE, FAILOVER):
        raise CommandRefused(ServerError.NOT_ALLOWED, "only exclusive and failover consumers can read compacted")
    if not 0 <= asked.type < len(TYPES):
        raise CommandRefused(ServerError.NOT_ALLOWED, f"there is no subscription type {asked.type}")
    if not asked.subscription:  # clients know it by this code, which is Pulsar's for it
        raise CommandRefused(ServerError.PRODUCER_BUSY, "the subscription name is empty")
    check_name("subscription", quoted(asked.subscription))


def is_reader(asked: Any) -> bool:
    """Return whether it needs no subscription: it has a position of its own, and nobody else any of its messages."""
    return not asked.durable and asked.type in (EXCLUSIVE, FAILOVER)


def wanted_consumer(asked: Any, name: str, start: int | None, role: str) -> WantedConsumer:
    """Translate a SUBSCRIBE that was checked. name: the consumer's, chosen by the client or not. Raises Invalid."""
    settings = SubscriptionSettings(
        type=TYPES[asked.type],
        durable=asked.durable,
        initial_position="earliest" if asked.initial_position == 1 else "latest",
    )
    ranges: list[tuple[int, int]] = []
    if asked.type == KEY_SHARED and asked.HasField("key_shared"):
        settings = replace(settings, allow_out_of_order_delivery=asked.key_shared.allow_out_of_order)
        if asked.key_shared.mode == STICKY:
            settings = replace(settings, selector="sticky")
            ranges = [(each.start, each.end) for each in asked.key_shared.hash_ranges]
    elif start is not None and asked.key_shared.mode == STICKY:
        ranges = [(each.start, each.end) for each in asked.key_shared.hash_ranges]
        check_ranges(ranges)
    properties = metadata_of(asked.subscription_properties)
    check_properties(properties)
    return WantedConsumer(
        subscription=quoted(asked.subscription),
        name=check_name("consumer", quoted(name)),
        settings=shared_settings(settings),
        ranges=ranges,
        start=start,
        priority=asked.priority_level,
        named=bool(asked.consumer_name),
        compacted=asked.read_compacted,
        role=role,
        properties=properties,
        said=SAID_OF_KEYS if asked.type == KEY_SHARED else SAID,
    )

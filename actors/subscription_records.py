"""What the records of subscriptions say, for those who do not own them."""

from __future__ import annotations

import msgpack

from actors.messages import SubscriptionSettings
from actors.messages.settings import stored_settings
from actors.ports import Ports

PREFIX = "subscription/"


async def partitions_of(ports: Ports, topic: str, subscription: str) -> list[int]:
    """The partitions on which a subscription has a record, ascending. Raises Unavailable."""
    keys = [key.split("/") for key in await ports.meta.keys(f"{PREFIX}{topic}/")]
    return sorted(int(partition) for _, _, partition, name in keys if name == subscription)


async def not_durable(ports: Ports) -> list[tuple[str, str]]:
    """Topic and name of every subscription that is not durable. Raises Unavailable."""
    found: dict[tuple[str, str], None] = {}
    for key in await ports.meta.keys(PREFIX):
        _, topic, _, name = key.split("/")
        record = None if (topic, name) in found else await ports.meta.read(key)
        value = None if record is None else msgpack.unpackb(record.value)
        if isinstance(value, dict) and not _settings(value).durable:
            found[topic, name] = None
    return list(found)


def _settings(value: dict[str, object]) -> SubscriptionSettings:
    stored = value.get("settings")
    return stored_settings(stored if isinstance(stored, bytes) else b"", SubscriptionSettings)[0]

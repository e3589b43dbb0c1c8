"""Topics as Pulsar's clients name them, and where they are here.

`persistent://public/default/orders-partition-3` is the fourth partition of `orders`. A topic of one partition is a
plain topic to clients: its ids carry no partition.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from actors.directory import Directory
from actors.messages import BookieList, TopicSettings
from actors.names import TENANT_NAMESPACE, check_name
from storage.errors import Conflict, Invalid, NotFound

_PERSISTENT = "persistent://"
_PARTITION = re.compile(r"(.+)-partition-([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Place:
    """A partition. told: its number as clients see it in ids, -1 for a plain topic."""

    topic: str
    partition: int
    told: int


def split_name(text: str) -> tuple[str, int | None]:
    """The topic's short name, and which of its partitions is meant. Raises Invalid; NotFound in another namespace."""
    space, _, _ = text.removeprefix(_PERSISTENT).rpartition("/")
    if text.startswith(_PERSISTENT) and space != TENANT_NAMESPACE:
        raise NotFound(f"tenant and namespace {space[:40]!r} do not exist; there is only {TENANT_NAMESPACE}")
    found = _PARTITION.fullmatch(text)
    if found is None:
        return check_name("topic", text), None
    return check_name("topic", found[1]), int(found[2])


def full_name(topic: str, partition: int | None = None) -> str:
    """The name that clients know a topic, or a partition of it, by."""
    return f"{_PERSISTENT}{TENANT_NAMESPACE}/{topic}" + ("" if partition is None else f"-partition-{partition}")


def full_names(topics: Mapping[str, TopicSettings]) -> list[str]:
    """Every topic as clients know it, those of several partitions by the names of these."""
    names: list[str] = []
    for name, settings in topics.items():
        count = settings.partitions
        names += [full_name(name, p if count > 1 else None) for p in range(count)]
    return names


async def settings_of(directory: Directory, topic: str, *, create: bool) -> TopicSettings:
    """The settings of a topic, which is made if it is not there. Raises NotFound unless `create`, and Unavailable."""
    try:
        return await directory.settings(topic)
    except NotFound:
        if not create:
            raise
    copies = copies_of(await directory.bookies())
    with contextlib.suppress(Conflict):  # somebody else was first
        await directory.create(topic, TopicSettings(ensemble=copies, write_quorum=copies, ack_quorum=copies))
    return await directory.settings(topic)


def copies_of(bookies: BookieList) -> int:
    """How many copies a topic keeps that nobody chose that for: two, where there are as many bookies."""
    return min(2, len(bookies.ids)) or 1


async def find_place(directory: Directory, name: str, *, create: bool) -> Place:
    """The partition that a client wants to write to, or read. Raises Invalid, NotFound, Unavailable."""
    topic, partition = split_name(name)
    settings = await settings_of(directory, topic, create=create and partition is None)
    if partition is None:
        if settings.partitions > 1:
            raise Invalid(f"topic {topic} has {settings.partitions} partitions; name one of them")
        return Place(topic, 0, -1)
    if partition >= settings.partitions:
        raise NotFound(f"topic {topic} has no partition {partition}")
    return Place(topic, partition, partition)

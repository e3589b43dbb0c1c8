"""Translates the names of topics that Pulsar's clients use into Sluice's topics and partitions.

`persistent://public/default/orders-partition-3` is the fourth partition of `orders`. A topic of one partition is a
plain topic to clients: its ids carry no partition. Names of other letters, and in other namespaces, are those of
`actors/ownership/names.py`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import BookieList, TopicSettings
from sluice.actors.ownership.names import TENANT_NAMESPACE, check_name, namespace_of, quoted, unquoted
from sluice.actors.policies.namespaces import NamespacePolicies, Namespaces
from sluice.storage.errors import Conflict, Invalid, NotFound

_PERSISTENT = "persistent://"
_PARTITION = re.compile(r"(.+)-partition-([0-9]{1,9})")


class TopicPartition(NamedTuple):
    """A partition, `tp` for short. wire_partition: its number as clients see it in ids, -1 for a plain topic."""

    topic: str
    partition: int
    wire_partition: int


def topic_name(text: str) -> str:
    """Return the name of a topic that clients know by this one. Raises Invalid."""
    space, slash, own = text.rpartition("/")
    return check_name("topic", f"{space}{slash}{quoted(own)}")


def split_name(text: str) -> tuple[str, int | None]:
    """Return the topic's short name, and which of its partitions is meant. Raises Invalid."""
    found = _PARTITION.fullmatch(text)
    if found is None:
        return topic_name(text), None
    return topic_name(found[1]), int(found[2])


def said_name(text: str) -> str:
    """The topic that is meant, for people to read: its name here, or what was said if nothing can be called so."""
    try:
        return split_name(text)[0]
    except (Invalid, NotFound):
        return text


def full_name(topic: str, partition: int | None = None) -> str:
    """Return the name that clients know a topic, or a partition of it, by."""
    space, own = namespace_of(topic)
    return f"{_PERSISTENT}{space}/{unquoted(own)}" + ("" if partition is None else f"-partition-{partition}")


def topics_in(space: str, topics: Mapping[str, TopicSettings]) -> dict[str, TopicSettings]:
    """Return the topics of a namespace, which is written like `public/default`."""
    return {name: settings for name, settings in topics.items() if namespace_of(name)[0] == space}


def listed(topics: Mapping[str, TopicSettings], space: str) -> dict[str, TopicSettings]:
    """Return the topics of a namespace for HTTP. Raises NotFound if it has none and is not the default one."""
    found = topics_in(space, topics)
    if not found and space != TENANT_NAMESPACE:
        raise NotFound(f"there is no namespace {space[:80]!r}: it is there when a topic is in it")
    return found


def full_names(topics: Mapping[str, TopicSettings]) -> list[str]:
    """Topics as clients know them; a partitioned topic appears as its partitions."""
    names: list[str] = []
    for name, settings in topics.items():
        several = settings.has_partitions
        names += [full_name(name, p if several else None) for p in range(settings.partitions)]
    return names


@dataclass(frozen=True, slots=True)
class TopicMaker:
    """The namespaces in which missing topics are made, and the callback that is told of a new topic."""

    namespaces: Namespaces
    on_made: Callable[[str], None]


async def settings_of(directory: Directory, topic: str, *, create: TopicMaker | None) -> TopicSettings:
    """The settings of a topic. create: it is made if it is not there, in one of these. Raises NotFound, Unavailable."""
    try:
        return await directory.settings(topic)
    except NotFound:
        if create is None:
            raise
    policies = await create.namespaces.policies(namespace_of(topic)[0])
    settings = new_settings(await directory.bookies(), policies)
    with contextlib.suppress(Conflict):  # another client created it first
        await directory.create(topic, settings)
        create.on_made(topic)
    return await directory.settings(topic)


def new_settings(bookies: BookieList, policies: NamespacePolicies, partitions: int = 0) -> TopicSettings:
    """Return the settings of a topic for which nobody chose any: two copies, if there are two bookies.

    partitions: 0 is a topic without.
    """
    copies = min(2, len(bookies.ids)) or 1
    return TopicSettings(
        partitions=partitions or 1,
        partitioned=partitions == 1,
        ensemble=copies,
        write_quorum=copies,
        ack_quorum=copies,
        deduplication_enabled=policies.deduplication,
    )


async def find_partition(directory: Directory, name: str, *, create: TopicMaker | None) -> TopicPartition:
    """Return the partition that a client wants to write to, or read. Raises Invalid, NotFound, Unavailable."""
    topic, partition = split_name(name)
    settings = await settings_of(directory, topic, create=create if partition is None else None)
    if partition is None:
        if settings.has_partitions:
            raise Invalid(f"topic {topic} is divided into partitions ({settings.partitions}); name one of them")
        return TopicPartition(topic, 0, -1)
    if partition >= settings.partitions and partition >= (await directory.settings_now(topic)).partitions:
        raise NotFound(f"topic {topic} has no partition {partition}")
    return TopicPartition(topic, partition, partition)

"""The resources that the owners of partitions in one process share."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.actors.ownership.ids import LedgerIds
from sluice.actors.topic.partition.entry_cache import CacheRoom
from sluice.actors.topic.partition.hooks import TopicHooks


@dataclass(frozen=True, slots=True)
class ProcessResources:
    """hooks: make the parts of optional rooms. room: what their caches may hold together. ids: gives their ledgers
    numbers.
    """

    hooks: TopicHooks
    room: CacheRoom = field(default_factory=CacheRoom)
    ids: LedgerIds = field(default_factory=LedgerIds)

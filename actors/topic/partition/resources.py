"""The resources that the logs of partitions in one process share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.actors.ownership.ids import LedgerIds
from sluice.actors.ports import Ports
from sluice.actors.topic.partition.entry_cache import CacheRoom

if TYPE_CHECKING:
    from sluice.actors.ledger.history_reader import HistoryReader
    from sluice.actors.topic.partition.results import Results


@dataclass(frozen=True, slots=True, kw_only=True)
class LogResources:
    """room: what their caches may hold together. ids: gives their ledgers numbers. history: makes what reads ledgers in
    the object store, for a log that needs it; results: what deduplicates results of workers.
    """

    history: Callable[[Ports], HistoryReader]
    results: Callable[[], Results]
    room: CacheRoom = field(default_factory=CacheRoom)
    ids: LedgerIds = field(default_factory=LedgerIds)


ProcessResources = LogResources
"""The name under which controllers of early versions send parts to a host, which makes its own."""

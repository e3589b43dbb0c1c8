"""The optional rooms of a topic, imported when a partition needs them first. Implements TopicHooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.actors.ports import Ports
from sluice.actors.topic.partition.hooks import JobContext, OptionalJobs

if TYPE_CHECKING:
    from sluice.actors.ledger.history_reader import HistoryReader


class LazyRooms:
    """Imports each room when its parts are made."""

    def jobs(self, context: JobContext) -> OptionalJobs:
        """Offloading, the table that follows it, compaction and erasing. Erasing uses the others."""
        from sluice.actors.topic.background.compaction import Compaction
        from sluice.actors.topic.background.erasing import Erasing
        from sluice.actors.topic.background.offloading import Offloading
        from sluice.actors.topic.partition.compacted_reads import CompactedReads

        offloading, compaction = Offloading(context), Compaction(context)
        erasing = Erasing(context, offloading, compaction)
        reads = CompactedReads(context.ports, context.log, compaction.reader)
        return OptionalJobs((offloading, erasing, offloading.table, compaction), reads)

    def history(self, ports: Ports) -> HistoryReader:
        """A reader of ledgers in the object store."""
        from sluice.actors.ledger.history_reader import HistoryReader

        return HistoryReader(ports)

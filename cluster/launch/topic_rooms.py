"""The optional rooms of topics: each is imported when a partition of this process needs it first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluice.actors.ports import Ports
from sluice.actors.topic.partition.hooks import JobContext, OptionalJobs, ProcessResources

if TYPE_CHECKING:
    from sluice.actors.ledger.history_reader import HistoryReader
    from sluice.actors.topic.partition.result_intake import ResultIntake
    from sluice.actors.topic.partition.results import Results


def topic_resources() -> ProcessResources:
    """The resources of the topics of one process, with hooks for the optional rooms."""
    return ProcessResources(history=_history, results=_results, jobs=_jobs, intake=_intake)


def _history(ports: Ports) -> HistoryReader:
    from sluice.actors.ledger.history_reader import HistoryReader

    return HistoryReader(ports)


def _results() -> Results:
    from sluice.actors.topic.partition.results import Results

    return Results()


def _intake(*of: Any) -> ResultIntake:
    from sluice.actors.topic.partition.result_intake import ResultIntake

    return ResultIntake(*of)


def _jobs(context: JobContext) -> OptionalJobs:
    """Offloading, the table that follows it, compaction and erasing. Erasing uses the others."""
    from sluice.actors.topic.background.compaction import Compaction
    from sluice.actors.topic.background.erasing import Erasing
    from sluice.actors.topic.background.offloading import Offloading
    from sluice.actors.topic.partition.compacted_reads import CompactedReads

    offloading, compaction = Offloading(context), Compaction(context)
    erasing = Erasing(context, offloading, compaction)
    reads = CompactedReads(context.ports, context.log, compaction.reader)
    return OptionalJobs((offloading, erasing, offloading.table, compaction), reads)

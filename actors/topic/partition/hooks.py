"""The hooks for the rooms of a topic that most topics never need: history, compaction, erasing, results of workers.

The composition root makes their parts when a partition needs them first. A process whose partitions never need them
imports none of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sluice.actors.ledger.bookies import Bookies
from sluice.actors.ledger.record import LedgerRecord, PartitionRecord
from sluice.actors.messages import TopicSettings
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Request
from sluice.actors.topic.partition.managed_ledger import ManagedLedger
from sluice.actors.topic.partition.resources import LogResources

if TYPE_CHECKING:
    from sluice.actors.topic.partition.compacted_reads import CompactedReads
    from sluice.actors.topic.partition.result_intake import ResultIntake
    from sluice.actors.topic.partition.results import Results
    from sluice.actors.topic.partition.termination import Termination


Ready = Callable[[], Awaitable[None]]
"""Waits until an owner serves, and raises when it does not any more."""


class BackgroundJob:
    """Work of a partition's owner beside its requests. Its turns come one after another.

    name: of the job in the statistics of the topic. request: what asks for it.
    """

    name: ClassVar[str]
    request: ClassVar[type[Request[Any]] | None] = None

    def due(self, settings: TopicSettings) -> bool:
        """Return whether there is something to do now."""
        raise NotImplementedError

    def at_work(self, settings: TopicSettings) -> bool:
        """Return whether there is something to do, although it may have failed just now."""
        raise NotImplementedError

    def concerned(self, settings: TopicSettings) -> bool:
        """Return whether there is something to do, or will be although nothing changes."""
        raise NotImplementedError

    async def turn(self, settings: TopicSettings) -> Sequence[LedgerRecord]:
        """Do what is due; returns ledgers that the bookies may forget. Raises Fenced; other failures are retried."""
        raise NotImplementedError

    async def ask(self, request: Any) -> Any:
        """Take a request durably; returns how the job stands. Raises Invalid, Overloaded, Fenced, Unavailable."""
        raise NotImplementedError

    def status(self) -> Any:
        """Return how the job stands, as the reply to its request."""
        raise NotImplementedError

    @property
    def holds(self) -> int | None:
        """The position behind which the job lets nothing be trimmed; None: trimming is free."""
        return None

    def trimmed(self, ledgers: Sequence[LedgerRecord]) -> None:
        """Note ledgers that have left the record."""

    async def delete(self, last: PartitionRecord) -> None:
        """Delete everything that the job has stored of a deleted topic. last: the record before the deletion."""

    def release(self) -> None:
        """Keep nothing in memory."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """The owner as its jobs see it. marks: mark-delete positions of durable subscriptions. forget: keeps nothing of
    some ledgers in memory.
    """

    ports: Ports
    bookies: Bookies
    topic: str
    log: ManagedLedger
    marks: Callable[[], Mapping[str, int]]
    forget: Callable[[list[int]], None]


class OptionalJobs(NamedTuple):
    """The jobs of one owner, in the order of their turns, and what reads the compacted log."""

    jobs: tuple[BackgroundJob, ...]
    compacted: CompactedReads | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResources(LogResources):
    """The resources that the owners of partitions in one process share. jobs: makes the background jobs of an owner
    that needs them. intake: makes what takes results of workers in.
    """

    jobs: Callable[[JobContext], OptionalJobs]
    intake: Callable[[Ports, ManagedLedger, Results, Termination, Ready], ResultIntake]

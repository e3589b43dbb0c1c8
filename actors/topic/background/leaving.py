"""The work of optional jobs that a partition's record and settings name: offloading, compaction, erasing."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.actors.ledger.record import Erased, LedgerRecord, LedgerState, PartitionRecord
from sluice.actors.messages import CompactionStatus, EraseStatus, OffloadStatus, TopicSettings
from sluice.actors.ports.wire import Reply
from sluice.actors.topic.partition.amounts import bytes_behind
from sluice.actors.topic.partition.managed_ledger import ManagedLedger
from sluice.storage.format.position import EARLIEST, position

NEVER = -1


def needs_jobs(record: PartitionRecord, settings: TopicSettings, *, catalog: bool) -> bool:
    """Return whether an owner has work for the optional jobs, or may have. catalog: a table follows the topic."""
    return bool(
        catalog
        or offloads(settings)
        or settings.compaction_threshold_bytes
        or record.compacted is not None
        or record.erasures
        or record.asked.offload
        or record.asked.compact
        or any(ledger.offloaded is not None for ledger in record.ledgers)
    )


def offloads(settings: TopicSettings) -> bool:
    """Return whether ledgers leave by themselves."""
    return max(settings.offload_threshold_bytes, settings.offload_threshold_seconds) >= 0


def offloadable(
    record: PartitionRecord, settings: TopicSettings, now: int, *, keep_bytes: int = NEVER, before: int = NEVER
) -> list[int]:
    """Return ids of the ledgers that are to be offloaded, oldest first.

    keep_bytes: so much of closed ledgers may stay on the bookies. before: ledgers with smaller ids leave.
    """
    closed = [ledger for ledger in record.ledgers if ledger.state is LedgerState.CLOSED and ledger.last_run >= 0]
    there = [ledger for ledger in closed if ledger.offloaded is None]
    limits = [limit for limit in (settings.offload_threshold_bytes, keep_bytes) if limit >= 0]
    size = sum(ledger.bytes for ledger in there)
    damaged = {lost.ledger for lost in record.given_up}
    found = []
    for ledger in there:
        large = any(size > limit for limit in limits)
        seconds = settings.offload_threshold_seconds
        old = seconds >= 0 and record.closed_for(ledger, now) >= seconds * 1000
        if not large and not old and ledger.id >= before:
            break
        size -= ledger.bytes
        # Whatever is not covered yet would be read by the next owner, head by head.
        covered = (ledger.id, ledger.last_run) <= (record.covered_ledger, record.covered_run)
        if covered and ledger.id not in damaged:
            found.append(ledger.id)
    return found


def forgettable(record: PartitionRecord, lag_ms: int, now: int) -> list[LedgerRecord]:
    """Return ledgers whose copies on bookies may go."""
    return [
        ledger
        for ledger in record.ledgers
        if ledger.offloaded is not None and ledger.fragments and now - ledger.offloaded.at >= lag_ms
    ]


def trims_up_to(marks: Mapping[str, int], holds: int | None) -> dict[str, int]:
    """Return the marks of subscriptions, with compaction as one more that lets the log be trimmed up to its mark."""
    return dict(marks) if holds is None else {**marks, "": holds}


# -- how the jobs stand, as far as the record says it ------------------------------------------------------------------


def statuses(log: ManagedLedger) -> dict[str, Reply]:
    """Return how each job stands that has nothing to do, by its name in the statistics."""
    return {
        "offload": offload_status(log.record),
        "erasing": erase_status(log.record),
        "compaction": compaction_status(log),
    }


def offload_status(record: PartitionRecord) -> OffloadStatus:
    """Count the ledgers of a partition by the store that has them."""
    stored = [ledger for ledger in record.ledgers if ledger.offloaded is not None]
    left = [ledger for ledger in record.ledgers if ledger.offloaded is None]
    return OffloadStatus(
        asked=record.asked.offload,
        offloaded_ledgers=len(stored),
        offloaded_bytes=sum(ledger.bytes for ledger in stored),
        bookie_bytes=sum(ledger.bytes for ledger in record.ledgers if ledger.fragments),
        first_left=position(left[0].id, 0) if left else NEVER,
    )


def erase_status(record: PartitionRecord) -> EraseStatus:
    """Return the keys that are being erased, and the last one that was."""
    last = record.erased[-1] if record.erased else Erased(0, 0, 0)
    return EraseStatus(
        keys=len(record.erasures),
        messages=sum(one.messages for one in record.erasures),
        done_at=last.at,
        done_messages=last.messages,
    )


def compaction_status(log: ManagedLedger) -> CompactionStatus:
    """Return the compacted table, and how much of the log lies behind it."""
    table = log.record.compacted
    if table is None:
        return CompactionStatus(left_bytes=bytes_behind(log, EARLIEST))
    return CompactionStatus(
        done=True,
        horizon=table.horizon,
        at=table.at,
        messages=table.messages,
        bytes=table.bytes,
        left_bytes=bytes_behind(log, table.horizon),
    )

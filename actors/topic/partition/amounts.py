"""How many bytes lie where in a partition's log, and which message is the first that waits."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.actors.ledger.record import LedgerRecord, LedgerState
from sluice.actors.topic.partition.managed_ledger import ManagedLedger
from sluice.storage.format.position import entry_of, ledger_of, position


def backlog_bytes(log: ManagedLedger, marks: Mapping[str, int]) -> int:
    """Return about how many bytes lie behind the slowest subscription.

    marks: mark-delete positions of subscriptions; without one nothing waits.
    """
    return bytes_behind(log, min(marks.values())) if marks else 0


def bytes_behind(log: ManagedLedger, mark: int) -> int:
    """Return about how many bytes lie behind a mark-delete position; its own ledger counts by its share of entries."""
    size = 0
    for ledger in log.record.ledgers:
        entries = log.last_entry(ledger) + 1
        if entries and position(ledger.id, entries - 1) > mark:
            passed = entry_of(mark) + 1 if ledger.id == ledger_of(max(mark, 0)) else 0
            size += size_of(log, ledger) * (entries - passed) // entries
    return size


def weighs_at_most(log: ManagedLedger, keep: int) -> int:
    """Return the first position that has at most `keep` bytes behind it, as `bytes_behind` measures them."""
    at = 0
    for ledger in reversed(log.record.ledgers):
        entries, size = log.last_entry(ledger) + 1, size_of(log, ledger)
        if size > keep:
            return position(ledger.id, entries - keep * entries // size)
        at, keep = position(ledger.id, 0), keep - size
    return at


def first_waiting(log: ManagedLedger, marks: Mapping[str, int]) -> int | None:
    """Return the position of the first message behind the slowest subscription, or None. marks: as above."""
    slowest = min(marks.values(), default=None)
    for ledger in log.record.ledgers if slowest is not None else ():
        last = log.last_entry(ledger)
        if last >= 0 and slowest is not None and position(ledger.id, last) > slowest:
            return max(position(ledger.id, 0), slowest + 1)
    return None


def size_of(log: ManagedLedger, ledger: LedgerRecord) -> int:
    """Return the payload bytes of a ledger."""
    return ledger.bytes if ledger.state is LedgerState.CLOSED else log.open_bytes

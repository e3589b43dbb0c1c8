"""Which ledgers may be deleted: whole closed ones at the head of the chain that every durable subscription has passed.

A ledger is *consumed* when the slowest durable subscription has marked its last entry deleted (S13). Retention keeps
consumed ledgers longer: with a time or a size set, a consumed ledger stays while it is younger than the time and,
together with the newer consumed ones, fits the size. A limit of 0 is not set, -1 is without end; neither set means
that nothing is kept longer.

A topic that never had a subscription keeps everything unless retention says how much: messages that were published
before the first subscriber came are not thrown away unasked. Once subscriptions existed and all are deleted, the
topic is consumed as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from actors.ledger.record import LedgerRecord, LedgerState, PartitionRecord
from actors.policies.retention import Retention
from storage.position import position


def trimmable(record: PartitionRecord, marks: Mapping[str, int], now: int, kept: Retention) -> list[int]:
    """Ids of the ledgers that may go, from the head of the chain. marks: mark-delete positions of subscriptions."""
    if not record.ever_subscribed and not (kept.ms or kept.bytes):
        return []
    passed = consumed(record, marks)
    size = sum(ledger.bytes for ledger in passed)
    gone = []
    for ledger in passed:
        if _retained(kept.ms, kept.bytes, now - ledger.closed_at, size):
            break
        gone.append(ledger.id)
        size -= ledger.bytes
    return gone


def consumed(record: PartitionRecord, marks: Mapping[str, int]) -> list[LedgerRecord]:
    """Those that may go as far as subscriptions are concerned, from the head of the chain."""
    slowest = min(marks.values()) if marks else None
    found: list[LedgerRecord] = []
    for ledger in record.ledgers:
        passed = slowest is None or position(ledger.id, max(ledger.last_entry, 0)) <= slowest
        if ledger.state is not LedgerState.CLOSED or not passed:
            break
        found.append(ledger)
    return found


def _retained(limit_ms: int, limit_bytes: int, age: int, size: int) -> bool:
    """Whether a consumed ledger of this age, which with the newer ones takes `size` bytes, is kept."""
    if limit_ms == 0 and limit_bytes == 0:
        return False
    young = limit_ms <= 0 or age <= limit_ms
    fits = limit_bytes <= 0 or size <= limit_bytes
    return young and fits

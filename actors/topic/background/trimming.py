"""The ledgers that may be deleted: whole closed ones at the head of the chain that every durable subscription has
passed.

A ledger is *consumed* when the slowest durable subscription has marked its last entry deleted (S13). Retention keeps
consumed ledgers longer: with a time or a size set, a consumed ledger stays while it is younger than the time and,
together with the newer consumed ones, fits the size. A limit of 0 is not set, -1 is without end; neither set means
that nothing is kept longer.

A ledger that is in the object store, or is to go there, stays longer if `history_retention_ms` or `_bytes` say so: it
is deleted when neither retention nor these keep it.

A topic that never had a subscription keeps everything unless retention says how much: messages that were published
before the first subscriber came are not thrown away unasked. Once subscriptions existed and all are deleted, the
topic is consumed as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.actors.ledger.record import LedgerRecord, LedgerState, PartitionRecord
from sluice.actors.policies.retention import Retention
from sluice.storage.format.position import position


def trimmable(
    record: PartitionRecord, marks: Mapping[str, int], now: int, kept: Retention, *, leaves: bool = False
) -> list[int]:
    """Return ids of the ledgers that may go, from the head of the chain. marks: mark-delete positions of subscriptions.
    leaves: ledgers go to the object store by themselves.
    """
    history = Retention(record.settings.history_retention_ms, record.settings.history_retention_bytes)
    if not record.ever_subscribed and not any((kept.ms, kept.bytes, history.ms, history.bytes)):
        return []
    passed = consumed(record, marks)
    size = sum(ledger.bytes for ledger in passed)
    gone = []
    for ledger in passed:
        age, stored = record.closed_for(ledger, now), leaves or ledger.offloaded is not None
        if _retained(kept, age, size) or (stored and _retained(history, age, size)):
            break
        gone.append(ledger.id)
        size -= ledger.bytes
    return gone


def consumed(record: PartitionRecord, marks: Mapping[str, int]) -> list[LedgerRecord]:
    """Return the ledgers, from the head of the chain, that no subscription needs any more."""
    slowest = min(marks.values()) if marks else None
    found: list[LedgerRecord] = []
    for ledger in record.ledgers:
        passed = slowest is None or position(ledger.id, max(ledger.last_entry, 0)) <= slowest
        if ledger.state is not LedgerState.CLOSED or not passed:
            break
        found.append(ledger)
    return found


def _retained(limit: Retention, age: int, size: int) -> bool:
    """Return whether a consumed ledger of this age, which with the newer ones takes `size` bytes, is kept."""
    if limit.ms == 0 and limit.bytes == 0:
        return False
    young = limit.ms <= 0 or age <= limit.ms
    fits = limit.bytes <= 0 or size <= limit.bytes
    return young and fits

"""The work of a partition that its record shows while its owner, or a subscription's, is closed.

How far a ledger goes that was open when its owner ended is not in the record. Such a ledger counts as work for its
owner. The next owner records how far it goes (actors.ledger.recovery), so no owner is woken twice for it.
"""

from __future__ import annotations

import msgspec

from sluice.actors.ledger.record import LedgerRecord, LedgerState, PartitionRecord
from sluice.actors.messages import TopicSettings
from sluice.actors.policies.expiry import ExpiryLimits
from sluice.actors.policies.retention import Retention
from sluice.actors.topic.background.leaving import forgettable, offloadable, offloads, trims_up_to
from sluice.actors.topic.background.trimming import trimmable
from sluice.storage.format.position import position

_WITHOUT_END = 1 << 60


def has_work(record: PartitionRecord, now: int, kept: Retention, settings: TopicSettings) -> bool:
    """Return whether the owner of a partition would delete, offload or erase something, or was asked to offload or
    compact.

    settings: with the thresholds that hold now.
    """
    if record.deleted:
        return False
    if record.erasures or record.asked.offload or record.asked.compact or offloadable(record, settings, now):
        return True
    if forgettable(record, settings.offload_deletion_lag_ms, now):
        return True
    shortest = msgspec.structs.replace(record, ledgers=tuple(_shortest(ledger) for ledger in record.ledgers))
    marks = trims_up_to(record.subscriptions, None if record.compacted is None else record.compacted.horizon)
    return bool(trimmable(shortest, marks, now, kept, leaves=offloads(settings)))


def has_expired(record: PartitionRecord, mark: int, limits: ExpiryLimits, now: int) -> bool:
    """Return whether a subscription with this mark-delete position waits for messages that are too old, or too many.

    A ledger counts as a whole, with the age of its oldest message: its owner looks at the messages.
    """
    behind = [
        ledger
        for ledger in record.ledgers
        if ledger.state is not LedgerState.CLOSED
        or (ledger.last_entry >= 0 and position(ledger.id, ledger.last_entry) > mark)
    ]
    if limits.age and any(now - ledger.opened_at >= limits.age for ledger in behind):
        return True
    if limits.size is None or not behind:
        return False
    return behind[-1].state is not LedgerState.CLOSED or sum(ledger.bytes for ledger in behind) >= limits.size


def _shortest(ledger: LedgerRecord) -> LedgerRecord:
    """Return an open ledger as one that was seen by all for long, and that is too large to be kept."""
    if ledger.state is LedgerState.CLOSED:
        return ledger
    return msgspec.structs.replace(
        ledger, state=LedgerState.CLOSED, last_entry=0, bytes=_WITHOUT_END, closed_at=ledger.opened_at
    )

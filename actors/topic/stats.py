"""A partition's statistics as plain data; the names are Pulsar's where Pulsar has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from actors.ledger.record import GivenUp, LedgerRecord, LedgerState
from actors.topic.log import PartitionLog
from actors.topic.producers import Producers
from actors.topic.unreadable import Unreadable
from actors.topic.upkeep import Upkeep
from storage.position import entry_of, ledger_of, position, show


def describe(log: PartitionLog, producers: Producers, upkeep: Upkeep, unreadable: Unreadable) -> dict[str, Any]:
    """Counters of this owner, the chain of ledgers, and how far each subscription has come."""
    record = log.record
    return {
        "topic": record.topic,
        "partition": record.partition,
        "epoch": record.epoch,
        "owner": record.owner,
        "msgInCounter": log.messages_in,
        "bytesInCounter": log.bytes_in,
        "storageSize": sum(_size(log, ledger) for ledger in record.ledgers),
        "numberOfEntries": sum(log.last_entry(ledger) + 1 for ledger in record.ledgers),
        "lastConfirmedEntry": show(log.last_confirmed),
        "trimmedBefore": show(record.trimmed_before),
        "terminated": record.terminated,
        "backlogBytes": backlog_bytes(log, upkeep.marks),
        "underReplicated": upkeep.under_replicated(),
        "ledgersToBeCounted": len(log.settled),
        "unreadableRuns": unreadable.rows(),
        "offload": msgspec.structs.asdict(upkeep.offloading.status()),
        "givenUpRuns": [describe_loss(lost) for lost in record.given_up],
        "addsInFlight": log.in_flight,
        "bytesInFlight": log.held,
        "tailCacheBytes": log.tail.bytes,
        "producers": len(producers),
        "resultSources": producers.results.rows(),
        "subscriptions": {name: show(mark) for name, mark in sorted(upkeep.marks.items())},
        "ledgers": [_ledger(log, ledger) for ledger in record.ledgers],
    }


def describe_loss(lost: GivenUp) -> dict[str, Any]:
    """A run that was given up."""
    return {
        "run": show(position(lost.ledger, lost.first_entry)),
        "firstEntry": lost.first_entry,
        "lastEntry": lost.end - 1,
        "messages": lost.count,
        "givenUpAt": lost.at,
    }


def backlog_bytes(log: PartitionLog, marks: Mapping[str, int]) -> int:
    """About how many bytes lie behind the slowest subscription.

    marks: mark-delete positions of subscriptions; without one nothing waits.
    """
    return bytes_behind(log, min(marks.values())) if marks else 0


def bytes_behind(log: PartitionLog, mark: int) -> int:
    """About how many bytes lie behind a mark-delete position: of the ledger that it is in, its share of the entries."""
    size = 0
    for ledger in log.record.ledgers:
        entries = log.last_entry(ledger) + 1
        if entries and position(ledger.id, entries - 1) > mark:
            passed = entry_of(mark) + 1 if ledger.id == ledger_of(max(mark, 0)) else 0
            size += _size(log, ledger) * (entries - passed) // entries
    return size


def weighs_at_most(log: PartitionLog, keep: int) -> int:
    """The first position that has at most `keep` bytes behind it, as `bytes_behind` measures them."""
    at = 0
    for ledger in reversed(log.record.ledgers):
        entries, size = log.last_entry(ledger) + 1, _size(log, ledger)
        if size > keep:
            return position(ledger.id, entries - keep * entries // size)
        at, keep = position(ledger.id, 0), keep - size
    return at


def first_waiting(log: PartitionLog, marks: Mapping[str, int]) -> int | None:
    """The position of the first message behind the slowest subscription, None if nothing waits. marks: as above."""
    slowest = min(marks.values(), default=None)
    for ledger in log.record.ledgers if slowest is not None else ():
        last = log.last_entry(ledger)
        if last >= 0 and slowest is not None and position(ledger.id, last) > slowest:
            return max(position(ledger.id, 0), slowest + 1)
    return None


def _size(log: PartitionLog, ledger: LedgerRecord) -> int:
    return ledger.bytes if ledger.state is LedgerState.CLOSED else log.open_bytes


def _ledger(log: PartitionLog, ledger: LedgerRecord) -> dict[str, Any]:
    return {
        "ledgerId": ledger.id,
        "state": ledger.state.value,
        "entries": log.last_entry(ledger) + 1,
        "size": _size(log, ledger),
        "ensembleSize": ledger.ensemble,
        "writeQuorum": ledger.write_quorum,
        "ackQuorum": ledger.ack_quorum,
        "fragments": [[fragment.first_entry, list(fragment.bookies)] for fragment in ledger.fragments],
        "openedAt": ledger.opened_at,
        "closedAt": ledger.closed_at,
        "offloaded": ledger.offloaded is not None,
    }

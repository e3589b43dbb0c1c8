"""A partition's statistics as plain data; the names are Pulsar's where Pulsar has them."""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.actors.ledger.record import GivenUp, LedgerRecord
from sluice.actors.topic.background.maintenance import TopicMaintenance
from sluice.actors.topic.partition.amounts import backlog_bytes, size_of
from sluice.actors.topic.partition.managed_ledger import ManagedLedger
from sluice.actors.topic.partition.producers import Producers
from sluice.actors.topic.partition.unreadable import Unreadable
from sluice.storage.format.position import position, show


def describe(
    log: ManagedLedger, producers: Producers, maintenance: TopicMaintenance, unreadable: Unreadable
) -> dict[str, Any]:
    """Return counters of this owner, the chain of ledgers, and how far each subscription has come."""
    record = log.record
    return {
        "topic": record.topic,
        "partition": record.partition,
        "epoch": record.epoch,
        "owner": record.owner,
        "msgInCounter": log.messages_in,
        "bytesInCounter": log.bytes_in,
        "storageSize": sum(size_of(log, ledger) for ledger in record.ledgers),
        "numberOfEntries": sum(log.last_entry(ledger) + 1 for ledger in record.ledgers),
        "lastConfirmedEntry": show(log.last_confirmed),
        "trimmedBefore": show(record.trimmed_before),
        "terminated": record.terminated,
        "backlogBytes": backlog_bytes(log, maintenance.marks),
        "underReplicated": maintenance.under_replicated(),
        "ledgersToBeCounted": len(log.settled),
        "unreadableRuns": unreadable.rows(),
        **{name: msgspec.structs.asdict(status) for name, status in maintenance.statuses().items()},
        "givenUpRuns": [describe_loss(lost) for lost in record.given_up],
        "addsInFlight": log.in_flight,
        "bytesInFlight": log.held,
        "tailCacheBytes": log.cache.bytes,
        "producers": len(producers),
        "resultSources": producers.known_results.rows() if producers.known_results else [],
        "subscriptions": {name: show(mark) for name, mark in sorted(maintenance.marks.items())},
        "ledgers": [_ledger(log, ledger) for ledger in record.ledgers],
    }


def describe_loss(lost: GivenUp) -> dict[str, Any]:
    """Return a run that was given up."""
    return {
        "run": show(position(lost.ledger, lost.first_entry)),
        "firstEntry": lost.first_entry,
        "lastEntry": lost.end - 1,
        "messages": lost.count,
        "givenUpAt": lost.at,
    }


def _ledger(log: ManagedLedger, ledger: LedgerRecord) -> dict[str, Any]:
    return {
        "ledgerId": ledger.id,
        "state": ledger.state.value,
        "entries": log.last_entry(ledger) + 1,
        "size": size_of(log, ledger),
        "ensembleSize": ledger.ensemble,
        "writeQuorum": ledger.write_quorum,
        "ackQuorum": ledger.ack_quorum,
        "fragments": [[fragment.first_entry, list(fragment.bookies)] for fragment in ledger.fragments],
        "openedAt": ledger.opened_at,
        "closedAt": ledger.closed_at,
        "offloaded": ledger.offloaded is not None,
    }

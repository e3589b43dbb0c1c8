"""A partition's statistics as plain data; the names are Pulsar's in snake_case where Pulsar has them."""

from __future__ import annotations

from typing import Any

from actors.ledger.record import LedgerRecord, State
from actors.topic.log import PartitionLog
from actors.topic.producers import Producers
from actors.topic.upkeep import Upkeep
from storage.position import show


def describe(log: PartitionLog, producers: Producers, upkeep: Upkeep) -> dict[str, Any]:
    """Counters of this owner, the chain of ledgers, and how far each subscription has come."""
    record = log.record
    return {
        "topic": record.topic,
        "partition": record.partition,
        "epoch": record.epoch,
        "owner": record.owner,
        "msg_in_counter": log.messages_in,
        "bytes_in_counter": log.bytes_in,
        "storage_size": sum(_size(log, ledger) for ledger in record.ledgers),
        "number_of_entries": sum(log.last_entry(ledger) + 1 for ledger in record.ledgers),
        "last_confirmed_entry": show(log.last_confirmed),
        "trimmed_before": show(record.trimmed_before),
        "under_replicated": upkeep.under_replicated(),
        "adds_in_flight": log.in_flight,
        "bytes_in_flight": log.held,
        "tail_cache_bytes": log.tail.bytes,
        "producers": len(producers),
        "subscriptions": {name: show(mark) for name, mark in sorted(upkeep.marks.items())},
        "ledgers": [_ledger(log, ledger) for ledger in record.ledgers],
    }


def _size(log: PartitionLog, ledger: LedgerRecord) -> int:
    return ledger.bytes if ledger.state is State.CLOSED else log.open_bytes


def _ledger(log: PartitionLog, ledger: LedgerRecord) -> dict[str, Any]:
    return {
        "ledger_id": ledger.id,
        "state": ledger.state.value,
        "entries": log.last_entry(ledger) + 1,
        "size": _size(log, ledger),
        "ensemble_size": ledger.ensemble,
        "write_quorum": ledger.write_quorum,
        "ack_quorum": ledger.ack_quorum,
        "fragments": [[fragment.first_entry, list(fragment.bookies)] for fragment in ledger.fragments],
        "opened_at": ledger.opened_at,
        "closed_at": ledger.closed_at,
    }

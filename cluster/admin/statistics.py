"""Statistics of the owners, with the names and the shape that Pulsar's tools read.

What Sluice counts besides stands beside Pulsar's names. What it does not count (bytes that went out, rates of single
clients) is left out, and the tools show their 0 for it. A rate is the mean since the previous question of any caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.actors.messages import TopicSettings
from sluice.actors.ownership.names import unquoted
from sluice.actors.ports import Clock
from sluice.cluster.gateway.addresses import Addresses
from sluice.storage.dates import iso_time
from sluice.storage.format.position import ledger_of

Row = dict[str, Any]
Clients = dict[tuple[str, str], deque[Row]]
"""Consumers that are connected, by subscription and name, the one that came first before the others."""
SHORTEST_MS, LONGEST_MS = 1_000, 600_000
"""Rates are of no shorter time, and who asked longer ago is forgotten."""
_NO_COUNTERS = ("partition", "epoch", "producers")
_NO_QUOTA = {"backlogQuotaLimitSize": -1, "backlogQuotaLimitTime": -1, "oldestBacklogMessageAgeSeconds": -1}
_LARGEST = ("millisMedian", "millisMax", "blockedAttemptsMedian", "blockedAttemptsMax", "assignmentEpoch")
_NO_SUMS = (*_NO_QUOTA, *_LARGEST, "hottestKeyShare", "graceMillis")
"""Shares, settings, numbers of a change and medians: that of all partitions is the largest."""
ACCESS = {
    "shared": "Shared",
    "exclusive": "Exclusive",
    "wait_for_exclusive": "WaitForExclusive",
    "exclusive_with_fencing": "ExclusiveWithFencing",
}


class Rates:
    """The rise of counters in a second, between two requests."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, int, float]] = {}

    def rate(self, name: str, counter: int) -> float:
        now = self._clock.monotonic()
        since, before, rate = self._seen.get(name, (now, counter, 0.0))
        if counter < before or now - since > LONGEST_MS:
            since, before, rate = now, counter, 0.0
        if now - since >= SHORTEST_MS:
            since, before, rate = now, counter, (counter - before) * 1000 / (now - since)
        self._seen.pop(name, None)
        self._seen[name] = (since, before, rate)
        while now - self._seen[first := next(iter(self._seen))][0] > LONGEST_MS:
            del self._seen[first]  # the one that was asked for longest ago
        return round(rate, 3)


@dataclass
class Partition:
    """The statistics of one partition. clients: see actors.messages.ClientsHere."""

    name: str
    row: Row
    subscriptions: dict[str, Row]
    clients: Row = field(default_factory=lambda: {"producers": [], "consumers": []})


class PulsarStats:
    """Makes Pulsar's objects. addresses: of the broker that has the topics."""

    def __init__(self, addresses: Addresses, clock: Clock) -> None:
        self._at = addresses
        self._rates = Rates(clock)

    def topic(self, of: Partition, settings: TopicSettings) -> Row:
        """TopicStats of one partition."""
        row, rate = of.row, self._rates.rate
        messages, size = int(row.get("msgInCounter", 0)), int(row.get("bytesInCounter", 0))
        clients = _by_name(of)
        subscriptions = {name: self._subscription(of, clients, name, each) for name, each in of.subscriptions.items()}
        backlogs = [each["backlogSize"] for each in subscriptions.values()]
        subscriptions |= {
            name: self._subscription(of, clients, name, each)
            for name, each in _readers(of).items()
            if name not in subscriptions
        }
        publishers = [publisher(each) for each in of.clients["producers"]]
        return {
            **totals([row]),
            "msgRateIn": rate(f"in:{of.name}", messages),
            "msgThroughputIn": rate(f"bytes:{of.name}", size),
            "msgRateOut": round(sum(each["msgRateOut"] for each in subscriptions.values()), 3),
            "msgInCounter": messages,
            "bytesInCounter": size,
            "msgOutCounter": _sum(subscriptions.values(), "msgOutCounter"),
            "averageMsgSize": round(size / messages, 3) if messages else 0.0,
            "storageSize": int(row.get("storageSize", 0)),
            "backlogSize": max(backlogs, default=0),
            **_NO_QUOTA,
            "publishers": publishers,
            "waitingPublishers": sum(1 for each in of.clients["producers"] if not each["ready"]),
            "subscriptions": subscriptions,
            "replication": {},
            "deduplicationStatus": "Enabled" if settings.deduplication_enabled else "Disabled",
            "nonContiguousDeletedMessagesRanges": _sum(subscriptions.values(), "nonContiguousDeletedMessagesRanges"),
            "delayedMessageIndexSizeInBytes": _sum(subscriptions.values(), "delayedMessageIndexSizeInBytes"),
            "compaction": {
                "lastCompactionRemovedEventCount": 0,
                "lastCompactionSucceedTimestamp": int(row.get("compaction", {}).get("at", 0)),
                "lastCompactionFailedTimestamp": 0,
                "lastCompactionDurationTimeInMills": 0,
            },
            "ownerBroker": self._at.broker,
        }

    def _subscription(self, of: Partition, clients: Clients, name: str, row: Row) -> Row:
        kind = str(row.get("type")).title()
        sent, durable = int(row.get("msgOutCounter", 0)), bool(row.get("isDurable", True))
        consumers = [self._consumer(of, clients, name, each) for each in row.get("consumers", ())]
        active = [each["consumerName"] for each in consumers if each.get("keyHashRangeArrays") or each.get("reader")]
        times = [each.get("lastAckedTimestamp", 0) for each in consumers]
        return {
            "subscriptionProperties": {},
            **{key: value for key, value in row.items() if key not in ("partition", "epoch", "subscription", "topic")},
            "type": kind,
            "backlogSize": _stored(of.row, int(row.get("msgBacklog", 0))),
            "msgOutCounter": sent,
            "msgRateOut": self._rates.rate(f"out:{of.name}:{name}", sent),
            "msgRateRedeliver": self._rates.rate(f"back:{of.name}:{name}", int(row.get("msgRedeliverCounter", 0))),
            "activeConsumerName": active[0] if active and kind in ("Failover", "Exclusive") else None,
            "consumers": consumers,
            "lastAckedTimestamp": max(times, default=0),
            "lastConsumedTimestamp": max((each.get("lastConsumedTimestamp", 0) for each in consumers), default=0),
            "isDurable": durable,
            "durable": durable,
            "isReplicated": False,
            "replicated": False,
        }

    def _consumer(self, of: Partition, clients: Clients, subscription: str, row: Row) -> Row:
        """ConsumerStats; address and version are known of those that are connected by Pulsar's protocol.

        clients: those that are not told of yet; of several with one name the one that came first is.
        """
        name = unquoted(str(row.get("consumerName")))
        here = clients.get((subscription, name))
        told: Row = here.popleft() if here else {}
        introduced = {key: told[key] for key in ("address", "clientVersion", "metadata")} if told else {"metadata": {}}
        sent, which = int(row.get("msgOutCounter", 0)), f"{of.name}:{subscription}:{name}:{row.get('session', '')}"
        ranges = row.get("keyHashRangeArrays", [])
        return {
            **row,
            **introduced,
            "consumerName": name,
            "msgRateOut": self._rates.rate(f"out:{which}", sent),
            "msgRateRedeliver": self._rates.rate(f"back:{which}", int(row.get("msgRedeliverCounter", 0))),
            "connectedSince": moment(row.get("connectedSince", 0)),
            "keyHashRanges": [f"[{first}, {last}]" for first, last in ranges],
        }


def _by_name(of: Partition) -> Clients:
    found: Clients = {}
    for each in of.clients["consumers"]:
        found.setdefault((each["subscription"], each["consumerName"]), deque()).append(each)
    return found


def _readers(of: Partition) -> dict[str, Row]:
    """Return the rows that Pulsar shows for readers: each has a subscription of its own, not durable and Exclusive.

    As the owner of a subscription would tell it, by name.
    """
    rows: dict[str, Row] = {}
    for each in of.clients["consumers"]:
        if each["reader"]:
            row = rows.setdefault(
                each["subscription"],
                {"type": "exclusive", "isDurable": False, "msgOutCounter": 0, "msgBacklog": 0, "consumers": []},
            )
            row["consumers"].append(each)
            row["msgOutCounter"] += each["msgOutCounter"]
            row["unackedMessages"] = row.get("unackedMessages", 0) + each["unackedMessages"]
            row["msgBacklog"] = max(row["msgBacklog"], _behind(of.row, each["readPosition"]))
            row["consumersCount"] = len(row["consumers"])
    return rows


def _behind(row: Row, position: str) -> int:
    """How many messages of a partition are at a position or behind it."""
    ledger, _, entry = position.partition(":")
    at, first = (int(ledger), int(entry)) if entry else (-1, 0)
    counts = {int(each["ledgerId"]): int(each["entries"]) for each in row.get("ledgers", ())}
    return sum(max(count - (first if each == at else 0), 0) for each, count in counts.items() if each >= at)


def merged(partitions: Mapping[str, Row], *, shown: bool) -> Row:
    """PartitionedTopicStats: sums over partitions by their full names. shown: each of them as well."""
    rows = list(partitions.values())
    names = list(dict.fromkeys(name for row in rows for name in row["subscriptions"]))
    subscriptions = {
        name: _one_of([row["subscriptions"][name] for row in rows if name in row["subscriptions"]]) for name in names
    }
    size, messages = _sum(rows, "bytesInCounter"), _sum(rows, "msgInCounter")
    return {
        **_one_of([{key: value for key, value in row.items() if key != "subscriptions"} for row in rows]),
        "averageMsgSize": round(size / messages, 3) if messages else 0.0,
        "publishers": [publisher for row in rows for publisher in row["publishers"]],
        "subscriptions": subscriptions,
        "metadata": {"partitions": len(rows), "deleted": False},
        "partitions": dict(partitions) if shown else {},
    }


def _one_of(rows: list[Row]) -> Row:
    """Sums of the numbers and lists of all, also of those within objects; of everything else the first that says
    anything, and so of yes and no whether any says yes.
    """
    made = {name: value for row in reversed(rows) for name, value in row.items()}
    for name, value in made.items():
        inner = [row[name] for row in rows if row.get(name)]
        if type(value) in (int, float):
            last = name.startswith("last") and name.endswith("Timestamp")
            known = [row.get(name, 0) for row in rows]
            made[name] = max(known) if last or name in _NO_SUMS else round(sum(known), 3)
        elif isinstance(value, list):
            made[name] = [each for row in rows for each in row.get(name, ())]
        elif inner and all(isinstance(each, dict) for each in inner):
            made[name] = _one_of(inner)
        else:
            made[name] = inner[0] if inner else value
    return made


def internal(row: Row, cursors: Mapping[str, Row]) -> Row:
    """PersistentTopicInternalStats of one partition. cursors: by subscription, what its owner tells."""
    ledgers = row.get("ledgers", [])
    last: Row = ledgers[-1] if ledgers else {"entries": 0, "size": 0, "openedAt": 0, "state": ""}
    return {
        **{key: value for key, value in row.items() if key not in ("subscriptions", "producers")},
        "entriesAddedCounter": int(row.get("msgInCounter", 0)),
        "numberOfEntries": int(row.get("numberOfEntries", 0)),
        "totalSize": int(row.get("storageSize", 0)),
        "currentLedgerEntries": last["entries"],
        "currentLedgerSize": last["size"],
        "lastLedgerCreatedTimestamp": moment(last["openedAt"]),
        "lastLedgerCreationFailureTimestamp": None,
        "waitingCursorsCount": sum(1 for each in cursors.values() if each.get("pendingRead")),
        "pendingAddEntriesCount": int(row.get("addsInFlight", 0)),
        "lastConfirmedEntry": _position(row.get("lastConfirmedEntry")),
        "state": _state(row, last),
        "ledgers": [_ledger(each) for each in ledgers],
        "cursors": {name: _cursor(each) for name, each in cursors.items()},
        "schemaLedgers": [],
        "compactedLedger": _compacted(row.get("compaction", {})),
    }


def _compacted(status: Row) -> Row:
    """The compacted table, as if it were a ledger; it is known by the ledger that its horizon lies in."""
    there = int(status.get("horizon", -1)) >= 0
    return {
        "ledgerId": ledger_of(status["horizon"]) if there else -1,
        "entries": status["messages"] if there else -1,
        "size": status["bytes"] if there else -1,
        "offloaded": there,
        "underReplicated": False,
    }


def _state(row: Row, last: Row) -> str:
    if row.get("terminated"):
        return "Terminated"
    return "LedgerOpened" if last["state"] in ("", "OPEN") else "ClosedLedger"


def _ledger(row: Row) -> Row:
    bookies = [address for _, copies in row.get("fragments", ()) for address in copies]
    return {**row, "metadata": ", ".join(dict.fromkeys(bookies)), "underReplicated": False}


def _cursor(row: Row) -> Row:
    return {
        "markDeletePosition": _position(row.get("markDeletePosition")),
        "readPosition": _position(row.get("readPosition")),
        "waitingReadOp": bool(row.get("pendingRead")),
        "pendingReadOps": int(bool(row.get("pendingRead"))),
        "totalNonContiguousDeletedMessagesRange": row.get("nonContiguousDeletedMessagesRanges", 0),
        "numberOfEntriesSinceFirstNotAckedMessage": row.get("msgBacklog", 0),
        "subscriptionHavePendingRead": bool(row.get("pendingRead")),
        "subscriptionHavePendingReplayRead": False,
        "active": row.get("consumersCount", 0) > 0,
        "state": "Open",
        "properties": {},
    }


def totals(rows: list[Row]) -> Row:
    """Sums of the counters of several partitions."""
    names = [key for key, value in rows[0].items() if type(value) is int and key not in _NO_COUNTERS]
    return {name: sum(int(row.get(name, 0)) for row in rows) for name in names}


def _position(text: str | None) -> str:
    """A position as Pulsar writes it: that before the first is -1 of the ledger -1."""
    return "-1:-1" if text in (None, "earliest") else str(text)


def _stored(row: Row, messages: int) -> int:
    """Estimate the bytes that a number of messages take on a disk, from the mean size of all stored entries."""
    entries = int(row.get("numberOfEntries", 0))
    return round(messages * int(row.get("storageSize", 0)) / entries) if entries else 0


def publisher(row: Row) -> Row:
    """A producer, of what a gateway knows of it."""
    return {
        "accessMode": ACCESS.get(row["accessMode"], "Shared"),
        "producerId": row["producerId"],
        "producerName": row["producerName"],
        "address": row["address"],
        "connectedSince": moment(row["connectedSince"]),
        "clientVersion": row["clientVersion"],
        "metadata": row["metadata"],
        "supportsPartialProducer": False,
    }


def _sum(rows: Iterable[Row], name: str) -> int:
    return sum(int(row.get(name, 0)) for row in rows)


def moment(at: int) -> str | None:
    """Milliseconds since 1970 as Pulsar writes them; as a number what no calendar reaches, which clients may say."""
    return iso_time(at) if at else None

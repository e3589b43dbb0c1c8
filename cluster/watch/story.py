"""Makes a picture of one subscription from its owners' statistics, and finds the events between two pictures.

A picture is plain data for JSON. Of the 65,536 hashes it holds ranges, not hashes: a consumer's ranges change only
when a consumer joins or leaves, and what drains is few.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sluice.actors.ownership.names import namespace_of

Stats = Mapping[str, Any]
Picture = dict[str, Any]

_SUMS = {
    "backlog": "msgBacklog",
    "delayed": "msgDelayed",
    "unacked": "unackedMessages",
    "draining": "drainingHashesCount",
    "drained": "drainingHashesClearedTotal",
    "moved": "hashesMovedTotal",
    "checked": "orderCheckedTotal",
    "violations": "orderViolationsTotal",
    "delivered": "msgOutCounter",
    "acknowledged": "msgAckCounter",
}
_BUCKETS = {
    "live": "pulsar_delayed_message_index_bucket_total",
    "loaded": "pulsar_delayed_message_index_loaded",
}
_OPERATIONS = "pulsar_delayed_message_index_bucket_op_count"


def picture(
    at: int, dispatchers: Iterable[Stats | None], topics: Iterable[Stats | None], status: Stats | None
) -> Picture:
    """The picture of a subscription at a time (ms since 1970).

    dispatchers, topics: the statistics of each partition's owner, in order; None where an owner does not answer now.
    status: the controller's, None if it does not answer.
    """
    partitions = [
        {"partition": number, **({"answers": False} if stats is None else _partition(stats))}
        for number, stats in enumerate(dispatchers)
    ]
    published = [stats for stats in topics if stats is not None]
    return {
        "at": at,
        "partitions": partitions,
        "totals": {
            **{name: sum(int(part.get(name, 0)) for part in partitions) for name in _SUMS},
            "published": sum(int(stats.get("msgInCounter", 0)) for stats in published),
            "bytes": sum(int(stats.get("storageSize", 0)) for stats in published),
        },
        "epochs": {str(stats["partition"]): stats["epoch"] for stats in published},
        "ledgers": {str(stats["partition"]): _ledgers(stats) for stats in published},
        "actors": [] if status is None else [_actor(row) for row in status["actors"]],
        "controller": status is not None,
    }


def _partition(stats: Stats) -> dict[str, Any]:
    consumers = stats.get("consumers", [])
    return {
        "answers": True,
        "epoch": stats["epoch"],
        "paused": stats["paused"],
        "awaited": stats["awaitedConsumers"],
        **{name: stats.get(key, 0) for name, key in _SUMS.items()},
        "consumers": [
            {
                "name": row["consumerName"],
                "number": row.get("consumerNumber", 0),
                "unacked": row.get("unackedMessages", 0),
                "permits": row.get("availablePermits", 0),
                "delivered": row.get("msgOutCounter", 0),
                "ranges": row.get("keyHashRangeArrays", []),
            }
            for row in consumers
        ],
        "drains": [
            [drain["hash"], row["consumerName"], drain["unackMsgs"], drain["blockedAttempts"]]
            for row in consumers
            for drain in row.get("drainingHashes", [])
        ],
        "buckets": _buckets(stats.get("bucketDelayedIndexStats") or {}),
    }


def _buckets(stats: Stats) -> dict[str, Any]:
    counts = stats.get(_OPERATIONS) or {}
    return {
        **{name: stats.get(key, 0) for name, key in _BUCKETS.items()},
        **{kind: states.get("succeed", 0) for kind, states in counts.items()},
    }


def _ledgers(stats: Stats) -> list[dict[str, Any]]:
    return [
        {
            "id": ledger["ledgerId"],
            "state": ledger["state"],
            "entries": ledger["entries"],
            "bookies": ledger["fragments"][-1][1] if ledger["fragments"] else [],
        }
        for ledger in stats.get("ledgers", [])[-8:]
    ]


def concerned(topic: str, subscription: str, status: Stats | None) -> Stats | None:
    """Return the controller's view without the owners of other topics and subscriptions.

    A client that may look at one of them need not know of the others.
    """
    if status is None:
        return None
    return {**status, "actors": [row for row in status["actors"] if _concerns(row, topic, subscription)]}


def _concerns(row: Stats, topic: str, subscription: str) -> bool:
    """Whether it serves everybody, or this topic, and of its subscriptions this one."""
    if row["kind"] not in ("topic", "dispatcher"):
        return True
    _, of, *rest = str(row["name"]).split("/")
    return of == topic and (row["kind"] == "topic" or rest[-1:] == [subscription])


def _actor(row: Stats) -> dict[str, Any]:
    return {key: row.get(key) for key in ("kind", "name", "address", "state", "problem")}


def events(before: Picture | None, after: Picture) -> list[dict[str, Any]]:
    """The events between two pictures, each as {at, kind, text}; nothing for a first one."""
    if before is None:
        return []
    happened: list[tuple[str, str]] = []
    for old, new in zip(before["partitions"], after["partitions"], strict=False):
        happened += _of_partition(old, new)
    happened += [
        ("owner", f"partition {number}: a new owner, epoch {before['epochs'][number]} to {epoch}")
        for number, epoch in after["epochs"].items()
        if before["epochs"].get(number, epoch) != epoch
    ]
    happened += _of_ledgers(before, after)
    happened += _of_actors(before, after)
    return [{"at": after["at"], "kind": kind, "text": text} for kind, text in happened]


def of_audit(at: int, topic: str, subscription: str, lines: Iterable[Stats]) -> list[dict[str, Any]]:
    """Return an audit's lines about a topic or its namespace, and about a subscription or none, as events."""
    space, _ = namespace_of(topic)
    told = []
    for line in lines:
        if line.get("topic") in (topic, space) and line.get("subscription") in ("", subscription):
            reason = f": {line['reason']}" if line.get("reason") else ""
            text = f"{line.get('role') or 'somebody'} {line.get('outcome')} {line.get('what')}{reason}"
            told.append({"at": at, "kind": "audit", "text": text})
    return told


def _of_partition(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str]]:
    name = f"partition {new['partition']}"
    if old["answers"] != new["answers"]:
        return [("owner", f"{name}: its dispatcher {'answers again' if new['answers'] else 'does not answer'}")]
    if not new["answers"]:
        return []
    happened = []
    if old["epoch"] != new["epoch"]:
        happened.append(("owner", f"{name}: a new dispatcher, epoch {old['epoch']} to {new['epoch']}"))
    # Another process under the same name has another number; a new dispatcher numbers everybody anew.
    had, has = _present(old, old["epoch"] == new["epoch"]), _present(new, old["epoch"] == new["epoch"])
    happened += [("leave", f"{name}: {consumer} left") for consumer, number in had if (consumer, number) not in has]
    happened += [("join", f"{name}: {consumer} joined") for consumer, number in has if (consumer, number) not in had]
    if new["moved"] > old["moved"] and old["epoch"] == new["epoch"]:
        happened.append(("move", f"{name}: {new['moved'] - old['moved']} hashes moved, {new['draining']} are draining"))
    if old["draining"] and not new["draining"] and old["epoch"] == new["epoch"]:
        happened.append(("drained", f"{name}: everything is drained"))
    # A new dispatcher counts from zero.
    known: dict[str, Any] = old if old["epoch"] == new["epoch"] else {"violations": 0, "buckets": {}}
    if new["violations"] > known["violations"]:
        happened.append(("violation", f"{name}: THE ORDER WAS BROKEN {new['violations'] - known['violations']} times"))
    for kind, verb in (("create", "sealed"), ("merge", "merged"), ("delete", "released")):
        if (count := new["buckets"].get(kind, 0) - known["buckets"].get(kind, 0)) > 0:
            happened.append(("bucket", f"{name}: {count} bucket{'s' if count > 1 else ''} {verb}"))
    return happened


def _present(partition: dict[str, Any], numbered: bool) -> list[tuple[str, int]]:
    there = ((consumer["name"], consumer["number"] if numbered else 0) for consumer in partition["consumers"])
    return list(dict.fromkeys(there))


def _of_ledgers(before: Picture, after: Picture) -> list[tuple[str, str]]:
    happened = []
    for number, ledgers in after["ledgers"].items():
        known = {ledger["id"]: ledger for ledger in before["ledgers"].get(number, [])}
        for ledger in ledgers:
            was = known.get(ledger["id"])
            if was is None and known:
                happened.append(
                    ("ledger", f"partition {number}: ledger {ledger['id']} on {', '.join(ledger['bookies'])}")
                )
            elif was is not None and was["bookies"] != ledger["bookies"]:
                there = ", ".join(ledger["bookies"])
                happened.append(("ledger", f"partition {number}: ledger {ledger['id']} goes on with {there}"))
    return happened


def _of_actors(before: Picture, after: Picture) -> list[tuple[str, str]]:
    known = {row["name"]: row for row in before["actors"]}
    happened = []
    for row in after["actors"]:
        was = known.get(row["name"])
        if was is not None and (was["state"], was["problem"]) != (row["state"], row["problem"]):
            reason = f": {row['problem']}" if row["problem"] else ""
            happened.append(("actor", f"{row['name']} is {row['state']}{reason}"))
    return happened

"""Cancels or reschedules delayed messages, for one subscription or for all subscriptions of a topic.

What is said here is what the owners of the subscriptions answer, which is durable when it is said. An owner that does
not answer, or that must wait for consumers of its predecessor, is asked again for a while: asking again changes
nothing and gets the same answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import CancelDelayed, RescheduleDelayed, request_of, shown
from sluice.actors.ports.wire import Request
from sluice.cluster.client.message import MessageId
from sluice.storage.errors import Invalid, NotFound
from sluice.storage.format.hashing import key_bytes, masked_hash

CALL_TIMEOUT = 120_000
PATIENCE = 60_000

_CHOICES = {
    "message_id", "delay_id", "key", "due_from", "due_to", "before", "everything", "dry_run", "deliver_at",
}  # fmt: skip


class DelayedChanges:
    """Asks the owners of a topic's subscriptions."""

    def __init__(self, directory: Directory, subscriptions: Callable[[], Awaitable[list[str]]]) -> None:
        """subscriptions: the names of all of the topic's."""
        self._directory, self._subscriptions = directory, subscriptions

    async def change(
        self, topic: str, subscription: str | None, verb: str, chosen: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Ask about each partition that has to do with it; a row a subscription and partition.

        chosen: `message_id`, `delay_id`, and what `SelectDelayed` has. Raises Invalid, NotFound, Unavailable.
        """
        partitions = (await self._directory.settings(topic)).partitions
        asked = requests(verb, chosen, partitions)
        names = await self._subscriptions() if subscription is None else [subscription]
        return [
            {"subscription": name, **shown(await self._ask(topic, partition, name, request))}
            for name in names
            for partition, request in asked.items()
        ]

    async def _ask(self, topic: str, partition: int, subscription: str, request: Request[Any]) -> Any:
        return await self._directory.ask_owner(
            topic, partition, subscription, request, timeout=CALL_TIMEOUT, patience=PATIENCE
        )


def requests(verb: str, chosen: Mapping[str, Any], partitions: int) -> dict[int, Request[Any]]:
    """Build the request for each partition: a message id names its partition, a key or a delay id has one by its hash.

    Raises Invalid, and NotFound for a message id of a partition that the topic does not have.
    """
    given = {name: value for name, value in chosen.items() if value is not None}
    unknown = sorted(set(given) - _CHOICES)
    if unknown:
        raise Invalid(f"unknown choice {unknown[0]!r}; there are {', '.join(sorted(_CHOICES))}")
    ids, names = _list(given.pop("message_id", [])), _list(given.pop("delay_id", []))
    plain = {name: str(value) if name == "before" else value for name, value in given.items()}
    asked: dict[int, dict[str, Any]] = {}
    if ids:
        for one in ids:
            at = MessageId.parse(one) if isinstance(one, str) else one
            if not 0 <= at.partition_index < partitions:
                raise NotFound(f"the topic has no partition {at.partition_index}")
            asked.setdefault(at.partition_index, {"message_ids": []})["message_ids"].append(_id_text(at))
    elif names:
        for name in names:
            home = masked_hash(_key(plain.get("key", name))) % partitions
            asked.setdefault(home, {"delay_ids": []})["delay_ids"].append(name)
    elif "key" in plain:
        asked = {masked_hash(_key(plain["key"])) % partitions: {}}
    else:
        asked = {partition: {} for partition in range(partitions)}
    if "before" in plain:
        asked = _before(MessageId.parse(plain.pop("before")), asked)
    found = {partition: request_of(verb, {**plain, **own}) for partition, own in asked.items()}
    for request in found.values():
        if isinstance(request, CancelDelayed | RescheduleDelayed):
            request.check()
    return found


def _key(given: object) -> bytes:
    """Whatever else somebody gave as a key is refused where the request is made."""
    return key_bytes(given if isinstance(given, bytes) else str(given))


def due_time(deliver_at: int | None, deliver_after: timedelta | None, now: int) -> int:
    """The new due time, ms. Raises Invalid unless exactly one of the two is given."""
    if (deliver_at is None) == (deliver_after is None):
        raise Invalid("give one of deliver_at and deliver_after")
    return deliver_at if deliver_at is not None else due_after(now, deliver_after or timedelta())


def due_after(now: int, wait: timedelta) -> int:
    """The first whole millisecond at which the wait is over. Raises Invalid."""
    try:
        return now - (-wait // timedelta(milliseconds=1))
    except (TypeError, OverflowError):
        raise Invalid(f"deliver_after is a timedelta that ends before the year 10000, not {wait!r}") from None


def _before(limit: MessageId, asked: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """A message id limits its own partition alone, and nothing is asked of the others."""
    own = asked.get(limit.partition_index)
    return {} if own is None else {limit.partition_index: {**own, "before": _id_text(limit)}}


def _id_text(at: MessageId) -> str:
    return f"{at.ledger_id()}:{at.entry_id()}"


def _list(given: Any) -> list[MessageId | str]:
    found = [given] if isinstance(given, str | MessageId) else given
    if not isinstance(found, list | tuple | set) or not all(isinstance(one, str | MessageId) for one in found):
        raise Invalid("message_id and delay_id are one id or a list of them")
    return list(found)

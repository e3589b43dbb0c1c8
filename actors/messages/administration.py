"""Requests of operators about one subscription on one partition. Names are Pulsar's where it has them.

What moves the cursor is answered when it is durable, and lets no draining hash go early: messages that a connected
consumer holds stay its own until it is done (KS-45). Answers of `Text` are for people to read, as JSON.

Outside of the broker a request has the name of a verb, and its arguments are plain values (`request_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from sluice.actors.messages.common import Done, Text
from sluice.actors.messages.delayed import CancelDelayed, RescheduleDelayed
from sluice.actors.messages.limits import MOST_ADDED, Key, Name, Shown, Time, check_key
from sluice.actors.messages.parking import Discard, ListParked, Redrive
from sluice.actors.messages.settings import SubscriptionSettings
from sluice.actors.ports.wire import Reply, Request
from sluice.storage.errors import Invalid
from sluice.storage.format.hashing import key_bytes


class Sought(Reply):
    """position: `ledger:entry`, where the subscription goes on."""

    position: str


class Skipped(Reply):
    """skipped: how many messages newly count as done. position: `ledger:entry`, where the subscription goes on."""

    skipped: int
    position: str


class Deleted(Reply):
    """deleted: always true, because an owner that cannot delete refuses."""

    deleted: bool


class Paused(Reply):
    """paused: whether the subscription sends nothing."""

    paused: bool


class Configured(Reply):
    """changed: whether the settings differ from those before; if so, this owner ends, and the next one uses them.

    settings: those in force then.
    """

    changed: bool
    settings: SubscriptionSettings


class Seek(Request[Sought]):
    """Start over from a message (`ledger:entry`, `earliest`, `latest`), or from a time (ms) if that is given.

    Every session ends; the consumers come back by themselves. Conflict if a seek that was asked for later was faster.
    """

    reply: ClassVar[type[Reply]] = Sought
    message_id: Annotated[str, Meta(max_length=64)] = ""
    time: Time | None = None


class Skip(Request[Skipped]):
    """The next `messages` messages that are not done count as done."""

    reply: ClassVar[type[Reply]] = Skipped
    repeatable: ClassVar[bool] = False
    messages: Annotated[int, Meta(ge=1, le=1 << 53)]


class ClearBacklog(Request[Skipped]):
    """All messages that the topic has now count as done."""

    reply: ClassVar[type[Reply]] = Skipped


class ExpireMessages(Request[Skipped]):
    """All messages that were published before a time (ms) count as done."""

    reply: ClassVar[type[Reply]] = Skipped
    before: Time


class DeleteSubscription(Request[Deleted]):
    """Forget the subscription on this partition. force: also if consumers are connected; their sessions end.

    only_unused: Invalid unless it is not durable, and on this partition no consumer is attached, joining or awaited.
    """

    reply: ClassVar[type[Reply]] = Deleted
    force: bool = False
    only_unused: bool = False


class PrepareDeletion(Request[Done], kw_only=True):
    """Would this deletion be carried out? Then nobody attaches for a minute, unless it is withdrawn.

    Raises Invalid, as the deletion itself does.
    """

    reply: ClassVar[type[Reply]] = Done
    deletion: DeleteSubscription
    withdrawn: bool = False


class Pause(Request[Paused]):
    """Send nothing until Resume, also by later owners."""

    reply: ClassVar[type[Reply]] = Paused


class Resume(Request[Paused]):
    """Go on sending."""

    reply: ClassVar[type[Reply]] = Paused


class Configure(Request[Configured]):
    """Use these settings. Conflict while consumers are connected, unless the settings are those in force.

    said: the names of those that the caller means; the others stay as they are. None: all. The word "sticky" among
    them means whether consumers bring hash ranges, which is all that a client of Pulsar says of the selector.
    """

    reply: ClassVar[type[Reply]] = Configured
    settings: SubscriptionSettings
    said: list[str] | None = None


class SetProperties(Request[Done]):
    """Keep these properties with the subscription, in place of those that it has."""

    reply: ClassVar[type[Reply]] = Done
    properties: dict[str, str]


class ListPending(Request[Text]):
    """Which messages each consumer holds, or the consumer of this name; the first `most` of each."""

    reply: ClassVar[type[Reply]] = Text
    consumer: Name | None = None
    most: Shown = 100


class ListBlockedKeys(Request[Text]):
    """The hashes that wait the longest."""

    reply: ClassVar[type[Reply]] = Text
    top: Shown = 20


class ListDelayed(Request[Text]):
    """How many messages are not due, when they will be due, and the first `top` of them."""

    reply: ClassVar[type[Reply]] = Text
    top: Shown = 10


class ListHotKeys(Request[Text]):
    """The `top` heaviest keys of what was read lately, by messages, by bytes and by the time that consumers held them
    (`held`, milliseconds summed over messages), and the hashes that wait longest.
    """

    reply: ClassVar[type[Reply]] = Text
    top: Shown = 10


class ListAssignments(Request[Text]):
    """Changes of the owners of hashes, oldest first, bounded."""

    reply: ClassVar[type[Reply]] = Text


class BacklogFound(Reply):
    """position: of a message, -1 if there is none."""

    position: int


class FindBacklog(Request[BacklogFound]):
    """The first message at or after a position that is not done."""

    reply: ClassVar[type[Reply]] = BacklogFound
    start: int


class FindOwner(Request[Text]):
    """A request for the owner of a key's hash, or of a hash, now or at a time (ms)."""

    reply: ClassVar[type[Reply]] = Text
    key: Key | None = None
    hash: Annotated[int, Meta(ge=1, le=65535)] | None = None
    at: Time | None = None

    def __post_init__(self) -> None:
        check_key(self.key)


class WhatIf(Request[Text]):
    """Which hashes would move if `add` consumers joined and those named left."""

    reply: ClassVar[type[Reply]] = Text
    add: Annotated[int, Meta(ge=0, le=MOST_ADDED)] = 0
    remove: Annotated[list[Name], Meta(max_length=MOST_ADDED)] = []


VERBS: dict[str, type[Request[Any]]] = {
    "seek": Seek,
    "skip": Skip,
    "clear_backlog": ClearBacklog,
    "expire": ExpireMessages,
    "delete": DeleteSubscription,
    "pause": Pause,
    "resume": Resume,
    "pending": ListPending,
    "blocked_keys": ListBlockedKeys,
    "delayed": ListDelayed,
    "hot_keys": ListHotKeys,
    "cancel_delayed": CancelDelayed,
    "reschedule_delayed": RescheduleDelayed,
    "parked": ListParked,
    "redrive": Redrive,
    "discard": Discard,
    "assignments": ListAssignments,
    "owner": FindOwner,
    "what_if": WhatIf,
}
"""The requests that have a name at the command line, in the Python client and over HTTP."""


def request_of(verb: str, arguments: Mapping[str, Any]) -> Request[Any]:
    """The request that a verb with plain arguments is. Raises Invalid naming what is unknown or wrong.

    Arguments that the verb does not know are ignored, as everywhere on the wire.
    """
    kind = VERBS.get(verb)
    if kind is None:
        raise Invalid(f"unknown verb {verb!r}; there are {', '.join(sorted(VERBS))}")
    try:
        request: Request[Any] = msgspec.convert(_sendable(arguments), kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Invalid(f"the arguments of {verb}: {error}") from None
    return request


def _sendable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with a key that is no text as its bytes. Raises Invalid."""
    key = arguments.get("key")
    return dict(arguments) if not isinstance(key, str) or _is_text(key) else {**arguments, "key": key_bytes(key)}


def _is_text(key: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in key)


def shown(reply: Reply) -> Any:
    """An answer as plain values."""
    return msgspec.json.decode(reply.json) if isinstance(reply, Text) else msgspec.to_builtins(reply)

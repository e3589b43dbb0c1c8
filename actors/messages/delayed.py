"""Requests to a dispatcher to cancel or reschedule delayed messages, and its answers."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from sluice.actors.messages.common import Text
from sluice.actors.messages.limits import MOST_SHOWN, Key, Time, check_key
from sluice.actors.ports.wire import Reply, Request
from sluice.storage.errors import Invalid
from sluice.storage.format.batch import LAST_TIME, MAX_KEY_BYTES

DELAY_ID = "delay_id"
"""The property of a message that holds its sender's own id of the delay."""

CANCELLED = "cancelled"
RESCHEDULED = "rescheduled"
TOO_LATE_DELIVERED = "too late: delivered"
TOO_LATE_AT = "too late: at consumer "
"""The consumer's name follows."""
TOO_LATE_DUE = "too late: due"
UNKNOWN = "unknown"


class SelectDelayed(Request[Text], kw_only=True):
    """Selects messages: those with these ids, those with these `delay_ids`, or all that pass the filter.

    message_ids: `ledger:entry`. delay_ids: what the sender called them; `key`: that of those messages, if they have
    one. Without either, the filter counts: key, due_from <= due time < due_to (ms), before (`ledger:entry`, only what
    lies before it); `everything` says that all delayed messages are meant. dry_run: only say what would be done.
    """

    reply: ClassVar[type[Reply]] = Text
    message_ids: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=MOST_SHOWN)] = []
    delay_ids: Annotated[list[Annotated[str, Meta(max_length=MAX_KEY_BYTES)]], Meta(max_length=MOST_SHOWN)] = []
    key: Key | None = None
    due_from: Time | None = None
    due_to: Time | None = None
    before: Annotated[str, Meta(max_length=64)] | None = None
    everything: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        check_key(self.key)

    def check(self) -> None:
        """Raises Invalid if it does not say which messages are meant."""
        filtered = any(given is not None for given in (self.key, self.due_from, self.due_to, self.before))
        if self.message_ids and (self.delay_ids or filtered or self.everything):
            raise Invalid("message_ids cannot be combined with another choice")
        if self.everything and (self.delay_ids or filtered):
            raise Invalid("everything cannot be combined with another choice")
        if not (self.message_ids or self.delay_ids or filtered or self.everything):
            raise Invalid("say which messages: message_ids, delay_ids, key, due_from, due_to, before or everything")


class CancelDelayed(SelectDelayed, kw_only=True):
    """No consumer of this subscription gets these delayed messages. Answered when that is durable; safe to repeat.

    Answered with numbers by kind and, for ids, with an answer each.
    """


class RescheduleDelayed(SelectDelayed, kw_only=True):
    """A request that makes delayed messages due for this subscription at `deliver_at` (ms); otherwise as
    `CancelDelayed`.
    """

    deliver_at: Annotated[int, Meta(ge=1, le=LAST_TIME)]

"""Requests of operators to a dispatcher about parked and blocked keys (`dead_letter_policy`)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from sluice.actors.messages.common import Text
from sluice.actors.messages.limits import Key, Shown, check_key
from sluice.actors.ports.wire import Reply, Request
from sluice.storage.errors import Invalid


class ListParked(Request[Text], kw_only=True):
    """The first `top` keys that are parked or blocked, in the order in which they failed."""

    reply: ClassVar[type[Reply]] = Text
    top: Shown = 100


class DecideParked(Request[Text], kw_only=True):
    """Selects a key by its name, by its failed message (`ledger:entry`), or all keys. Safe to repeat."""

    reply: ClassVar[type[Reply]] = Text
    key: Key | None = None
    message_id: Annotated[str, Meta(max_length=64)] | None = None
    everything: bool = False

    def __post_init__(self) -> None:
        check_key(self.key)

    def check(self) -> None:
        """Raises Invalid unless it says which keys are meant, in one way."""
        if sum((self.key is not None, self.message_id is not None, self.everything)) != 1:
            raise Invalid("say which keys: one of key, message_id (of the failed message) and everything")


class Redrive(DecideParked, kw_only=True):
    """A request that lets keys go on: parked messages go out in order, before newer messages of their key."""


class Discard(DecideParked, kw_only=True):
    """The messages of these keys from the failed one on count as done; the keys go on with later messages.

    only_failed: the failed message alone; what was parked behind it goes out.
    """

    only_failed: bool = False

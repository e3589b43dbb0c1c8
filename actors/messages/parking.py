"""Parked and blocked keys (`dead_letter_policy`): what operators ask of a dispatcher, and decide."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from actors.messages.common import Text
from actors.messages.limits import Shown
from actors.wire import Reply, Request
from storage.batch import MAX_KEY_BYTES
from storage.errors import Invalid


class ListParked(Request[Text], kw_only=True):
    """The keys that are parked or blocked, those that failed first before the others; `top` of them."""

    reply: ClassVar[type[Reply]] = Text
    top: Shown = 100


class DecideParked(Request[Text], kw_only=True):
    """Which keys: that of this name, the one of which this message (`ledger:entry`) failed, or all. Safe to repeat."""

    reply: ClassVar[type[Reply]] = Text
    key: Annotated[str, Meta(max_length=MAX_KEY_BYTES)] | None = None
    message_id: Annotated[str, Meta(max_length=64)] | None = None
    everything: bool = False

    def check(self) -> None:
        """Raises Invalid unless it says which keys are meant, in one way."""
        if sum((self.key is not None, self.message_id is not None, self.everything)) != 1:
            raise Invalid("say which keys: one of key, message_id (of the failed message) and everything")


class Redrive(DecideParked, kw_only=True):
    """These keys go on: what was parked goes out in order, and before newer messages of its key."""


class Discard(DecideParked, kw_only=True):
    """What is there of these keys from the failed message on counts as done; the keys go on with what comes later.

    only_failed: the failed message alone; what was parked behind it goes out.
    """

    only_failed: bool = False

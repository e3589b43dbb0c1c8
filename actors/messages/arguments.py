"""The arguments of the controller's verbs, which travel as JSON: their types and limits, checked before a verb begins.

A verb that is not named here takes no arguments. What a verb does not know is ignored, as everywhere on the wire.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from storage.batch import LAST_TIME
from storage.errors import Invalid

MOST_SHOWN = 10_000
"""Rows that one question may ask for."""
MOST_ADDED = 1_000
"""Consumers that `what_if` may add."""

Name = Annotated[str, Meta(min_length=1, max_length=256)]
"""A name as given; whoever makes something of that name checks it closer (`actors.names`)."""
Shown = Annotated[int, Meta(ge=1, le=MOST_SHOWN)]
Time = Annotated[int, Meta(ge=-LAST_TIME, le=LAST_TIME)]


class _Arguments(msgspec.Struct, kw_only=True, omit_defaults=True):
    pass


class _Topic(_Arguments):
    topic: Name


class _DeleteTopic(_Topic):
    force: bool | UnsetType = UNSET


class _Subscription(_Topic):
    subscription: Name
    force: bool | UnsetType = UNSET


class _Bookies(_Arguments):
    bookies: Annotated[list[Name], Meta(max_length=256)]


OF_CLUSTER: dict[str, type[_Arguments]] = {
    "subscriptions": _Topic,
    "delete_topic": _DeleteTopic,
    "delete_subscription": _Subscription,
    "add_bookies": _Bookies,
}
"""The arguments of the verbs of messages.Manage."""


def read_arguments(verb: str, text: str, known: dict[str, type[_Arguments]]) -> dict[str, Any]:
    """The arguments of a verb as a map. Raises Invalid naming the wrong one and what it may be."""
    try:
        given = json.loads(text)
        if not isinstance(given, dict):
            raise Invalid(f"the arguments of {verb} are a JSON object, not {type(given).__name__}")
        checked = msgspec.convert(given, known.get(verb, _Arguments))
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the arguments of {verb}: {error}") from None
    return {**given, **msgspec.to_builtins(checked)}

"""Records that gateways keep beside those of the topics: each one value, which changes as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from actors.ports import Meta
from storage.errors import Corrupt, Unavailable

T = TypeVar("T")

_TRIES = 20


def schema_key(topic: str) -> str:
    """The metadata key of a topic's schemas."""
    return f"schema/{topic}"


def topic_quota_key(topic: str) -> str:
    """The metadata key of a topic's own backlog quota."""
    return f"quota/topic/{topic}"


def topic_age_key(topic: str) -> str:
    """The metadata key of how old a topic's backlog may be."""
    return f"quota-age/topic/{topic}"


def topic_lifetime_key(topic: str) -> str:
    """The metadata key of how long a topic's messages are kept."""
    return f"lifetime/topic/{topic}"


async def forget_topic(meta: Meta, topic: str) -> None:
    """Remove what gateways kept of a topic that is no more. Raises Unavailable."""
    for key in (schema_key(topic), topic_quota_key(topic), topic_age_key(topic), topic_lifetime_key(topic)):
        await meta.remove(key)


async def value_of(meta: Meta, key: str) -> bytes | None:
    """A record's value, None if there is no record. Raises Unavailable."""
    found = await meta.read(key)
    return None if found is None else found.value


async def revise(meta: Meta, key: str, change: Callable[[bytes | None], bytes], what: str) -> bytes:
    """Replace a record's value by what `change` makes of it; what holds then.

    change: is given None if there is no record, and once more whenever somebody else was first; what it raises ends the
    attempt. Equal values are not written. what: for the error, as in "the quota of a is". Raises Unavailable.
    """
    for _ in range(_TRIES):
        found = await meta.read(key)
        number, value = (0, None) if found is None else (found.number, found.value)
        wanted = change(value)
        if wanted == value or await meta.create(key, number + 1, wanted):
            return wanted
    raise Unavailable(f"{what} being changed by others; try again")


def decoded(value: bytes, kind: type[T], what: str) -> T:
    """A record's value, which is JSON. what: for the error, as in "the quota of a". Raises Corrupt."""
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Corrupt(f"{what} cannot be read: {error}") from error

"""Records of policies, which lie beside the records of topics. Each has one value, which changes as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from sluice.actors.ownership.fenced_record import newest_version
from sluice.actors.ownership.names import namespace_of
from sluice.actors.ports import Clock, Meta, Records
from sluice.storage.errors import Corrupt, Unavailable

T = TypeVar("T")

QUOTAS, AGES, LIFETIMES, LIMITS = "quota/", "quota-age/", "lifetime/", "limits/"
"""Prefixes of what a namespace and a topic may each have a record of: see actors.policies.backlog_quotas,
actors.policies.retention, actors.policies.limits.
"""
PERMISSIONS, TENANTS = "permission/", "tenant/"
"""Prefixes of the records that say who may do what: see actors.policies.permissions, actors.policies.namespaces."""
CHANGES = "permission-changes"
"""The record whose versions count the changes of those; its value names the records that changed last, as JSON."""
MOST_CHANGES = 100
_DEFINITIONS = "schema-definition/"
_TRIES = 20
LOOK_MS = 60_000
"""So often owners look what operators want of their topics."""
DAMAGED_MS = 10_000
"""So often where that cannot be read: all owners of a namespace's topics share one store."""


def schema_key(topic: str) -> str:
    """The metadata key of a topic's schemas."""
    return f"schema/{topic}"


def definition_key(topic: str, digest: str) -> str:
    """The metadata key of one schema of a topic, by its digest."""
    return f"{_DEFINITIONS}{topic}/{digest}"


def of_namespace(space: str) -> str:
    """How records of a namespace are named, behind the prefix of their kind."""
    return f"namespace/{space}"


def names_for(topic: str) -> tuple[str, str]:
    """How the records that may say something about a topic are named: its own, which goes first, its namespace's."""
    return of_topic(topic), of_namespace(namespace_of(topic)[0])


def of_topic(topic: str) -> str:
    """How records of a topic are named, behind the prefix of their kind."""
    return f"topic/{topic}"


async def forget_topic(meta: Meta, topic: str) -> None:
    """Remove all policy and schema records of a deleted topic. Raises Unavailable."""
    for key in (schema_key(topic), *(prefix + of_topic(topic) for prefix in (QUOTAS, AGES, LIFETIMES, LIMITS))):
        await meta.remove(key)
    for key in await meta.keys(definition_key(topic, "")):
        if "/" not in key.removeprefix(definition_key(topic, "")):  # else it is of another topic, whose name is longer
            await meta.remove(key)
    await forget_rights(meta, PERMISSIONS + of_topic(topic))
    # Whoever adds a schema meanwhile may have listed it before its definition went, and looks for that afterwards only.
    await meta.remove(schema_key(topic))


async def value_of(meta: Records, key: str) -> bytes | None:
    """A record's value, None if there is no record. Raises Unavailable."""
    found = await meta.read(key)
    return None if found is None else found.value


async def values_of(meta: Records, keys: Sequence[str]) -> list[bytes | None]:
    """The values of some records, which are asked for together: where the store can, they travel together. Raises
    Unavailable.
    """
    return await asyncio.gather(*(value_of(meta, key) for key in keys))


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


async def forget_rights(meta: Meta, key: str) -> None:
    """Remove a record that gives rights, if it is there. It is emptied first, and goes when that was told: if this ends
    halfway it is there to be told of when it is asked for again. Raises Unavailable.
    """
    if await meta.read(key) is not None:
        await revise(meta, key, lambda _: b"{}", f"{key} is")
        await tell_changed(meta, key)
        await meta.remove(key)


async def tell_changed(meta: Meta, key: str) -> None:
    """Tell the caches of permissions that a record has changed; write that record first. Raises Unavailable."""
    for _ in range(_TRIES):
        found = await newest_version(meta, CHANGES)
        names = changes_in(found.value)
        if await meta.create(CHANGES, found.number + 1, msgspec.json.encode([key, *names][:MOST_CHANGES])):
            return
    raise Unavailable("permissions are being changed by many; try again")


def changes_in(value: bytes) -> list[str]:
    """The keys of the records that changed last, the newest first; none if they cannot be read: any may have then."""
    try:
        return decoded(value, list[str], "the record of changed permissions")
    except Corrupt:
        return []


def decoded(value: bytes, kind: type[T], what: str) -> T:
    """A record's value, which is JSON. what: for the error, as in "the quota of a". Raises Corrupt."""
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, ValueError) as error:  # the latter where a text is not UTF-8
        raise Corrupt(f"{what} cannot be read: {error}") from error


async def look_at_all(
    names: Sequence[str], read: Callable[[str], Awaitable[T]], known: Mapping[str, T]
) -> tuple[dict[str, T], list[Corrupt]]:
    """Read each name; return the values by name, and the errors of damaged records. A damaged record does not stop the
    others, and keeps its value from `known`. Raises Unavailable.
    """
    found: dict[str, T] = {}
    damage: list[Corrupt] = []
    for name in names:
        try:
            found[name] = await read(name)
        except Corrupt as error:
            damage.append(error)
            if name in known:
                found[name] = known[name]
    return found, damage


class SeldomRead(Generic[T]):
    """The contents of records, read at most every LOOK_MS."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: T | None = None
        self._damage = ""
        self._looked = 0

    async def get(self, read: Callable[[], Awaitable[T]]) -> T:
        """The value read in the last LOOK_MS, or what `read` finds now. Raises what `read` raises, and has then
        forgotten what it knew; Corrupt for DAMAGED_MS without another look.
        """
        now = self._clock.monotonic()
        known, self._known = self._known, None
        if self._damage and now - self._looked < DAMAGED_MS:
            raise Corrupt(self._damage)
        self._damage = ""
        if known is None or now - self._looked >= LOOK_MS:
            try:
                known = await read()
            except Corrupt as error:
                self._damage, self._looked = str(error), now
                raise
            self._looked = now
        self._known = known
        return known

    def fresh_for(self) -> int:
        """For how many milliseconds what is known holds without a look; LOOK_MS if nothing is, or not any more."""
        left = 0 if self._known is None else self._looked + LOOK_MS - self._clock.monotonic()
        return left if left > 0 else LOOK_MS

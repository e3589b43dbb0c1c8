"""Reads the records of all topics, for the controller, which looks at them now and then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from sluice.actors.ports import Meta, Records, Version
from sluice.storage.errors import Corrupt, Unavailable

TOGETHER = 64
"""The number of records asked for at once: if the store can, they travel together, and cost a quarter each."""
Found = Version | Corrupt | Unavailable | None
"""A record, or that it is damaged, or gone, or why the store does not say."""


async def scan(meta: Records, keys: Sequence[str]) -> AsyncIterator[list[tuple[str, Found]]]:
    """The newest version of each, in groups, in the order of the keys. Raises Unavailable where the store says nothing
    of a whole group: then it is away, and the rest is not asked for.
    """

    async def read(key: str) -> Found:
        try:
            return await meta.read(key)
        except (Corrupt, Unavailable) as error:
            return error

    for first in range(0, len(keys), TOGETHER):
        group = keys[first : first + TOGETHER]
        found = await asyncio.gather(*map(read, group))
        refusals = [one for one in found if isinstance(one, Unavailable)]
        if len(refusals) == len(group):
            raise refusals[0]
        yield list(zip(group, found, strict=True))


def value_in(found: Found) -> bytes | None:
    """The contents of a record found by `scan`, None if it is gone. Raises Corrupt if it is damaged, Unavailable if the
    store does not say.
    """
    if isinstance(found, (Corrupt, Unavailable)):
        raise found
    return None if found is None else found.value


class MetaOfOneLook:
    """The records for who goes through all topics: those that the prefixes name are listed once, and each is read once.

    What comes or changes behind that is not seen, which is why nothing can be changed through it.
    """

    def __init__(self, meta: Meta, listed: Sequence[str]) -> None:
        self._meta, self._there = meta, frozenset(listed)
        self._read: dict[str, Version | None] = {}

    @classmethod
    async def scan(cls, meta: Meta, prefixes: Sequence[str]) -> MetaOfOneLook:
        """List them. Raises Unavailable."""
        listed = await asyncio.gather(*(meta.keys(prefix) for prefix in prefixes))
        return cls(meta, [key for keys in listed for key in keys])

    def lists(self, key: str) -> bool:
        """Whether there is such a record."""
        return key in self._there

    async def read(self, key: str) -> Version | None:
        """The newest version, None where none was listed. Raises Unavailable, Corrupt."""
        if key in self._there and key not in self._read:
            self._read[key] = await self._meta.read(key)
        return self._read.get(key)

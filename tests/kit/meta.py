"""Versioned records in memory, as the Meta port."""

from __future__ import annotations

import asyncio

from sluice.actors.ports import Version
from sluice.storage.errors import Unavailable


class MemoryMeta:
    """fail: answers "before" or "after" the next creates, which are then Unavailable."""

    def __init__(self) -> None:
        self.records: dict[str, list[bytes]] = {}
        self.fail: list[str] = []

    async def read(self, key: str) -> Version | None:
        """The newest version."""
        await asyncio.sleep(0)
        versions = self.records.get(key)
        return Version(len(versions), versions[-1]) if versions else None

    async def create(self, key: str, number: int, value: bytes) -> bool:
        """Put if absent."""
        await asyncio.sleep(0)
        fault = self.fail.pop(0) if self.fail else ""
        if fault == "before":
            raise Unavailable("nothing happened")
        versions = self.records.setdefault(key, [])
        done = number == len(versions) + 1
        if done:
            versions.append(value)
        if fault == "after":
            raise Unavailable("it happened, the answer is lost")
        return done

    async def keys(self, prefix: str) -> list[str]:
        """Keys with the prefix."""
        return sorted(key for key in self.records if key.startswith(prefix))

    async def remove(self, key: str, number: int | None = None) -> bool:
        """Forget."""
        if number not in (None, len(self.records.get(key, [])) or number):
            return False
        self.records.pop(key, None)
        return True

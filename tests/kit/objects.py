"""The port of objects over a store in memory, for tests without a simulated world."""

from __future__ import annotations

from storage.frame import Buffer
from storage.objects import MemoryObjects


class PlainObjects:
    """Implements actors.ports.Objects; nothing of it waits or fails."""

    def __init__(self) -> None:
        self.store = MemoryObjects()

    async def put(self, name: str, data: Buffer) -> bool:
        return self.store.put(name, data)

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return self.store.get(name, start, length)

    async def names(self, prefix: str) -> list[str]:
        return self.store.names(prefix)

    async def delete(self, name: str) -> None:
        self.store.delete(name)

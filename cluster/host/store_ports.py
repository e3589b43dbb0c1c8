"""Stores that block, behind the ports of actors: on threads, with what may be repeated repeated.

Reads, lists and deletes are repeated a few times with a growing pause when the store does not answer, because
repeating them is harmless. `put` and `create` are not: after `Unavailable` their outcome is unknown, and only the
caller can tell whether the version that it finds is its own.

Names, ranges and values are checked here. A store that still answers Invalid is set up wrongly or asked through a door
that is shut for the moment; for actors it is Unavailable. An Invalid would pass through them as their own answer, and
tell a client for good that its request is wrong.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from sluice.actors.ports import Version
from sluice.cluster.host.metadata_quota import OF_CLIENTS, MetadataQuota
from sluice.storage.errors import Corrupt, Invalid, Unavailable
from sluice.storage.format.frame import Buffer
from sluice.storage.stores import objects as object_store
from sluice.storage.stores.limits import check_name, check_prefix, check_value
from sluice.storage.stores.metadata import GroupedMetadata, Metadata, NewVersion, Record
from sluice.storage.stores.objects import ObjectStore, check_range

ATTEMPTS = 4
FIRST_PAUSE_MS = 50
THREADS = 16
MOST_TOGETHER = 1_000
"""Records that are read or written in one go: nobody waits for more than these."""

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")


class _Pool:
    """Runs blocking calls on threads, and repeats those that are safe to repeat."""

    def __init__(self, name: str) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=name)

    async def tried(self, call: Callable[..., T], *arguments: Any) -> T:
        """One attempt, which raises what the store raises."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    async def once(self, call: Callable[..., T], *arguments: Any) -> T:
        """One attempt for an actor. Raises Unavailable where the store says Invalid."""
        try:
            return await self.tried(call, *arguments)
        except Invalid as error:
            raise Unavailable(f"the store refuses: {error}") from error

    async def repeated(self, call: Callable[..., T], *arguments: Any) -> T:
        """Try up to ATTEMPTS times while the store is Unavailable, with pauses of 50, 100, 200 ms, up to half more."""
        for attempt in range(ATTEMPTS - 1):
            try:
                return await self.once(call, *arguments)
            except Unavailable:
                await asyncio.sleep(FIRST_PAUSE_MS * 2**attempt * (1 + random.random() / 2) / 1000)
        return await self.once(call, *arguments)

    def close(self) -> None:
        """Let running calls end, take no new ones."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Together(Generic[Q, A]):
    """Questions that travel together: what is asked while some are under way waits, and goes as the next group.

    ask_all: answers a group, one answer for each; what it raises is raised to everyone in the group.
    """

    def __init__(self, ask_all: Callable[[list[Q]], Awaitable[list[A]]], name: str) -> None:
        self._ask_all, self._name = ask_all, name
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._asker: asyncio.Task[None] | None = None

    async def ask(self, question: Q) -> A:
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._asker is None or self._asker.done():
            self._asker = asyncio.get_running_loop().create_task(self._run(), name=self._name)
        return await answer

    async def _run(self) -> None:
        """Group by group, until nothing waits."""
        while self._waiting:
            group, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
            try:
                answers = await self._ask_all([question for question, _ in group])
            except Exception as error:
                for _, waiting in group:
                    if not waiting.done():
                        waiting.set_exception(error)
                continue
            for (_, waiting), answer in zip(group, answers, strict=True):
                if not waiting.done():
                    waiting.set_result(answer)


class AsyncObjects:
    """actors.ports.Objects over a blocking store."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self._pool = _Pool("objects")

    async def put(self, name: str, data: Buffer) -> bool:
        """See actors.ports.Objects. Never repeated here."""
        return await self._pool.once(self.store.put, check_name(name), data)

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(start, length)
        return await self._pool.repeated(self.store.get, check_name(name), start, length)

    async def names(self, prefix: str) -> list[str]:
        return await self._pool.repeated(self.store.names, check_prefix(prefix))

    async def delete(self, name: str) -> None:
        await self._pool.repeated(self.store.delete, check_name(name))

    async def probe(self) -> None:
        """Refuse a store that ignores put-if-absent. Raises Invalid, Unavailable."""
        await self._pool.tried(object_store.probe, self.store)

    def close(self) -> None:
        self._pool.close()


class AsyncMeta:
    """actors.ports.Meta over a blocking store. quota: bytes, see cluster.host.metadata_quota; 0 is any number."""

    def __init__(self, store: Metadata, quota: int = 0) -> None:
        self.store = store
        self._quota = MetadataQuota(quota, lambda: self._pool.repeated(store.size))
        self._pool = _Pool("metadata")
        self._reads: _Together[str, Record | Corrupt | None] | None = None
        self._writes: _Together[NewVersion, bool] | None = None
        if isinstance(store, GroupedMetadata):
            self._reads = _Together(lambda keys: self._pool.repeated(store.read_many, keys), "metadata-reader")
            self._writes = _Together(lambda group: self._pool.once(store.create_many, group), "metadata-writer")

    async def read(self, key: str) -> Version | None:
        """See actors.ports.Meta. What is asked for while a read is under way is read together, as with `create`."""
        check_name(key)
        if self._reads is None:
            record = await self._pool.repeated(self.store.read, key)
        else:
            found = await self._reads.ask(key)
            if isinstance(found, Corrupt):
                raise found
            record = found
        return None if record is None else Version(record.number, record.value)

    async def create(self, key: str, number: int, value: bytes) -> bool:
        """See actors.ports.Meta. Never repeated here.

        What is asked for while a write is under way goes into the next one together, where the store can do that: many
        partitions of a process that are attached to, or whose acknowledgements are made durable, share a sync.
        """
        check_name(key)
        check_value(number, value)
        if key.startswith(OF_CLIENTS):
            await self._quota.add((key, number, value), lambda key: self._pool.repeated(self.store.read, key))
        if self._writes is None:
            return await self._pool.once(self.store.create, key, number, value)
        return await self._writes.ask((key, number, value))

    async def keys(self, prefix: str) -> list[str]:
        return await self._pool.repeated(self.store.keys, check_prefix(prefix))

    async def remove(self, key: str, number: int | None = None) -> bool:
        return await self._pool.repeated(self.store.remove, check_name(key), number)

    async def probe(self) -> None:
        """Refuse a store that ignores put-if-absent. Raises Invalid, Unavailable."""
        await self._pool.tried(self.store.probe)

    def close(self) -> None:
        """Stop the threads and close the store."""
        self._pool.close()
        self.store.close()

"""A small world for the trackers: virtual time, scripted object store and metadata, lives that crash at any effect.

An effect is a call that changes a store (put, delete, create of a version, remove). A script says what happens at the
n-th effect or read of a life; a crash ends the life at once, and the stores stay as they are for the next one.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from typing import Any, cast

from actors.ports import Net, Ports, Rng, Version
from storage.errors import Invalid, NotFound, Unavailable
from storage.frame import Buffer
from tests.timers import call_later

Fault = str
"""ok, crash_before, crash_after, lost_before, lost_after (Unavailable without and with the effect), late (Unavailable,
and the effect comes LATE_MS later, whoever owns the subscription then), refused (Invalid: set up wrongly)."""
LATE_MS = 500


class World:
    """Stores and time, shared by all lives."""

    def __init__(self) -> None:
        self.now = 0
        self.objects: dict[str, bytes] = {}
        self.records: dict[str, list[bytes]] = {}
        self.gets: list[tuple[str, int, int | None]] = []
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0
        self._late: list[asyncio.Task[None]] = []

    async def settle(self) -> None:
        """Let everything run that can run without time passing."""
        ready = cast(Any, asyncio.get_running_loop())._ready
        while True:
            await asyncio.sleep(0)
            if not ready:
                return

    async def advance(self, milliseconds: int) -> None:
        """Let time pass, waking sleepers in order."""
        end = self.now + milliseconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                self.now = max(self.now, at)
                future.set_result(None)
                await self.settle()
        self.now = end

    def later(self, effect: Callable[[], Any]) -> None:
        """Let an effect happen on its own, later."""

        async def happen() -> None:
            await self.sleep(LATE_MS)
            effect()

        self._late.append(asyncio.get_running_loop().create_task(happen()))

    async def sleep(self, milliseconds: int) -> None:
        """Wait in virtual time."""
        if milliseconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self.now + milliseconds, self._count, future))
        await future


class Life:
    """One incarnation of an owner. script(n, what, name) names the fault of the n-th call that touches a store."""

    def __init__(self, world: World, script: Callable[[int, str, str], Fault] | None = None) -> None:
        self.world = world
        self.script = script or (lambda n, what, name: "ok")
        self.calls: list[tuple[str, str]] = []
        self.dead = False
        self.tasks: list[asyncio.Task[None]] = []
        self.events: list[tuple[str, dict[str, object]]] = []
        self.errors: list[BaseException] = []

    @property
    def ports(self) -> Ports:
        """The ports of this life."""
        clock = _Clock(self.world)
        return Ports(
            me="test/dispatcher",
            clock=clock,
            net=cast(Net, None),
            objects=_Objects(self),
            meta=_Meta(self),
            rng=cast(Rng, None),
            spawn=self.spawn,
            log=self.log,
        )

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task of this life."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._done)
        self.tasks.append(task)
        return task

    def log(self, event: str, **fields: object) -> None:
        """Remember a log line."""
        self.events.append((event, fields))

    async def end(self) -> None:
        """Cancel everything that still runs, as the end of the process does."""
        self.dead = True
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def check(self) -> None:
        """No background task may have ended with an error."""
        if self.errors:
            raise self.errors[0]

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.errors.append(cast(BaseException, task.exception()))

    async def call(self, what: str, name: str, effect: Callable[[], Any]) -> Any:
        """Do one call of a port under the script."""
        await asyncio.sleep(0)
        if self.dead:
            await asyncio.get_running_loop().create_future()
        fault = self.script(len(self.calls), what, name)
        self.calls.append((what, name))
        if fault == "crash_before":
            self.dead = True
        if fault == "late":
            self.world.later(effect)
        if fault == "refused":
            raise Invalid(f"scripted: the credentials do not allow {what} {name}")
        if fault in ("lost_before", "late"):
            raise Unavailable(f"scripted: {what} {name}")
        if self.dead:
            await asyncio.get_running_loop().create_future()
        result = effect()
        if fault == "crash_after":
            self.dead = True
            await asyncio.get_running_loop().create_future()
        if fault == "lost_after":
            raise Unavailable(f"scripted: {what} {name}")
        await asyncio.sleep(0)
        return result


class _Clock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> int:
        return self._world.now

    def monotonic(self) -> int:
        return self._world.now

    async def sleep(self, milliseconds: int) -> None:
        await self._world.sleep(milliseconds)

    def timer(self, milliseconds: int, call: Callable[[], object]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(call_later(self, milliseconds, call))


class _Objects:
    def __init__(self, life: Life) -> None:
        self._life = life
        self._objects = life.world.objects

    async def put(self, name: str, data: Buffer) -> bool:
        def effect() -> bool:
            if name in self._objects:
                return False
            self._objects[name] = bytes(data)
            return True

        return bool(await self._life.call("put", name, effect))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        def effect() -> bytes:
            if name not in self._objects:
                raise NotFound(f"there is no object {name}")
            self._life.world.gets.append((name, start, length))
            stop = None if length is None else start + length
            return self._objects[name][start:stop]

        return cast(bytes, await self._life.call("get", name, effect))

    async def names(self, prefix: str) -> list[str]:
        return cast(
            list[str],
            await self._life.call("names", prefix, lambda: sorted(n for n in self._objects if n.startswith(prefix))),
        )

    async def delete(self, name: str) -> None:
        await self._life.call("delete", name, lambda: self._objects.pop(name, None))


class _Meta:
    def __init__(self, life: Life) -> None:
        self._life = life
        self._records = life.world.records

    async def read(self, key: str) -> Version | None:
        def effect() -> Version | None:
            versions = self._records.get(key)
            return Version(len(versions), versions[-1]) if versions else None

        return cast(Version | None, await self._life.call("read", key, effect))

    async def create(self, key: str, number: int, value: bytes) -> bool:
        def effect() -> bool:
            versions = self._records.setdefault(key, [])
            if number != len(versions) + 1:
                return False
            versions.append(bytes(value))
            return True

        return bool(await self._life.call("create", key, effect))

    async def keys(self, prefix: str) -> list[str]:
        return cast(
            list[str],
            await self._life.call("keys", prefix, lambda: sorted(k for k in self._records if k.startswith(prefix))),
        )

    async def remove(self, key: str, number: int | None = None) -> bool:
        def effect() -> bool:
            if number not in (None, len(self._records.get(key, [])) or number):
                return False
            self._records.pop(key, None)
            return True

        return bool(await self._life.call("remove", key, effect))

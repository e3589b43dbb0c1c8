"""Lives of an owner in the simulator: its stores, whose n-th call fails as a test says, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

from sluice.actors.ports import Meta, Net, Objects, Ports, Rng
from sluice.storage.errors import Invalid, Unavailable
from tests.sim.clock import EPOCH_MS, SimClock
from tests.sim.loop import current_loop
from tests.sim.meta import MetaStore, SimMeta, StoreFaults
from tests.sim.objects import ObjectStore, SimObjects

Fault = str
"""ok, crash_before, crash_after, lost_before, lost_after (Unavailable without and with the effect), late (Unavailable,
and the effect comes LATE_MS later, whoever owns the subscription then), refused (Invalid: set up wrongly)."""
LATE_MS = 500
AT_ONCE = StoreFaults(delay_ms=(0, 0))
HERE = "here"


class World:
    """Stores that answer at once, and time; shared by all lives. A test that uses it is `simulated`."""

    def __init__(self) -> None:
        self.loop = current_loop()
        self.skews = {HERE: -EPOCH_MS}
        self.object_store, self.meta_store = ObjectStore(self.loop, 1), MetaStore(self.loop, 1)
        self.object_store.trouble.faults = self.meta_store.trouble.faults = AT_ONCE
        self.objects = self.object_store.objects
        self.records = self.meta_store.records
        self.gets: list[tuple[str, int, int | None]] = []
        self._late: list[asyncio.Task[None]] = []

    @property
    def now(self) -> int:
        """Milliseconds since the beginning."""
        return self.loop.now

    @now.setter
    def now(self, milliseconds: int) -> None:
        """Nothing runs meanwhile, as if the process had been frozen."""
        self.loop.now = milliseconds

    def leap(self, milliseconds: int) -> None:
        """The wall clock is wrong from now on by so much."""
        self.skews[HERE] = milliseconds - EPOCH_MS

    async def settle(self) -> None:
        """Let everything run that can run without time passing."""
        while True:
            await asyncio.sleep(0)
            if not self.loop.busy():
                return

    async def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        await self.settle()
        await self.loop.pause(milliseconds)
        await self.settle()

    def later(self, effect: Callable[[], Awaitable[Any]]) -> None:
        """Let an effect happen on its own, later."""

        async def happen() -> None:
            await self.loop.pause(LATE_MS)
            await effect()

        self._late.append(self.loop.create_task(happen()))


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
        world = self.world
        return Ports(
            me="test/dispatcher",
            clock=SimClock(world.loop, 1, HERE, world.skews),
            net=cast(Net, None),
            objects=cast(Objects, _Scripted(self, SimObjects(world.object_store, HERE))),
            meta=cast(Meta, _Scripted(self, SimMeta(world.meta_store, HERE))),
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

    async def call(self, what: str, name: str, effect: Callable[[], Awaitable[Any]]) -> Any:
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
        result = await effect()
        if fault == "crash_after":
            self.dead = True
            await asyncio.get_running_loop().create_future()
        if fault == "lost_after":
            raise Unavailable(f"scripted: {what} {name}")
        await asyncio.sleep(0)
        return result


class _Scripted:
    """A simulated store. The script of a life decides over each call."""

    def __init__(self, life: Life, store: SimObjects | SimMeta) -> None:
        self._life, self._store = life, store

    def __getattr__(self, what: str) -> Callable[..., Awaitable[Any]]:
        act = getattr(self._store, what)

        async def call(name: str, *arguments: Any) -> Any:
            async def effect() -> Any:
                result = await act(name, *arguments)
                if what == "get":
                    self._life.world.gets.append((name, *arguments))
                return result

            return await self._life.call(what, name, effect)

        return call

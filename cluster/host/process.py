"""The actors of one process, on one event loop: started, reached and ended one by one.

actors.runtime.host has what is done for a single actor. An actor that fails is dropped: its callers learn at once that
it is gone, and its disk is released, so that the next incarnation can open it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sluice.actors.ports import Address, Unknown
from sluice.actors.ports.wire import Packed
from sluice.actors.runtime.host import Actor, Answer, HostedActor, Message, OnAnswer, ended
from sluice.cluster.base.real import SHARED_CONTEXT, Tasks
from sluice.cluster.host.disk import FileDisk
from sluice.storage.errors import SluiceError, Unavailable

logger = logging.getLogger("sluice.process")

A = TypeVar("A", bound=Actor)

RELEASE_S = 5.0
"""How long a write that hangs may keep those waiting who want to open the same disk again."""
MOST_FAILED = 256
"""Of so many actors that failed a process remembers why."""

MakeActor = Callable[[str, Address, Tasks, dict[str, Any]], Actor]
"""An actor of a kind, not yet started, by its address, its background tasks and its settings."""

Asked = Callable[[str, Packed], Coroutine[Any, Any, Answer]]
"""What answers the requests to a process itself, by kind and packed request. Raises nothing but its cancellation."""


@dataclass(eq=False, slots=True)
class _Running:
    """An actor that runs in this process, and what belongs to it."""

    kind: str
    hosted: HostedActor
    tasks: Tasks
    settings: dict[str, Any]


class ProcessActors:
    """Runs actors. name: the process's name, which is the first half of their addresses.

    dropped: called with the name of an actor that has ended because it failed, and why. itself: what is asked in this
    process although it is no actor, by name.
    """

    def __init__(
        self, name: str, make: MakeActor, dropped: Callable[[str, str], None], itself: Mapping[str, Asked] | None = None
    ) -> None:
        self.name = name
        self._itself = itself or {}
        self._asked: dict[asyncio.Task[None], None] = {}
        self._make = make
        self._dropped = dropped
        self._actors: dict[str, _Running] = {}
        self._failed: dict[str, str] = {}
        """Why the last actors that failed here did. Callers that look for them get the reason."""
        self._releasing: dict[asyncio.Task[None], None] = {}

    async def start(self, kind: str, actor: str, settings: dict[str, Any]) -> Address:
        """Start an actor and return its address; a repeated call waits for the first one. Raises its errors."""
        address = f"{self.name}/{actor}"
        if actor not in self._actors:
            await self.released()
        if (known := self._actors.get(actor)) is not None:  # perhaps since a moment ago: another waited as well
            if (error := await asyncio.shield(known.hosted.born)) is not None:
                raise error
            return address
        # A task fails in the loop's next turn at the earliest, when `hosted` is there.
        tasks = Tasks(address, lambda name, error: hosted.task_failed(name, error))
        instance = self._make(kind, address, tasks, settings)
        hosted = HostedActor(instance, lambda work, error: self._broken(actor, work, error), spawn)
        running = self._actors[actor] = _Running(kind, hosted, tasks, settings)
        try:
            await hosted.start()
            if self._actors.get(actor) is not running:
                raise Unavailable(f"{actor} was stopped while it started")
        except BaseException as error:
            if self._actors.get(actor) is running:
                del self._actors[actor]
                self._end(running, f"could not start: {error}")
            raise
        return address

    async def stop(self, actor: str, reason: str = "stopped") -> None:
        """End an actor, and wait until its disk is free; fine if it is not here."""
        running = self._actors.pop(actor, None)
        if running is not None:
            try:
                with contextlib.suppress(SluiceError):
                    await running.hosted.actor.stop(reason)
            except Exception:
                logger.exception("%s/%s did not stop well", self.name, actor)
            finally:
                self._end(running, reason)
        await self.released()

    def drop(self, actor: str, reason: str) -> None:
        """End an actor that failed."""
        running = self._actors.pop(actor, None)
        if running is not None:
            running.hosted.actor.stopped = reason
            self._end(running, reason)
            self._failed[actor] = reason
            while len(self._failed) > MOST_FAILED:
                del self._failed[next(iter(self._failed))]
            self._dropped(actor, reason)

    def accept(self, actor: str, kind: str, message: Message, on_answer: OnAnswer) -> None:
        """Answer a request to an actor of this process, or to the process itself. on_answer: called once."""
        running = self._actors.get(actor)
        if running is not None:
            running.hosted.accept(kind, message, on_answer)
        elif (asked := self._itself.get(actor)) is not None and isinstance(message, Packed):
            task = spawn(_tell(asked(kind, message), on_answer), kind)
            self._asked[task] = None
            task.add_done_callback(self._asked.pop)
        else:
            on_answer(self._missed(actor))

    def _missed(self, actor: str) -> Unknown:
        if actor in self._failed:
            return ended(f"{self.name}/{actor}", self._failed[actor])
        return Unknown(f"no actor {actor} in {self.name}", gone=True)

    def has(self, address: Address) -> bool:
        """Whether the actor at an address runs here."""
        host, _, actor = address.partition("/")
        return host == self.name and actor in self._actors

    def inventory(self, *, starting: bool = False) -> list[tuple[str, Address, dict[str, Any]]]:
        """Kind, address and settings of everything that runs, in order of start. starting: also of what soon will."""
        return [
            (running.kind, f"{self.name}/{actor}", running.settings)
            for actor, running in self._actors.items()
            if running.hosted.serves or (starting and running.hosted.actor.stopped is None)
        ]

    def figures(self, address: Address) -> object:
        running = self._actors.get(address.partition("/")[2])
        return None if running is None else running.hosted.actor.figures

    def serving(self, kind: type[A]) -> list[A]:
        """The actors of a class that have started and have not ended."""
        actors = [running.hosted.actor for running in self._actors.values() if running.hosted.serves]
        return [actor for actor in actors if isinstance(actor, kind)]

    async def close(self) -> None:
        """End every actor, the latest first, and wait until all disks are free."""
        for actor in reversed(list(self._actors)):
            await self.stop(actor, "the process ends")

    async def released(self) -> None:
        """Wait until the disks of those that have ended are free, unless one hangs."""
        if self._releasing:
            await asyncio.wait(list(self._releasing), timeout=RELEASE_S)

    def _broken(self, actor: str, work: str, error: Exception) -> None:
        logger.error("%s/%s failed in %s: %r", self.name, actor, work, error, exc_info=error)
        self.drop(actor, f"{type(error).__name__}: {error}")

    def _end(self, running: _Running, reason: str) -> None:
        running.tasks.cancel_all()
        running.hosted.end(reason)
        disk = running.hosted.actor.ports.disk
        if isinstance(disk, FileDisk):
            # What was handed to the disk before ends first: nothing is written beside the next incarnation.
            task = asyncio.get_running_loop().create_task(asyncio.to_thread(disk.close))
            self._releasing[task] = None
            task.add_done_callback(self._releasing.pop)


def spawn(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task that outlives who asked for it."""
    return asyncio.get_running_loop().create_task(work, name=name, context=SHARED_CONTEXT.context)


async def _tell(asked: Coroutine[Any, Any, Answer], on_answer: OnAnswer) -> None:
    on_answer(await asked)

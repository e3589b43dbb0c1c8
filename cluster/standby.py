"""A broker process that waits: it has imported everything, and takes over the place of one that died.

Starting a process costs a second of processor time, on a machine that has just lost one and where everybody is busy
catching up. That is most of what a failover takes. So one process is kept ready beside those that work. It is made when
the start of a cluster is over, taken when a broker's process has to be replaced, and then made anew. Nothing depends
on it: if it is dead, frozen, away or on the wrong node, a process is started as if there were none.

It is told which slot it serves, and remembers, for the controller that comes after this one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from storage.errors import Unavailable

STANDBY = "broker-standby"
"""What takes the place of a slot in its name."""
FIRST_S, AGAIN_S = 15.0, 2.0
"""Seconds until it is made: after the first process of a broker, or a try that failed; and after one was replaced."""
SERVE_TIMEOUT = 1.0


@dataclass(slots=True)
class HostProcess:
    """A host that this controller knows: its Ray name, its handle, its node's id."""

    name: str
    handle: Any
    node: str


class Standby:
    """At most one waiting process. make: starts it; end: ends one that is of no use."""

    def __init__(self, make: Callable[[], Awaitable[HostProcess]], end: Callable[[HostProcess], None]) -> None:
        self._make, self._end = make, end
        self._waiting: HostProcess | None = None
        self._making: asyncio.Task[None] | None = None
        self._at, self._sooner = 0.0, asyncio.Event()

    @property
    def node(self) -> str | None:
        """The id of the node where it is; None while there is none."""
        return None if self._waiting is None else self._waiting.node

    def found(self, host: HostProcess) -> None:
        """An earlier controller made it."""
        if self._waiting is None:
            self._waiting = host
        else:
            self._end(host)

    async def take(self, slot: str) -> HostProcess | None:
        """The waiting process, which serves this slot from now on; None if there is none that answers."""
        host, self._waiting = self._waiting, None
        if host is None:
            return None
        try:
            await asyncio.wait_for(host.handle.serve.remote(slot), SERVE_TIMEOUT)
        except (RayError, TimeoutError):
            self._end(host)
            return None
        return host

    def refill(self, after: float) -> None:
        """Make one after so many seconds at the latest, unless there is one then. At most one is being made."""
        if self._waiting is not None:
            return
        loop = asyncio.get_running_loop()
        if self._making is None or self._making.done():
            self._at = loop.time() + after
            self._making = loop.create_task(self._fill(), name="standby")
        elif loop.time() + after < self._at:
            self._at = loop.time() + after
            self._sooner.set()

    async def _fill(self) -> None:
        now = asyncio.get_running_loop().time
        while self._waiting is None:
            while (left := self._at - now()) > 0:
                self._sooner.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._sooner.wait(), left)
            self._at = now() + FIRST_S
            with contextlib.suppress(Unavailable):
                self.found(await self._make())

"""Broker processes that wait: they have imported everything, and take over the place of one that died.

Starting a process costs a second of processor time, on a machine that has just lost one and where everybody is busy
catching up. That is most of what a failover takes. So one process is kept ready beside those that work, and one more
for each that is missing there, because its slot took refuge in another one. They are made when the start of a cluster
is over, taken when a broker's process has to be replaced, and then made anew. Nothing depends on them: if they are
dead, frozen, away or on the wrong node, a process is started as if there were none.

One that is taken is told which slot it serves, and remembers, for the controller that comes after this one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from storage.errors import Unavailable

STANDBY = "broker-standby"
"""What takes the place of a slot in its name."""
FIRST_S, AGAIN_S = 15.0, 2.0
"""Seconds until one is made: after the first process of a broker, or a try that failed; and after one was replaced, or
another one was made.
"""
SERVE_TIMEOUT = 1.0
SOON_S = 5.0
"""Who needs one and finds none waits so long at most for the one that is being made."""


@dataclass(slots=True)
class HostProcess:
    """A host that this controller knows: its Ray name, its handle, its node's id.

    slot: whose it is. While no other process can be had it may run what belongs to further slots, too.
    """

    name: str
    handle: Any
    node: str
    slot: str


class Standby:
    """The waiting processes. make: starts one; end: ends one that is of no use; wanted: how many there shall be now."""

    def __init__(
        self,
        make: Callable[[], Awaitable[HostProcess]],
        end: Callable[[HostProcess], None],
        wanted: Callable[[], int],
    ) -> None:
        self._make, self._end, self._wanted = make, end, wanted
        self._waiting: list[HostProcess] = []
        self._making: asyncio.Task[None] | None = None
        self._at, self._sooner = 0.0, asyncio.Event()
        self._tried = asyncio.Event()

    @property
    def waiting(self) -> list[HostProcess]:
        """Those that wait now."""
        return list(self._waiting)

    def found(self, host: HostProcess) -> None:
        """An earlier controller made it."""
        self._waiting.append(host)

    def keep(self, nodes: Container[str]) -> None:
        """Give up those on other nodes: they died with theirs."""
        for host in [host for host in self._waiting if host.node not in nodes]:
            self._waiting.remove(host)
            self._end(host)

    async def take(self, host: HostProcess, slot: str) -> bool:
        """Let a waiting process serve this slot from now on; False if it does not answer, or was taken before."""
        if host not in self._waiting:
            return False
        self._waiting.remove(host)
        try:
            await asyncio.wait_for(host.handle.serve.remote(slot), SERVE_TIMEOUT)
        except (RayError, TimeoutError):
            self._end(host)
            return False
        host.slot = slot
        return True

    def refill(self, after: float) -> None:
        """Make what is wanted, the first after so many seconds at the latest. One at a time is being made."""
        if len(self._waiting) >= self._wanted():
            return
        loop = asyncio.get_running_loop()
        if self._making is None or self._making.done():
            self._at = loop.time() + after
            self._making = loop.create_task(self._fill(), name="standby")
        elif loop.time() + after < self._at:
            self._at = loop.time() + after
            self._sooner.set()

    async def soon(self) -> None:
        """Wait until there is one, which is made now; or until that failed, or took SOON_S seconds."""
        if self._waiting:
            return
        self._tried.clear()
        self.refill(0.0)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._tried.wait(), SOON_S)

    async def _fill(self) -> None:
        now = asyncio.get_running_loop().time
        while len(self._waiting) < self._wanted():
            while (left := self._at - now()) > 0:
                self._sooner.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._sooner.wait(), left)
            self._at = now() + FIRST_S
            with contextlib.suppress(Unavailable):
                self._waiting.append(await self._make())
                self._at = now() + AGAIN_S
            self._tried.set()

"""Finds the process of the controller for everybody who calls it: one of several candidates
(actors.controller.candidate).

The candidates know which of them is in office. They are asked when a call of the controller brought no answer or takes
long. They are also asked now and then, because all candidates that were known at first may later be on machines that
are away. The candidate with the highest epoch is called, also in place of one that was called before and is silent:
every request to the controller may be repeated. The silent one may have removed what the next one does not find, and
its answer is lost. The caller then gets no answer (`Unknown`), and knows what it has asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sluice.actors.controller.candidate import NAME
from sluice.actors.messages import Leading, WhoLeads
from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import Reply
from sluice.storage.errors import NotFound, SluiceError

PATIENCE_S = 1.0
"""A call of the controller that takes longer is a reason to ask."""
AGAIN_FIRST_S, AGAIN_MOST_S = 1.0, 10.0
"""Between looks at who the candidates are: at first, and when they have changed; and later. In a cluster that has just
started they come one after the other.
"""
ASK_MS = 1_000
NAMES_S = 2.0
"""Ray, which names the candidates, may be silent for minutes, in which those that are known are to be asked again."""

R = TypeVar("R", bound=Reply)
Ask = Callable[[str, WhoLeads, int], Awaitable[Leading | Unknown]]
"""Ask an actor of a process, by its address and with a time-out in milliseconds."""
Call = Callable[[str, int], Awaitable[R | Unknown]]
"""Call the controller in a process, with a time-out in milliseconds."""


class ControllerSearch:
    """Belongs to one event loop. host: the process of the controller, as far as is known.

    names: says which candidates there are, for when none of those that are known answers.
    """

    def __init__(self, host: str, ask: Ask, names: Callable[[], Awaitable[list[str]]] | None = None) -> None:
        self.host = host
        self._ask, self._names = ask, names
        self._candidates: dict[str, None] = {host: None}
        self._epoch = 0
        self._looking: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def call(self, call: Call[R], timeout: int) -> R | Unknown:
        """Call the controller, or its successor if another candidate takes office meanwhile."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout / 1000
        before = ""
        self._keep_up()
        while True:
            host = self.host
            calling = asyncio.ensure_future(call(host, max(1, round((deadline - loop.time()) * 1000))))
            try:
                while not (await asyncio.wait([calling], timeout=PATIENCE_S))[0] and self.host == host:
                    self._look()
                if calling.done() and not isinstance(calling.result(), Unknown):
                    return calling.result()
            except NotFound as error:
                if not before:
                    raise
                return Unknown(f"{before} was asked first, and {host} says: {error}")
            finally:
                calling.cancel()
            if self.host == host:
                answer = calling.result()
                await asyncio.wait([self._look()], timeout=max(0.0, deadline - loop.time()))
                if self.host == host:
                    return answer
            before = host

    def close(self) -> None:
        """Ask nobody any more."""
        for task in (self._looking, self._keeping):
            if task is not None:
                task.cancel()

    def _look(self) -> asyncio.Task[None]:
        """Ask the candidates, unless that is being done."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._ask_all(), name="search for the controller")
        return self._looking

    def _keep_up(self) -> None:
        """The controller is called: from now on, know who the candidates are, and be connected to each."""
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep(), name="candidates for the controller")

    async def _keep(self) -> None:
        pause = AGAIN_FIRST_S
        while True:
            known = set(self._candidates)
            if (told := await self._told_by(self.host)) is not None:
                for host in told.candidates:
                    await self._told_by(host)
            pause = min(2 * pause, AGAIN_MOST_S) if known == set(self._candidates) else AGAIN_FIRST_S
            await asyncio.sleep(pause)

    async def _ask_all(self) -> None:
        if not await self._any_of(list(self._candidates)) and self._names is not None:
            try:
                names = await asyncio.wait_for(self._names(), NAMES_S)
            except TimeoutError:
                return
            await self._any_of([name for name in names if name not in self._candidates])

    async def _any_of(self, hosts: list[str]) -> bool:
        """Whether one of these says who the controller is."""
        return any(told is not None for told in await asyncio.gather(*map(self._told_by, hosts)))

    async def _told_by(self, host: str) -> Leading | None:
        """Ask a candidate which one is in office; None without an answer, or if it knows of no controller."""
        try:
            told = await self._ask(f"{host}/{NAME}", WhoLeads(), ASK_MS)
        except SluiceError:
            return None
        if isinstance(told, Unknown) or not told.host:
            return None
        if told.epoch > self._epoch:
            self._epoch, self.host = told.epoch, told.host
        if told.epoch == self._epoch:
            self._candidates = dict.fromkeys([self.host, *told.candidates])
        return told

"""Which bookies exist, where they are now, and which of them to prefer.

A ledger names bookies by stable ids; their addresses change with every restart. The list comes from outside and is
cached; a bookie that failed a moment ago is chosen again only when there is nobody else. None of this is a matter
of safety: the quorum rules hold whomever one asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sluice.actors.messages import BookieList
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.ports.wire import Reply, Request
from sluice.actors.runtime.waiting import ask
from sluice.storage.errors import Conflict, SluiceError, Unavailable

R = TypeVar("R", bound=Reply)

REFRESH_MS = 500
AVOID_MS = 10_000


class NoAnswer(Unavailable):
    """The bookie did not answer: the request has happened, will happen later, or never will."""


class Bookies:
    """The bookies that this actor knows."""

    def __init__(self, ports: Ports, source: Callable[[], Awaitable[BookieList]]) -> None:
        self._ports = ports
        self._source = source
        self._addresses: dict[str, Address] = {}
        self._writable: list[str] = []
        self._leaving: list[str] = []
        self._avoid: dict[str, int] = {}
        self.frames = 1
        """The newest kind of frame that all processes of the cluster read, as last heard."""
        self._fetched: int | None = None
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Ask for the list again, unless it is fresh. Keeps the old list when the answer fails to come."""
        async with self._lock:
            now = self._ports.clock.monotonic()
            if self._fetched is not None and now - self._fetched < REFRESH_MS:
                return
            try:
                known = await self._source()
            except Unavailable as error:
                self._ports.log("bookies_unknown", error=str(error))
                return
            self._fetched = self._ports.clock.monotonic()
            self._addresses.update(zip(known.ids, known.addresses, strict=True))
            self._writable = [name for name in known.ids if name not in known.read_only]
            self._leaving, self.frames = known.leaving, known.frames

    async def check_frames(self, kind: int) -> None:
        """Raises Conflict while a process of the cluster reads no frames of this kind."""
        if self.frames < kind:
            await self.refresh()
        if self.frames < kind:
            raise Conflict("an older process of the cluster reads no runs of several producers")

    async def ever(self) -> list[str]:
        """Ids of all bookies that ever served in this cluster, in order, whether they are there now or not.

        Raises Unavailable.
        """
        cookies = await self._ports.meta.keys("bookies/")
        return sorted({*self._addresses, *(key.split("/")[1] for key in cookies)})

    def writable(self) -> list[str]:
        """Ids of the bookies that take new runs, as last heard."""
        return list(self._writable)

    def suspect(self, bookie: str) -> None:
        """Avoid a bookie that just failed for AVOID_MS, and look its address up again."""
        self._avoid[bookie] = self._ports.clock.monotonic() + AVOID_MS

    def suspected(self, bookie: str) -> bool:
        """Whether it failed a moment ago."""
        return self._avoid.get(bookie, -1) > self._ports.clock.monotonic()

    def candidates(self, exclude: Sequence[str]) -> list[str]:
        """Writable bookies in random order, then those that are about to leave, then those that failed lately.

        In the order of their ids where all live in this process. They share a disk then, and appends to several
        partitions cost the fewest syncs if their ledgers lie on the same bookies.
        """
        order = [name for name in self._writable if name not in exclude]
        process = self._ports.me.partition("/")[0]
        if any(self._addresses[name].partition("/")[0] != process for name in self._writable):
            for last in range(len(order) - 1, 0, -1):
                other = self._ports.rng.randrange(last + 1)
                order[last], order[other] = order[other], order[last]
        return sorted(order, key=lambda name: (self.suspected(name), name in self._leaving))

    async def choose(self, size: int) -> tuple[str, ...]:
        """An ensemble for a new ledger. Raises Unavailable when there are too few bookies."""
        await self.refresh()
        order = self.candidates(())
        if len(order) < size:
            raise Unavailable(f"{size} bookies are needed, {len(order)} can be written to")
        return tuple(order[:size])

    async def ask(self, bookie: str, request: Request[R], timeout: int) -> R:
        """Call a bookie by id. Raises its refusal, or NoAnswer; then the bookie is suspect for a while."""
        address = self._addresses.get(bookie)
        if address is None or bookie in self._avoid:  # however long ago it failed: it may be elsewhere since then
            await self.refresh()
            address = self._addresses.get(bookie)
        if address is None:
            raise NoAnswer(f"bookie {bookie} is not known")
        reply = self._heard(bookie, await self._ports.net.call(address, request, timeout))
        if isinstance(reply, SluiceError):
            raise reply
        return reply

    def ask_now(
        self, bookie: str, request: Request[R], timeout: int, on_answer: Callable[[R | SluiceError], None]
    ) -> bool:
        """Call a bookie by id without a task. on_answer: called once, with the reply, its refusal or NoAnswer.

        False: its address must be looked up first, and it was not called.
        """
        address = self._addresses.get(bookie)
        if address is None or bookie in self._avoid:
            return False
        ask(self._ports, address, request, timeout, lambda outcome: on_answer(self._heard(bookie, outcome)))
        return True

    def _heard(self, bookie: str, outcome: R | Unknown | SluiceError) -> R | SluiceError:
        if isinstance(outcome, Unknown):
            self.suspect(bookie)
            return NoAnswer(f"bookie {bookie}: {outcome.reason}")
        if not isinstance(outcome, SluiceError):
            self._avoid.pop(bookie, None)
        return outcome

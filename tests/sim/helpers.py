"""A tiny cluster of counters, to test the simulator itself: an actor that numbers requests and writes them down."""

from __future__ import annotations

from sluice.actors.messages import Alive, LedgerList, ListLedgers, Ping, Stats, Text
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.ports.wire import Reply
from sluice.actors.runtime.host import Actor
from sluice.storage.errors import NotFound
from tests.sim.world import World


class Counter(Actor):
    """Answers `ListLedgers` with how often it was asked, as its disk remembers it."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self.asked = 0
        self.executed = 0

    async def start(self) -> None:
        """Read the count back."""
        if self.ports.disk is not None:
            self.asked = await self.ports.disk.size("count")

    async def on_list_ledgers(self, request: ListLedgers) -> LedgerList:
        """Count durably, then answer."""
        self.executed += 1
        if self.ports.disk is not None:
            at = await self.ports.disk.append("count", [b"x"], sync=True)
            self.asked = max(self.asked, at + 1)
        else:
            self.asked += 1
        return LedgerList(ledgers=[self.asked])

    async def on_stats(self, request: Stats) -> Reply:
        """Refuse, to see an error travel."""
        raise NotFound("no stats here")

    async def on_ping(self, request: Ping) -> Reply:
        """Never reached: `handle` answers a ping itself."""
        return Text(json="")


async def ask(ports: Ports, to: Address, timeout: int = 200) -> int | None:
    """One question; None if the answer is unknown."""
    reply = await ports.net.call(to, ListLedgers(), timeout)
    return None if isinstance(reply, Unknown) else reply.ledgers[0]


async def ping(ports: Ports, to: Address, timeout: int = 200) -> Alive | Unknown:
    """Is anybody there?"""
    return await ports.net.call(to, Ping(), timeout)


def make_world(seed: int) -> World:
    """A fresh world."""
    return World(seed)

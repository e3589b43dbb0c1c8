"""Drains nodes: what runs on a machine that is about to be taken down goes elsewhere first.

Owners leave before anybody has to miss them. Each of their processes gets a successor on another node; only then the
owners in it end, a group at a time, and begin there. Who asks where they are meanwhile waits for that. When no owner is
left the machine's gateway ends, and its clients connect to another one. The bookies there are chosen for new ledgers
only if there are no others. Unless they keep their ledgers, because the machine comes back with its disk, the topics
copy what they hold (`actors/controller/auditor.py`). They serve until their machine goes: until then their copies
count.

A node that is drained has a record in the metadata, so the next controller goes on with it. Ray gives a node that joins
a new id, so a machine that comes back is used again without anybody's word; the record of the node that it was is
forgotten then.

If several nodes are on one machine its gateway and its bookies stay until the last of them goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from sluice.actors.controller.auditor import ReplicationAuditor
from sluice.actors.controller.supervisor import OWNERS, Supervisor
from sluice.actors.messages import DrainNode, NodeDrain
from sluice.actors.policies.policy_records import decoded
from sluice.actors.ports import Node, Places, Ports
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import Conflict, Corrupt, Invalid, NotFound, SluiceError, Unavailable

LOOK_MS = 500
AT_ONCE = 64
"""The number of owners of a process that move together."""
DRAINED = "drained/"
"""The prefix of the metadata keys, which end in the id of a node."""
LEAST_PREFIX = 4
"""Characters of an id that name a node."""


@dataclass(slots=True)
class Drain:
    """A node that is drained. address: of its machine. bookies: those that leave; none if they keep their ledgers."""

    node: str
    address: str
    bookies: list[str] = field(default_factory=list)
    empty: bool = False
    """Whether no owner is left there."""


class _DrainRecord(msgspec.Struct):
    """In the metadata: see Drain."""

    address: str
    bookies: list[str] = []


def drain_in(node: str, value: bytes) -> Drain:
    """Decode the record of a drained node. Raises Corrupt."""
    said = decoded(value, _DrainRecord, f"that node {node} is drained")
    return Drain(node, said.address, said.bookies)


class NodeDrainer:
    """Knows the nodes that are drained, and drains them. most_copies: on how many bookies a topic keeps its ledgers."""

    def __init__(
        self,
        ports: Ports,
        places: Places,
        supervisor: Supervisor,
        auditor: ReplicationAuditor,
        most_copies: Callable[[], Awaitable[tuple[int, str]]],
    ) -> None:
        self._ports, self._places, self._supervisor = ports, places, supervisor
        self._auditor, self._most_copies = auditor, most_copies
        self._drains: dict[str, Drain] = {}
        self._wake = Signal()
        self._known = self._runs = False
        self._asking = asyncio.Lock()
        """Requests of operators are carried out in turn: a withdrawal comes behind the requests before it."""
        self._problem = ""

    def leaving(self) -> tuple[str, ...]:
        """The bookies whose ledgers are to be elsewhere."""
        return tuple(sorted(bookie for drain in self._drains.values() for bookie in drain.bookies))

    def spared(self) -> list[str]:
        """The machines that need no gateway any more."""
        return [drain.address for drain in self._drains.values() if drain.empty]

    def nodes(self) -> list[str]:
        """Ids of the nodes that are drained, in order."""
        return sorted(self._drains)

    async def resume(self) -> None:
        """Go on with what an earlier controller was told. Never raises: what fails now is tried again."""
        try:
            if len(await self._places.nodes()) < 2:
                self._known = True  # one alone is never drained
                return
            await self._load()
        except SluiceError as error:
            self._ports.log("drains_unknown", error=str(error))
            self._go_on()

    async def _load(self) -> None:
        for key in await self._ports.meta.keys(DRAINED):
            try:
                newest = await self._ports.meta.read(key)
                if newest is not None:
                    self._enter(drain_in(key.removeprefix(DRAINED), newest.value))
            except Corrupt as error:  # it is no answer for the others, and its node is withdrawn or drained again
                self._ports.log("drain_unknown", key=key, error=str(error))
        self._known = True

    def _enter(self, drain: Drain) -> None:
        self._drains.setdefault(drain.node, drain)
        self._places.cordon(self.nodes())
        self._go_on()

    def _go_on(self) -> None:
        if not self._runs:
            self._runs = True
            self._ports.spawn(self._run(), "drain")
        self._wake.set()

    async def _run(self) -> None:
        """As long as a node is drained."""
        while self._drains or not self._known:
            self._wake.clear()
            await self._wake.wait(self._ports, LOOK_MS)
            try:
                if not self._known:
                    async with self._asking:  # else a record that is withdrawn meanwhile would count again
                        await self._load()
                await self._turn()
                self._problem = ""
            except SluiceError as error:
                self._problem = str(error)
                self._ports.log("drain_waits", error=str(error))
        self._runs = False

    # -- what operators ask --------------------------------------------------------------------------------------------

    async def ask(self, request: DrainNode) -> NodeDrain:
        """Begin to drain a node, or say how that stands. See messages.DrainNode.

        Raises Unavailable while it is not known what an earlier controller was told.
        """
        async with self._asking:
            if not self._known:
                await self._load()
            nodes = await self._places.nodes()
            node = self._named(request.node, nodes)
            if request.withdrawn:
                await self._withdraw(node.id)
                return NodeDrain(node=node.id, address=node.address, done=True, drained=False)
            if node.id not in self._drains:
                if request.look:
                    return NodeDrain(node=node.id, address=node.address, drained=False)
                await self._begin(node, nodes, request.keep_ledgers)
            drain = self._drains[node.id]
        return await self._progress(drain)

    def _named(self, name: str, nodes: list[Node]) -> Node:
        """Raises NotFound, and Invalid if several nodes are meant."""
        found = [node for node in nodes if node.address == name] or [node for node in nodes if node.id == name]
        if len(name) >= LEAST_PREFIX and not found:
            found = [node for node in nodes if node.id.startswith(name)]
        if not found:
            known = ", ".join(f"{node.id[:12]} on {node.address}" for node in nodes)
            raise NotFound(f"there is no node {name!r}; there are {known}")
        if len(found) > 1:
            ids = ", ".join(node.id[:12] for node in found)
            raise Invalid(f"{name!r} may be any of the nodes {ids}: name one by its id")
        return found[0]

    async def _begin(self, node: Node, nodes: list[Node], keep_ledgers: bool) -> None:
        others = [each for each in nodes if each.id != node.id and each.id not in self._drains]
        if not others:
            raise Invalid(f"{node.id[:12]} is the last node that can be used: nothing can move away from it")
        bookies: list[str] = []
        if not keep_ledgers and all(each.address != node.address for each in nodes if each.id != node.id):
            bookies = await self._bookies_of(node.id)
            await self._check_rest(bookies)
        drain = Drain(node.id, node.address, bookies)
        value = msgspec.json.encode(_DrainRecord(drain.address, bookies))
        if not await self._ports.meta.create(DRAINED + node.id, 1, value):
            # Another controller, or an earlier try whose answer the store has lost, wrote the record: that holds.
            known = await self._ports.meta.read(DRAINED + node.id)
            if known is None:
                raise Conflict(f"somebody else withdraws {node.id[:12]} at this moment; ask again")
            drain = drain_in(node.id, known.value)
        self._ports.log("drain_begins", node=node.id, address=node.address, bookies=drain.bookies)
        self._enter(drain)

    async def _bookies_of(self, node: str) -> list[str]:
        """Which leave is decided once: raises Unavailable while that of one is not known, unless it is lost."""
        lost, known = self._supervisor.lost(), self._supervisor.of_kind("bookie")
        unknown = [each.settings["bookie"] for each in known if not each.address]
        if missing := [bookie for bookie in unknown if bookie not in lost]:
            raise Unavailable(
                f"{', '.join(missing)} is being started, and may be there: ask again, or use --keep-ledgers if the "
                "machine comes back with its disk"
            )
        running = [each for each in known if each.address]
        return [each.settings["bookie"] for each in running if await self._places.node_of(each.address) == node]

    async def _check_rest(self, bookies: list[str]) -> None:
        """Raises Invalid if too few bookies would be left for the topics' ledgers."""
        gone = (*bookies, *self.leaving(), *self._supervisor.lost())
        left = [each for each in self._supervisor.of_kind("bookie") if each.settings["bookie"] not in gone]
        copies, topic = await self._most_copies()
        if bookies and copies > len(left):
            raise Invalid(
                f"topic {topic} keeps each ledger on {copies} bookies, and {len(left)} would be left: add bookies, or "
                "use --keep-ledgers if the machine comes back with its disk"
            )

    async def _withdraw(self, node: str) -> None:
        await self._ports.meta.remove(DRAINED + node)
        if self._drains.pop(node, None) is not None:
            self._ports.log("drain_withdrawn", node=node)
        self._places.cordon(self.nodes())

    async def _progress(self, drain: Drain) -> NodeDrain:
        owners = gateways = 0
        for entry in self._supervisor.all():
            if entry.kind in OWNERS and entry.address and await self._places.node_of(entry.address) == drain.node:
                owners += 1
            gateways += entry.kind == "gateway" and drain.empty and entry.settings["machine"] == drain.address
        told = not drain.bookies or self._auditor.knows_left(drain.bookies)
        fragments = self._auditor.remaining() if drain.bookies else 0
        return NodeDrain(
            node=drain.node,
            address=drain.address,
            owners=owners,
            gateways=gateways,
            fragments=fragments,
            done=drain.empty and not owners and not gateways and told and not fragments,
            problem=self._problem,
        )

    # -- the work ------------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        nodes = await self._places.nodes()
        machines = await self._places.machines()
        live = {node.id: node.address for node in nodes}
        for drain in list(self._drains.values()):
            if drain.node in live:
                await self._empty(drain, [node for node in nodes if node.address == drain.address])
            elif drain.address not in machines or drain.address in live.values():
                await self._withdraw(drain.node)  # it has ended

    async def _empty(self, drain: Drain, beside: list[Node]) -> None:
        """Move the owners that are left on a node. beside: all nodes of its machine."""
        for host in await self._places.vacate(drain.node):
            here = [
                entry
                for entry in self._supervisor.all()
                if entry.kind in OWNERS and entry.address.partition("/")[0] == host
            ]
            for first in range(0, len(here), AT_ONCE):
                await self._supervisor.move(here[first : first + AT_ONCE])
            if not here:
                await self._places.dismiss(host)
        left = await self._places.vacate(drain.node)
        drain.empty = not left and all(node.id in self._drains for node in beside)

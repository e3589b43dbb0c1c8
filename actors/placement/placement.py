"""The decisions of placement, without I/O: each slot gets a process.

A bookie has a process of its own. Topics and dispatchers share a pool of broker processes. Each new process goes to the
node that runs the fewest of its sort, so bookies are spread as far as the nodes go, and brokers too.

Each machine has a gateway for clients of Pulsar, in a process that counts for no node and serves nothing else.

A client of a lost partition must not wait until a process starts. The slots of a lost broker process go to a standby
process; without one they fall back to another broker process, their *fallback*. When nothing was lost for a while, each
slot in a fallback gets a process of its own: its actors are ended in the fallback, and started in that process as soon
as a client needs them.

A bookie belongs to its disk. It is tried first on the machine where it ran, then on one machine after another, and its
cookie says whether the disk is its own. If the machine where it ran is away, no refusal elsewhere means that its disk
is lost.
"""

from __future__ import annotations

from typing import Any

from sluice.actors.placement.slots import (
    BROKER,
    STANDBY,
    HostProcess,
    Times,
    is_broker,
    is_gateway,
    least_loaded,
    slot_for,
    stem,
)
from sluice.actors.placement.standby import Standby
from sluice.actors.ports import Address, Introduction, Node

Placed = tuple[str, Address, dict[str, Any]]
"""A running actor: kind, address, settings."""


class Placement:
    """The placement that one controller decides: the processes that it knows, and their slots. Times are monotonic
    ms.
    """

    def __init__(
        self, brokers: int, now: int, *, standby: bool = True, times: Times | None = None, candidates: int = 0
    ) -> None:
        """candidates: on so many machines there shall be a process that can be the controller."""
        self.times = times or Times()
        self.candidates = candidates
        self.serving: dict[str, HostProcess] = {}
        """By slot; several slots of brokers may have the same one."""
        self.standby = Standby(self.times)
        self._brokers = brokers
        self._keep_standby = standby
        self._going: dict[str, str] = {}
        """Node that a slot's process is being started on."""
        self._lost: dict[str, None] = {}
        """Slots that had a process before: the next one replaces it."""
        self._lost_at = now
        self._co_located: dict[tuple[str, HostProcess], None] = {}
        """Slots of which something may run in another slot's process."""
        self._found: list[Placed] = []
        """Running actors of processes that introduced themselves, as long as they were not reported yet."""
        self._machines: dict[str, str] = {}
        """The machine where each bookie ran last."""
        self.cordoned: dict[str, None] = {}
        """Ids of the nodes that are spared, because their machine is about to be taken down."""

    # -- what there is ----------------------------------------------------------------------------------------------

    def slot_for(self, kind: str, settings: dict[str, Any]) -> str:
        """The slot of an actor."""
        return slot_for(kind, settings, self._brokers)

    def named(self, name: str) -> HostProcess | None:
        """The serving process of this name."""
        return next((process for process in self.serving.values() if process.name == name), None)

    def knows(self, name: str) -> bool:
        """Whether a process of this name serves or waits."""
        return self.named(name) is not None or any(process.name == name for process in self.standby.waiting)

    def serves_brokers(self) -> bool:
        """Whether any process of a broker is known."""
        return any(is_broker(slot) for slot in self.serving)

    def is_replaced(self, slot: str) -> bool:
        """Whether a broker's slot had a process before, so that the actors that ran there are missed."""
        return is_broker(slot) and slot in self._lost

    def wanted(self) -> int:
        """How many processes shall wait: one, and one for each slot that has none of its own."""
        return 1 + sum(process.slot != slot for slot, process in self.serving.items()) if self._keep_standby else 0

    def on_node(self, node: str) -> list[HostProcess]:
        """The brokers' processes on a node that serve a slot, in order of name."""
        found = {process.name: process for process in self.serving.values() if is_broker(process.slot)}
        return [process for _, process in sorted(found.items()) if process.node == node]

    def served_by(self, process: HostProcess) -> list[str]:
        """The slots that a process serves: those that have fallen back to it, then its own."""
        served = [slot for slot, known in self.serving.items() if known == process]
        return sorted(served, key=lambda slot: slot == process.slot)

    # -- where to --------------------------------------------------------------------------------------------------

    def usable(self, nodes: list[Node]) -> list[Node]:
        """Return the nodes that are not cordoned; all if every node is."""
        return [node for node in nodes if node.id not in self.cordoned] or nodes

    def node_for(self, slot: str, nodes: list[Node]) -> Node:
        """The node for a new process of a slot, or of one that waits. Raises Unavailable."""
        placed = {slot: process.node for slot, process in self.serving.items()} | self._going
        placed = {slot: node for slot, node in placed.items() if not is_gateway(slot)}  # every machine has one
        if slot == STANDBY:
            placed |= {f"{STANDBY}{number}": process.node for number, process in enumerate(self.standby.waiting)}
        return least_loaded(nodes, slot, placed)

    def machine_for(self, bookie: str, nodes: list[Node], tried: list[str]) -> str:
        """The machine to try next: where the bookie's process is, else where it ran, else the one with the fewest.

        Raises Unavailable if all were tried.
        """
        left = [node for node in nodes if node.address not in tried]
        process = self.serving.get(bookie)
        for node in left:
            if (process.node == node.id) if process is not None else (self._machines.get(bookie) == node.address):
                return node.address
        return self.node_for(bookie, self.usable(left)).address

    def is_away(self, bookie: str, tried: list[str], away: list[Node]) -> bool:
        """Whether the machine where it ran is none of those that refused it. away: those that cannot be reached; if it
        is not known where it ran, that may be one of them.
        """
        home = self._machines.get(bookie)
        return home not in tried if home is not None else bool(away)

    def waits_for(self, bookie: str, away: list[str]) -> bool:
        """Whether a machine that is away may have the disk of a bookie: then no other one is tried."""
        home = self._machines.get(bookie)
        return bool(away) if home is None else home in away

    def stand_ins(self, slot: str, node: Node, nodes: list[Node]) -> list[HostProcess]:
        """The waiting processes that are as well placed for this slot as one on `node` would be, the best first: for a
        gateway those on the same machine.
        """
        if is_gateway(slot):
            here = [each.id for each in nodes if each.address == node.address]
            return [each for each in self.standby.waiting if each.node in here]
        if not is_broker(slot):
            return []
        brokers = [process.node for other, process in self.serving.items() if is_broker(other)]
        there = [each for each in self.standby.waiting if brokers.count(each.node) <= brokers.count(node.id)]
        return sorted(there, key=lambda process: (brokers.count(process.node), process.name))

    def fallback(self, nodes: list[Node]) -> HostProcess | None:
        """The broker process on these nodes that serves the fewest slots, if there is one."""
        alive = [node.id for node in nodes]
        served = [process.name for process in self.serving.values()]
        brokers = [each for each in self.serving.values() if is_broker(each.slot) and each.node in alive]
        return min(brokers, key=lambda process: (served.count(process.name), process.name), default=None)

    # -- what happens ----------------------------------------------------------------------------------------------

    def goes(self, slot: str, node: str) -> None:
        """A process for this slot is being looked for; most likely it will be on that node."""
        self._going[slot] = node

    def arrived(self, slot: str) -> None:
        """The reverse of `goes`."""
        self._going.pop(slot, None)

    def serve(self, slot: str, process: HostProcess, *, instead: HostProcess | None = None) -> bool:
        """A process is ready for a slot. False if another one serves it meanwhile and this one is of no use.

        instead: the slot's fallback, from which it moves.
        """
        known = self.serving.get(slot)
        if known is not None and known != instead:
            return False
        process.slot = slot
        self.serving[slot] = process
        return True

    def use_fallback(self, slot: str, process: HostProcess) -> bool:
        """Let a slot that has no process fall back to another one's; False if it has one."""
        if self.serving.setdefault(slot, process) != process:
            return False
        self._co_located[slot, process] = None
        return True

    def started(self, slot: str, process: HostProcess) -> None:
        """An actor of this slot was started in this process; the slot may have moved meanwhile."""
        known = self.named(process.name)  # it may have been left and met again, and serves another slot since
        if known is not None and (self.serving.get(slot) != known or known.slot != slot):
            self.falls_back(slot, known)

    def falls_back(self, slot: str, process: HostProcess) -> None:
        """Note that actors of this slot may run in another slot's process, if that still lives."""
        if process in self.serving.values():
            self._co_located[slot, process] = None

    def note_machines(self, nodes: list[Node]) -> None:
        """Remember where the bookies are that run."""
        addresses = {node.id: node.address for node in nodes}
        for slot, process in self.serving.items():
            if not is_broker(slot) and not is_gateway(slot) and process.node in addresses:
                self._machines[slot] = addresses[process.node]

    def start(self, now: int) -> None:
        """A controller has taken inventory. In a cluster that ran before, missing brokers count as lost."""
        self._lost_at = now
        if self.serving:
            self._lost |= {f"{BROKER}{number}": None for number in range(self._brokers)}

    def introduced(self, name: str, known: Introduction) -> bool:
        """A process that another controller made; False if it is of no use: its slot was given to another one."""
        process = HostProcess(name, known.node, known.slot or stem(name))
        if process.slot == STANDBY:
            self.standby.add(process)
            return True
        other = self.serving.get(process.slot)
        if other is not None and other.slot == process.slot:
            return False
        self.serving[process.slot] = process
        for placed in known.running:
            self._found.append(placed)
            slot = self.slot_for(placed[0], placed[2])
            if slot != process.slot:
                self.serving.setdefault(slot, process)
                self._co_located[slot, process] = None
        return True

    def replaced(self, name: str, known: Introduction) -> list[Placed]:
        """Return the actors of a process that was left, or made by another controller, whose slots other processes
        serve.
        """
        rows = [(self.serving.get(self.slot_for(placed[0], placed[2])), placed) for placed in known.running]
        return [placed for other, placed in rows if other is not None and other.name != name]

    def tell_found(self) -> list[Placed]:
        """The actors that were found running, in order of address; each is returned once."""
        found, self._found = sorted(self._found, key=lambda placed: placed[1]), []
        return found

    def found(self) -> list[Placed]:
        """The actors that were found running and not returned yet."""
        return list(self._found)

    def mark_returned(self, placed: Placed) -> None:
        """This one is returned to its caller."""
        self._found.remove(placed)

    def mark_lost(self, process: HostProcess, now: int) -> list[str]:
        """A process is lost; returns the slots that it served, none if that was known."""
        slots = self.served_by(process)
        for slot in slots:
            self._lost[slot] = None
            del self.serving[slot]
        if slots:
            self._lost_at = now
        self._co_located = {co_located: None for co_located in self._co_located if co_located[1] != process}
        self._found = [placed for placed in self._found if not placed[1].startswith(f"{process.name}/")]
        return slots

    # -- when all is calm ------------------------------------------------------------------------------------------

    def calm_in(self, now: int) -> int:
        """Milliseconds until nothing was lost for long enough."""
        return max(self._lost_at + self.times.calm - now, 0)

    def co_located(self) -> tuple[str, HostProcess] | None:
        """A slot that shall leave its fallback."""
        return next(iter(self._co_located), None)

    def moved_out(self, slot: str, process: HostProcess) -> None:
        """Nothing of this slot is left in that process."""
        self._co_located.pop((slot, process), None)

    def surplus(self) -> HostProcess | None:
        """A waiting process that is not needed."""
        return self.standby.surplus(self.wanted())
